"""Files and directories that are whole on disk or not there: a temporary name, fsync, checksums, and then the rename."""

import hashlib
import json
import os
import shutil
from pathlib import Path

CHECKSUMS = "checksums.json"


def write_text(path, text: str):
    """Appears whole or not at all, also after the power has failed."""
    path = Path(path)
    temporary = path.with_name(path.name + ".incomplete")
    temporary.write_text(text)
    flush(temporary)
    os.replace(temporary, path)
    flush(path.parent)


def write_json(path, value):
    write_text(path, json.dumps(value, indent=2) + "\n")


def flush(path):
    """fsync of a file or directory, so that a rename never gets ahead of the bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path):
    """Makes a directory that was written as `temporary` appear as `path`, with the checksums of all its files."""
    names = sorted(file.relative_to(temporary).as_posix() for file in temporary.rglob("*") if file.is_file())
    (temporary / CHECKSUMS).write_text(checksums(temporary, names))
    for file in [*temporary.rglob("*"), temporary]:
        flush(file)
    os.rename(temporary, path)
    flush(path.parent)


def checksums(directory: Path, names: list[str]) -> str:
    """What the directory's checksums.json says: the SHA-256 of each file."""
    sums = {}
    for name in names:
        with open(directory / name, "rb") as file:
            sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return json.dumps(sums, indent=2) + "\n"


def damage(directory) -> str:
    """What is wrong with a directory that `publish` made: the first file that is damaged or missing; "" if it is whole.

    Files that were added later do not count.
    """
    directory = Path(directory)
    try:
        said = (directory / CHECKSUMS).read_bytes()
        names = list(json.loads(said))
        now = checksums(directory, names)
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (ValueError, TypeError, OSError):  # no JSON, or names that cannot be those of files
        return f"{directory / CHECKSUMS} is damaged"
    if said == now.encode():
        return ""
    before, after = json.loads(said), json.loads(now)
    name = next((name for name in names if before[name] != after[name]), CHECKSUMS)
    return f"{directory / name} is damaged: it is not what its checksum says"


def remove(directory: Path):
    """A directory that is half gone must not pass for one that is damaged: first the name goes."""
    gone = directory.with_name(directory.name + ".removed")
    os.rename(directory, gone)
    shutil.rmtree(gone)
