"""results/agenda.py: every command is understood, and blocks end, resume and wait for each other as it says."""

import importlib.util
import json
import sys

import numpy as np
import pytest
from conftest import ROOT

from maxrl.run.command_line import read_recipe

spec = importlib.util.spec_from_file_location("agenda", ROOT / "results/agenda.py")
agenda = importlib.util.module_from_spec(spec)
sys.modules["agenda"] = agenda  # where its dataclasses look for their module
spec.loader.exec_module(agenda)

WAITS = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); time.sleep(60)"


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """plan(blocks) -> an agenda of these, in a directory of its own; a command is the text of a Python program."""

    def make(*blocks):
        made = agenda.Agenda(tiny=True)
        made.blocks = blocks
        made.work, made.state, made.kept = (
            tmp_path / "work",
            tmp_path / "work.jsonl",
            tmp_path / "kept",
        )
        return made

    monkeypatch.chdir(tmp_path)
    return make


def block(name, *programs, seconds=30, **options):
    return agenda.Block(
        name, "", "", [agenda.Phase(seconds, [["-c", program]]) for program in programs], **options
    )


def run_all(made, most=9) -> list[tuple[str, str]]:
    """(block, how it ended) until nothing is left, or `most` of them."""
    ended = []
    while len(ended) < most and (block := made.next()):
        ended.append((block.name, made.run(block)))
    return ended


@pytest.mark.parametrize("tiny", [False, True])
def test_every_training_is_understood_and_fits(tiny):
    blocks = agenda.Agenda(tiny).blocks
    names = [block.name for block in blocks]
    for i, block in enumerate(blocks):
        assert sum(phase.seconds for phase in block.phases) + agenda.GRACE <= 540
        assert set(block.needs) <= set(names[:i])
        for script, *words in [words for phase in block.phases for words in phase.commands]:
            if script == "train.py":
                name, cfg = read_recipe(words, "")
                assert (
                    cfg.resume == "auto" and cfg.save_every_minutes and (tiny or cfg.steps >= 4000)
                )
            else:
                assert script in ("-m", "eval.py") or (ROOT / script).exists()


def test_a_block_that_failed_comes_last_and_what_needs_it_waits(plan, tmp_path):
    never = tmp_path / "never"
    fails = block("a", "raise SystemExit(3)", f"open({str(never)!r}, 'w')")
    made = plan(fails, block("b", "", needs=("a",)), block("c", "", ""))
    assert run_all(made, 3) == [("a", "failed"), ("c", "done"), ("a", "failed")]
    made.blocks[0].phases = block("a", "").phases
    assert run_all(made) == [("a", "done"), ("b", "done")]
    assert not never.exists()


def test_a_block_whose_time_is_up_is_repeated_unless_its_end_is_that_of_its_time(plan):
    made = plan(block("a", WAITS, seconds=1), block("b", WAITS, seconds=1, timed=True))
    assert run_all(made, 2) == [("a", "unfinished"), ("a", "unfinished")]
    made.blocks[0].phases = block("a", "").phases
    assert run_all(made) == [("a", "done"), ("b", "done")]


def test_a_block_that_was_killed_is_repeated(plan):
    made = plan(block("a", ""))
    made.note({"block": "a", "state": "begun"})
    assert made.next().name == "a"


def test_a_rehearsal_keeps_metrics(plan):
    made = plan()
    made.blocks = [block for block in made.mazes() if block.name == "maze17-base"]
    assert run_all(made, 1) == [("maze17-base", "done")], [
        file.read_text() for file in made.work.glob("*.log")
    ]
    rows = (made.kept / "runs/maze17-base/metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == 1
    assert (
        len(json.loads((made.kept / "maze17-0.json").read_text())["checkpoints"][0]["counts"]) == 4
    )


def test_a_rehearsal_is_shown(plan, capsys):
    """With fewer samples than 128."""
    kept = plan().kept
    (kept / "runs/maze17-grpo").mkdir(parents=True)
    line = '{"step": 9, "frac_reward_zero_mean": 0.5}\n'
    (kept / "runs/maze17-grpo/metrics.jsonl").write_text(line)
    rows = {"samples": 4, "checkpoints": [{"name": "grpo", "counts": [0, 1, 4]}]}
    (kept / "maze17-1.json").write_text(json.dumps(rows))
    agenda.show(kept)
    row = capsys.readouterr().out.splitlines()[2]
    assert row.startswith("| grpo | 10 |")
    assert row.split(" | ")[4] == "0.417" and row.split(" | ")[6] == "-"


def test_what_is_shown_beside_the_paper():
    points = [[0, 1.0], [10, 3.0], [30, 2.0]]
    for step in (0, 5, 10, 17, 30, 40):
        assert agenda.at(points, step) == pytest.approx(np.interp(step, *zip(*points)))
    rows = [{"frac_reward_zero_mean": 0.75}] + [{"frac_reward_zero_mean": 0.25}] * 14
    smooth = 0.25
    for _ in range(70):  # 14 lines of five steps
        smooth = 0.99 * smooth + 0.01 * 0.75
    assert agenda.smoothed(rows) == pytest.approx(smooth)
