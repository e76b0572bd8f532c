"""The notebook runs from its first cell to its last, with fewer steps of training."""

import json
import re

import pytest
from conftest import ROOT

from maxrl import minimal

CELLS = json.loads((ROOT / "results/tour.ipynb").read_text())["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_the_cells_run(monkeypatch, capsys):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    monkeypatch.chdir(ROOT / "results")
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    monkeypatch.setattr(minimal, "STEPS", minimal.STEPS)  # a cell sets it
    names = {"__name__": "__main__"}
    for cell in CODE:
        code = re.sub(r"STEPS = \d+", "STEPS = 2", "".join(cell["source"]))
        exec(compile(code, "tour.ipynb", "exec"), names)
        printed = capsys.readouterr().out
        kept = [output for output in cell["outputs"] if output.get("name") == "stdout"]
        # What does not depend on training is printed as it is kept.
        if kept and code == "".join(cell["source"]):
            assert printed == "".join(kept[0]["text"])
