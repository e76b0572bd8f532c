"""Data sets as rows: JSONL, JSON and parquet files, with errors that name the place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maxrl.errors import UsageError
from maxrl.io.files import DataError, parse


def read_table(file: Path) -> Iterator[tuple[dict, str]]:
    """Yield the rows of a file, each with its place: {"prompt": ...}, "FILE, line 3".

    The formats are recognised by their first bytes. Blank lines are skipped.
    FileNotFoundError if there is no such file, DataError for what cannot be read.
    """
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    where = ""
    for place, row in placed_rows(file):
        where = f"{file}, {place}"
        if not isinstance(row, dict):
            raise DataError(f"{where} is {row!r:.40}, not an object")
        yield row, where
    if not where:
        raise DataError(f"{file} holds no rows")


def placed_rows(file: Path) -> Iterator[tuple[str, object]]:
    """Yield the place of each row within a file, and what stands there."""
    with open(file, "rb") as opened:
        parquet = opened.read(4) == b"PAR1"
    if parquet or file.suffix == ".parquet":
        for number, row in enumerate(parquet_rows(file), 1):
            yield f"row {number}", row
        return
    data = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if data.lstrip().startswith(b"["):
        for number, row in enumerate(parse(data, f"{file}"), 1):
            yield f"row {number}", row
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield f"line {number}", parse(line, f"{file}, line {number}")


def open_parquet(file: Path) -> Any:
    """Return pyarrow's ParquetFile; UsageError without pyarrow, DataError for a damaged file."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UsageError(
            f'{file} is a parquet file, which needs pyarrow: pip install -e ".[parquet]"'
        ) from None
    try:
        return ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise unreadable(file, error) from None


def parquet_rows(file: Path) -> Iterator[dict]:
    """Yield the rows of a parquet file; raises as open_parquet."""
    opened = open_parquet(file)
    try:
        for batch in opened.iter_batches(256, use_threads=False):
            yield from batch.to_pylist()
    # ArrowInvalid is a ValueError; others come from values that Python has no type for.
    except (OSError, ValueError, OverflowError) as error:
        raise unreadable(file, error) from None


def unreadable(file: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split())[:100]
    return DataError(f"{file} cannot be read ({reason}): it is damaged or is not parquet")
