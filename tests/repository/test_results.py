"""What the pages of results/ print can be recomputed from the files beside them."""

import importlib.util
import itertools
import json
import re

import numpy as np
import pytest
import torch
from conftest import ROOT

from maxrl.advantages import ADVANTAGES
from results.gradient_norms import summarise as norms
from results.images import noise


def test_the_tables_of_the_demo(capsys):
    spec = importlib.util.spec_from_file_location("summarise", ROOT / "results/summarise.py")
    summarise = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(summarise)
    summarise.main(ROOT / "results/demo")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    page = (ROOT / "results/demo/README.md").read_text()
    assert len(rows) > 30 and all(row in page for row in rows)


def printed_rows(capsys, study: str) -> list[str]:
    """The table rows that a study's own summarise.py prints."""
    folder = ROOT / "results" / study
    importlib.import_module(f"results.{study}.summarise").main(folder)
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("study, least", {"headline": 41, "order": 51, "oracle": 100, "gradient_norms": 8, "fixed_set": 51,
                                          "images_1000": 61, "price": 40}.items())  # fmt: skip
def test_the_tables_of_a_study(study, least, capsys):
    rows = printed_rows(capsys, study)
    page = (ROOT / "results" / study / "README.md").read_text()
    assert len(rows) >= least and [row for row in rows if row not in page] == []


def test_the_front_page_has_the_headline(capsys):
    rows = printed_rows(capsys, "headline")
    front = " ".join((ROOT / "README.md").read_text().split())
    for name in ("rloo", "grpo", "maxrl"):
        means = next(row for row in rows if row.startswith(f"| {name} | 0"))  # over seeds
        first, _, within_64, *_ = re.findall(r"0(\.\d+ ± )0(\.\d+)", means)
        assert "".join(first) in front and "".join(within_64) in front


def test_the_noise_of_an_estimator():
    """The sum over the number of successes, against all outcomes of four draws from three classes."""
    p = np.array([0.3, 0.35, 0.35])
    scores = np.eye(3) - p
    for name, options in (
        ("maxrl", {}),
        ("maxrl_order", {"order": 3}),
        ("maxrl_order", {"order": 4}),
        ("rloo", {}),
    ):
        mean, second = np.zeros(3), 0.0
        for drawn in itertools.product(range(3), repeat=4):
            drawn = np.array(drawn)
            rewards = torch.from_numpy(drawn == 0)[None].double()
            advantages = ADVANTAGES[name](rewards, **options)[0].numpy()
            gradient = advantages @ scores[drawn] / 4
            mean += p[drawn].prod() * gradient
            second += p[drawn].prod() * gradient @ gradient
        expected = np.sqrt(second - mean @ mean) / np.linalg.norm(mean)
        assert noise(name, p[0], 4, 3, **options) == pytest.approx(expected, rel=1e-9)


def test_bins_of_gradient_norms(tmp_path):
    """A bin has what is above the one before and up to its own end; no success and nothing else have bins of their own."""
    rates, sizes = [0, 0.02, 0.0201, 0.05, 0.95, 1], [0, 8.0, 6.0, 4.0, 3.0, 0]
    others = {"grpo": [1.0] * 6, "reinforce_mean": [1.0] * 6}
    study = {
        "checkpoints": [{"name": "words", "pass_rates": rates, "norms": {"maxrl": sizes} | others}]
    }
    (tmp_path / "words.json").write_text(json.dumps(study))
    counts, medians = norms.medians(tmp_path, "words")
    assert counts.tolist() == [1, 1, 2, 0, 0, 0, 0, 0, 0, 1, 1]
    assert np.nan_to_num(medians["maxrl"], nan=-1).tolist() == [
        0,
        8,
        5,
        -1,
        -1,
        -1,
        -1,
        -1,
        -1,
        3,
        0,
    ]
    p, quartiles = norms.curves(tmp_path, "words")["maxrl"]
    assert np.allclose(p, [0.02, 0.03505, 0.95]) and quartiles.T.tolist() == [
        [8, 8, 8],
        [4.5, 5, 5.5],
        [3, 3, 3],
    ]
    assert norms.ratios(tmp_path, "words")["maxrl"] == pytest.approx(1.85)  # 3 at p = .95


def test_the_tables_of_the_first_studies(capsys):
    """Of drawn images: all rows at the rate of the comparison, and the means at the paper's. Of the first mazes: every row but
    the share of clipped steps, whose data was not kept."""
    folder = ROOT / "results/images_laptop"
    page = (folder / "README.md").read_text()
    images_laptop = importlib.import_module("results.images_laptop.summarise")
    images_laptop.main(folder / "rates.json", folder / "test.json")
    rows = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| ") and "±" in line
    ]
    assert (
        len(rows) > 30
        and [row for row in rows if row not in page and "over seeds" not in row] == []
    )
    images_laptop.main(folder / "rates.json", folder / "test_lr0.1.json")
    means = [
        line
        for line in capsys.readouterr().out.split("over seeds")[1].split("\n\n")[0].splitlines()
        if "±" in line
    ]
    assert len(means) == 6 and [row for row in means if row not in page] == []
    importlib.import_module("results.summarise").main(ROOT / "results/maze9_laptop")
    page = (ROOT / "results/maze9_laptop/README.md").read_text().replace("**", "")
    rows = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| ") and "±" in line
    ]
    cells = [
        row.split(" | ", 1)[1].rstrip("| ")
        for row in rows
        if "over seeds" not in row and "over mazes" not in row
    ]
    assert len(cells) > 20 and [cell for cell in cells if cell not in page] == []


def test_the_tables_of_the_small_tasks(capsys):
    folder = ROOT / "results/small_tasks"
    spec = importlib.util.spec_from_file_location("small_tasks", folder / "summarise.py")
    summarise = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(summarise)
    summarise.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    page = (folder / "README.md").read_text()
    assert len(rows) > 10 and all(row in page for row in rows)
    for task in summarise.TASKS:
        for file in folder.glob(f"{task}/test-seed*.json"):
            seed = file.stem.removeprefix("test-")
            assert {row["name"] for row in json.loads(file.read_text())["checkpoints"]} == {
                run.name.removeprefix(f"{seed}-") for run in folder.glob(f"{task}/runs/{seed}-*")
            }, "every run, and no other"
