"""Data sets as rows: JSONL, JSON, CSV and parquet files, whose errors name the file and the place in it."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from maxrl.errors import UsageError
from maxrl.io.files import DataError, parse


def read_table(file: Path) -> Iterator[tuple[dict, str]]:
    """The rows of a file, each with its place: {"prompt": ...}, "FILE, line 3".

    A CSV is known by its name, anything else by how it begins. Blank lines are passed over, a key that a row has twice counts
    with its last value. FileNotFoundError, or DataError where something is wrong.
    """
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    where = ""
    for place, row in placed_rows(file):
        where = f"{file}, {place}"
        if not isinstance(row, dict):
            raise DataError(f"{where} is {repr(row)[:40]}, not an object")
        try:
            json.dumps(row, ensure_ascii=False, default=str).encode()
        except UnicodeError:  # half of a surrogate pair, which no tokenizer takes
            raise DataError(f"{where} is not UTF-8") from None
        yield row, where
    if not where:
        raise DataError(f"{file} holds no rows")


def placed_rows(file: Path) -> Iterator[tuple[str, object]]:
    """What stands in a file, row by row, after its place in it."""
    with open(file, "rb") as opened:
        parquet = opened.read(4) == b"PAR1"
    data = b"" if parquet else file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if file.suffix == ".parquet" and not parquet:
        raise DataError(
            f"{file} is no parquet file: give it the name of what it is, .jsonl, .json or .csv"
        )
    if file.suffix == ".csv":
        yield from csv_rows(data, file)
    elif parquet or data.lstrip().startswith(b"["):
        for number, row in enumerate(parquet_rows(file) if parquet else parsed(data, f"{file}"), 1):
            yield f"row {number}", row
    else:
        for number, line in enumerate(data.split(b"\n"), 1):
            if line.strip():
                yield f"line {number}", parsed(line, f"{file}, line {number}")


def parsed(text: bytes, where: str):
    """A JSON value; DataError, which says where, for anything else."""
    try:
        return parse(text, where)
    except ValueError as error:
        raise DataError(str(error)) from None


def csv_rows(data: bytes, file: Path) -> Iterator[tuple[str, dict]]:
    """Texts by the names in the first line; one in quotation marks may have several lines."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{file}, line {line} is not UTF-8") from None
    csv.field_size_limit(sys.maxsize)  # of a cell
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = filter(None, reader)  # without blank lines
    try:
        names = next(rows, [])
        for values in rows:
            place = f"line {reader.line_num}"
            if len(values) != len(names):
                raise DataError(
                    f"{file}, {place} has {len(values)} values, the first line {len(names)} names"
                )
            yield place, dict(zip(names, values))
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num} is not CSV: {error}") from None


def parquet_rows(file: Path, *columns: str) -> Iterator[dict]:
    """The rows of a parquet file, with these columns or with all; a.b is the field b of the column a."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UsageError(
            f'{file} is a parquet file, which needs pyarrow: pip install -e ".[parquet]"'
        ) from None
    try:
        table = ParquetFile(file)
        names = table.schema_arrow.names
        for column in columns:
            if column.partition(".")[0] not in names:
                raise DataError(
                    f"{file} has no column {column!r} but {', '.join(map(repr, names))}"
                )
        for batch in table.iter_batches(256, columns=columns or None, use_threads=False):
            yield from batch.to_pylist()
    except DataError:
        raise
    # The last two: of values that become none of Python's.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:100]
        raise DataError(
            f"{file} cannot be read ({reason}): it is damaged, no parquet file, or has "
            "values that Python has not"
        ) from None
