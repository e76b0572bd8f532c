"""The tables and figures of results/ can be recomputed from the files beside them, and the kept
runs are those that the studies name."""

import ast
import functools
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from maxrl.system.files import read_json
from results.lab import __main__ as lab
from results.lab.data import kept
from results.lab.runs import options
from tests import ROOT

RESULTS = ROOT / "results"
# {study/figures/name.png: its numbers}.
FIGURES = {
    f"{study}/figures/{name}.png": numbers
    for study in lab.STUDIES
    for name, numbers in kept(study, "figures").items()
}
# Studies with tables, and the pages that show parts of them.
PAGES = {
    study: [RESULTS / study / "README.md"]
    for study in lab.STUDIES
    if hasattr(lab.load(study), "tables")
} | {"comparison": [RESULTS / "README.md", ROOT / "README.md"]}
# Studies whose pages leave no row of a table out.
WHOLE = ("maze13_end", "tail")
# Tables of settings and verdicts, without a measured number.
SETTINGS = ("| paper | claim |", "| expected | found |")
# What a study has by these names, and what scripts are started by.
SHARED = {"tables", "main"}
# Options that a recorded command may have otherwise: where it was, how often it was saved.
PLACES = {"--out", "--init", "--resume", "--save-every-minutes", "--keep", "--track"}


tables_of = functools.cache(lab.tables_of)


def tables(text: str) -> list[list[str]]:
    """The lines of every table."""
    return [found.splitlines() for found in re.findall(r"(?m)(?:^\|.*\n)+", text + "\n")]


def measured(page: Path) -> list[list[str]]:
    """The tables of a page that have numbers of runs; of the front page those of the comparison."""
    found = [table for table in tables(page.read_text()) if not table[0].startswith(SETTINGS)]
    if page.parent == ROOT:
        return [table for table in found if "minus GRPO" in table[0] or "GRPO → MaxRL" in table[0]]
    return found


@pytest.mark.parametrize("study", PAGES)
def test_the_tables_of_a_study(study):
    """tables.md is what its files say, to the digit, and a page has parts of its tables alone."""
    text = tables_of(study)
    assert lab.page(study).read_text() == text, f"python -m results.lab {study} tables"
    known = tables(text)
    for page in PAGES[study]:
        shown = measured(page)
        assert shown, page
        for table in shown:
            whole = [one for one in known if one[0] == table[0] and set(table) <= set(one)]
            assert whole, (page, table[0])
            assert study not in WHOLE or any(set(one) == set(table) for one in whole), table[0]


def test_the_whole_comparison_is_shown():
    """The studies' page leaves no setting out; the front page has the table that is made for it,
    GRPO with a penalty among its rows, and says no other number than those of the tables."""
    whole, front, at_one_try = tables(tables_of("comparison"))
    studies = tables((RESULTS / "README.md").read_text())
    assert whole in studies and at_one_try in studies
    page = (ROOT / "README.md").read_text()
    assert front in tables(page)
    assert any("GRPO with KL" in row for row in front)
    # Of a number in a sentence the digits stand in a table, whole or rounded to two.
    shown = [whole, front, at_one_try, *tables(tables_of("maze13_end"))]
    known = re.findall(r"\d*\.\d+", "".join(sum(shown, [])))
    known = {f"{float(value):.{digits}f}"[-1 - digits :] for value in known for digits in (2, 3)}
    section = page.partition("## Results")[2].partition("The first test maze")[0]
    said = re.findall(r"\.\d{2,3}", re.sub(r"(?m)^[|!].*$", "", section))
    # A model's parameters in millions, and the penalty.
    assert said and set(said) <= known | {".66", ".04"}


@pytest.mark.parametrize("study", [name for name in lab.STUDIES if name != "comparison"])
def test_the_runs_of_a_study(study):
    """Every kept run is one that the study names, with the options that it was recorded with."""
    stages = lab.runs_of(study)
    named = {name: words for stage in stages.values() for name, words in stage.items()}
    for name, run in kept(study, "runs").items():
        assert recorded(run["command"]) == settings(named[name]), name


def recorded(command: str) -> tuple[str, dict]:
    return settings(shlex.split(command)[1:])


def settings(words: list[str]) -> tuple[str, dict]:
    """The recipe's name, and the options that decide what a run learns, as numbers where they are
    numbers."""
    found = {}
    for option, value in options(words):
        if option not in PLACES:
            plain = re.sub(r"runs/\w+/mazes", "mazes", value)
            found[option] = float(plain) if re.fullmatch(r"[\d.e-]+", plain) else plain
    return words[1].rpartition(":")[2], found


def test_one_name_one_meaning():
    """No two functions of results/ have one name, but for what every study or script has."""
    names: Counter = Counter()
    for file in RESULTS.rglob("*.py"):
        defined = [node for node in ast.parse(file.read_text()).body]
        names.update(node.name for node in defined if isinstance(node, ast.FunctionDef))
    assert {name for name, count in names.items() if count > 1} <= SHARED


def test_every_file_names_its_command():
    """Runs and tests, each of them too; the paper's and pictures have their own source."""
    for file in RESULTS.rglob("*.json"):
        if not {"paper", "speed"} & set(file.parts):
            whole = read_json(file)
            entries = [*whole.get("runs", {}).values(), *whole.get("tests", {}).values()]
            for entry in (whole, *entries):
                assert entry["command"].split(), file


def test_a_figure_fits_on_a_page():
    """At most 1,100 pixels tall, as wide as a page; title and caption are there."""
    image = pytest.importorskip("PIL.Image")
    for file, numbers in FIGURES.items():
        width, height = image.open(RESULTS / file).size
        assert width == 1290 and height <= 1100, file
        assert numbers["title"] and numbers["caption"], file


def test_the_figures_are_redrawn_from_files(tmp_path):
    """Without training, every number and every word is the same."""
    lab.main(["all", "figures", "--numbers", "--out", str(tmp_path)])
    made = {file.relative_to(tmp_path): file.read_text() for file in tmp_path.rglob("*.json")}
    files = RESULTS.glob("*/figures.json")
    known = {file.relative_to(RESULTS): file.read_text() for file in files}
    assert made == known, "what they show has changed: make figures"
    pictures = {file.relative_to(RESULTS).as_posix() for file in RESULTS.glob("*/figures/*.png")}
    assert pictures == set(FIGURES)


def test_a_figure_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    lab.main(["gradients", "figures", "--only", "figure1", "--out", str(tmp_path)])
    (picture,) = tmp_path.rglob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_figure_is_on_a_page():
    pages = "".join(file.read_text() for file in RESULTS.rglob("README.md"))
    for file in FIGURES:
        assert f"{file.partition('/')[2]})" in pages, file


def test_paper_and_ours_are_never_confused():
    """Lines of the paper are in panels that say so, and a reduced scale of ours is said."""
    for file, numbers in FIGURES.items():
        for panel in numbers["panels"]:
            title = panel["title"]
            if any(line.get("paper") for line in panel["lines"]):
                assert "paper" in title, (file, title)
            if title.startswith("ours"):
                assert "reduced scale" in title or "full size" in title, (file, title)
