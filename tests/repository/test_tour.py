"""results/tour.ipynb: made from results/tour.py, and every cell of it runs."""

import importlib.util
import json
import re
import sys

import pytest
from conftest import ROOT

from maxrl.recipes import RECIPES

SCRIPT = (ROOT / "results/tour.py").read_text()
NOTEBOOK = json.loads((ROOT / "results/tour.ipynb").read_text())


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "results/notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_is_that_of_the_script(maker):
    assert [
        (cell["cell_type"], "".join(cell["source"])) for cell in NOTEBOOK["cells"]
    ] == maker.cells(SCRIPT)
    assert maker.cells("# %%\na = 1\n\n# b\n\n# %% [markdown]\n# # T\n#\n# $x$\n") == [
        ("code", "a = 1\n\n# b"),
        ("markdown", "# T\n\n$x$"),
    ]
    assert NOTEBOOK["nbformat"] == 4 and len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(
        NOTEBOOK["cells"]
    )
    for cell in NOTEBOOK["cells"]:
        keys = {"cell_type", "id", "metadata", "source"}
        assert set(cell) == (
            keys | {"execution_count", "outputs"} if cell["cell_type"] == "code" else keys
        )


def test_every_cell_runs(maker, monkeypatch):
    """In their order, the training with two steps. What the others print is what the notebook shows."""
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(ROOT / "results")
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set((ROOT / "results").rglob("*"))
    names = {}
    trained = 0
    for cell in NOTEBOOK["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            continue
        made = maker.outputs(source.replace("STEPS = 100", "STEPS = 2"), names)
        assert [output["output_type"] for output in made] == [
            output["output_type"] for output in cell["outputs"]
        ]
        texts = ["".join(output.get("text", "")) for output in made]
        if "STEPS = 100" in source:
            trained += 1
            assert re.findall(r"(\w+) +mean reward .*: [01]\.\d\d, [01]\.\d\d\n", texts[-1]) == [
                "RLOO",
                "GRPO",
                "MaxRL",
            ]
        else:
            assert texts == ["".join(output.get("text", "")) for output in cell["outputs"]]
    assert (
        trained == 1
        and names["STEPS"] == 2
        and {f for f in before ^ set((ROOT / "results").rglob("*")) if "__pycache__" not in f.parts}
        == set()
    )


def test_rounds_have_the_order_of_their_sum():
    """As printed: exactly, and simulated within four standard errors. The rare side has the weight of Algorithm 1."""
    (text,) = (
        "".join(cell["outputs"][0]["text"])
        for cell in NOTEBOOK["cells"]
        if "SIZES =" in "".join(cell["source"])
    )
    for p, order, exact, simulated, _, error, rollouts in map(str.split, text.splitlines()[1:]):
        assert order == exact and abs(float(simulated) - float(exact)) < 4 * float(error) + 0.01
        assert float(rollouts) == pytest.approx(
            8 * (1 + (1 - float(p)) ** 8) + 16 * (1 - float(p)) ** 16, abs=0.3
        )
    (text,) = (
        "".join(cell["outputs"][0]["text"])
        for cell in NOTEBOOK["cells"]
        if "groups =" in "".join(cell["source"])
    )
    rows = [line.split() for line in text.splitlines()[1:]]
    assert [row[1] for row in rows] == ["maxrl", "maxrl_rare"] * 4
    assert [row[2] for row in rows[::2]] == [row[2] for row in rows[1::2]]


def test_what_the_notebook_names_is_there():
    text = "\n".join(
        source
        for kind, source in ((c["cell_type"], "".join(c["source"])) for c in NOTEBOOK["cells"])
        if kind == "markdown"
    )
    links = [
        link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("https://")
    ]
    assert len(links) >= 4 and all((ROOT / "results" / link).exists() for link in links)
    recipes = set(re.findall(r"(?:train\.py|maxrl\.grid) (\w+)", text)) - {"RECIPE"}
    assert recipes and recipes <= set(RECIPES)
    assert max(map(len, SCRIPT.splitlines())) <= 120
