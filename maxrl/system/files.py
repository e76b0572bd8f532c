"""Files that are either complete on disk or absent, checksums of directories, and JSON.

A file or directory is written under a temporary name, flushed to disk and renamed, so that a crash
or a power failure never leaves half of it under its final name.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

CHECKSUMS = "checksums.json"


class DataError(ValueError):
    """A file is missing something or damaged; no option of the user is to blame."""


def write_text(path: str | Path, text: str) -> None:
    """Write a text as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file so that it appears complete or not at all."""
    path = Path(path)
    temporary = path.with_name(path.name + ".incomplete")
    try:
        temporary.write_bytes(content)
        flush(temporary)
        os.replace(temporary, path)
    except BaseException:
        # A full disk gets its space back.
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write_json(path: str | Path, value) -> None:
    """Write a JSON file, as `write_text` does."""
    write_text(path, json_text(value))


def json_text(value) -> str:
    """Return the text of a JSON file."""
    return json.dumps(value, indent=2) + "\n"


def flush(path: Path) -> None:
    """fsync a file or directory, so that a rename never reaches the disk before the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no fsync of a directory.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path) -> None:
    """Add checksums to the complete directory `temporary` and rename it to `path`."""
    write_checksums(temporary, sorted(file.name for file in temporary.iterdir()))
    for file in temporary.iterdir():
        # safetensors creates files that only their owner can read.
        with contextlib.suppress(OSError):  # as of a mount on which nobody can change modes
            shutil.copymode(temporary / CHECKSUMS, file)
        flush(file)
    flush(temporary)
    os.rename(temporary, path)
    flush(path.parent)


def write_checksums(directory: Path, names: Iterable[str]) -> None:
    """Write the checksums of a directory's files of these names."""
    sums = {name: checksum(directory / name) for name in names}
    (directory / CHECKSUMS).write_text(json_text(sums))


def checksum(file: str | Path) -> str:
    """Return the SHA-256 of a file."""
    with regular(file).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def regular(file: str | Path) -> Path:
    """Return the path of a file; DataError if it is something else, such as an endless pipe."""
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise DataError(f"{file} is no regular file")
    return Path(file)


def first_problem(directory: str | Path, chosen: Callable[[str], bool] = lambda name: True) -> str:
    """Compare the files of a directory with the checksums that are stored in it.

    chosen  tells by its name whether a file is compared; files that were added later never are

    Returns a sentence about the first missing or damaged file, "" if there is none. An OSError, as
    of a network file system, says nothing about the content and is raised.
    """
    file = Path(directory) / CHECKSUMS
    try:
        sums = read_json(file)
        if file.read_bytes() != json_text(sums).encode():
            return f"{file} is damaged"
        for name, expected in sums.items():
            file = Path(directory) / name
            if chosen(name) and checksum(file) != expected:
                return f"{file} is damaged: it is not what its checksum says"
    except FileNotFoundError:
        return f"{file} is missing"
    except ValueError:
        return f"{file} is damaged"
    return ""


def remove(directory: Path) -> None:
    """Remove a directory under another name, so that one half removed never passes for damaged."""
    gone = directory.rename(f"{directory}.removed")
    # What a network file system cannot remove yet is removed at the next start.
    shutil.rmtree(gone, ignore_errors=True)


def read_json(path: str | Path) -> dict:
    """Read the object in a JSON file; FileNotFoundError, or DataError for any other content."""
    value = parse(regular(path).read_bytes(), str(path))
    if not isinstance(value, dict):
        raise DataError(f"{path} is {value!r:.40}, not an object")
    return value


def parse(text: bytes, where: str):
    """Parse a JSON value; DataError, which names `where`, if it is none in UTF-8.

    NaN and Infinity are accepted, as Python's json writes them.
    """
    try:
        value = json.loads(text.decode())
        # Half of a surrogate pair and very deep nesting can be read, but not written again.
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeError:
        raise DataError(f"{where} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error!s:.100}") from None


def json_lines(path: Path) -> list[tuple[dict, str]]:
    """Return (object, line) for each line of a metrics.jsonl.

    An unfinished last line is left out, and so, with a warning, are lines that a crash has damaged.
    """
    text = ""
    with contextlib.suppress(FileNotFoundError):
        text = regular(path).read_text(errors="replace")
    rows = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            if line.endswith("\n"):
                row = json.loads(line)
                if type(row["step"]) is not int or row["step"] < 0:
                    raise ValueError
                rows.append((row, line))
        except (ValueError, TypeError, LookupError, RecursionError):
            warnings.warn(f"{path}, line {number}, cannot be read and is left out", stacklevel=2)
    return rows


def read_info(folder: Path, starts: tuple[str, ...], fix: str) -> dict:
    """Read info.json of a data set and compare it and some files with their checksums.

    starts  what the names of the other files to compare begin with
    fix     the command that makes the set again, for the DataError about damage

    A set that was put together by hand, or made by an earlier version, may have no checksums.
    """
    starts = ("info.json", *starts)
    try:
        info = read_json(folder / "info.json")
        problem = ""
        if (folder / CHECKSUMS).exists():
            problem = first_problem(folder, lambda name: name.startswith(starts))
    except (ValueError, OSError) as error:
        problem = str(error)
    if problem:
        raise DataError(f"{problem}: {fix} makes the data set again")
    return info
