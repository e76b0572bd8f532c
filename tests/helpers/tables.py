"""Tables of tests, which are texts; rows in files of every kind, written and read."""

import csv
import json
import re
from pathlib import Path

import pytest


def cells(text):
    """The lines of a table as lists of texts. A bar between blanks divides two of them."""
    lines = text.strip().splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\S)\|(?!\S)", line)] for line in lines]


def each(names, text):
    """Parametrize a test by the lines of a table, or by their cells: if there are several names, or
    one that is `row`, which is a list of them."""
    lines = text.strip().splitlines()
    divided = "," in names or names == "row"
    return pytest.mark.parametrize(names, cells(text) if divided else lines, ids=lines)


def put(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def parquet(file, rows):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file)
    return file


def write(name: str, rows) -> str:
    """The rows as the kind of file that the name says."""
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        parquet(file, rows)
    elif file.suffix.lower() == ".csv":
        with open(file, "w", newline="", encoding="utf-8-sig") as opened:
            writer = csv.DictWriter(opened, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows, indent=2))
    else:
        put(file, rows)
    return name


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]
