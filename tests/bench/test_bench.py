"""Every row of bench.py runs, at a tiny size, and every table that was kept is printed."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests import ROOT
from tests.bench import bench


def printed(found: dict, by: str, capsys) -> int:
    """The number of rows in the table."""
    bench.show(found, by)
    return capsys.readouterr().out.count("\n| ") - 1


def test_every_row_runs(tmp_path, capsys):
    """Where TRL is not installed, its rows run up to the import of it."""
    file = tmp_path / "tiny.json"
    command = [sys.executable, "-m", "tests.bench.bench", "--tiny", "--threads", "1", "--out", file]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=True)
    found = json.loads(file.read_text())
    assert [row["name"] for row in found["rows"]] == list(bench.ROWS)
    assert printed(found, "cpu", capsys) == len(bench.ROWS)
    missing = []
    for row in found["rows"]:
        *_, last = row.get("error", "").splitlines() or [""]
        package = re.fullmatch(r"ModuleNotFoundError: No module named '(\w+)'", last)
        if package and not find_spec(package[1]):
            missing.append(package[1])
        else:
            assert not last, row["error"]
    if missing:
        pytest.skip(f"rows that need {missing} stopped there")


@pytest.mark.parametrize("file", sorted((ROOT / "results/speed/bench").glob("*.json")), ids=str)
def test_a_kept_table_is_printed(file, capsys):
    found = json.loads(file.read_text())
    assert printed(found, "wall", capsys) == len(found["rows"])
