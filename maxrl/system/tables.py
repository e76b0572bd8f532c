"""Data sets as rows: JSONL, JSON, CSV and parquet, with errors that name the place."""

import csv
import math
import numbers
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from maxrl.system.errors import UsageError, one_line
from maxrl.system.files import DataError, parse

# How None, and what NumPy and pandas have in its place, are printed.
NOTHING = ("None", "nan", "NaN", "<NA>", "NaT")


def as_text(row: dict, name: str, where: str) -> str:
    """Return a row's text as it is, a number as people write it, and "" for a missing value.

    DataError, which names `where` and the column, for any other type, such as a list.
    """
    value = row.get(name)
    # A scalar of numpy or torch. Its digits are those of its own precision.
    if getattr(value, "shape", None) == ():
        value = np.asarray(value)[()]
    if not isinstance(value, str) and str(value) in NOTHING:
        return ""
    if isinstance(value, float | np.floating | Decimal) and math.isfinite(value):
        text = str(value)
        # 3 * 6.1 is 18.299999999999997.
        exact = not isinstance(value, float) or value.is_integer()
        short = text if exact else f"{value:.15g}"
        if len(re.sub(r"^[-0.]+|[.]|e.*", "", short)) < 13:
            text = short
        # The text of a float may have an exponent.
        return f"{Decimal(text):f}".removesuffix(".0")
    if isinstance(value, str | numbers.Rational | np.bool_):
        return str(value)
    raise DataError(f"{where}: {name!r} must be a text or a number, not {value!r:.40}")


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
        first = opened.read(4)
    if first.startswith((b"\x1f\x8b", b"(\xb5/\xfd", b"BZh", b"PK\3\4", b"\xfd7zX")):
        raise DataError(f"{file} is compressed: decompress it first, as by gunzip")
    if file.suffix == ".arrow" or file.name == "state.json":
        refuse_saved(file)
    if first == b"PAR1" or file.suffix.lower() == ".parquet":
        for number, row in enumerate(parquet_rows(file), 1):
            yield f"row {number}", row
        return
    if file.suffix.lower() == ".csv":
        yield from csv_rows(file)
        return
    data = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if data.lstrip().startswith(b"["):
        for number, row in enumerate(parse(data, f"{file}"), 1):
            yield f"row {number}", row
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield f"line {number}", parse(line, f"{file}, line {number}")


def refuse_saved(file: Path) -> None:
    """DataError, with the command that makes parquet of it, for what Hugging Face's datasets wrote.

    That is an .arrow file, or the folder of save_to_disk that this file is in.
    """
    folder = file.parent
    load = f"Dataset.from_file('{file}')"
    made = file.with_suffix(".parquet")
    if all((folder / name).is_file() for name in ("state.json", "dataset_info.json")):
        load = f"load_from_disk('{folder}')"
        made = Path(f"{folder}.parquet")
    elif file.suffix != ".arrow":
        return
    command = f"import datasets; datasets.{load}.to_parquet('{made}')"
    raise DataError(
        f'{file} is in the format of datasets: python -c "{command}" makes {made}, a file to name'
    )


def csv_rows(file: Path) -> Iterator[tuple[str, dict]]:
    """Yield the place and the texts of each row of a CSV file; its header has the columns."""
    with open(file, newline="", encoding="utf-8-sig") as opened:
        reader = csv.DictReader(opened, strict=True)
        try:
            names = reader.fieldnames or []
            if len(set(names)) < len(names):
                raise csv.Error("two columns have one name")
            for row in reader:
                if None in row or None in row.values():
                    raise csv.Error("a row has more or fewer values than there are columns")
                if any(re.match(r'\s+".*"\s*$', text, re.DOTALL) for text in row.values()):
                    raise csv.Error("a blank stands before a quotation mark")
                # The row numbers of pandas have no name.
                row.pop("", None)
                yield f"line {reader.line_num}", row
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not in UTF-8, save it so: {error}") from None
        except csv.Error as error:
            raise DataError(f"{file} is not CSV after line {reader.line_num}: {error}") from None


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
    names = opened.schema_arrow.names
    if len(set(names)) < len(names):
        raise DataError(f"{file} has two columns of one name")
    try:
        for batch in opened.iter_batches(256, use_threads=False):
            rows = batch.to_pylist()
            # Of these, to_pylist makes longer ones: 0.1 becomes 0.10000000149011612.
            for field, column in zip(batch.schema, batch.columns):
                if str(field.type) in ("float", "halffloat"):
                    values = column.to_numpy(zero_copy_only=False)
                    for row, value in zip(rows, values):
                        if row[field.name] is not None:
                            row[field.name] = float(str(value))
            yield from rows
    # ArrowInvalid is a ValueError; others come from values that Python has no type for.
    except (OSError, ValueError, OverflowError) as error:
        raise unreadable(file, error) from None


def unreadable(file: str | Path, error: Exception) -> DataError:
    return DataError(f"{file} cannot be read ({one_line(error)}): it is damaged or of another kind")
