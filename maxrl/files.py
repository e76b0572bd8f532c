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
    (temporary / CHECKSUMS).write_text(written({name: checksum(temporary / name) for name in names}))
    for file in [*temporary.rglob("*"), temporary]:
        flush(file)
    os.rename(temporary, path)
    flush(path.parent)


def checksum(file) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def written(sums: dict[str, str]) -> str:
    return json.dumps(sums, indent=2) + "\n"


def damage(directory, but=()) -> str:
    """What is wrong with a directory that `publish` made: the first file that is damaged or missing; "" if it is whole.

    but: names of files that are not looked at. Those that were added later do not count.
    """
    file = Path(directory) / CHECKSUMS
    try:
        said = file.read_bytes()
        sums = json.loads(said)
        if said != written(sums).encode():
            return f"{file} is damaged"
        for name in sums:
            file = Path(directory) / name
            if name not in but and checksum(file) != sums[name]:
                return f"{file} is damaged: it is not what its checksum says"
    except FileNotFoundError:
        return f"{file} is missing"
    except (ValueError, TypeError, OSError):  # no JSON, or names that cannot be those of files
        return f"{file} is damaged"
    return ""


def remove(directory: Path):
    """A directory that is half gone must not pass for one that is damaged: first the name goes."""
    gone = directory.with_name(directory.name + ".removed")
    os.rename(directory, gone)
    shutil.rmtree(gone)
