"""Flat rewards, as other trainers have them, get the advantages of their groups."""

import re
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maxrl.advantages import ADVANTAGES, RewardError, by_group
from tests import ROOT
from tests.helpers.outcomes import any_options

PAGE = (ROOT / "maxrl/run/other_trainers.md").read_text()
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


def run(text: str, space: dict):
    """Run the first indented block of the page in which the text stands."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE, re.M)
    exec(textwrap.dedent(next(block for block in blocks if text in block)), space)


def pretend(monkeypatch, module: str, **contents):
    """Make a module importable that has these contents alone."""
    names = module.split(".")
    for n in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:n]), SimpleNamespace())
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**contents))


def test_the_lines_for_verl_and_skyrl(monkeypatch):
    """As both call a registered estimator: by name, ids in an array of objects, more arguments
    than it asks for."""
    registered = []
    registry = SimpleNamespace(register=lambda name, rule: registered.append(rule))
    verl = "verl.trainer.ppo.core_algos"
    pretend(monkeypatch, verl, register_adv_est=lambda _: registered.append)
    pretend(monkeypatch, "skyrl_train.utils.ppo_utils", AdvantageEstimatorRegistry=registry)
    space: dict = {}
    for text in ("def maxrl_rare", "register_adv_est", "AdvantageEstimatorRegistry"):
        run(text, space)

    rewards, ids = shuffled(torch.float32)
    lengths = torch.arange(len(ids)) % 5 + 1
    mask = (torch.arange(6) < lengths[:, None]).float()  # (B, L)
    token_rewards = torch.zeros(mask.shape)
    token_rewards[torch.arange(len(ids)), lengths - 1] = rewards  # at the last token
    uids = np.array([f"uid-{i}" for i in ids], dtype=object)
    expected = by_group(rewards, ids, "maxrl_rare")[:, None] * mask
    assert len(registered) == 2
    for rule in registered:
        called = dict(token_level_rewards=token_rewards, response_mask=mask, index=uids)
        for result in rule(**called, config=None, gamma=1.0):  # advantages and returns
            assert torch.equal(result, expected)


def test_the_lines_for_prime_rl(monkeypatch):
    outputs = lambda advantages: advantages  # noqa: E731
    pretend(monkeypatch, "prime_rl.orchestrator.advantage", AdvantageOutputs=outputs)
    space: dict = {}
    run("def maxrl_order", space)
    rewards = [1, 0, 0, 1, 0]
    group = SimpleNamespace(rollouts=[{"reward": r} for r in rewards])
    expected = ADVANTAGES["maxrl_order"](torch.tensor([rewards]), order=3)[0].tolist()
    assert space["maxrl_order"](group, order=3) == expected


def test_the_printed_advantages():
    found = re.search(r"^    (by_group\(.*\))    # (.*)$", PAGE, re.M)
    assert eval(found.group(1)).tolist() == eval(found.group(2))
