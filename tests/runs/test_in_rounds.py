"""train.py with --rollouts 1,1,2: what is measured, resumed, kept, refused and reported."""

import json
from pathlib import Path

import pytest
from runs import metrics, refused, timeless

OPTIONS = "--prompts 4 --estimator maxrl_rare --rollouts 1,1,2 --show-every 1"
RUN = ("train.py", "tiny", "--task", "tiny:Up", *OPTIONS.split())


def test_a_run_in_rounds(dice, shell):
    """The model is measured by the first round; what was sampled, and who is left without a
    success, by all of them.
    """
    code, said = shell(*RUN, "--init", dice, "--steps", 6, "--out", "rl")
    assert code == 0 and "6 steps of 4 prompts x 1 + 1 + 2 rollouts" in said
    for row in metrics("rl"):
        first, second = (
            4 * (1 - row["reward"]),
            4 * row["rounds"] - 4,
        )  # who goes on to the second and third round
        assert row["rollouts"] == 4 * row["rollouts/per_prompt"] and row["rollouts"] in range(4, 17)
        assert first <= second <= 2 * first
        assert row["frac_reward_zero_mean"] <= 1 - row["reward"]
    assert len({row["rollouts"] for row in metrics("rl")}) > 1
    shown = [json.loads(line) for line in Path("rl/samples.jsonl").read_text().splitlines()]
    assert shown and all(line["rollouts"] == 1 and line["prompts"] for line in shown)
    assert shell("sample.py", "rl", "--task", "tiny:Up")[0] == 0


def test_a_resumed_run_in_rounds_is_the_same(dice, shell):
    run = (*RUN, "--init", dice)
    assert (
        shell(*run, "--steps", 4, "--out", "whole")[0]
        == shell(*run, "--steps", 2, "--out", "cut")[0]
        == 0
    )
    assert shell(*run, "--steps", 4, "--out", "cut", "--resume", "yes")[0] == 0
    assert timeless("cut") == timeless("whole")


def test_several_updates_and_verdicts_left_out(dice, shell):
    Path("rewards.py").write_text(
        "import re\n"
        "def right(completions):\n"
        "    return [None if 'LEFT' in text else float(text.startswith('UP')) for text in "
        "completions]\n"
    )
    own = "--reward rewards.py:right --no-verdict rollout"
    several = "--minibatches 2 --passes 2 --entropy-bonus 0.01 --steps 3 --out rl"
    code, said = shell(*RUN, "--init", dice, *own.split(), *several.split())
    assert code == 0, said
    left_out = [row["rewards/rollouts_left_out"] for row in metrics("rl")]
    assert len(left_out) == 3 and sum(left_out) > 0


@pytest.mark.parametrize(
    "options, words",
    [
        ("--estimator maxrl", ["maxrl", "maxrl_success or maxrl_rare"]),
        ("--estimator grpo", ["grpo"]),
        ("--estimator.order 2", ["order"]),
        ("--estimator maxrl_success --allow-fractional true", ["allow_fractional"]),
        ("--rollouts 4,0", ["--rollouts 0"]),
        ("--rollouts 4,x", ["--rollouts: '4,x'"]),
    ],
)
def test_refusals(dice, shell, options, words):
    refused(shell(*RUN, "--init", dice, "--steps", 1, "--out", "rl", *options.split()), *words)
    assert not Path("rl").exists()
