"""sample.py through its front door, and rewards between right and wrong."""

import re
from pathlib import Path

import numpy as np
import pytest

from maxrl.analysis.metrics import best_at_k
from maxrl.models import checkpoint
from maxrl.run.evaluation import judge_samples
from maxrl.tasks import load_task
from tests.helpers import tiny
from tests.helpers.evaluated import UP, throws
from tests.helpers.runs import passed

PARTIAL = """
def up(completions):
    return [REWARD if text[:2] == 'UP' else 0.0 for text in completions]
"""


@pytest.mark.parametrize("reward, weight", [("0.5", 1), ("-1.0", 1), ("3.0", 1), ("0.5", 2)])
def test_rewards_that_are_not_0_or_1(dice, evaluate, shell, reward, weight):
    """Their mean and the best of k are shown, since pass@k counts a reward of 1 alone, and
    sample.py shows each.
    """
    Path("rewards.py").write_text(PARTIAL.replace("REWARD", reward))
    ask = (*UP, "--reward", "rewards.py:up", "--reward-weights", weight)
    said, results = evaluate(dice, *ask)
    each = float(reward) * weight
    shown = each != 1
    mean = each * sum(throws(range(10), 8, 0.5)) / 80
    (row,) = results["checkpoints"]
    assert row["reward"] == pytest.approx(mean)
    assert (f"reward {mean:.3f}" in said) == shown
    assert ("best@1" in said) == ("best@k" in results) == shown
    if shown:
        rewards = each * (np.arange(8) < np.array(throws(range(10), 8, 0.5))[:, None])
        best = best_at_k(rewards, 4)
        assert results["best@k"]["dice"]["mean"][2] == pytest.approx(best.mean())
        assert f"{best_at_k(rewards, 1).mean():.3f} ± " in said
    look = ("--samples", 8, "--prompts", 3, "--max-response", 6, "--task", "tests.helpers.tiny:Up")
    said = passed(shell("sample.py", dice, *look, *ask[len(UP) :]))
    assert (f"reward {each:g}" in said) == shown
    both = passed(shell("sample.py", dice, dice, *look, *ask[len(UP) :]))
    assert (f"reward {each:g}" in both) == shown


def test_sample(warm, mazes, shell):
    """It shows rollouts of the noise that eval.py uses, without escapes if there is no terminal;
    with --both only prompts that have right and wrong ones."""
    ask = ("sample.py", warm, "--prompts", 24, "--samples", 8)
    said = passed(shell(*ask))
    assert not {"\x1b", "\r"} & {*said}
    policy = tiny.policy(checkpoint.load(warm).model, max_tokens=20)
    task = load_task("maze", "validation", size=7, directory=str(mazes))
    counts = judge_samples(policy, task, range(24), 8)[0].sum(1).tolist()
    shown = re.findall(r"prompt (\d+): (\d) of 8 rollouts are right", said)
    assert [(int(i), int(count)) for i, count in shown] == list(enumerate(counts))
    # What the model has learned differs from machine to machine.
    assert ("right:" in said) == any(counts)
    mixed = [i for i, count in enumerate(counts) if 0 < count < 8]
    both = passed(shell(*ask, "--both"))
    assert [int(i) for i in re.findall(r"prompt (\d+):", both)] == mixed
    none = passed(shell(*ask, "--samples", 1, "--both"))
    assert "no prompt has right and wrong rollouts" in none


def test_rollouts_without_a_verdict(dice, in_a_directory_of_its_own, shell):
    """They are neither right nor wrong, as is their group, so --both does not show the prompt."""
    none = "    return [1.0 if text[:2] == 'UP' else None for text in completions]"
    Path("rewards.py").write_text(f"def up(completions):\n{none}\n")
    ask = ("sample.py", dice, "--samples", 8, "--prompts", 3, "--max-response", 6)
    ask += ("--task", "tests.helpers.tiny:Up", "--reward", "rewards.py:up")
    said = passed(shell(*ask))
    assert said.count("0 of 0 rollouts are right\nno verdict\n") == 3
    assert "no prompt has right and wrong" in passed(shell(*ask, "--both"))


def test_sample_of_two_models(warm, dice, mazes, shell):
    """Next to each other stand the first rollout of each, its verdict and its count."""
    few = ("--samples", 1, "--task", "maze", "--max-response", 20)
    few += ("--task.size", 7, "--task.directory", mazes)
    drawn = []
    counts = []
    for models in ((warm,), (dice,), (warm, dice)):
        said = passed(shell("sample.py", *models, *few))
        counts.append(re.findall(r"(\d) of 1", said))
        lines = [line for line in said.splitlines() if not re.search(r"prompt|of 1", line)]
        drawn.append([line.split() for line in lines])
    left, right, both = drawn
    assert left != right
    assert both == [a + b for a, b in zip(left, right)]
    assert counts[2] == [count for pair in zip(*counts[:2]) for count in pair]
