"""JSONL files as tasks: one JSON object per line, whose errors are named by file and line."""

import json
from pathlib import Path

from maxrl.io.files import DataError, parse


def read_jsonl(file: str | Path, columns: dict[str, tuple[type, ...]]) -> list[dict]:
    """The rows of a file, which all have these columns of these types; a list is chat messages.

    Blank lines are passed over, a key that a row has twice counts with its last value. DataError with the line where
    something is wrong.
    """
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    rows = []
    for number, line in enumerate(file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            rows.append(_row(line, columns, f"{file}, line {number}"))
    if not rows:
        raise DataError(f"{file} holds no rows")
    return rows


def _row(line: bytes, columns: dict[str, tuple[type, ...]], where: str) -> dict:
    try:
        row = parse(line, where)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeError:  # half of a surrogate pair, which no tokenizer takes
        raise DataError(f"{where} is not UTF-8") from None
    except ValueError as error:
        raise DataError(str(error)) from None
    if not isinstance(row, dict):
        raise DataError(f"{where} holds no object but {line[:40]!r}")
    for name, types in columns.items():
        if name not in row:
            raise DataError(f"{where} has no {name!r}; it has {', '.join(map(repr, row)) or 'nothing'}")
        if not isinstance(row[name], types):
            wanted = " or ".join({str: "text", list: "a list"}[t] for t in types)
            raise DataError(f"{where}: {name!r} must be {wanted}, not {str(row[name])[:40]!r}")
        if not row[name]:
            raise DataError(f"{where}: {name!r} is empty")
        if list in types and isinstance(row[name], list):
            check_messages(row[name], where)
    return row


def check_messages(messages: list, where: str):
    """DataError unless these are chat messages with a role and a text each."""
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise DataError(f"{where}: a message must have a role and a content, both text, unlike {str(message)[:60]!r}")

