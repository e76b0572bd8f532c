"""Every row of bench.py runs, at a tiny size, and every table that was kept is printed."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests import ROOT
from tests.bench import bench, bench_rounds, replay


def printed(found: dict, by: str, capsys) -> int:
    """The number of rows in the table."""
    bench.show(found, by)
    return capsys.readouterr().out.count("\n| ") - 1


def test_every_row_runs(tmp_path, capsys):
    """Where TRL is not installed, its rows run up to the import of it."""
    file = tmp_path / "tiny.json"
    command = [sys.executable, "-m", "tests.bench.bench", "--tiny", "--threads", "1", "--out", file]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=True)
    found = json.loads(file.read_text())
    assert [row["name"] for row in found["rows"]] == list(bench.ROWS)
    assert printed(found, "cpu", capsys) == len(bench.ROWS)
    missing = []
    for row in found["rows"]:
        *_, last = row.get("error", "").splitlines() or [""]
        package = re.fullmatch(r"ModuleNotFoundError: No module named '(\w+)'", last)
        if package and not find_spec(package[1]):
            missing.append(package[1])
        else:
            assert not last, row["error"]
    if missing:
        pytest.skip(f"rows that need {missing} stopped there")


def test_rollouts_of_rounds():
    """On the page they are those of the formula, and as drawn within 5 standard errors of it."""
    page = (ROOT / "results/speed/bench.md").read_text()
    for mean in bench_rounds.MEANS:
        rates = bench_rounds.moved(bench_rounds.base_rates(), mean)
        assert float(rates.mean()) == pytest.approx(mean)
        expected = bench_rounds.expected(rates)
        (cells,) = re.findall(rf"^\| {mean:g} \| (.*) \|$".replace("0.", "."), page, re.M)
        rollouts, drawn, ratio, of_drawn = map(float, cells.split(" | "))
        assert rollouts == pytest.approx(expected, abs=0.051)
        assert ratio == pytest.approx(128 / expected, abs=0.0051)
        # A prompt has 8 to 128 rollouts, so that their standard deviation is at most 60.
        for found, number in ((drawn, 20), (bench_rounds.counted(rates, 4), 4)):
            assert abs(found - expected) < 5 * 60 / (512 * number) ** 0.5
        assert of_drawn == pytest.approx(128 / drawn, rel=0.01)


REPLAYED = json.loads((ROOT / "results/speed/replay.json").read_text())


def test_the_page_has_the_replayed_steps():
    """If it does not, this is the table that belongs there."""
    table = replay.table(REPLAYED)
    assert table in (ROOT / "results/speed/bench.md").read_text(), table


def test_a_replay_is_that_of_the_page():
    """As the sampler is now: what a step reads, and how often it has another shape."""
    name = "maze17, 8 GPUs"
    found = replay.averaged(replay.replay(name, 9))
    for key in ("row-steps", "needed", "bytes", "captures"):
        assert found[key] == pytest.approx(REPLAYED[name]["after"][key], rel=0.01), key


def test_a_replay_ends_rows_at_their_lengths():
    """Without a limit of memory and of length the needed row-steps are the lengths drawn, and no
    step has more rows than there are or fewer than are alive."""
    name = "polaris_qwen3_1_7b, 32 GPUs"
    (found,) = replay.replay(name, 1, prompts=64, max_response=512)
    drawn = [replay.lengths(0, i, 16, 1400).clip(max=512).sum() for i in range(2)]
    assert found["needed"] == sum(drawn) <= found["row-steps"] <= 32 * 512
    assert found["steps"] == 512


@pytest.mark.parametrize("file", sorted((ROOT / "results/speed/bench").glob("*.json")), ids=str)
def test_a_kept_table_is_printed(file, capsys):
    found = json.loads(file.read_text())
    assert printed(found, "wall", capsys) == len(found["rows"])
