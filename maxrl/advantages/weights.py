"""The weight w(p) of an estimator, whose expected gradient is w(p) grad p.

`weight` is public as `maxrl.advantages.weight`.

A reward with several values gives a verdict r >= t at each threshold t, with the pass rate p_t
(thresholds.py). The expected gradient is the sum over t of gap w(p_t) grad p_t, where the gap is
the distance from the previous threshold:

    chance = torch.tensor([0.5, 0.3, 0.15, 0.05])   # of the rewards 0, .25, .6 and 1
    p_t = 1 - chance.cumsum(0)[:-1]                 # 0.5, 0.2, 0.05
    weight("rloo", p_t, rollouts=16)                # 1, 1, 1
    weight("tailrl", p_t, rollouts=16)              # 2.0, 4.8, 10.7
    weight("maxrl_order", p_t, order=4, rollouts=16, thresholds=True)   # 1.9, 3.0, 3.7

This holds for estimators with thresholds=True, for tailrl and for the linear ones (reinforce,
reinforce_mean, rloo, dr_grpo). GRPO is not a sum over thresholds: its weight is for verdicts alone.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maxrl.advantages.registry import check_options, check_sizes, find


def weight(
    rule: str | Callable[..., Tensor],
    p: Any,
    order: int | None = None,
    rollouts: int | tuple[int, ...] | None = None,
    **options: Any,
) -> Any:
    """The weight w(p) of an estimator: the expected gradient of a prompt is w(p) grad p.

    weight("maxrl", p)                          limit of many rollouts: 1/p (Table 2)
    weight("maxrl", p, order=T)                 w_T(p), the weight of J_T; any of the maxrl names
                                                means the same
    weight("maxrl", p, rollouts=N)              exact weight of N rollouts: here w_{N-1}
    weight("maxrl_order", p, order=T, rollouts=N)   with both, order is the estimator's own option
    weight("maxrl_rare", p, rollouts=(8, 8, 16))    exact weight of rounds: here w_32
    weight("mine.py:root", p, rollouts=N)       of a rule of one's own
    weight("tailrl", p_t, rollouts=N)           at every threshold of a reward (see above)

    rule      a name in ADVANTAGES, a function of rewards (P, N), or "FILE.py:NAME"
    p         pass rate, a number or a tensor (...); p = 0 and p = 1 give their limits
    order     T, or None for the limit
    rollouts  N, or the sizes of rounds, or None for the limit of many; memory grows with N^2
    options   (ddof, k, thresholds) of the estimator
    returns   a float for a number p, else float64 (...)
    raises    ValueError for p outside [0, 1], for an estimator without a weight, and without
              rollouts for one of unknown limit; KeyError for an unknown name; UsageError for a
              file or function that is not there; else as the estimator
    """
    found = find(rule)
    name = found.__name__
    q = torch.as_tensor(p, dtype=torch.float64, device="cpu")  # (...)
    inside = (q >= 0) & (q <= 1)  # (...)
    if not inside.all():
        raise ValueError(
            f"weight of {name} got p = {p} but a pass rate is in [0, 1]; use successes / rollouts"
        )
    if found.limit is False:
        raise ValueError(
            f"{name} has no weight: its expected gradient is no multiple of grad p; "
            "use another estimator"
        )
    if order is not None:
        options["order"] = order
    if rollouts is None:
        w = _limit(found, q, options)  # (...)
    else:
        sizes = tuple(rollouts) if isinstance(rollouts, (tuple, list)) else (rollouts,)
        check_sizes(found, sizes, options)
        w = torch.zeros_like(q)  # (...)
        reached = torch.ones_like(q)  # (...)  no success so far
        for size in sizes:
            w = w + reached * _finite_weight(found, q, size, options)
            reached = reached * (1 - q) ** size
    if isinstance(p, (int, float)):
        return w.item()
    return w


def _limit(rule: Any, p: Tensor, options: dict) -> Tensor:
    """w(p) (...) of many rollouts, or of an order."""
    name = rule.__name__
    known = rule.known
    count = rule.count
    if rule.limit is None:
        raise ValueError(f"{name} has no limit that is known here; use rollouts=N")
    # Every MaxRL form estimates some J_T, so each has a weight of order T.
    if "order" in inspect.signature(rule.limit).parameters:
        known = {"order": False} | known
        count = "order"
    check_options(name, known, options, count)
    return rule.limit(p, **options)  # (...)


def _finite_weight(rule: Any, p: Tensor, N: int, options: dict) -> Tensor:
    """Exact w(p) (...) of a rule in (r_i, K) alone, by the sum over all K.

    Such a rule gives a_s(K) to successes and a_f(K) to failures:
        w(p) = 1/N sum_K Bin(K; N, p) [K a_s(K) / p - (N-K) a_f(K) / (1-p)]
             = sum_k Bin(k; N-1, p) [a_s(k+1) - a_f(k)]
    The second line absorbs p and 1 - p into the binomials and holds at p = 0 and 1 too. It asks:
    with k successes among the others, how does a rollout's own success change its advantage?
    """
    # Row K has K ones, then N - K zeros: the first column is a success if K > 0, the last one a
    # failure if K < N.
    rewards = p.new_ones(N + 1, N).tril(-1)  # (N + 1, N)
    advantages = rule(rewards, **options)  # (N + 1, N)
    success = advantages[:, :1]  # (N + 1, 1)  a_s(K)
    failure = advantages[:, -1:]  # (N + 1, 1)  a_f(K)
    # Run the same groups with their rollouts reversed, half at a time. This changes all that a rule
    # sees besides (r_i, K): the order of the rollouts and the other groups of the batch.
    turned = rewards.flip(1)  # (N + 1, N)
    expected = torch.where(turned == 1, success, failure)  # (N + 1, N)
    halves = [rule(half, **options) for half in turned.split(N // 2 + 1)]
    again = torch.cat(halves)  # (N + 1, N)
    if not torch.allclose(again, expected, rtol=1e-4, atol=1e-6):
        raise ValueError(
            f"{rule.__name__} has no weight that is known here: its advantages depend on more than "
            "r_i and K, such as the order of the rollouts or other groups; use a rule of these two"
        )
    # Binomials of N = 2048 overflow, their logarithms do not.
    p = p[..., None]  # (..., 1)
    k = torch.arange(N).to(p)  # (N,)
    log_factorials = torch.lgamma(k + 1)  # (N,)  k!
    log_choose = math.lgamma(N) - log_factorials  # (N,)  (N-1)! / k!
    log_choose -= log_factorials.flip(0)  # (N,)  C(N-1, k)
    log_successes = torch.xlogy(k, p)  # (..., N)  p^k
    log_failures = torch.special.xlog1py(N - 1 - k, -p)  # (..., N)  (1-p)^(N-1-k)
    log_prob = log_choose + log_successes + log_failures  # (..., N)  Bin(k; N-1, p)
    change = success[1:, 0] - failure[:-1, 0]  # (N,)  a_s(k+1) - a_f(k)
    return (log_prob.exp() * change).sum(dim=-1)  # (...)
