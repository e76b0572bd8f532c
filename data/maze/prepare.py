"""Make a set of distinct mazes:     python -m data.maze.prepare --size 17 --train 1000000
or convert a published one:       python -m data.maze.prepare --size 17 --source FILE.parquet   (or a directory of them)

Writes test.npy, validation.npy and train.npy (packed rows, see maxrl/tasks/maze.py) and info.json into
data/maze/17x17/. The mazes are one stream that the seed alone decides, without repetitions: first those of the test
set, then validation, then training, so that the held-out mazes are the same whatever --train and --workers are. What
is read of a published set, and which of its rows are left out: data/maze/published.py.
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import shlex
import shutil
import signal
import sys
import tempfile
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import numpy as np
from tqdm import tqdm

from data.maze import published
from data.maze.published import HELD_OUT
from maxrl.tasks.maze import DIRECTORY, USUAL, generate

SPLITS = ("test", "validation", "train")  # in the order of the stream
DEFAULTS = USUAL | {"train": 1_000_000, "workers": os.cpu_count()}
VERSION = 1  # of the generator: another stream is another version
CHUNK = 4096  # mazes made at once, part of the stream's definition
TRIES, FEWEST_TRIES = 20, 1_000_000  # draws per maze wanted, and the least: the rarest 7x7 comes once in 33,000


def count_mazes(size: int) -> int:
    """The number of perfect mazes, spanning trees of the c x c grid: any cofactor of its Laplacian (Kirchhoff).

    The determinant in exact integers by Bareiss' elimination; every division is without remainder.
    """
    c = (size - 1) // 2
    path = np.diag([1] * (c - 1), 1) + np.diag([1] * (c - 1), -1)
    adjacent = np.kron(path, np.eye(c, dtype=int)) + np.kron(np.eye(c, dtype=int), path)
    matrix = (np.diag(adjacent.sum(0)) - adjacent)[1:, 1:].astype(object)  # Python's integers
    pivot = 1
    while len(matrix):
        last, pivot = pivot, matrix[0, 0]  # never 0: the matrix is positive definite
        matrix = (pivot * matrix[1:, 1:] - np.outer(matrix[1:, 0], matrix[0, 1:])) // last
    return pivot


def defaults(size: int) -> dict[str, int]:
    """DEFAULTS, and less where few mazes exist: the draws find about seven in ten of the 100,352 of 9x9, the rest are rare."""
    if size > 9 or (exist := count_mazes(size)) > 2 * DEFAULTS["train"]:  # 11x11 has half a billion
        return DEFAULTS
    train = 7 * exist // 10
    digit = 10 ** (len(str(train)) - 1)
    return DEFAULTS | {"train": train // digit * digit} | {name: min(DEFAULTS[name], exist // 10) for name in HELD_OUT}


def _chunk(job: tuple[int, int, int]) -> np.ndarray:
    size, seed, number = job
    return generate(size, CHUNK, np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,))))


def draw_mazes(size: int, wanted: int, seed: int, workers: int) -> np.ndarray:
    """The first `wanted` distinct mazes of the stream (wanted, bytes); fewer where the draws run out."""
    most = max(TRIES * wanted, FEWEST_TRIES)
    seen = {}  # a dict keeps the order of first appearance
    numbers = itertools.count()
    pool = ProcessPoolExecutor(workers, None, signal.signal, (signal.SIGINT, signal.SIG_IGN)) if workers > 1 else None
    mapped = pool.map if pool else map
    with pool or nullcontext(), tqdm(total=wanted, unit=" mazes", unit_scale=True, disable=None) as bar:
        drawn = 0
        while len(seen) < wanted and drawn < most:
            wave = min(max(workers, math.ceil((wanted - len(seen)) / CHUNK)), 1024)
            jobs = [(size, seed, number) for number in itertools.islice(numbers, wave)]
            for rows in mapped(_chunk, jobs):
                if len(seen) >= wanted or drawn >= most:
                    break
                seen.update(dict.fromkeys(rows.view(f"V{rows.shape[1]}").ravel().tolist()))
                drawn += CHUNK
                bar.update(min(len(seen), wanted) - bar.n)
    return np.frombuffer(b"".join(itertools.islice(seen, wanted)), np.uint8).reshape(-1, rows.shape[1])


def sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def refuse(sentence: str, code: int = 2) -> NoReturn:
    print(f"prepare.py: {sentence}", file=sys.stderr)
    raise SystemExit(code)


def check(args: argparse.Namespace, files: dict[str, list[Path]]) -> None:
    """Refuse what cannot be made, before any work; fills in the defaults."""
    if args.size < 5 or args.size % 2 == 0:
        refuse(f"a maze has an odd size of at least 5, got --size {args.size}: try --size {max(5, args.size | 1)}")
    for name in ("train", "seed", "workers", *HELD_OUT):
        if files and getattr(args, name) is not None and (name not in HELD_OUT or files[name]):
            refuse(f"--{name} {getattr(args, name)} means nothing to --source {args.source}, which is taken as it is: "
                   "leave it out")
    vars(args).update({name: value for name, value in (DEFAULTS if files else defaults(args.size)).items()
                       if getattr(args, name) is None})
    for name, least in {"train": 1, "test": 0, "validation": 0, "seed": 0, "workers": 1}.items():
        if (value := getattr(args, name)) < least:
            refuse(f"--{name} must be at least {least}, got {value}: give --{name} {least} or more")
    # Beyond 17x17 there are more than 10^26, and counting them takes time.
    wanted = args.test + args.validation + args.train
    if not files and args.size <= 17 and wanted > (exist := count_mazes(args.size)):
        refuse(f"only {exist:,} distinct mazes of {args.size}x{args.size} exist, {wanted:,} were asked for (--test "
               f"{args.test} --validation {args.validation} --train {args.train}): lower these or raise --size")


def holds(folder: Path, request: dict, again: str) -> bool:
    """Whether the folder holds the very set requested, every file intact; refuses where it holds anything else, with the
    command that makes it again."""
    names = [f"{split}.npy" for split in SPLITS]
    if not any((folder / name).exists() for name in (*names, "info.json")):
        return False
    try:
        info = json.loads((folder / "info.json").read_text())
        if info == {"counts": info["counts"]} | request | {"sha256": {name: sha256(folder / name) for name in names}}:
            return True
        same = {name: info.get(name) for name in request} == request
        what = "this set, but it is damaged" if same else "another set (or a damaged one)"
    except (OSError, ValueError, KeyError, TypeError):  # info.json is written last
        what = "a half-written set"
    refuse(f"{folder} holds {what}: {again} replaces it, --out DIR leaves it and writes elsewhere")


def write(folder: Path, parts: dict[str, np.ndarray], request: dict) -> None:
    """All files beside their places first, then renamed; without info.json in between, which marks a set complete."""
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as beside:
        beside = Path(beside)
        for split, rows in parts.items():
            np.save(beside / f"{split}.npy", rows, allow_pickle=False)
        info = request | {"counts": {split: len(rows) for split, rows in parts.items()}}
        info |= {"sha256": {f"{split}.npy": sha256(beside / f"{split}.npy") for split in parts}}
        (beside / "info.json").write_text(json.dumps(info, indent=2) + "\n")
        (folder / "info.json").unlink(missing_ok=True)
        for name in (*(f"{split}.npy" for split in parts), "info.json"):
            os.replace(beside / name, folder / name)


def made(args: argparse.Namespace, counts: dict[str, int]) -> dict[str, np.ndarray]:
    """The mazes of every split, (M, bytes), from the stream."""
    wanted = sum(counts.values())
    rows = draw_mazes(args.size, wanted, args.seed, args.workers)
    if len(rows) < wanted:
        refuse(f"the draws ended at {len(rows):,} distinct mazes of {args.size}x{args.size}, {wanted:,} were asked "
               "for: lower --train", code=1)
    ends = np.cumsum([0, *counts.values()])
    return {split: rows[a:b] for split, a, b in zip(counts, ends, ends[1:], strict=False)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m data.maze.prepare", description="Make a set of distinct mazes.")
    parser.add_argument("--size", type=int, default=17, help="odd, 5 or more (default %(default)s)")
    parser.add_argument("--source", type=Path, help="parquet file, or directory of such files, to convert instead")
    parser.add_argument("--train", type=int, help="training mazes (default 1000000, of 9x9 70000; of a source all)")
    for name in ("test", "validation"):
        parser.add_argument(f"--{name}", type=int, help=f"{name} mazes (default 256; of a source that has such files all)")
    parser.add_argument("--seed", type=int, help="decides the mazes (default 0)")
    parser.add_argument("--out", type=Path, help="directory to write (default data/maze/SIZExSIZE)")
    parser.add_argument("--workers", type=int, help=f"processes (default {os.cpu_count()})")
    parser.add_argument("--overwrite", action="store_true", help="replace the set that the directory holds")
    args = parser.parse_args(argv)
    again = shlex.join(["python", "-m", "data.maze.prepare", *(sys.argv[1:] if argv is None else argv), "--overwrite"])

    files = published.parquet_files(args.source) if args.source else {}
    check(args, files)
    counts = {split: getattr(args, split) for split in SPLITS}
    request = {"size": args.size, "seed": args.seed, "generator": VERSION, "counts": counts}
    if files:
        request = {"size": args.size, "source": {str(file): sha256(file) for part in files.values() for file in part},
                   "held_out": {split: counts[split] for split in HELD_OUT if not files[split]}}
    folder = args.out or DIRECTORY / f"{args.size}x{args.size}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".unfinished-*"):  # of a command that was killed
            shutil.rmtree(left, ignore_errors=True)
        if not args.overwrite and holds(folder, request, again):
            print(f"{folder} holds this set already")
            return
        parts = published.read_mazes(files, args.size, request["held_out"]) if files else made(args, counts)
        write(folder, parts, request)
    except OSError as error:
        refuse(f"cannot write {folder} ({error.strerror}): choose another directory with --out", code=1)
    except BrokenExecutor:
        refuse("a process that made mazes died, nothing was written: try again with fewer --workers", code=1)
    except KeyboardInterrupt:
        refuse("interrupted, nothing was written", code=130)
    mebibytes = sum(file.stat().st_size for file in folder.glob("*.npy")) / 2**20
    print(f"wrote {sum(map(len, parts.values())):,} mazes of {args.size}x{args.size} to {folder} ({mebibytes:.1f} MiB)")


if __name__ == "__main__":
    main()
