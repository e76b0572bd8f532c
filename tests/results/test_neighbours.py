"""The neighbours' sampling of results/maze13_end, prompt by prompt."""

import json
import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from maxrl.learning.rounds import sample
from results.maze13_end import neighbours
from tests.helpers import tiny


def one_by_one(verdicts):
    """Reinforce-Ada's pool of one prompt, its rollouts in turn: how many were drawn, and those kept
    with their advantages.
    """
    drawn = []
    while len(drawn) < len(verdicts) and 1 not in drawn:
        drawn += verdicts[len(drawn) : len(drawn) + 8]
    right = [i for i, verdict in enumerate(drawn) if verdict]
    wrong = [i for i, verdict in enumerate(drawn) if not verdict]
    kept = right[:4] + wrong[: 8 - len(right[:4])]
    kept += right[4:][: 8 - len(kept)]
    p = len(right) / len(drawn)
    return len(drawn), {i: (drawn[i] - p) / (p or 1) for i in kept}


@pytest.mark.parametrize("p", [0.02, 0.2, 0.6, 0.97])
def test_pool(p):
    rng = random.Random(p)
    groups = [[int(rng.random() < p) for _ in range(32)] for _ in range(60)]
    had, advantages = neighbours.pooled(torch.tensor(groups, dtype=torch.float32))
    for group, count, row in zip(groups, had.tolist(), advantages.tolist(), strict=True):
        drawn, kept = one_by_one(group)
        assert count == drawn
        found = {i: value for i, value in enumerate(row) if value == value}
        assert found == pytest.approx(kept)


def asked(prompts, rollouts):
    return SimpleNamespace(prompts=prompts, rollouts=(rollouts,), supervised=False)


def test_batches_until_enough_have_a_signal():
    """Prompts that have one are taken in their order, and no batch is drawn in vain."""
    policy, task = tiny.policy(), tiny.Parity()
    examples = [task[i] for i in range(40)]
    every = sample(asked(40, 6), policy, task.rewards, examples, 5, range(40)).rewards
    mixed = [i for i, group in enumerate(every) if 0 < group.sum() < 6]
    assert len(mixed) > 4
    asks = asked(40, 6), policy, task.rewards, examples, 5, range(40), lambda part: nullcontext()
    found = neighbours.dapo(*asks)
    assert torch.equal(found.rewards, every[mixed[:4]])
    batches = mixed[:4][-1] // 4 + 1
    assert found.num_rollouts.tolist() == [6] * 4 * batches
    assert set(found.num_rounds.tolist()) == {batches}


@pytest.mark.parametrize(
    "name, options",
    [
        ("dapo", "--estimator grpo --prompts 20"),
        ("ada", "--estimator reinforce --no-verdict rollout --prompts 4"),
    ],
)
def test_a_run_to_its_end(name, options, shell, dice):
    """With its evaluations and samples."""
    script, up = "results/maze13_end/neighbours.py", "--task tests.helpers.tiny:Up --max-response 6"
    rest = f"{up} --rollouts 32 --init {dice} --steps 2 --eval-every 1 --out run"
    code, said = shell(script, name, "tiny", *f"{options} {rest}".split())
    assert code == 0, said
    steps = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [row["rollouts"] > 0 and "eval/pass@1" in row for row in steps] == [True, True]
