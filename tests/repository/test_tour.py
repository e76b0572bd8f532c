"""The notebook runs from its first cell to its last, with fewer steps of training."""

import json
import re

import pytest
from conftest import ROOT

from maxrl import minimal

CELLS = json.loads((ROOT / "results/tour.ipynb").read_text())["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def texts(outputs):
    return [output["text"] for output in outputs if "text" in output]


def test_the_cells_run(monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    from results import tour

    monkeypatch.chdir(ROOT / "results")
    monkeypatch.setattr(minimal, "STEPS", minimal.STEPS)  # a cell sets it
    names = {"__name__": "__main__"}
    for cell in CODE:
        source = "".join(cell["source"])
        code = re.sub(r"STEPS = \d+", "STEPS = 2", source)
        found = tour.outputs(code, names)
        kinds = [output["output_type"] for output in found]
        assert kinds == [output["output_type"] for output in cell["outputs"]]
        # What does not depend on training is printed as it is kept.
        if code == source:
            assert texts(found) == texts(cell["outputs"])
