"""The tables and figures of results/ can be recomputed from the files beside them, and the kept
runs are those that the studies name."""

import ast
import itertools
import json
import re
import shlex
import shutil
import types
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT

from maxrl.advantages import ADVANTAGES
from maxrl.run import command_line, grid
from results.lab import __main__ as lab
from results.lab import data, intervals, keep
from results.lab.runs import in_order, options, product
from results.order.study import noise

RESULTS = ROOT / "results"
FIGURES = sorted(RESULTS.glob("*/figures/*.json"))
# Studies with tables, and the pages that show parts of them.
PAGES = {
    study: [RESULTS / study / "README.md"]
    for study in lab.STUDIES
    if hasattr(lab.load(study), "tables")
} | {"comparison": [RESULTS / "README.md", ROOT / "README.md"]}
# Tables of settings and verdicts, without a measured number.
SETTINGS = ("| paper | claim |", "| expected | found |")
# What a study has by these names, and what scripts are started by.
SHARED = {"tables", "main"}
# Options that a recorded command may have otherwise: where it was, how often it was saved.
PLACES = {"--out", "--init", "--resume", "--save-every-minutes", "--keep", "--track"}


def tables(text: str) -> list[list[str]]:
    """The lines of every table."""
    return [found.splitlines() for found in re.findall(r"(?m)(?:^\|.*\n)+", text + "\n")]


def measured(page: Path) -> list[list[str]]:
    """The tables of a page that have numbers of runs; of the front page the comparison alone."""
    found = [table for table in tables(page.read_text()) if not table[0].startswith(SETTINGS)]
    if page.parent == ROOT:
        return [table for table in found if table[0].startswith("| MaxRL minus GRPO")]
    return found


@pytest.mark.parametrize("study", PAGES)
def test_the_tables_of_a_study(study):
    """tables.md is what its files say, to the digit, and a page has parts of its tables alone."""
    text = lab.tables_of(study)
    assert lab.page(study).read_text() == text, f"python -m results.lab {study} tables"
    known = tables(text)
    for page in PAGES[study]:
        shown = measured(page)
        assert shown, page
        for table in shown:
            whole = [one for one in known if one[0] == table[0] and set(table) <= set(one)]
            assert whole, (page, table[0])


def test_the_whole_comparison_is_shown():
    """No setting is left out on either page, whatever it says."""
    short, whole = tables(lab.tables_of("comparison"))
    assert len(short) <= 7
    assert short in tables((ROOT / "README.md").read_text())
    for table in (short, whole):
        assert table in tables((RESULTS / "README.md").read_text())


@pytest.mark.parametrize("study", [name for name in lab.STUDIES if name != "comparison"])
def test_the_runs_of_a_study(study):
    """Every kept run is one that the study names, with the options that it was recorded with."""
    file = RESULTS / study / "runs.json"
    kept = json.loads(file.read_text())["runs"] if file.exists() else {}
    stages = lab.load(study).RUNS
    named = {name: words for stage in stages.values() for name, words in stage.items()}
    for name, run in kept.items():
        words = named[name.replace("earlier/", "")]
        if "command" in run:
            assert recorded(run["command"]) == settings(words), name
        elif "estimator" in run:
            _, config = command_line.read_recipe(words[1:], "")
            asked = {key: getattr(config, key) for key in ("estimator", "lr", "seed")}
            (asked["rollouts"],) = config.rollouts
            assert {key: run[key] for key in asked} == asked, name


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


def test_a_planned_stage_is_run_by_name_alone():
    for study in lab.STUDIES:
        module = lab.load(study)
        for stage in getattr(module, "PLANNED", {}):
            assert module.RUNS[stage], (study, stage)


def test_runs_start_after_those_they_start_from():
    runs = product("{n}/rl", "train.py maze9_laptop --init runs/x/{n}/base", n=[0, 1])
    runs |= product("{n}/base", "train.py maze9_laptop_sft --seed {n}", n=[0, 1])
    first, rest = in_order(runs, "runs/x")
    assert list(first) == ["0/base", "1/base"]
    assert list(rest) == ["0/rl", "1/rl"]


def test_a_study_runs_by_the_grid(monkeypatch, capsys, in_a_directory_of_its_own):
    """With one core each, bases first, the chosen ones alone; --dry-run says the same words."""
    made = []
    monkeypatch.setattr(grid, "run_all", lambda *given: made.append(given) and 0)
    chosen = ["fixed_set", "runs", "--only", "seed1/grpo"]
    assert lab.main(chosen) == 0
    ((_, runs, folder, slots),) = made
    assert list(runs) == ["seed1/grpo"] and folder == Path("runs/fixed_set")
    assert [slot["OMP_NUM_THREADS"] for slot in slots] == ["1"]
    lab.main([*chosen, "--dry-run"])
    assert shlex.join(runs["seed1/grpo"]) in capsys.readouterr().out


