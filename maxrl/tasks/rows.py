"""Data sets of one's own: rows with the columns that a task needs, under the names it knows."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maxrl.system.files import DataError, checksum
from maxrl.system.tables import NOTHING, as_text, read_table
from maxrl.tasks.answers import last_boxed
from maxrl.tasks.references import answer_in
from maxrl.tasks.splits import data_files

# What tasks, TRL and data sets on the hub call one column.
NAMES = ("prompt", "problem", "question")
# Who says a chat message, and what, as Python, JSON or numpy write it.
ROLE = re.compile(
    r"""['"](?:role|from)\\?['"]\s*:\s*\\?['"]"""
    r"""(?:system|developer|user|human|assistant|gpt|tool|function)\b""",
    re.IGNORECASE,
)
# The edge of a graph has a "from" as well.
TOLD = re.compile(r"""['"](?:role|value)\\?['"]\s*:""", re.IGNORECASE)


def read_rows(
    named: Mapping[str, str | Sequence[dict]], split: str, prompt: str, answers: bool = False
) -> tuple[list[dict], str]:
    """Read a data set and return its rows and the checksum of its files.

    named    the data of each split: a file (JSONL, JSON, CSV, parquet), a folder of these, a data
             set on the hub, or the rows themselves
    split    the one to read
    prompt   the column that every row must have, with a text or chat messages
    answers  whether every row gets an `answer`, see answered()

    DataError, which names the place, for rows that cannot be used; FileNotFoundError if there is no
    such data set.
    """
    data = named[split]
    if isinstance(data, str):
        texts = [text for text in named.values() if isinstance(text, str) and text]
        paths = [os.path.abspath(text) for text in texts]
        files = data_files(data, split, alone=paths.count(os.path.abspath(data)) == 1)
        others = other_files(named, split, files)
        found = []
        digests = []
        sums: dict[str, Path] = {}  # {checksum: file} of this split
        for file in files:
            table = [*read_table(file)]
            found += table
            its = checksum(file)
            digests.append(its)
            # Where every row has a file of its own, some may be equal.
            if len(table) > 1 and sums.setdefault(its, file) != file:
                raise DataError(f"{sums[its]} and {file} have the same content: remove one of them")
        digest = " ".join(digests)
        sizes = {file.stat().st_size for file in sums.values()}
        for other, their in others:
            # Only files of one size are read. A link may be broken.
            if their.is_file() and their.stat().st_size in sizes and checksum(their) in sums:
                raise DataError(
                    f"{split} reads {sums[checksum(their)]} and {other} a copy of it, {their}: "
                    "name one file for both if that is meant"
                )
    else:
        found = in_memory(data, split)
        text = json.dumps([row for row, _ in found], default=written, skipkeys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
    rows = []
    for row, where in found:
        row = checked_row(row, prompt, where)
        rows.append(answered(row, where) if answers else row)
    return rows, digest


def other_files(
    named: Mapping[str, str | Sequence[dict]], split: str, files: list[Path]
) -> list[tuple[str, Path]]:
    """Return the files of the other splits, where they are named otherwise, each with its split.

    FileNotFoundError if one of them is a file of this split too.
    """
    mine = {file.resolve() for file in files}
    found = []
    for other, data in named.items():
        if not isinstance(data, str) or not os.path.exists(data):
            continue
        if os.path.abspath(data) == os.path.abspath(str(named[split])):
            continue
        theirs: list[Path] = []
        # What is wrong with the files of the other split is said where they are read.
        with contextlib.suppress(FileNotFoundError):
            theirs = data_files(data, other)
        for file in theirs:
            if file.resolve() in mine:
                raise FileNotFoundError(
                    f"{split} and {other} both read {file.resolve()}: name files or folders apart"
                )
            found.append((other, file))
    return found


def written(value: object) -> str:
    """Return what identifies a value that JSON has no form for: nothing if it has an address."""
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    said = repr(value.tolist() if hasattr(value, "tolist") else value)
    return type(value).__name__ if re.search(" at 0x[0-9a-f]+>", said) else said


def in_memory(data: Sequence[dict], split: str) -> list[tuple[dict, str]]:
    """Return rows with their places, as read_table does for a file; DataError for other data."""
    try:
        rows: list[Any] = [data[i] for i in range(len(data))]
        # A Dataset with the format of pandas has tables of one row.
        rows = [row.to_dict("records")[0] if hasattr(row, "iterrows") else row for row in rows]
        return [(dict(row), f"row {i} of the {split} data") for i, row in enumerate(rows)]
    except (TypeError, ValueError, LookupError):
        raise DataError(
            f"the {split} data is a {type(data).__name__}: pass a list of dicts, such as "
            "DataFrame.to_dict('records'), or one split of a data set"
        ) from None


def checked_row(row: dict, name: str, where: str) -> dict:
    """Return a row with its prompt in the column `name`; DataError if it has none."""
    for other in (name, *NAMES):
        value: Any = row.get(other)
        # An array of messages, as pandas has them from parquet.
        value = value.tolist() if hasattr(value, "tolist") else value
        # What is there, but no prompt, is not replaced. pandas has values of its own for nothing.
        if isinstance(value, str | list) or str(value) not in NOTHING:
            row[name] = value
            break
    value = row.get(name)
    if not isinstance(value, str | list) or not value:
        raise DataError(
            f"{where}: {name!r} must be text or a list, not {value!r:.40}; its columns are {[*row]}"
        )
    # TRL's columns for pictures of the prompt.
    for column in ("image", "images"):
        if str(row.get(column)) not in (*NOTHING, "", "[]"):
            raise DataError(
                f"{where}: no model here reads the pictures of {column!r}: leave the row out, or "
                "give the column another name if only reward functions need it"
            )
    if isinstance(value, list):
        check_messages(value, where)
    elif is_chat(value):
        raise DataError(
            f"{where}: {name!r} has chat messages as a text: write a list, which JSONL and parquet "
            "files keep and CSV files do not"
        )
    return row


def is_chat(text: str) -> bool:
    """Tell whether a text is chat messages that were written as a text."""
    text = re.sub(r"^array", "", text.strip('" \t\r\n')).lstrip("[( \t\r\n")
    whole = text.startswith("{") and text.endswith(("]", "}", ")"))
    return bool(whole and ROLE.search(text) and TOLD.search(text))


def reference(row: dict, where: str) -> str:
    """Return the text of a row's answer, or else of its solution, "" without both.

    DataError, which names `where` and the column, if it is neither a text nor a number.
    """
    return as_text(row, "answer", where) or as_text(row, "solution", where)


def answered(row: dict, where: str) -> dict:
    """Return a row whose `answer` is a text, "" if it is missing.

    Of a worked solution it is the answer in it; the longer one of both is kept as the solution.
    DataError as above.
    """
    answer = as_text(row, "answer", where)
    if not answer or "####" in answer or last_boxed(answer):
        found = reference(row, where)
        answer = answer_in(found)
        worked = row.get("solution")
        row["solution"] = max(found, worked if isinstance(worked, str) else "", key=len)
    return row | {"answer": answer}


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
