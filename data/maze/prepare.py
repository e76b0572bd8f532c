"""Make a set of distinct mazes:     python -m data.maze.prepare --size 17 --train 1000000

Writes test.npy, validation.npy and train.npy (packed rows, see maxrl/tasks/maze.py) and info.json
into data/maze/17x17/. The seed alone decides a stream of mazes without repetitions; the first ones
are the test set, then come validation and training, so that the held-out mazes are the same
whatever --train and --workers are. With --source the mazes are those of a file, in its order.
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
from maxrl.system.files import DataError, checksum
from maxrl.system.tables import read_table
from maxrl.tasks.base import DATA
from maxrl.tasks.maze import all_moves_left, generate, goal_of, pack_squares, read_grid, start_of

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
            seen.update(dict.fromkeys(map(bytes, rows)))
            bar.update(min(len(seen), wanted) - bar.n)
            if len(seen) >= wanted:
                break
    if len(seen) < wanted:
        raise UsageError(
            f"the draws ended at {len(seen):,} distinct mazes of {size}x{size}, {wanted:,} were "
            "asked for: lower --train, --test or --validation"
        )
    packed = b"".join(itertools.islice(seen, wanted))
    return np.frombuffer(packed, np.uint8).reshape(wanted, -1)


def mazes_of(file: Path, size: int) -> np.ndarray:
    """The mazes in a file of other people's, packed (M, bytes); DataError for what is none."""
    found = []
    for row, where in read_table(file):
        walls = walls_of(row, size)
        # A border of walls, and a way from the start to the goal.
        whole = walls.shape == (size, size) and (
            walls.sum() - walls[1:-1, 1:-1].sum() == 4 * size - 4
        )
        if not whole or all_moves_left(walls[None])[0, start_of(size)] < 1:
            raise DataError(
                f"{where} has no maze of {size}x{size} squares, walls around it and a way from its "
                "start at the upper left to its goal: --size N is the number of squares on a side"
            )
        found.append(walls)
    packed = pack_squares(np.array(found))
    # A maze that stood in two splits would be learned before it is asked.
    distinct = dict.fromkeys(map(bytes, packed))
    if len(distinct) < len(packed):
        print(f"left out {len(packed) - len(distinct):,} mazes that {file} has more than once")
    return np.frombuffer(b"".join(distinct), np.uint8).reshape(-1, packed.shape[1])


def walls_of(row: dict, size: int) -> np.ndarray:
    """The walls (n, n) of a row with a `grid`, where 1 is a wall, or with a maze's text as `prompt`
    or as its last message; of another shape if it holds no such maze."""
    if "grid" in row:
        return np.array(row["grid"], dtype=object) == 1
    prompt = row.get("prompt") or ""
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    squares = [*(read_grid(text) or {}).values()]
    ends = {start_of(size): "START", goal_of(size): "GOAL"}
    if len(squares) != size**2 or any(squares[at] != name for at, name in ends.items()):
        return np.zeros(0, bool)
    return (np.array(squares) == "WALL").reshape(size, size)


@one_line_errors()
def main(words: list[str] | None = None) -> None:
    parser = make_parser("maze", __doc__, "data/maze/SIZExSIZE")
    parser.add_argument("--source", type=Path, help="a file with mazes (JSONL or parquet)")
    args = parsed(parser, words, OPTIONS)
    if args.size % 2 == 0 or args.size > 255:
        raise UsageError(f"the size of a maze is odd and at most 255, got --size {args.size}")
    origin = {"seed": args.seed, "generator": VERSION}
    if args.source:
        rows = mazes_of(args.source, args.size)
        origin = {"source": checksum(args.source)}
        left = len(rows) - args.test - args.validation
        if left < args.train:
            raise UsageError(
                f"{args.source} has {len(rows)} mazes: lower --test {args.test}, --validation "
                f"{args.validation} or --train"
            )
        args.train = args.train or left
    elif not args.train:
        # Prim's algorithm finds about seven in ten of the 9x9 mazes; the others are rare.
        args.train = 70_000 if args.size == 9 else 1_000_000
    counts = {split: getattr(args, split) for split in SPLITS}
    request = {"size": args.size, **origin, "counts": counts}
    total = sum(counts.values())

    def write(new: Path) -> None:
        if args.source:
            mazes = rows[:total]
        else:
            mazes = draw_mazes(args.size, total, args.seed, args.workers)
        ends = np.cumsum(list(counts.values()))
        for split, part in zip(counts, np.split(mazes, ends[:-1])):
            np.save(new / f"{split}.npy", part, allow_pickle=False)

    folder = args.out or DATA / "maze" / f"{args.size}x{args.size}"
    if make_set(folder, request, args, write):
        print(f"wrote {total:,} mazes of {args.size}x{args.size} to {folder}")


if __name__ == "__main__":
    main()
