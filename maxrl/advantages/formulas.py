"""Advantages: the whole difference between REINFORCE, RLOO, GRPO and MaxRL is on this page.

Take one prompt with pass rate p and N rollouts z_i with rewards r_i in {0, 1}, of which
K = sum_i r_i are successes. An estimator is a rule that gives each rollout an advantage A_i; its
gradient is (1/N) sum_i A_i grad log m(z_i) (Algorithm 1, line 8). The expectation of this gradient
is w(p) grad p: the weight w(p) says which prompts an estimator cares about.
    maximum likelihood  log p = -sum_{k>=1} (1-p)^k / k  weight 1/p: the hard prompts count
    reinforcement       p - 1, its term of k = 1         weight 1: all count alike
    MaxRL of order T    J_T, its first T terms (Eq. 6)   weight w_T(p) = (1 - (1-p)^T) / p
                                                                       = sum_{k=0}^{T-1} (1-p)^k
N rollouts give order T = N (Theorem 2) by Eq. (9) and Eq. (10), which are maxrl_success and
maxrl_centered below, and no higher order. In a group without a success (K = 0) Eq. (10) gives all
rollouts the advantage -1, and Algorithm 1 gives them 0. The contribution of such groups, which
Algorithm 1 drops, has the expectation (1-p)^(N-1) grad p: their probability is (1-p)^N, and the
mean score of a failure is -grad p / (1-p). This is the last term of w_N: Algorithm 1 has
order N - 1.

  name            A_i                             w(p) with N rollouts          rewards   N = 1
  reinforce       r_i                             1                             any       r
  reinforce_mean  r_i - mean                      (N-1)/N                       any       refused
  rloo            r_i - mean of the others        1                             any       refused
  grpo            (r_i - mean) / (std + 1e-6)     to 1/sqrt(p(1-p)) as N grows  any       refused
  dr_grpo         r_i - mean                      (N-1)/N                       any       refused
  maxrl           (r_i - mean) / mean, 0 if K = 0 w_{N-1}                       {0, 1} *  r
  tailrl          maxrl at every threshold        w_{N-1}                       any       r
  maxrl_success   r_i N / K, 0 if K = 0           w_N                           {0, 1} +  r
    with order=T  r_i c_i                         w_T                           {0, 1} +  r
  maxrl_centered  r_i N / K - 1, -1 if K = 0      w_N                           {0, 1}    refused
  maxrl_order     (r_i - mean of the others) c_i  w_T                           {0, 1} *  r
  maxrl_leave_    (r_i - mean of the others) c    w_T, T < N: 1 is rloo,        {0, 1} *  refused
    two_out                                         N - 1 is maxrl
  maxrl_rare      (r_i - majority of others) c_i  w_T, T = N by default         {0, 1} *  r
  pkpo            r_i k q_i                       k (1-p)^(k-1), of pass@k      {0, 1} +  r (k = 1)
  differential_   grpo - gamma l_i if r_i = 1,    none: depends on l_i too      any       refused
    smoothing     grpo + gamma l_i otherwise
  supervised      1                               none: rollouts are given      any       1
c_i is an unbiased estimate of w_T(p) from the failures among the other rollouts (_c below), c is
one from all rollouts except a success and a failure, and q_i is an estimate of (1-p)^(k-1). l_i is
the mean log-probability of the rollout's tokens.
With thresholds=True, rows with * take any rewards, and rows with + take rewards of 0 or more: the
estimator is applied at every threshold of the reward, with the weight w(p_t) at threshold t
(thresholds.py). Eq. (10) is not exact there: above the largest reward of a group no rollout passes,
and it gives -1 at every threshold up to a top that nobody knows.

No MaxRL form needs an epsilon: K = 0 is handled separately, and otherwise K is at least 1 (of
rewards 0 or 1). An epsilon of 1e-4 would shrink a group with 1 success in 1024 by 9.3 %.

A new estimator is one function under one `@estimator` line, whose arguments registry.py explains.
Every estimator:
    rewards  (P, N) tensor, the N rollouts of each prompt in a row. With allow_missing=True a NaN
             marks a rollout without a reward, whose advantage is 0 (registry.among_judged)
    returns  advantages A_i (P, N), in float32, or in float64 if the rewards are
    raises   RewardError for a reward that the table does not allow,
             ValueError or TypeError for a wrong shape or option, or for an N that it refuses
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from maxrl.advantages.registry import ADVANTAGES as ADVANTAGES
from maxrl.advantages.registry import estimator


# ---------------------------------- reinforcement: weight near 1 ----------------------------------
def rl_weight(p: Tensor, **_) -> Tensor:
    """w(p) = 1, for many rollouts."""
    return torch.ones_like(p)


def _mean(rewards: Tensor) -> Tensor:
    """The mean of each group (P, 1): K / N."""
    return rewards.mean(dim=1, keepdim=True)


def _centered(rewards: Tensor) -> Tensor:
    """r - mean (P, N), exactly 0 for groups of equal rewards."""
    # The mean of seven rewards of 0.1 is not quite 0.1: GRPO would divide that rounding by 1e-6.
    mean = _mean(rewards)  # (P, 1)
    lowest, highest = rewards.aminmax(dim=1, keepdim=True)  # (P, 1) each
    differ = lowest < highest  # (P, 1)
    return (rewards - mean) * differ  # (P, N)


@estimator(takes="any", limit=rl_weight)
def reinforce(rewards: Tensor) -> Tensor:
    """A_i = r_i, no baseline (Williams 1992). Weight 1."""
    return rewards


@estimator(takes="any", limit=rl_weight, group=True)
def reinforce_mean(rewards: Tensor) -> Tensor:
    """A_i = r_i - mean: "REINFORCE with a baseline". Weight (N-1)/N."""
    # The mean contains r_i itself, which cancels a share of 1/N of the gradient.
    return _centered(rewards)


@estimator(takes="any", limit=rl_weight, group=True)
def rloo(rewards: Tensor) -> Tensor:
    """A_i = r_i - mean of the other rewards (Kool et al. 2019; Ahmadian et al. 2024). Weight 1."""
    # The mean of the others is (N mean - r_i) / (N-1), and r_i minus that is this.
    N = rewards.shape[1]
    factor = N / (N - 1)
    return factor * _centered(rewards)


def grpo_weight(p: Tensor, **_) -> Tensor:
    """1/sqrt(p(1-p)) (Table 2), infinite at both ends."""
    variance = p * (1 - p)  # (...)  of a reward
    return variance.rsqrt()


@estimator(takes="any", limit=grpo_weight, group=True)
def grpo(rewards: Tensor, ddof: int = 1) -> Tensor:
    """A_i = (r_i - mean) / (std + 1e-6) (Shao et al. 2024).

    Weight 1/sqrt(p(1-p)) for many rollouts.

    ddof  1: the variance is divided by N - 1, as in torch.std, TRL and the paper's language-model
          code; 0: by N, as in the paper's image experiment (Appendix D.1)
    """
    if ddof not in (0, 1):
        raise ValueError(f"grpo got ddof={ddof!r}; use 0 (divisor N) or 1 (divisor N - 1)")
    std = rewards.std(dim=1, keepdim=True, correction=ddof)  # (P, 1)
    return _centered(rewards) / (std + 1e-6)  # (P, N)


@estimator(takes="any", limit=rl_weight, group=True)
def dr_grpo(rewards: Tensor) -> Tensor:
    """A_i = r_i - mean (Liu et al. 2025): GRPO without the division. Weight (N-1)/N."""
    # Dr. GRPO's other change, a constant length as divisor, is made in the loss: aggregation
    # "constant".
    return _centered(rewards)


# ----------------------------------- maximum likelihood: MaxRL ------------------------------------
def maxrl_weight(p: Tensor, order: int | None = None, **_) -> Tensor:
    """w_T(p), the weight of J_T; without an order its limit 1/p (maximum likelihood, Table 2)."""
    if order is None:
        return 1 / p
    # (1 - (1-p)^T) / p as written loses every digit near p = 0; expm1 and log1p lose none.
    none_right = order * torch.log1p(-p)  # (...)  log (1-p)^T
    w = -torch.expm1(none_right) / p  # (...)
    return torch.where(p == 0, order, w)  # (...)  w_T(0) = T


@estimator(takes="binary", limit=maxrl_weight, thresholds="any")
def maxrl(rewards: Tensor) -> Tensor:
    """Algorithm 1: A_i = (r_i - mean) / mean, and 0 for a prompt without any success.

    Weight w_{N-1} for N >= 2.
    """
    # Algorithm 1 would give 0 to a single rollout. Here it is REINFORCE, of order 1.
    if rewards.shape[1] == 1:
        return rewards
    mean = _mean(rewards)  # (P, 1)
    advantages = _centered(rewards) / mean  # (P, N)  Algorithm 1, line 8
    # K = 0 gave 0 / 0 here. Without a success there is nothing to learn from.
    return torch.where(mean > 0, advantages, 0.0)  # (P, N)


@estimator(takes="any", limit=maxrl_weight)
def tailrl(rewards: Tensor) -> Tensor:
    """Algorithm 1 at every threshold of the reward (thresholds.py), by one sort and one sum.

    TailRL (Ramasubramanian et al. 2026). Weight w_{N-1} at every threshold, and also on rewards of
    0 and 1, where this is Algorithm 1. A group of equal rewards has advantages of 0, and adding a
    constant to the rewards of a group changes nothing.
    """
    N = rewards.shape[1]
    # A single rollout is treated as in `maxrl`.
    if N == 1:
        return rewards
    ordered, places = rewards.sort(dim=1)  # (P, N) r_(1) <= ... <= r_(N), and where each was
    gaps = ordered.diff(dim=1)  # (P, N - 1)
    gaps = F.pad(gaps, (1, 0))  # (P, N)  r_(j) - r_(j-1); what all clear is 0
    successes = torch.arange(N, 0, -1).to(rewards)  # (N,)  of the verdicts at r_(j)
    mean = successes / N  # (N,)
    # A verdict of 1 has the advantage (1 - mean) / mean and one of 0 has -1, each times its gap.
    of_success = (1 - mean) / mean  # (N,)
    passed = (gaps * of_success).cumsum(dim=1)  # (P, N)  thresholds up to the reward
    missed = ordered[:, -1:] - ordered  # (P, N)  thresholds above it
    advantages = passed - missed  # (P, N)  of the ordered rewards
    return torch.empty_like(rewards).scatter(1, places, advantages)  # (P, N)


@estimator(takes="binary", limit=maxrl_weight, count="order", rounds=True, thresholds="nonnegative")
def maxrl_success(rewards: Tensor, order: int | None = None) -> Tensor:
    """Eq. (9): the average score of the successes, A_i = r_i N / K.

    Weight w_N (Theorem 2), or w_T with order=T.

    order  T, 1 <= T <= N; N if it is left out
    """
    # With order=N both branches give the same, since c_N = N / K for a success.
    if order is not None:
        return rewards * _c(rewards, order)  # (P, N)
    mean = _mean(rewards)  # (P, 1)
    return torch.where(mean > 0, rewards / mean, 0.0)  # (P, N)  Eq. (9)


@estimator(takes="binary", limit=maxrl_weight, group=True)
def maxrl_centered(rewards: Tensor) -> Tensor:
    """Eq. (10): Eq. (9) minus the average score of all rollouts. Weight w_N."""
    mean = _mean(rewards)  # (P, 1)
    advantages = _centered(rewards) / mean  # (P, N)  N r / K - 1
    # The mean score, which Eq. (10) subtracts, has expectation 0 only over *all* groups, so those
    # with K = 0 keep their -1.
    return torch.where(mean > 0, advantages, -1.0)  # (P, N)  Eq. (10)


@estimator(takes="binary", limit=maxrl_weight, count="order", thresholds="any")
def maxrl_order(rewards: Tensor, order: int) -> Tensor:
    """A_i = (r_i - mean of the others) c_T(failures among the others). Weight w_T; T = 1 is RLOO.

    Not in the paper. It is exact because the baseline b and c_T do not depend on rollout i. Let S_i
    be grad log m(z_i). If the other rollouts, and hence b and c_T, are fixed, E[(r_i - b) S_i] is
    grad p; the expectation of c_T over the others is w_T. Groups with K = 0 or K = N get exactly 0,
    so skipping them costs nothing.

    order  T, 1 <= T <= N
    """
    N = rewards.shape[1]
    baseline = _of_others(rewards) / max(N - 1, 1)  # (P, N)
    advantages = rewards - baseline  # (P, N)
    return advantages * _c(rewards, order)


@estimator(takes="binary", limit=maxrl_weight, count="order", thresholds="any", group=True)
def maxrl_leave_two_out(rewards: Tensor, order: int) -> Tensor:
    """A_i = mean over the others j of (r_i - r_j) c_T(failures among the rest). Weight w_T.

    The advantages of a group add up to 0, as with MaxPO's baseline (arXiv 2606.06080). It is exact
    because E[(r_i - r_j) S_i] is grad p, whatever the other N - 2 rollouts are, and c_T depends on
    these alone. T = 1 is RLOO, and T = N - 1 is Algorithm 1, which therefore has order N - 1.

    order  T, 1 <= T < N
    """
    N = rewards.shape[1]
    if order == N:
        raise ValueError(f"maxrl_leave_two_out has orders up to N - 1 = {N - 1}; use maxrl_order")
    # Only pairs of a success and a failure count, and all of them leave F - 1 failures.
    failures = (1 - rewards).sum(dim=1, keepdim=True)  # (P, 1)  F
    left = failures.long() - 1  # (P, 1)
    left = left.clamp(0, N - 2)  # without a pair nothing counts
    terms = _all_fail(N - 1, order, rewards)  # (N - 1, order)  for groups of N - 1
    c = terms.sum(dim=1)  # (N - 1,)  c_T of every f
    return rloo(rewards) * c[left]  # (P, N)


@estimator(takes="binary", limit=maxrl_weight, count="order", rounds=True, thresholds="any")
def maxrl_rare(rewards: Tensor, order: int | None = None) -> Tensor:
    """A_i = (r_i - majority of the others) c_T(failures among the others). Weight w_T.

    The majority is 1 if more than half of the other rollouts succeed, else 0.

    Not in the paper. It is exact for the same reason as maxrl_order: the majority does not depend
    on rollout i either. Only the rarer outcome of a group has advantages other than 0: its
    successes if K < N/2, its failures if K > (N+1)/2, and all rollouts if K is N/2 or (N+1)/2.
    Rollouts with the commoner outcome are not trained on.

    order  T, 1 <= T <= N; N if it is left out
    """
    N = rewards.shape[1]
    half = (N - 1) / 2
    most = _of_others(rewards) > half  # (P, N)
    majority = most.to(rewards)  # (P, N)
    advantages = rewards - majority  # (P, N)
    return advantages * _c(rewards, order or N)


def _c(rewards: Tensor, order: int) -> Tensor:
    """c_T(f_i) (P, N): an unbiased estimate of w_T(p) without rollout i.

    c_T(f) = sum_{k=0}^{T-1} C(f, k) / C(N-1, k). A term is the probability that k of the others,
    drawn at random, have all failed; its expectation is (1-p)^k.
    """
    N = rewards.shape[1]
    terms = _all_fail(N, order, rewards)  # (N, order)
    c = terms.sum(dim=1)  # (N,)  c_T of every f
    return c[_failures(rewards)]  # (P, N)


def _of_others(values: Tensor) -> Tensor:
    """The sum of a group's values without that of the rollout itself, (P, N)."""
    total = values.sum(dim=1, keepdim=True)  # (P, 1)
    return total - values  # (P, N)


