"""Make a set of distinct mazes:     python -m data.maze.prepare --size 17 --train 1000000

Writes test.npy, validation.npy and train.npy (packed rows, see maxrl/tasks/maze.py) and info.json
into data/maze/17x17/. The seed alone decides a stream of mazes without repetitions; the first ones
are the test set, then come validation and training, so that the held-out mazes are the same
whatever --train and --workers are.
"""

import itertools
from functools import partial
from pathlib import Path

import numpy as np

from data.common import (
    SPLITS,
    make_parser,
    make_set,
    one_line_errors,
    parallel,
    parsed,
    progress,
)
from maxrl.system.distributed import cores
from maxrl.system.errors import UsageError
from maxrl.tasks.base import DATA
from maxrl.tasks.maze import generate

OPTIONS = {
    "size": (17, 5, "squares on a side, odd"),
    "train": (0, 0, "training mazes, 0 for 1,000,000, of 9x9 70,000"),
    "test": (256, 0, "test mazes"),
    "validation": (256, 0, "validation mazes"),
    "seed": (0, 0, "decides the mazes"),
    "workers": (cores(), 1, "processes"),
}
VERSION = 1  # of the generator: another stream is another version
CHUNK = 4096  # mazes made at once, part of the stream's definition
TRIES = 20  # draws per maze wanted
FEWEST_TRIES = 1_000_000  # draws at least: the rarest 7x7 comes once in 33,000


def make_chunk(size: int, seed: int, number: int) -> np.ndarray:
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    return generate(size, CHUNK, rng)


def draw_mazes(size: int, wanted: int, seed: int, workers: int) -> np.ndarray:
    """The first `wanted` distinct mazes of the stream (wanted, bytes)."""
    most = max(TRIES * wanted, FEWEST_TRIES)
    chunks = range(-(-most // CHUNK))
    seen: dict[bytes, None] = {}  # a dict keeps the order of first appearance
    with progress(total=wanted, unit=" mazes") as bar:
        for rows in parallel(partial(make_chunk, size, seed), chunks, workers):
            width = rows.shape[1]
            seen.update(dict.fromkeys(rows.view(f"V{width}").ravel().tolist()))
            bar.update(min(len(seen), wanted) - bar.n)
            if len(seen) >= wanted:
                break
    if len(seen) < wanted:
        raise UsageError(
            f"the draws ended at {len(seen):,} distinct mazes of {size}x{size}, {wanted:,} were "
            "asked for: lower --train, --test or --validation"
        )
    packed = b"".join(itertools.islice(seen, wanted))
    return np.frombuffer(packed, np.uint8).reshape(-1, width)


@one_line_errors()
def main(words: list[str] | None = None) -> None:
    parser = make_parser("maze", __doc__, "data/maze/SIZExSIZE")
    args = parsed(parser, words, OPTIONS)
    if args.size % 2 == 0 or args.size > 255:
        raise UsageError(f"the size of a maze is odd and at most 255, got --size {args.size}")
    if not args.train:
        # Prim's algorithm finds about seven in ten of the 9x9 mazes; the others are rare.
        args.train = 70_000 if args.size == 9 else 1_000_000
    counts = {split: getattr(args, split) for split in SPLITS}
    request = {"size": args.size, "seed": args.seed, "generator": VERSION, "counts": counts}
    total = sum(counts.values())

    def write(new: Path) -> None:
        rows = draw_mazes(args.size, total, args.seed, args.workers)
        ends = np.cumsum(list(counts.values()))
        for split, part in zip(counts, np.split(rows, ends[:-1])):
            np.save(new / f"{split}.npy", part, allow_pickle=False)

    folder = args.out or DATA / "maze" / f"{args.size}x{args.size}"
    if make_set(folder, request, args, write):
        print(f"wrote {total:,} mazes of {args.size}x{args.size} to {folder}")


if __name__ == "__main__":
    main()
