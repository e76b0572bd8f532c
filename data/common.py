"""What the prepare.py commands share: one-line errors, options, worker processes, whole data sets.

A data set is a folder with an info.json, which describes the set, and checksums.json. The first is
written last: without it there is no set.
"""

import argparse
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from maxrl.system.arguments import Parser, check_least
from maxrl.system.errors import UsageError, escape_output
from maxrl.system.files import (
    CHECKSUMS,
    DataError,
    read_info,
    read_json,
    write_checksums,
    write_json,
)

# Generated sets draw the held-out splits first, so that these do not depend on --train.
SPLITS = ("test", "validation", "train")
# The files that a data set may consist of.
PARTS = re.compile(
    r"(info|checksums|tokenizer|tokenizer_config)\.json"
    r"|(train|validation|test|\d{4})(-\d{5,})?\.(bin|npy|jsonl)"
)
AHEAD = 8  # jobs per worker that may be finished before their results are used
progress = partial(tqdm, unit_scale=True, disable=None)  # shows a bar only in a terminal


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End with one line for what a user, a disk or Ctrl-C does; decorates main()."""
    escape_output()
    try:
        yield
        return
    except (UsageError, DataError) as error:
        said, code = str(error), UsageError.code
    except (OSError, BrokenExecutor) as error:
        said, code = str(error), 1
    except KeyboardInterrupt:
        said, code = "interrupted, the set is not complete", 130
    print(f"prepare.py: {said}", file=sys.stderr)
    raise SystemExit(code)


def make_parser(name: str, description: str | None, out: str) -> Parser:
    """The parser of `python -m data.NAME.prepare`; `out` is its default directory in words."""
    parser = Parser(f"python -m data.{name}.prepare", description=description)
    parser.add_argument("--out", type=Path, help=f"directory to write (default {out})")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace another set in the directory"
    )
    return parser


def parsed(
    parser: Parser,
    words: list[str] | None,
    numbers: Mapping[str, tuple[int, int, str]] | None = None,
) -> argparse.Namespace:
    """Parse a command line, with an option for each of {name: (default, least value, meaning)}."""
    numbers = numbers or {}
    for name, (default, _, meaning) in numbers.items():
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default %(default)s)"
        )
    args = parser.parse_options(sys.argv[1:] if words is None else words)
    for name, (_, least, _) in numbers.items():
        check_least(name, getattr(args, name), least)
    return args


def parallel(function: Callable, jobs: Iterable, workers: int) -> Iterator:
    """map(function, jobs), in several processes unless `workers` is 1."""
    if workers == 1:
        yield from map(function, jobs)
        return
    # Ctrl-C takes effect between two jobs, because an exception inside the pool's own code can make
    # it hang. It reaches all processes of a terminal; workers inherit this handler, which only
    # notes the signal, and then ignore it.
    stops: list[bool] = []
    before = signal.signal(signal.SIGINT, lambda *_: stops.append(True))
    ignore = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(workers, initializer=signal.signal, initargs=ignore)
    waiting: deque[Future] = deque()
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


def holds(folder: Path, request: dict, sums: Mapping[str, str]) -> bool:
    """Whether a folder holds the very set that is asked for; exits if it holds another one."""
    if not set_files(folder):
        return False
    info = read_info(folder, ("",), "--overwrite") if (folder / "info.json").exists() else {}
    file = folder / CHECKSUMS
    known = read_json(file) if file.exists() else {}
    if not (request.items() <= info.items() and sums.items() <= known.items()):
        raise UsageError(
            f"{folder} holds another set, or part of one: --overwrite replaces it, "
            "--out DIR writes elsewhere"
        )
    print(f"{folder} holds this set already")
    return True


def set_files(folder: Path) -> list[Path]:
    """The files of a data set; nothing else in its folder is ever touched."""
    return sorted(file for file in folder.iterdir() if PARTS.fullmatch(file.name))


def make_set(
    folder: Path,
    info: dict,
    args: argparse.Namespace,
    write: Callable[[Path], None],
    sums: Mapping[str, str] | None = None,
) -> bool:
    """Make a data set and return True, unless the folder holds it already.

    info   says which set it is
    args   the command line
    write  puts the files into the folder that it is given
    sums   checksums of files that the very set has, by name
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not args.overwrite and holds(folder, info, sums or {}):
        return False
    with TemporaryDirectory(prefix="incomplete-", dir=folder) as temporary:
        new = Path(temporary)
        write(new)
        write_json(new / "info.json", info)
        # Images have checksums of their own, in the index.
        names = [file.name for file in set_files(new) if file.suffix != ".bin"]
        write_checksums(new, names)
        # Old and new files never count together: info.json goes first and comes last.
        (folder / "info.json").unlink(missing_ok=True)
        for file in set_files(folder):
            file.unlink()
        for file in sorted(set_files(new), key=lambda file: file.name == "info.json"):
            file.rename(folder / file.name)
    return True
