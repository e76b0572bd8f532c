"""train.py with --rollouts 1,1,2: what is measured, resumed, kept and reported."""

from pathlib import Path

from tests.helpers.runs import metrics, passed, same_runs
from tests.helpers.tables import rows

OPTIONS = "--prompts 4 --estimator maxrl_rare --rollouts 1,1,2 --show-every 1"
RUN = ("train.py", "tiny", "--task", "tests.helpers.tiny:Up", *OPTIONS.split())


def test_a_run_in_rounds(dice, shell):
    """Samples are of the first round. With more steps after the end it is as with all at once."""
    run = (*RUN, "--init", dice)
    said = passed(shell(*run, "--steps", 6, "--out", "rl"))
    assert "6 steps of 4 prompts x 1 + 1 + 2 rollouts" in said
    assert "warning" not in said
    assert len({row["rollouts"] for row in metrics("rl")}) > 1
    shown = rows(Path("rl/samples.jsonl"))
    assert shown
    for line in shown:
        assert line["rollouts"] == 1
        assert line["prompts"]
    passed(shell("sample.py", "rl", "--task", "tests.helpers.tiny:Up"))
    for steps in (3, 6):
        passed(shell(*run, "--steps", steps, "--out", "cut", "--resume", "auto"))
    same_runs("cut", "rl")
