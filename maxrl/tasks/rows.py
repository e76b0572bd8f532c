"""Data sets of one's own: rows with the columns that a task needs, under the names it knows."""

import hashlib
import json
from collections.abc import Sequence

from maxrl.io.files import DataError, checksum
from maxrl.io.hub_files import data_files
from maxrl.io.tables import read_table, saved_rows

# What other tasks, TRL and data sets on the hub call these columns.
OTHERS = {
    "prompt": ("problem", "question"),
    "problem": ("prompt", "question"),
    "answer": ("solution",),
}


def read_rows(
    data: str | Sequence[dict], split: str, needed: dict[str, tuple[type, ...]]
) -> tuple[list[dict], str]:
    """Read a data set and return its rows and the checksum of its files.

    data    a file (JSONL, JSON, CSV, parquet), a folder of save_to_disk, a data set on the hub, or
            the rows themselves
    split   of a data set on the hub or a folder
    needed  columns that every row must have, with their types; a list is chat messages

    DataError, which names the place, for rows that cannot be used; FileNotFoundError if there is no
    such data set.
    """
    if isinstance(data, str):
        data = saved_rows(data, split)
    if isinstance(data, str):
        files = data_files(data, split)
        found = [(row, where) for file in files for row, where in read_table(file)]
        digest = " ".join(map(checksum, files))
    else:
        found = in_memory(data, split)
        rows = [row for row, _ in found]
        text = json.dumps(rows, default=lambda value: type(value).__name__, skipkeys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
    return [checked(row, needed, where) for row, where in found], digest


def in_memory(data: Sequence[dict], split: str) -> list[tuple[dict, str]]:
    """Return rows with their places, as read_table does for a file; DataError for other data."""
    try:
        return [(dict(data[i]), f"row {i} of the {split} data") for i in range(len(data))]
    except (TypeError, ValueError, LookupError):
        raise DataError(
            f"the {split} data is a {type(data).__name__}: pass a list of dicts, such as "
            "DataFrame.to_dict('records'), or one split of a data set"
        ) from None


def checked(row: dict, needed: dict[str, tuple[type, ...]], where: str) -> dict:
    """Return a row with the needed columns; DataError if it lacks one."""
    for name, types in needed.items():
        for other in OTHERS.get(name, ()):
            if row.get(name) is None and row.get(other) is not None:
                row[name] = row[other]
        value = row.get(name)
        if not value or not isinstance(value, types):
            wanted = " or ".join("text" if kind is str else "a list" for kind in types)
            raise DataError(
                f"{where}: {name!r} must be {wanted}, not {value!r:.40}; its columns are {[*row]}"
            )
        if isinstance(value, list):
            check_messages(value, where)
        elif str(value).lstrip().startswith('[{"role"'):
            raise DataError(f"{where}: {name!r} has chat messages as a text: write a list")
    return row


def check_messages(messages: list, where: str) -> None:
    """DataError unless these are chat messages, one at least, with a role and a text each."""
    for message in messages or [None]:
        if not isinstance(message, dict) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise DataError(
                f"{where}: a message must have a role and a content, both text, "
                f"unlike {message!s:.60}"
            )
