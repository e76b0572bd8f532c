"""Make a set of distinct mazes:     python -m data.maze.prepare --size 17 --train 1000000
or convert a published one:       python -m data.maze.prepare --size 17 --source FILE.parquet   (or a directory of them)

Writes test.npy, validation.npy and train.npy (packed rows, see maxrl/tasks/maze.py) and info.json into
data/maze/17x17/. The mazes are one stream that the seed alone decides, without repetitions: first those of the test
set, then validation, then training, so that the held-out mazes are the same whatever --train and --workers are. What
is read of a published set, and which of its rows are left out: data/maze/published.py.
"""

import argparse
import itertools
import os
from functools import partial
from pathlib import Path

import numpy as np

from data.common import (
    HELD_OUT,
    SPLITS,
    check_limits,
    make_set,
    one_line_errors,
    parallel,
    parquet_splits,
    parse_arguments,
    progress,
    refuse,
)
from data.maze.published import read_mazes
from maxrl.io.files import checksum
from maxrl.tasks.maze import DIRECTORY, USUAL, generate

DEFAULTS = USUAL | {"train": 1_000_000, "workers": os.cpu_count()}
# Of small sizes: the draws find about seven in ten of the mazes of 9x9, the rest are rare.
FEWER = {
    5: {"train": 2, "test": 0, "validation": 0},
    7: {"train": 100, "test": 19, "validation": 19},
    9: {"train": 70_000},
}
# How many perfect mazes there are: spanning trees of the c x c grid (OEIS A007341). Beyond 17x17 nobody asks for as many.
EXIST = {
    5: 4,
    7: 192,
    9: 100_352,
    11: 557_568_000,
    13: 32_565_539_635_200,
    15: 19_872_369_301_840_986_112,
    17: 126_231_322_912_498_539_682_594_816,
}
VERSION = 1  # of the generator: another stream is another version
CHUNK = 4096  # mazes made at once, part of the stream's definition
TRIES = 20  # draws per maze wanted
FEWEST_TRIES = 1_000_000  # draws at least: the rarest 7x7 comes once in 33,000


def defaults(size: int) -> dict[str, int]:
    return DEFAULTS | FEWER.get(size, {})


def _chunk(size: int, seed: int, number: int) -> np.ndarray:
    return generate(
        size, CHUNK, np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    )


def draw_mazes(size: int, wanted: int, seed: int, workers: int) -> np.ndarray:
    """The first `wanted` distinct mazes of the stream (wanted, bytes); fewer where the draws run out."""
    most = max(TRIES * wanted, FEWEST_TRIES)
    seen = {}  # a dict keeps the order of first appearance
    jobs = range(-(-most // CHUNK))
    with progress(total=wanted, unit=" mazes") as bar:
        for rows in parallel(partial(_chunk, size, seed), jobs, workers):
            seen.update(dict.fromkeys(rows.view(f"V{rows.shape[1]}").ravel().tolist()))
            bar.update(min(len(seen), wanted) - bar.n)
            if len(seen) >= wanted:
                break
    return np.frombuffer(b"".join(itertools.islice(seen, wanted)), np.uint8).reshape(
        -1, rows.shape[1]
    )


def check(args: argparse.Namespace, files: dict[str, list[Path]]) -> None:
    """Refuse what cannot be made, before any work; fills in the defaults."""
    if args.size < 5 or args.size % 2 == 0:
        refuse(
            f"a maze has an odd size of at least 5, got --size {args.size}: try --size {max(5, args.size | 1)}"
        )
    for name, usual in (DEFAULTS if files else defaults(args.size)).items():
        given = getattr(args, name)
        if given is None:
            setattr(args, name, usual)
        elif files and (name not in HELD_OUT or files[name]):
            refuse(
                f"--{name} {given} means nothing to --source {args.source}, which is taken as it is: leave it out"
            )
    check_limits(args, {"train": 1, "test": 0, "validation": 0, "seed": 0, "workers": 1})
    wanted = args.test + args.validation + args.train
    exist = EXIST.get(args.size, wanted)
    if wanted > exist and not files:
        refuse(
            f"only {exist:,} distinct mazes of {args.size}x{args.size} exist, {wanted:,} were asked for (--test "
            f"{args.test} --validation {args.validation} --train {args.train}): lower these or raise --size"
        )


def made(args: argparse.Namespace, counts: dict[str, int]) -> dict[str, np.ndarray]:
    """The mazes of every split, (M, bytes), from the stream."""
    wanted = sum(counts.values())
    rows = draw_mazes(args.size, wanted, args.seed, args.workers)
    if len(rows) < wanted:
        refuse(
            f"the draws ended at {len(rows):,} distinct mazes of {args.size}x{args.size}, {wanted:,} were asked "
            "for: lower --train",
            code=1,
        )
    ends = np.cumsum([*counts.values()])
    return dict(zip(counts, np.split(rows, ends[:-1])))


@one_line_errors()
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m data.maze.prepare", description="Make a set of distinct mazes."
    )
    parser.add_argument("--size", type=int, default=17, help="odd, 5 or more (default %(default)s)")
    parser.add_argument(
        "--source", type=Path, help="parquet file, or directory of such files, to convert instead"
    )
    parser.add_argument(
        "--train", type=int, help="training mazes (default 1000000, of 9x9 70000; of a source all)"
    )
    for name in ("test", "validation"):
        parser.add_argument(
            f"--{name}",
            type=int,
            help=f"{name} mazes (default 256; of a source that has such files all)",
        )
    parser.add_argument("--seed", type=int, help="decides the mazes (default 0)")
    parser.add_argument("--out", type=Path, help="directory to write (default data/maze/SIZExSIZE)")
    parser.add_argument("--workers", type=int, help=f"processes (default {os.cpu_count()})")
    args = parse_arguments(parser, argv)
    files = parquet_splits(args.source) if args.source else {}
    check(args, files)
    counts = {split: getattr(args, split) for split in SPLITS}
    request = {"size": args.size, "seed": args.seed, "generator": VERSION, "counts": counts}
    if files:
        request = {
            "size": args.size,
            "source": {str(file): checksum(file) for part in files.values() for file in part},
            "held_out": {split: counts[split] for split in HELD_OUT if not files[split]},
        }
    folder = args.out or DIRECTORY / f"{args.size}x{args.size}"

    def write(new: Path) -> dict:
        parts = read_mazes(files, args.size, request["held_out"]) if files else made(args, counts)
        for split, rows in parts.items():
            np.save(new / f"{split}.npy", rows, allow_pickle=False)
        return {"counts": {split: len(rows) for split, rows in parts.items()}}

    if info := make_set(folder, request, args, write):
        mebibytes = sum(file.stat().st_size for file in folder.glob("*.npy")) / 2**20
        print(
            f"wrote {sum(info['counts'].values()):,} mazes of {args.size}x{args.size} to {folder} ({mebibytes:.1f} MiB)"
        )


if __name__ == "__main__":
    main()
