"""A success is a reward of exactly 1, wherever successes are counted."""

import ast
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maxrl.learning import rounds
from maxrl.run.evaluation import judge_samples, of_rewards
from maxrl.run.logger import Logger
from results.lab.data import rows_of
from tests.helpers.judged import group_metrics
from tests.helpers.started import started
from tests.helpers.tables import each
from tests.helpers.tiny import Up

NAN = math.nan
# Rewards of prompts with a success and without.
SUCCESS = ["0 1", "-1 1", "1 0", "nan 1"]
NONE = ["0 0", ".1 .1", ".5 .75", "-1 -1", "2 0", ".9999999 0", "nan .5"]
REWARDS = [[*map(float, group.split())] for group in SUCCESS + NONE]
REWARDS = torch.tensor(REWARDS, dtype=torch.float64)
SOLVED = torch.arange(len(REWARDS)) < len(SUCCESS)


def evaluated(rewards, k):
    """The metrics of an evaluation of these rewards (P, N)."""

    def rollout(examples, *_, indices, **options):
        chosen = rewards[list(indices)]
        return SimpleNamespace(rewards=chosen, finished=chosen == chosen)

    policy = SimpleNamespace(
        unsharded_model=lambda: None, device="cpu", wave_rows=4, rollout=rollout
    )
    judge = lambda examples, rollouts: rollouts.rewards  # noqa: E731
    P, N = rewards.shape
    found, _ = judge_samples(policy, Up("test"), range(P), N, judge=judge)
    return of_rewards(found, [k])


def test_one_rule():
    assert group_metrics(REWARDS)["frac_unsolved"] == (~SOLVED).double().mean()
    assert torch.equal(rounds.unsolved(REWARDS), ~SOLVED)
    whole = ~REWARDS.isnan().any(1)
    unsolved = group_metrics(REWARDS[whole])["frac_unsolved"]
    found = evaluated(REWARDS, 2)
    assert found["pass@2"] == pytest.approx(1 - unsolved)
    assert found["best@2"] == pytest.approx(float(REWARDS[whole].amax(1).mean()))
    assert found["groups_left_out"] == (~whole).sum()
    assert math.isnan(evaluated(REWARDS[~whole], 2)["pass@2"])


@pytest.mark.parametrize("values", [[-1, 0.25], [0, -2, NAN], [1, -1], [3], [NAN, -4]])
def test_the_mean_reward_of_an_evaluation_is_signed(values):
    reward = evaluated(torch.tensor([values], dtype=torch.float64), 1)["reward"]
    assert reward == pytest.approx(np.nanmean(values))


# Rewards of two prompts. In the third row they depend on the prompt alone, in the fifth nothing is
# left to learn; the last two have single rollouts.
STEPS = """
[[0, 0], [0, 0]] | 1
[[.1, .1], [.1, .1]] | 1
[[-1, -1], [.5, .5]] | 1
[[1, 1], [0, 0]] | 0
[[1, 1], [1, 1]] | 0
[[.1, .5], [0, 0]] | 0
[[.1], [.5]] | 0
[[.1], [.1]] | 1
"""


@each("row", STEPS)
def test_steps_that_teach_nothing(row, tmp_path, capsys):
    rewards, warned = map(ast.literal_eval, row)
    log = Logger(started(tmp_path, rollouts=(len(rewards[0]),)), 0)
    for step in range(12):
        log.log(step, group_metrics(rewards))
    assert capsys.readouterr().err.count("warning") == warned


def test_kept_runs_of_both_names():
    columns = {"step": [4, 9, 14], "frac_reward_zero_mean": [0.5, 0.25, None]}
    columns["frac_unsolved"] = [None, 0.75, 1.0]
    assert [row["solved"] for row in rows_of({"metrics": columns})] == [0.5, 0.25, 0.0]