def test_what_is_kept_of_a_run(warm):
    """Means of five steps, each evaluation where it was; columns give the rows back."""
    rows = [row for row, _ in keep.json_lines(warm / "metrics.jsonl")]
    kept = keep.kept_run(warm)
    steps = kept["metrics"]["step"]
    assert steps == [*range(4, len(rows) - 1, 5), len(rows) - 1][: len(steps)]
    first = np.mean([row["loss"] for row in rows[:5]])
    assert kept["metrics"]["loss"][0] == pytest.approx(first, rel=1e-5)
    assert kept["command"] and kept["commit"] is not None and kept["machine"]


@pytest.mark.parametrize("lost", [0, 1, 10**6])
def test_only_what_has_ended_is_kept(warm, lost, tmp_path, monkeypatch):
    """A run that lacks steps, or has none, does not take the place of the one kept before."""
    run = tmp_path / "runs/study/a"
    shutil.copytree(warm, run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[: max(len(lines) - lost, 0)]))
    before = {"command": "x", "runs": {"a": "before"}}
    (tmp_path / "kept/study").mkdir(parents=True)
    (tmp_path / "kept/study/runs.json").write_text(json.dumps(before))
    monkeypatch.chdir(tmp_path)
    for module in (keep, data):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "kept")
    keep.keep("study", types.SimpleNamespace(RUNS={"all": ["a"]}))
    after = json.loads((tmp_path / "kept/study/runs.json").read_text())["runs"]["a"]
    assert (after == "before") == (lost > 0)


def test_one_name_one_meaning():
    """No two functions of results/ have one name, but for what every study or script has."""
    names: Counter = Counter()
    for file in RESULTS.rglob("*.py"):
        defined = [node for node in ast.parse(file.read_text()).body]
        names.update(node.name for node in defined if isinstance(node, ast.FunctionDef))
    assert {name for name, count in names.items() if count > 1} <= SHARED


def test_the_interval():
    """A hand-computed case, and the quantiles of a printed table."""
    values = np.array([0.0, 2.0])  # mean 1, standard error 1
    assert intervals.interval(values, digits=2) == "1.00 ± 12.71"
    assert intervals.interval(values[:1]) == "0.000"
    tabled = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 8: 2.365, 10: 2.262, 31: 2.042}
    assert {count: intervals.t_quantile(count) for count in tabled} == tabled


def test_every_file_names_its_command():
    """Runs and tests of a study; the paper's, pictures and checkpoints have their own source."""
    files = [
        file
        for file in RESULTS.rglob("*.json")
        if not {"paper", "figures", "speed", "base"} & set(file.parts)
    ]
    assert len(files) > 20
    for file in files:
        assert json.loads(file.read_text())["command"].split(), file


def test_the_figures_are_redrawn_from_files(tmp_path):
    """Without training, every number and every word is the same."""
    lab.main(["all", "figures", "--numbers", "--out", str(tmp_path)])
    made = {file.relative_to(tmp_path): file.read_text() for file in tmp_path.rglob("*.json")}
    kept = {file.relative_to(RESULTS): file.read_text() for file in FIGURES}
    assert made == kept, "what they show has changed: make figures"
    pictures = {file.relative_to(RESULTS) for file in RESULTS.glob("*/figures/*.png")}
    assert pictures == {name.with_suffix(".png") for name in made}


def test_a_figure_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    lab.main(["gradients", "figures", "--only", "figure1", "--out", str(tmp_path)])
    (picture,) = tmp_path.rglob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_figure_fits_on_a_page():
    """At most 1,100 pixels tall, as wide as a page; title and caption are there."""
    image = pytest.importorskip("PIL.Image")
    for file in FIGURES:
        width, height = image.open(file.with_suffix(".png")).size
        assert width == 1290 and height <= 1100, file
        numbers = json.loads(file.read_text())
        assert numbers["title"] and numbers["caption"], file


def test_every_figure_is_on_a_page():
    pages = "".join(file.read_text() for file in RESULTS.rglob("README.md"))
    for file in FIGURES:
        assert f"figures/{file.stem}.png)" in pages, file


def test_paper_and_ours_are_never_confused():
    """Lines of the paper are in panels that say so, and a reduced scale of ours is said."""
    for file in FIGURES:
        for panel in json.loads(file.read_text())["panels"]:
            title = panel["title"]
            if any(line.get("paper") for line in panel["lines"]):
                assert "paper" in title, (file.name, title)
            if title.startswith("ours"):
                assert "reduced scale" in title or "full size" in title, (file.name, title)


def test_the_crossing():
    """The first block from which the lead stays; a lead that is lost again does not count."""
    assert intervals.crossing(np.array([1.0, -2, 3, 4]), 250) == 500
    assert intervals.crossing(np.array([1.0, 2])) == 0
    assert intervals.crossing(np.array([1.0, 0])) is None


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
