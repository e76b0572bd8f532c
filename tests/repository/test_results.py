"""The tables and figures of results/ can be recomputed from the files beside them."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT

from maxrl.advantages import ADVANTAGES
from results import figures, summarise
from results.images import noise
from results.reading import blocks, crossing
from results.tables import cells

FIGURES = ROOT / "results/figures"
PAGES = {  # the pages of studies, and those that show the comparison of all of them
    study: [ROOT / "results" / study / "README.md"]
    for study in summarise.STUDIES
    if study != "comparison"
} | {"comparison": [ROOT / "results/README.md", ROOT / "README.md"]}
# Tables of settings and verdicts, without a measured number.
SETTINGS = ("| paper | claim |", "| expected | found |")


def tables(text: str) -> list[list[str]]:
    """The lines of every table."""
    return [found.splitlines() for found in re.findall(r"(?m)(?:^\|.*\n)+", text + "\n")]


def measured(page: Path) -> list[list[str]]:
    """The tables of a page that have numbers of runs; of the front page the comparison alone."""
    found = [table for table in tables(page.read_text()) if not table[0].startswith(SETTINGS)]
    if page.parent == ROOT:
        return [table for table in found if table[0].startswith("| MaxRL minus GRPO")]
    return found


@pytest.mark.parametrize("study", summarise.STUDIES)
def test_the_tables_of_a_study(study):
    """tables.md is what its files say, to the digit, and a page has parts of its tables alone."""
    text = summarise.tables(study)
    assert summarise.page(study).read_text() == text, f"python results/summarise.py {study}"
    known = tables(text)
    for page in PAGES[study]:
        shown = measured(page)
        assert shown, page
        for table in shown:
            whole = [one for one in known if one[0] == table[0] and set(table) <= set(one)]
            assert whole, (page, table[0])


def test_the_whole_comparison_is_shown():
    """No setting is left out on either page, whatever it says."""
    for page in PAGES["comparison"]:
        (whole,) = tables(summarise.tables("comparison"))
        assert whole in tables(page.read_text())


def test_the_interval():
    """A hand-computed case, and the quantiles against Student's density, integrated."""
    values = np.array([0.0, 2.0])  # mean 1, standard error 1
    assert cells.over_seeds(values, digits=2) == "1.00 ± 12.71"
    assert cells.over_seeds(values[:1]) == "0.000"
    for count, quantile in cells.T.items():
        degrees = count - 1
        # With t = sqrt(degrees) tan(angle) the density is a power of the cosine.
        angle = np.linspace(0, np.pi / 2, 100_001)
        density = np.cos(angle) ** (degrees - 1)
        inside = angle <= np.arctan(quantile / degrees**0.5)
        assert density[inside].sum() / density.sum() == pytest.approx(0.95, abs=1e-4)


def test_every_file_names_its_command():
    """Evaluations and curves of a study; the paper's, pictures, runs and checkpoints have their own
    source."""
    files = [
        file
        for file in (ROOT / "results").rglob("*.json")
        if not {"paper", "figures", "runs", "bench", "gpu", "base"} & set(file.parts)
    ]
    assert len(files) > 20
    for file in files:
        assert json.loads(file.read_text())["command"].split(), file


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


def test_a_figure_fits_on_a_page():
    """At most 1,100 pixels tall, as wide as a page; title and caption are there."""
    image = pytest.importorskip("PIL.Image")
    for file in FIGURES.glob("*.png"):
        width, height = image.open(file).size
        assert width == 1290 and height <= 1100, file
        numbers = json.loads(file.with_suffix(".json").read_text())
        assert numbers["title"] and numbers["caption"], file


def test_every_figure_is_on_a_page():
    pages = "".join(file.read_text() for file in (ROOT / "results").rglob("README.md"))
    for file in FIGURES.glob("*.png"):
        assert f"figures/{file.name})" in pages, file


def test_paper_and_ours_are_never_confused():
    """Lines of the paper are in panels that say so, and a reduced scale of ours is said."""
    for file in FIGURES.glob("*.json"):
        for panel in json.loads(file.read_text())["panels"]:
            title = panel["title"]
            if any(line.get("paper") for line in panel["lines"]):
                assert "paper" in title, (file.name, title)
            if title.startswith("ours"):
                assert "reduced scale" in title or "full size" in title, (file.name, title)


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