def _failures(rewards: Tensor) -> Tensor:
    """f_i (P, N), the number of failures among the other N - 1 rollouts."""
    return _of_others(1 - rewards).long()


def _all_fail(N: int, order: int, like: Tensor) -> Tensor:
    """C(f, k) / C(N-1, k) for all f < N and k < order, (N, order), in the dtype of `like`."""
    # Term k + 1 is term k times (f-k)/(N-1-k): nothing overflows, and the ratio 0 at k = f makes
    # all later terms 0. The counts have the rewards' dtype, as integers are divided in float32.
    count = torch.arange(N).to(like)  # (N,)    0, 1, ..., N - 1
    f = count[:, None]  # (N, 1)
    k = count[: order - 1]  # (order - 1,)
    ratios = (f - k) / (count[-1] - k)  # (N, order - 1)
    terms = ratios.cumprod(dim=1)  # (N, order - 1)  k >= 1
    return F.pad(terms, (1, 0), value=1)  # (N, order)  and 1 for k = 0


# -------------------------------- what the paper compares with ------------------------------------
def pass_at_k_weight(p: Tensor, k: int, **_) -> Tensor:
    """d/dp of pass@k, which is 1 - (1-p)^k."""
    return k * (1 - p) ** (k - 1)


@estimator(takes="binary", limit=pass_at_k_weight, count="k", thresholds="nonnegative")
def pkpo(rewards: Tensor, k: int) -> Tensor:
    """A_i = r_i k C(N-K, k-1) / C(N-1, k-1): the gradient of pass@k without bias.

    Walder & Karkhanis 2025, loo-1. The published MaxRL code omits the factor k and subtracts a
    baseline that depends on r_i, which biases it, see tests/proofs/test_advantages_wrong.py.

    k  of pass@k, 1 <= k <= N
    """
    N = rewards.shape[1]
    terms = _all_fail(N, k, rewards)  # (N, k)
    q = terms[:, -1]  # (N,)  the last term alone
    return rewards * k * q[_failures(rewards)]  # (P, N)


@estimator(takes="any", limit=False, group=True)
def differential_smoothing(rewards: Tensor, mean_log_probs: Tensor, gamma: float = 0.05) -> Tensor:
    """GRPO's A_i (divisor N), minus gamma l_i for a success and plus gamma l_i for the others.

    Gai et al. 2025; gamma: App. E.2.

    mean_log_probs  l_i (P, N), mean log-probability of the response's tokens when it was sampled
    gamma           how much likelihood counts
    """
    if getattr(mean_log_probs, "shape", None) != rewards.shape:
        raise ValueError("differential_smoothing takes mean_log_probs (P, N), one per rollout")
    # l_i <= 0: the less likely it was, the more a success gains and a failure loses.
    term = gamma * mean_log_probs.detach().to(rewards)  # (P, N)
    smoothing = torch.where(rewards == 1, -term, term)  # (P, N)
    return grpo(rewards, ddof=0) + smoothing  # (P, N)


@estimator(takes="any", limit=False)
def supervised(rewards: Tensor) -> Tensor:
    """A_i = 1: maximum likelihood of demonstrations.

    With one correct response per prompt the objective is log p (Theorem 1).
    """
    return torch.ones_like(rewards)
