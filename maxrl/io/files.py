"""Files that are whole on disk or not there (a temporary name, fsync, checksums, then the rename), and JSON that may come from
anywhere: the files of a checkpoint, the lines of a data set."""

import errno
import hashlib
import json
import os
import shlex
import shutil
import warnings
from pathlib import Path

CHECKSUMS = "checksums.json"
LARGEST = (
    1 << 28
)  # bytes of a JSON file; a tokenizer.json of a quarter of a million words has a tenth of it
DEEPEST = 100  # objects within objects; Python's own limit depends on who calls


class DataError(ValueError):
    """What is wrong in a file, and in no option."""


def write_text(path, text: str):
    """Appears whole or not at all, also after the power has failed."""
    path = Path(path)
    temporary = path.with_name(path.name + ".incomplete")
    try:
        temporary.write_text(text, encoding="utf-8")
        flush(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # a disk that is full gets back what it had
        raise
    flush(path.parent)


def write_json(path, value):
    write_text(path, json_text(value))


def json_text(value) -> str:
    """An object of JSON as it stands in a file."""
    return json.dumps(value, indent=2) + "\n"


def flush(path):
    """fsync of a file or directory, so that a rename never gets ahead of the bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path):
    """Makes a directory that was written as `temporary` appear as `path`, with the checksums of all its files."""
    names = sorted(
        file.relative_to(temporary).as_posix() for file in temporary.rglob("*") if file.is_file()
    )
    (temporary / CHECKSUMS).write_text(
        json_text({name: checksum(temporary / name) for name in names})
    )
    mask = os.umask(0)
    os.umask(mask)
    for file in [*temporary.rglob("*"), temporary]:
        os.chmod(
            file, (0o777 if file.is_dir() else 0o666) & ~mask
        )  # safetensors makes files that only their owner can read
        flush(file)
    os.rename(temporary, path)
    flush(path.parent)


def checksum(file) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def first_problem(directory, but=()) -> str:
    """What is wrong with a directory that `publish` made: the first file that is damaged or missing; "" if it is whole.

    but: names of files, in whatever folder, that are not looked at. Those that were added later do not count.
    """
    file = Path(directory) / CHECKSUMS
    try:
        said = read_file(file)
        sums = parse(said, "")
        if said != json_text(sums).encode():
            return f"{file} is damaged"
        for name in sums:
            file = Path(directory) / name
            if file.name not in but and checksum(file) != sums[name]:
                return f"{file} is damaged: it is not what its checksum says"
    except FileNotFoundError:
        return f"{file} is missing"
    except (
        ValueError,
        TypeError,
        NotADirectoryError,
        IsADirectoryError,
    ):  # no JSON, or names that are not those of files
        return f"{file} is damaged"
    except OSError as error:  # as a network file system has them: they say nothing about the bytes
        if error.errno == errno.ENAMETOOLONG:
            return f"{file.parent} is damaged"
        raise
    return ""


def remove(directory: Path):
    """A directory that is half gone must not pass for one that is damaged: first the name goes."""
    gone = directory.with_name(directory.name + ".removed")
    os.rename(directory, gone)
    if gone.is_symlink():
        gone.unlink()
    shutil.rmtree(
        gone, ignore_errors=True
    )  # what somebody has open on a network file system goes at the next start


def read_file(path) -> bytes:
    """The bytes of a small file; FileNotFoundError where there is none, ValueError for a larger one."""
    path = Path(path)
    if not path.is_file():  # a device would never end
        raise FileNotFoundError(f"there is no file {path}")
    if path.stat().st_size > LARGEST:
        raise ValueError(
            f"{path} is larger than {LARGEST} bytes, which is too much for such a file"
        )
    return path.read_bytes()


def read_json(path) -> dict:
    """The object in a JSON file; FileNotFoundError where there is none, ValueError, with the file, for anything else in it."""
    value = parse(read_file(path), str(path))
    if not isinstance(value, dict):
        raise ValueError(f"{path} is {repr(value)[:40]}, not an object")
    return value


def parse(text: bytes, where: str):
    """A JSON value. ValueError, which says where, for what is no JSON in UTF-8 and for more than DEEPEST levels.

    NaN and Infinity are read, as Python's json writes them; a key that an object has twice counts with its last value.
    """
    try:
        value = json.loads(text.decode())
    except UnicodeDecodeError:
        raise ValueError(f"{where} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {str(error)[:100]}") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if level:
        raise ValueError(
            f"{where} is not JSON for us: it is nested more than {DEEPEST} levels deep"
        )
    return value


def json_lines(path: Path) -> list[tuple[dict, str]]:
    """(object, line) of a metrics.jsonl, without what a crash of the machine has spoilt and an unfinished last line."""
    lines = path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            if line.endswith("\n"):
                row = json.loads(line)
                if type(row["step"]) is not int or row["step"] < 0:
                    raise ValueError(row["step"])
                rows.append((row, line))
        except (ValueError, TypeError, LookupError, RecursionError):
            warnings.warn(f"{path}, line {number}, cannot be read and is left out", stacklevel=2)
    return rows


def sealed(info: dict, folder: Path, names, known: dict[str, str] | None = None) -> str:
    """The text of a data set's info.json: `info`, the checksums of the files that it describes (known: of some, those that
    they had before), and one of all this."""
    info = info | {"sha256": (known or {}) | {name: checksum(folder / name) for name in names}}
    return json_text(info | {"seal": seal(info)})


def seal(info: dict) -> str:
    return hashlib.sha256(
        json.dumps({k: v for k, v in info.items() if k != "seal"}).encode()
    ).hexdigest()


def command(module: str, options: dict, usual: dict) -> str:
    """`python -m module` as one types it, with the options that are not the usual ones."""
    words = [
        word
        for name, value in options.items()
        if value != usual.get(name)
        for word in (f"--{name}", str(value))
    ]
    return shlex.join(["python", "-m", module, *words])


def read_info(folder: Path, starts: tuple[str, ...], fix: str) -> dict:
    """info.json of a data set, where it and the files whose names start so are what they were written as; DataError, with
    `fix`, the command that makes the set again, where they are not. A set that has no checksums yet is warned of."""
    try:
        file = folder / "info.json"
        info = read_json(file) if file.exists() else {}
        sums = info.get("sha256")
        if sums is None:
            warnings.warn(
                f"{folder} has no checksums, an earlier version made it: {fix} adds them",
                stacklevel=3,
            )
            return info
        if "seal" in info and info["seal"] != seal(info):
            raise ValueError(f"{file} is not what its checksum says")
        for name, wanted in sums.items():
            if name.startswith(starts) and checksum(folder / name) != wanted:
                raise ValueError(f"{folder / name} is not what its checksum says")
        return info
    except (ValueError, AttributeError, OSError) as error:
        raise DataError(f"{error}, so the data set is damaged: {fix} makes it again") from None
