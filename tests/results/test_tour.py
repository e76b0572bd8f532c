"""The notebook runs from its first cell to its last, with fewer steps of training."""

import re

import pytest

from maxrl import minimal
from maxrl.system.files import read_json
from results.lab.data import kept
from tests import ROOT

CELLS = read_json(ROOT / "results/tour.ipynb")["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def printed_by(cell) -> str:
    """What a cell has printed, as it is kept."""
    return "".join(line for output in cell["outputs"] for line in output.get("text", ()))


def test_the_cells_run(monkeypatch, capsys):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.close("all")))
    monkeypatch.chdir(ROOT / "results")
    monkeypatch.setattr(minimal, "STEPS", 2)
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
        kept = printed_by(cell)
        assert bool(printed) == bool(kept)
        if code == source and "minimal.main" not in source:
            assert printed == kept


def test_what_the_methods_make_of_a_seed():
    """Every number of training is that of seed 0 in its study."""
    (cell,) = [cell for cell in CODE if "minimal.main" in "".join(cell["source"])]
    found = re.findall(r"step (\d+): pass rate (\S+), (\d+) of 100", printed_by(cell))
    study = kept("minimal", "tests")["results.json"]
    lines = [line for method in ("rloo", "grpo", "maxrl") for line in study[method][0]]
    assert [list(map(float, line)) for line in found] == lines


def test_its_links_lead_somewhere():
    """From results/, where it lies."""
    texts_of_cells = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown"]
    links = re.findall(r"\]\(([^)\s#]+)", "\n".join(texts_of_cells))
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / "results" / link).exists(), link
