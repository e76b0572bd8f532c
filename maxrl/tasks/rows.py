"""Data sets of one's own as tasks have them: rows whose columns have the names and types that the task needs."""

import warnings

from maxrl.io.files import DataError, checksum
from maxrl.io.hub_files import data_files
from maxrl.io.tables import read_table

# What stands for a column that a row lacks: other tasks, TRL and data sets on the hub call it so.
OTHERS = {
    "prompt": ("problem", "question"),
    "problem": ("prompt", "question"),
    "answer": ("solution",),
}


def read_rows(name: str, split: str, needed: dict[str, tuple[type, ...]]) -> tuple[list[dict], str]:
    """The rows of a file (JSONL, JSON, CSV, parquet) or of a split of a data set on the hub, and the checksum of all that.

    Every row has the needed columns, of these types; a list is chat messages. DataError with the place where something is
    wrong, FileNotFoundError where there is no such set.
    """
    files = data_files(name, split)
    found = [
        (checked(row, needed, where), where) for file in files for row, where in read_table(file)
    ]
    check_answers(found)
    return [row for row, _ in found], " ".join(map(checksum, files))


def check_answers(found: list[tuple[dict, str]]):
    """Warn of rows without an answer where others have one: its name may be misspelt, and then no response is right."""
    without = [where for row, where in found if row.keys().isdisjoint(["answer", "solution"])]
    if 0 < len(without) < len(found):
        warnings.warn(
            f"{len(without)} of {len(found)} rows have neither 'answer' nor 'solution', the first is {without[0]}",
            stacklevel=2,
        )


def checked(row: dict, needed: dict[str, tuple[type, ...]], where: str) -> dict:
    row = with_prompt(row, where)
    for name, types in needed.items():
        for other in OTHERS.get(name, ()):
            if row.get(name) is None and row.get(other) is not None:
                row[name] = row[other]
        if name not in row:
            raise DataError(
                f"{where} has no {name!r}; it has {', '.join(map(repr, row)) or 'nothing'}"
            )
        if not isinstance(row[name], types):
            wanted = " or ".join({str: "text", list: "a list"}[t] for t in types)
            raise DataError(f"{where}: {name!r} must be {wanted}, not {str(row[name])[:40]!r}")
        if not row[name]:
            raise DataError(f"{where}: {name!r} is empty")
        if isinstance(row[name], list):
            check_messages(row[name], where)
        elif row[name].lstrip().startswith('[{"role"'):
            raise DataError(
                f"{where}: {name!r} has chat messages written as a text: a CSV file cannot have them, JSONL can"
            )
    return row


def with_prompt(row: dict, where: str) -> dict:
    """A row of whole conversations as a prompt: its messages up to the assistant's last, which is the answer if it has none."""
    messages = row.get("messages")
    if (
        not isinstance(messages, list)
        or not messages
        or not row.keys().isdisjoint(["prompt", *OTHERS["prompt"]])
    ):
        return row
    check_messages(messages, where)
    *before, last = messages
    if last["role"] != "assistant":
        return row | {"prompt": messages}
    return {"answer": row.get("solution", last["content"])} | row | {"prompt": before}


def check_messages(messages: list, where: str):
    """DataError unless these are chat messages with a role and a text each."""
    for message in messages:
        if not isinstance(message, dict) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise DataError(
                f"{where}: a message must have a role and a content, both text, unlike {str(message)[:60]!r}"
            )
