"""How a run ends: at its pass rate, at its last step, or before it begins."""

from pathlib import Path

from tests.helpers.runs import metrics, passed

EVALUATED = "--eval-k 1,4 --eval-samples 4 --eval-prompts 8 --out run --eval-every"


def test_a_run_stops_at_its_pass_rate_and_stays_stopped(dice, shell):
    """A model that is right half of the time is rewarded until it is nearly always right."""
    task = ("--init", dice, "--task", "tests.helpers.tiny:Up", "--max-response", 6, "--lr", 0.002)
    run = ("train.py", "tiny", *task, *EVALUATED.split(), 2, "--stop-at-pass", 0.9)
    said = passed(shell(*run))
    assert "pass@1 reached --stop-at-pass 0.9" in said
    rows = metrics("run")
    *before, last = [row["eval/pass@1"] for row in rows if "eval/pass@1" in row]
    assert 2 < len(rows) < 60
    assert max(before) < 0.9 <= last
    assert Path("run/latest").read_text() == f"step-{len(rows):06d}\n"
    said = passed(shell(*run, "--resume", "auto"))
    assert f"resumes after step {len(rows)}\n" in said
    assert metrics("run") == rows


def test_a_pass_rate_that_was_not_reached(shell):
    """It is said, and the run can be resumed with more steps."""
    run = ("train.py", "tiny_sft", *EVALUATED.split(), 10, "--stop-at-pass", 0.999)
    said = passed(shell(*run, "--steps", 10))
    assert "did not reach --stop-at-pass 0.999" in said
    passed(shell(*run, "--steps", 12, "--resume", "yes"))
    assert len(metrics("run")) == 12


def test_a_pass_rate_that_was_never_measured(shell):
    run = ("train.py", "tiny_sft", *EVALUATED.split(), 10, "--stop-at-pass", 0.999)
    said = passed(shell(*run, "--steps", 2))
    assert "did not reach" not in said
    assert "--eval-every 10" in said
