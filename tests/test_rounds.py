"""Rounds (maxrl/rounds.py): sampling until a round has a success has the order of all rounds together, by enumeration."""

import itertools

import pytest
import torch

from maxrl.advantages import ADVANTAGES, _c, weight

F64 = torch.float64
PASS_RATES = torch.tensor([0.02, 0.1, 0.3, 0.5, 0.75, 0.98], dtype=F64)
SIZES = [(2,), (2, 2), (1, 2, 4), (3, 1)]
EXACT = [name for name, rule in ADVANTAGES.items() if rule.rounds]
LOGITS = torch.tensor([0.3, -1.2, 0.8], dtype=F64)
RIGHT = torch.tensor([0, 1, 0], dtype=F64)                             # one of three outcomes is right


def rounds_of(outcomes, sizes):
    """Cut all rollouts (..., total) of a prompt into its rounds and return the first with a success, or the last."""
    for group in outcomes.split(sizes):
        if RIGHT[group].any():
            return group
    return group


def majority_of_all(rewards):
    """maxrl_rare with a majority that includes rollout i."""
    N = rewards.shape[1]
    baseline = (rewards.sum(1, keepdim=True) > N / 2).to(rewards)
    return (rewards - baseline) * _c(rewards, N)


def expected_gradient(rule, sizes):
    """The sum over all 3^total outcomes of probability times gradient (3,), each of the round that is used alone."""
    probabilities = LOGITS.softmax(0)
    total = torch.zeros(3, dtype=F64)
    for z in itertools.product(range(3), repeat=sum(sizes)):
        z = torch.tensor(z)
        group = rounds_of(z, sizes)
        scores = torch.eye(3, dtype=F64)[group] - probabilities        # (m, 3)
        advantages = rule(RIGHT[group][None])[0]                       # (m,)
        total += probabilities[z].prod() * (advantages[:, None] * scores).mean(0)
    return total


def grad_J(order):
    """The gradient (3,) of Eq. (6), by autograd."""
    logits = LOGITS.clone().requires_grad_()
    p = (logits.softmax(0) * RIGHT).sum()
    J = -sum((1 - p) ** k / k for k in range(1, order + 1))
    return torch.autograd.grad(J, logits)[0]


def test_which_estimators_are_declared():
    assert set(EXACT) == {"maxrl_success", "maxrl_rare"}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", EXACT)
def test_expected_gradient_of_rounds_is_that_of_the_sum_of_their_sizes(name, sizes):
    torch.testing.assert_close(expected_gradient(ADVANTAGES[name], sizes), grad_J(sum(sizes)), rtol=0, atol=1e-12)
    expected = weight("maxrl", PASS_RATES, order=sum(sizes))
    torch.testing.assert_close(weight(name, PASS_RATES, rollouts=sizes), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["maxrl", "maxrl_centered", "rloo", "majority_of_all"])
def test_others_have_another_weight_in_rounds(name):
    """So that they are refused: Algorithm 1 has order m - 1 in each round, a centred form pushes failed rounds down."""
    rule = ADVANTAGES.get(name, majority_of_all)
    difference = expected_gradient(rule, (2, 2)) - grad_J(4)
    assert difference.abs().max() > 1e-3
    if name in ADVANTAGES:
        with pytest.raises(ValueError, match="maxrl_success or maxrl_rare"):
            weight(name, 0.5, rollouts=(2, 2))


def test_a_majority_that_includes_the_rollout_itself_is_biased():
    """Also in one round; with the majority of the others the same enumeration is exact."""
    assert (expected_gradient(majority_of_all, (3,)) - grad_J(3)).abs().max() > 1e-3


@pytest.mark.parametrize("sizes", [(8, 8, 16, 32), (8, 8, 16, 32, 64), (64, 64, 128, 256, 512)])
def test_weight_of_large_rounds(sizes):
    p = torch.tensor([0.0, 1e-6, 1e-3, 0.05, 0.5, 1.0], dtype=F64)
    for name in EXACT:
        torch.testing.assert_close(weight(name, p, rollouts=sizes), weight("maxrl", p, order=sum(sizes)), rtol=1e-10, atol=0)
