"""Data sets as rows: JSONL, JSON and parquet files, with errors that name the place."""

from collections.abc import Iterator
from pathlib import Path

from maxrl.errors import UsageError
from maxrl.io.files import DataError, parse


def read_table(file: Path) -> Iterator[tuple[dict, str]]:
    """Yield the rows of a file, each with its place: {"prompt": ...}, "FILE, line 3".

    The formats are recognised by their first bytes. Blank lines are skipped. FileNotFoundError if
    there is no such file, DataError for what cannot be read.
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


def parquet_rows(file: Path) -> Iterator[dict]:
    """Yield the rows of a parquet file; UsageError without pyarrow."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UsageError(
            f'{file} is a parquet file, which needs pyarrow: pip install -e ".[parquet]"'
        ) from None
    try:
        for batch in ParquetFile(file).iter_batches(256, use_threads=False):
            yield from batch.to_pylist()
    # ValueError and OverflowError come from values that Python has no type for.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:100]
        raise DataError(
            f"{file} cannot be read ({reason}): it is damaged or is not parquet"
        ) from None
