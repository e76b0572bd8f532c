"""What the prepare.py files share: one-line errors, options, worker processes, and data sets that appear at once.

A data set is a folder with an info.json, which holds the checksums of its other files. All of them are written in a
temporary folder inside the set's own and then renamed, info.json last: without it there is no set.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from maxrl.errors import UsageError
from maxrl.io.files import DataError, read_info, read_json, sealed, write_text

SPLITS = ("test", "validation", "train")  # the order in which generated sets draw them
HELD_OUT = {"test": "test", "validation": "val"}  # how the names of their files or folders begin
# What a smaller set would leave of a larger one: shards, and files that earlier versions wrote.
SHARDS = re.compile(rf"request\.json|({'|'.join(SPLITS)})-(\d{{5}}|[1-9]\d{{5,}})\.(bin|npy|json)")
AHEAD = 8  # jobs of each worker that may be done before their results are used
progress = partial(tqdm, unit_scale=True, disable=None)  # a bar where there is a terminal


def refuse(sentence: str, code: int = 2) -> NoReturn:
    """Exit with a one-line error."""
    print(f"prepare.py: {sentence}", file=sys.stderr)
    raise SystemExit(code)


@contextmanager
def one_line_errors():
    """Exit with one line for what a user, a disk or Ctrl-C does; as a decorator of main: @one_line_errors()."""
    try:
        yield
    except (UsageError, DataError) as error:
        refuse(f"{error}")
    except OSError as error:
        refuse(
            f"cannot read or write {error.filename or 'a file'} ({error.strerror}): give the same command again when that "
            "is repaired, or choose another directory with --out",
            1,
        )
    except BrokenExecutor:
        refuse(
            "a worker process died, perhaps for lack of memory: try again with fewer --workers", 1
        )
    except KeyboardInterrupt:
        refuse("interrupted, no set was written", 130)


def parse_arguments(parser: argparse.ArgumentParser, words: list[str] | None) -> argparse.Namespace:
    """The options of a command line, --overwrite among them; `again` is the command that replaces what is there."""
    words = sys.argv[1:] if words is None else words
    if "--force" in words:
        refuse("--force is now called --overwrite")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace what the directory holds, if it is something else",
    )
    args = parser.parse_args(words)
    args.again = f"{parser.prog} {shlex.join(words)} --overwrite"
    return args


def add_options(parser: argparse.ArgumentParser, usual: dict, about: dict[str, str]):
    """An option for each of the usual values, of their type; about: what they are, for --help."""
    for name, value in usual.items():
        parser.add_argument(
            f"--{name}",
            type=type(value),
            default=value,
            help=f"{about[name]} (default %(default)s)",
        )


def check_limits(args: argparse.Namespace, least: dict[str, float], **most: float):
    """Refuse the first option, named as on the command line, that is out of its limits or no number."""
    for name, low in least.items():
        value = getattr(args, name.replace("-", "_"))
        high = most.get(name, sys.float_info.max)
        if not low <= value <= high:
            limits = f"at least {low}" + f" and at most {high}" * (name in most)
            refuse(
                f"--{name} must be {limits}, got {value}: try --{name} {max(low, min(value, high))}"
            )


def parallel(function: Callable, jobs: Iterable, workers: int) -> Iterator:
    """map(function, jobs), by several processes unless `workers` is 1."""
    if workers == 1:
        yield from map(function, jobs)
        return
    # Ctrl-C takes effect between two jobs: an exception in the middle of the pool's own work can make it hang. The
    # workers ignore it, or each of them would print a traceback.
    stops = []
    before = signal.signal(signal.SIGINT, lambda *_: stops.append(True))
    pool = ProcessPoolExecutor(
        workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    )
    waiting = deque()
    try:
        for job in jobs:
            waiting.append(pool.submit(function, job))
            if stops:
                raise KeyboardInterrupt
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
            if stops:
                raise KeyboardInterrupt
    finally:
        pool.shutdown(cancel_futures=True)
        signal.signal(signal.SIGINT, before)


def parquet_splits(source: Path) -> dict[str, list[Path]]:
    """The parquet files of every split, by the names of files and folders: training, unless one says another."""
    files = sorted(source.rglob("*.parquet")) if source.is_dir() else [source] * source.exists()
    if not files:
        refuse(
            f"there is no {'*.parquet in' if source.is_dir() else 'file'} {source}: name another with --source"
        )
    splits = {split: [] for split in SPLITS}
    for file in files:
        names = [name.lower() for name in (file.relative_to(source).parts or (file.name,))]
        held_out = [
            split
            for split, start in HELD_OUT.items()
            if any(name.startswith(start) for name in names)
        ]
        splits[(held_out or ["train"])[0]].append(file)
    return splits


def holds(folder: Path, request: dict, again: str, check: Callable[[dict], None]) -> bool:
    """Whether a folder holds the very set asked for. Exits, with the command that replaces it, if it holds anything else."""
    if not any(folder.glob("[!.]*")):
        return False
    what = "a half-written set, or other files"
    with suppress(OSError, ValueError, LookupError, TypeError, UsageError):
        info = read_json(folder / "info.json")
        what = "another set (or a damaged one)"
        if {name: info.get(name) for name in request} == request:
            what = "this set, but it is damaged"
            if "sha256" in info:
                read_info(folder, ("",), "")
                check(info)
                print(f"{folder} holds this set already")
                return True
    refuse(f"{folder} holds {what}: {again} replaces it, --out DIR leaves it and writes elsewhere")


def make_set(
    folder: Path,
    request: dict,
    args: argparse.Namespace,
    write: Callable[[Path], dict],
    check: Callable[[dict], None] = lambda info: None,
) -> dict:
    """Make a data set unless the folder holds it already.

    request: the part of info.json that says which set it is
    write: puts the files into the folder that it is given, returns the rest of info.json
    check: raises an error if the files that have no checksum do not fit info.json
    Returns info.json, {} if the set was there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".unfinished-*"):  # of a command that was killed
        shutil.rmtree(left, ignore_errors=True)
    if not args.overwrite and holds(folder, request, args.again, check):
        return {}
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as temporary:
        new = Path(temporary)
        info = request | write(new)
        write_text(
            new / "info.json", sealed(info, new, sorted(file.name for file in new.glob("*.npy")))
        )
        # Old and new files never count together: info.json goes first and comes last.
        for file in [
            folder / "info.json",
            *filter(lambda file: SHARDS.fullmatch(file.name), folder.iterdir()),
        ]:
            file.unlink(missing_ok=True)
        for file in sorted(new.iterdir(), key=lambda file: file.name == "info.json"):
            os.replace(file, folder / file.name)
    return info
