"""Rewards that are not 0 or 1: an estimator of verdicts at every threshold of the reward.

A threshold t turns a reward r into a verdict, r >= t, whose pass rate is p_t. An estimator of
verdicts with the weight w(p) is applied at every t, and the results are added up, so the expected
gradient is the integral of w(p_t) grad p_t over the range of the rewards
(tests/proofs/test_thresholds.py). If w(p) = 1/p, this is the gradient of the integral of log p_t,
maximum likelihood at every threshold (Ramasubramanian et al., TailRL, arXiv 2609.02987); with the
weight of pass@k, it is the gradient of the expected best of k rewards. The verdicts of a group
change only at its own rewards r_(1) <= ... <= r_(N), so the integral is a sum, with r_(0) = 0:

    A_i = sum_j (r_(j) - r_(j-1)) A_i(verdicts at r_(j))
"""

from collections.abc import Callable

import torch
from torch import Tensor


def over_thresholds(formula: Callable[[Tensor], Tensor], rewards: Tensor) -> Tensor:
    """Return the advantages (P, N) of any rewards (P, N) by a formula for verdicts.

    formula  gives the advantages (rows, N) of verdicts (rows, N), 0 or 1. They depend only on the
             verdict and the number K of successes, so it is called with one row for each K. Memory
             grows with N^2

    Below r_(1) all rollouts pass. If the formula does not give 0 there, the result depends on where
    rewards begin, namely at 0.
    """
    N = rewards.shape[1]
    # The verdicts at r_(j) have K = N - j + 1 successes. Of equal rewards, only the first has a
    # gap, so only it counts.
    verdicts = rewards.new_ones(N, N).tril().flip(0)  # (N, N)  row j: K ones, then zeros
    advantages = formula(verdicts)  # (N, N)
    success = advantages[:, 0]  # (N,)
    failure = advantages[:, -1]  # (N,)  that of j = 1, where nobody fails, cancels
    ordered, places = rewards.sort(dim=1)  # (P, N) r_(j), and where each of them was
    gaps = ordered.diff(dim=1, prepend=torch.zeros_like(ordered[:, :1]))  # (P, N)
    # A rollout passes the thresholds up to its own reward and fails those above it.
    passed = (gaps * success).cumsum(dim=1)  # (P, N)
    failed = (gaps * failure).cumsum(dim=1)  # (P, N)
    total = passed + (failed[:, -1:] - failed)  # (P, N)
    return torch.empty_like(rewards).scatter(1, places, total)
