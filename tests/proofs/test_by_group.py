"""Flat rewards, as other trainers have them, get the advantages of their groups."""

import numpy as np
import pytest
import torch

from maxrl.advantages import ADVANTAGES, RewardError, by_group
from tests.helpers.outcomes import any_options

PLAIN = ("reinforce", "supervised")
RULES = [name for name in ADVANTAGES if name != "differential_smoothing"]


def shuffled(dtype=torch.float64):
    """Rewards (B,) of 40 groups of 2 to 9 rollouts in random order, and their ids (B,)."""
    generator = np.random.default_rng(0)
    ids = generator.permutation(np.repeat(np.arange(40), generator.integers(2, 10, size=40)))
    rewards = torch.from_numpy(generator.integers(0, 2, size=len(ids))).to(dtype)
    return rewards, ids


@pytest.mark.parametrize("rule", RULES)
def test_ragged_groups_in_any_order(rule):
    """Each group has the bits of ADVANTAGES[rule] on it alone."""
    rewards, ids = shuffled()
    options = any_options(rule, 2)
    advantages = by_group(rewards, ids, rule, **options)
    assert advantages.dtype == torch.float64
    for i in range(40):
        alone = ADVANTAGES[rule](rewards[ids == i][None], **options)[0]
        assert torch.equal(advantages[ids == i], alone)


def test_a_rollout_without_a_verdict_does_not_count():
    rewards, ids = shuffled()
    judged = np.random.default_rng(2).random(len(ids)) > 0.3
    rewards[~judged] = torch.nan
    advantages = by_group(rewards, ids, "maxrl_rare")
    alone = by_group(rewards[judged], ids[judged], "maxrl_rare")
    assert torch.equal(advantages[judged], alone)
    assert not advantages[~judged].any()
    assert advantages.any()


def test_none_is_no_verdict():
    found = by_group([1, None, 0, 0], "aaaa", "maxrl")
    assert found.tolist() == pytest.approx([2, 0, -1, -1])


def objects(ids):
    """Tensors in an array of objects."""
    found = np.empty(len(ids), dtype=object)
    found[:] = [torch.tensor(i) for i in ids.tolist()]
    return found


KINDS = [
    torch.from_numpy,
    list,
    objects,
    lambda ids: [f"uid-{i}" for i in ids],
    lambda ids: [torch.tensor(i) for i in ids.tolist()],
    lambda ids: [(torch.tensor, np.int16, float)[place % 3](i) for place, i in enumerate(ids)],
    lambda ids: ids.astype(str),
    lambda ids: [np.array(i) for i in ids],
    lambda ids: [(i, "b") for i in ids.tolist()],
]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_any_kind(kind):
    """And the estimator itself in place of its name."""
    rewards, ids = shuffled(torch.int64)
    expected = by_group(rewards.float(), ids, "maxrl")
    assert torch.equal(by_group(rewards.tolist(), kind(ids), ADVANTAGES["maxrl"]), expected)
    assert expected.dtype == torch.float32
    assert expected.any()


def test_refused():
    """Ids or rewards of another shape, ids that are equal to none, groups of one rollout."""
    with pytest.raises(RewardError):
        by_group([0.5, 1.0], "aa", "maxrl")
    with pytest.raises(ValueError):
        by_group(torch.zeros(2, 3), "aa", "maxrl")
    for ids in ("a", torch.zeros(2, 1), [{}, {}], torch.full((2,), torch.nan)):
        with pytest.raises(ValueError):
            by_group([0.0, 1.0], ids, "maxrl")
    for rule in set(RULES) - set(PLAIN):
        with pytest.raises(ValueError):
            by_group([0.0, 1.0], "ab", rule, **any_options(rule, None))


def test_groups_of_one():
    """Where no order is meant, where it is 1, and where there is nothing to compare with."""
    for rule in PLAIN:
        assert by_group([1, 1], "ab", rule).tolist() == [1, 1]
    assert by_group([1, 0], "ab", "maxrl_order", order=1).tolist() == [1, 0]
    assert by_group([1], "a", "maxrl").tolist() == [1]
    assert by_group([1, 0, 1], "aab", "maxrl").tolist() == [1, -1, 1]


def test_log_probs_of_flat_rewards():
    rewards, ids = shuffled()
    values = -torch.arange(float(len(ids)))
    rule = "differential_smoothing"
    found = by_group(rewards, ids, rule, mean_log_probs=values, gamma=0.1)
    for i in range(40):
        right = rewards[ids == i]
        sign = 1 - 2 * right
        expected = ADVANTAGES["grpo"](right[None], ddof=0)[0] + 0.1 * sign * values[ids == i]
        torch.testing.assert_close(found[ids == i], expected, atol=0, rtol=1e-14)
