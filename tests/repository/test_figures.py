"""The figures next to the paper's are redrawn from files, and what is whose is said."""

import json
import re

import numpy as np
import pytest
from conftest import ROOT

from results import figures
from results.reading import averaged, blocks, crossing, paired

FIGURES = ROOT / "results/figures"


def test_the_figures_are_redrawn_from_files(tmp_path):
    """Without training, the same bytes of every number; what has no numbers any more is no figure here."""
    figures.main(["--numbers", "--out", str(tmp_path)])
    made = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_bytes() for file in FIGURES.glob("*.json")}, (
        "what they show has changed: make figures"
    )
    assert len(made) >= 4 and {file.stem for file in FIGURES.glob("*.png")} == {
        name[:-5] for name in made
    }


def test_a_figure_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    figures.main(["figure1", "--out", str(tmp_path)])
    assert (tmp_path / "figure1.png").read_bytes().startswith(b"\x89PNG")


def test_the_sentences_stand_on_their_pages():
    """What a figure says in words is what the page that shows it says, to the digit."""
    for name, page in (("figure5_demo", "demo"), ("figure5_160_steps", "maze9_laptop")):
        sentence = next(
            text
            for text in json.loads((FIGURES / f"{name}.json").read_text())["says"]
            if "GRPO" in text
        )
        assert f"{sentence} (bootstrap" in (ROOT / f"results/{page}/README.md").read_text()


def test_every_figure_is_shown():
    """On the page of all figures, or on that of its study."""
    pages = "\n".join(file.read_text() for file in ROOT.glob("results/**/README.md"))
    for file in FIGURES.glob("*.png"):
        assert f"figures/{file.name})" in pages, file.name


def test_paper_and_ours_are_never_confused():
    """The paper's lines are in panels that say so, and a panel of ours at a reduced scale says that."""
    for file in FIGURES.glob("*.json"):
        for panel in json.loads(file.read_text())["panels"]:
            theirs = {line.get("paper", False) for line in panel["lines"]}
            title = panel["title"]
            assert True not in theirs or "paper" in title, (file.name, title)
            assert (
                not title.startswith("ours") or "reduced scale" in title or "full size" in title
            ), (file.name, title)


def test_smoothing_as_in_the_paper():
    """One point for several steps is the recursion of Figures 7 and 12 with the point's value in each of these steps."""
    values = np.random.default_rng(0).random((2, 30))
    single = [values[:, 0]]
    for raw in values.repeat(5, 1).T[5:]:
        single.append(0.99 * single[-1] + 0.01 * raw)
    np.testing.assert_allclose(averaged(values, 5), np.stack(single[::5], 1), rtol=1e-12)


def test_the_crossing():
    """The first block from which the lead stays: an earlier lead that is lost again does not count."""
    lead = blocks(np.arange(5, 1001, 5), np.tile(np.repeat([1.0, -2, 3, 4], 50), (2, 1)), 250)
    assert lead.tolist() == [[1, -2, 3, 4]] * 2
    assert crossing(lead.mean(0), 250) == 500
    assert crossing(np.array([-1.0, 1, -2, 3])) == 300
    assert crossing(np.array([1.0, 2])) == 0 and crossing(np.array([1.0, 0])) is None


def test_seeds_are_paired():
    found = {"maxrl": {0: "a", 1: "b"}, "grpo": {1: "c", 2: "d"}}
    assert paired(found, ("maxrl", "grpo")) == {"maxrl": ["b"], "grpo": ["c"]}
    assert paired(found, ("maxrl", "rloo")) == {}


def test_the_papers_numbers_have_a_source():
    files = sorted((ROOT / "results/paper").glob("*.json"))
    assert len(files) == 12
    for file in files:
        text = file.read_text()
        found = json.loads(text)
        assert (
            text.count("2602.02710") == 1
            and "arXiv 2602.02710" in found["source"]
            and found["units"]
            and found["error"]
        )
        for key, points in found.get("series", {}).items():
            assert re.fullmatch(r".+ \| .+", key) and all(len(point) == 2 for point in points), (
                file.name,
                key,
            )
