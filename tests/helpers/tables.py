"""Tables of tests, which are texts; rows in files: JSONL and parquet, written and read."""

import json
import re

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


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]
