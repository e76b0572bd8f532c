"""Rows in files: JSONL and parquet, written and read."""

import json

import pytest


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
