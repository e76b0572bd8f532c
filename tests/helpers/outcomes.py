"""Shared by tests."""

import itertools
import math

import torch

from tests.helpers.tensors import F64

PASS_RATES = torch.tensor([0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98], dtype=F64)
# The estimators that compare the rollouts of a prompt.
NEEDS_GROUP = {
    "reinforce_mean",
    "rloo",
    "grpo",
    "dr_grpo",
    "maxrl_centered",
    "maxrl_leave_two_out",
    "differential_smoothing",
}


def all_outcomes(N):
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=N)), dtype=F64)  # (2^N, N)


def every_count(N):
    """Rewards (N + 1, N) with K successes, then failures, in row K."""
    return torch.ones(N + 1, N, dtype=F64).tril(-1)


# One of three outcomes is right.
LOGITS = torch.tensor([0.3, -1.2, 0.8], dtype=F64)
RIGHT = torch.tensor([0, 1, 0], dtype=F64)


def over_all_outcomes(total, gradient):
    """The expectation of gradient(outcomes (total,)) over all 3^total outcomes."""
    found = torch.zeros(3, dtype=F64)
    for outcome in itertools.product(range(3), repeat=total):
        z = torch.tensor(outcome)
        found += LOGITS.softmax(0)[z].prod() * gradient(z)
    return found


def scores(outcomes):
    """The gradients (m, 3) of the log-probabilities of outcomes (m,)."""
    return torch.eye(3, dtype=F64)[outcomes] - LOGITS.softmax(0)


def binomial(N, p):
    """The chances of 0 to N successes."""
    return [math.comb(N, K) * p**K * (1 - p) ** (N - K) for K in range(N + 1)]


def expected_gradient(rewards, advantages, p):
    """The sum over outcomes of prob (1/N) sum_i A_i d/dp log prob, in which grad p = 1."""
    p = p[:, None, None]  # (M, 1, 1)
    prob = torch.where(rewards == 1, p, 1 - p).prod(dim=2)  # (M, 2^N)
    score = rewards / p - (1 - rewards) / (1 - p)  # (M, 2^N, N)
    return (prob * (advantages * score).mean(dim=2)).sum(dim=1)  # (M,)


def any_options(name, order=3, rewards=None):
    if name == "differential_smoothing" and rewards is not None:
        return {"mean_log_probs": torch.full(rewards.shape, -0.5)}
    if name == "maxrl_leave_two_out":  # its orders end at N - 1
        return {"order": order and max(1, order - 1)}
    return {"maxrl_order": {"order": order}, "pkpo": {"k": order}}.get(name, {})
