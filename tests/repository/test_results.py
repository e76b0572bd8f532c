"""The tables and figures of results/ can be recomputed from the files beside them."""

import importlib
import itertools
import json
import re

import numpy as np
import pytest
import torch
from conftest import ROOT

from maxrl.advantages import ADVANTAGES
from results import figures, summarise
from results.images import noise
from results.reading import averaged, blocks, crossing

FIGURES = ROOT / "results/figures"
STUDIES = (
    "fixed_set",
    "gradient_norms",
    "headline",
    "images_1000",
    "images_laptop",
    "minimal",
    "oracle",
    "order",
    "price",
    "small_tasks",
)


def printed_rows(capsys, main, study: str) -> list[str]:
    main(ROOT / "results" / study)
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("study", STUDIES)
def test_the_tables_of_a_study(study, capsys):
    """The rows on the page of a study are those that its summarise.py prints, to the digit."""
    main = importlib.import_module(f"results.{study}.summarise").main
    rows = printed_rows(capsys, main, study)
    page = (ROOT / "results" / study / "README.md").read_text().replace("**", "")
    assert len([row for row in rows if row in page]) >= 6


def test_the_front_page_has_the_headline(capsys):
    rows = printed_rows(
        capsys, importlib.import_module("results.headline.summarise").main, "headline"
    )
    front = " ".join((ROOT / "README.md").read_text().split())
    for name in ("rloo", "grpo", "maxrl"):
        means = next(row for row in rows if row.startswith(f"| {name} | 0"))  # over seeds
        first, _, within_64, *_ = re.findall(r"0(\.\d+ ± )0(\.\d+)", means)
        assert "".join(first) in front and "".join(within_64) in front


def test_the_tables_of_the_demo(capsys):
    rows = printed_rows(capsys, summarise.main, "demo")
    page = (ROOT / "results/demo/README.md").read_text()
    assert len([row for row in rows if row in page]) >= 6


def test_the_figures_are_redrawn_from_files(tmp_path):
    """Without training, every number and every word is the same."""
    figures.main(["--numbers", "--out", str(tmp_path)])
    made = {file.name: json.loads(file.read_text()) for file in tmp_path.iterdir()}
    kept = {file.name: json.loads(file.read_text()) for file in FIGURES.glob("*.json")}
    assert made == kept, "what they show has changed: make figures"
    assert {file.stem for file in FIGURES.glob("*.png")} == {name[:-5] for name in made}


def test_a_figure_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    figures.main(["figure1", "--out", str(tmp_path)])
    assert (tmp_path / "figure1.png").read_bytes().startswith(b"\x89PNG")


def test_paper_and_ours_are_never_confused():
    """Lines of the paper are in panels that say so, and a reduced scale of ours is said."""
    for file in FIGURES.glob("*.json"):
        for panel in json.loads(file.read_text())["panels"]:
            title = panel["title"]
            if any(line.get("paper") for line in panel["lines"]):
                assert "paper" in title, (file.name, title)
            if title.startswith("ours"):
                assert "reduced scale" in title or "full size" in title, (file.name, title)


def test_smoothing_as_in_the_paper():
    """A point for several steps has its value in each step of the recursion of Figure 12."""
    values = np.random.default_rng(0).random((2, 30))
    single = [values[:, 0]]
    for raw in values.repeat(5, 1).T[5:]:
        single.append(0.99 * single[-1] + 0.01 * raw)
    np.testing.assert_allclose(averaged(values, 5), np.stack(single[::5], 1), rtol=1e-12)


def test_the_crossing():
    """The first block from which the lead stays; a lead that is lost again does not count."""
    lead = blocks(np.arange(5, 1001, 5), np.tile(np.repeat([1.0, -2, 3, 4], 50), (2, 1)), 250)
    assert lead.tolist() == [[1, -2, 3, 4]] * 2
    assert crossing(lead.mean(0), 250) == 500
    assert crossing(np.array([1.0, 2])) == 0 and crossing(np.array([1.0, 0])) is None


@pytest.mark.parametrize(
    "name, options", [("maxrl", {}), ("maxrl_order", {"order": 3}), ("rloo", {})]
)
def test_the_noise_of_an_estimator(name, options):
    """The sum over the number of successes, against all outcomes of four draws of three classes."""
    p = np.array([0.3, 0.35, 0.35])
    scores = np.eye(3) - p
    mean, second = np.zeros(3), 0.0
    for drawn in map(np.array, itertools.product(range(3), repeat=4)):
        rewards = torch.from_numpy(drawn == 0)[None].double()
        gradient = ADVANTAGES[name](rewards, **options)[0].numpy() @ scores[drawn] / 4
        mean += p[drawn].prod() * gradient
        second += p[drawn].prod() * gradient @ gradient
    expected = np.sqrt(second - mean @ mean) / np.linalg.norm(mean)
    assert noise(name, p[0], 4, 3, **options) == pytest.approx(expected, rel=1e-9)
