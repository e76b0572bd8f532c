"""The notebook runs from its first cell to its last, with fewer steps of training."""

import re

import pytest

from maxrl import minimal
from maxrl.system.files import read_json
from tests import ROOT

CELLS = read_json(ROOT / "results/tour.ipynb")["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def texts(outputs):
    return [output["text"] for output in outputs if "text" in output]


def test_the_cells_run(monkeypatch, capsys):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.close("all")))
    monkeypatch.chdir(ROOT / "results")
    monkeypatch.setattr(minimal, "STEPS", minimal.STEPS)  # a cell sets it
    names = {"__name__": "__main__"}
    for cell in CODE:
        source = "".join(cell["source"])
        code = re.sub(r"STEPS = \d+", "STEPS = 2", source)
        shown.clear()
        exec(compile(code, "tour.ipynb", "exec"), names)
        figures = [output for output in cell["outputs"] if "data" in output]
        assert len(shown) == len(figures)
        # What does not depend on training is printed as it is kept.
        printed = capsys.readouterr().out
        kept = "".join(line for text in texts(cell["outputs"]) for line in text)
        assert bool(printed) == bool(kept)
        if code == source:
            assert printed == kept


def test_its_links_lead_somewhere():
    """From results/, where it lies."""
    texts_of_cells = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown"]
    links = re.findall(r"\]\(([^)\s#]+)", "\n".join(texts_of_cells))
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / "results" / link).exists(), link
