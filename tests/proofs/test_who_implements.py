"""The table of those who implement MaxRL, from their formulas written out here."""

import math
import re

import pytest
import torch

from maxrl.advantages import ADVANTAGES, RewardError, weight
from tests import ROOT
from tests.helpers.outcomes import PASS_RATES
from tests.helpers.tensors import F64

PAGE = (ROOT / "maxrl/run/other_trainers.md").read_text()


def over_mean(rewards, epsilon=0.0):
    """(r - mean) / (mean + epsilon)."""
    mean = rewards.mean(dim=1, keepdim=True)
    return (rewards - mean) / (mean + epsilon)


def authors(rewards):
    """The mean of one rollout is taken as 0."""
    return over_mean(rewards, 1e-6) if rewards.shape[1] > 1 else rewards / 1e-6


def skyrl(rewards):
    return over_mean(rewards, 1e-6) if rewards.shape[1] > 1 else rewards


def above(bound):
    """(r - mean) / mean where the mean is above a bound, else 0."""

    def formula(rewards):
        usable = rewards.mean(dim=1, keepdim=True) > bound
        return torch.where(usable, over_mean(rewards), 0)

    return formula


def tail(rewards):
    """Gaps of the sorted rewards, each divided by the number of rollouts that reach it."""
    ordered, places = rewards.sort(dim=1)
    N = rewards.shape[1]
    gaps = ordered.diff(dim=1, prepend=torch.zeros_like(ordered[:, :1]))
    sums = N * (gaps / torch.arange(N, 0, -1)).cumsum(dim=1)
    return torch.empty_like(rewards).scatter(1, places, sums - sums.mean(dim=1, keepdim=True))


def of_verdicts(success, failure):
    """An estimator of verdicts r > 1/2, from the advantages of either for K successes of N."""

    def formula(rewards):
        right = rewards > 0.5  # (P, N)
        N = rewards.shape[1]
        counts = right.sum(dim=1).tolist()
        found = [torch.where(r, success(K, N), failure(K, N)) for r, K in zip(right, counts)]
        return torch.stack(found).to(rewards)

    return formula


def maclaurin(T):
    """A failure counts in the subsets of k rollouts that all fail, for each k up to T."""

    def failure(K, N):
        sizes = range(2, min(T, N - K) + 1)
        shares = [math.comb(N - K - 1, k - 1) / math.comb(N - 1, k - 1) for k in sizes]
        return -float(sum(shares))

    return of_verdicts(lambda K, N: 1.0, failure)


def oversample_subset_vr(T):
    """Eq. (9) of T rollouts, averaged over all subsets of T, minus the mean score."""

    def success(K, N):
        sizes = range(1, min(T, K) + 1)
        terms = [math.comb(K - 1, k - 1) * math.comb(N - K, T - k) / k for k in sizes]
        return N * sum(terms) / math.comb(N, T) - 1.0

    return of_verdicts(success, lambda K, N: -1.0)


# What the sources compute, by the name in the row that has the commit. The authors' two forms of
# order T are here times N, by which maclaurin.py divides. A form without an order ignores T.
FORMULAS = {
    "`p_normalization`": lambda T: authors,
    "`maclaurin`": maclaurin,
    "`oversample_subset_vr`": oversample_subset_vr,
    "`binary_maxrl`": lambda T: above(1e-6),
    "the same, `tailrl`": lambda T: tail,
    "`max_rl`": lambda T: above(0),
    "SkyRL": lambda T: skyrl,
    "rlhf-book": lambda T: above(0),
    "here, `maxrl`": lambda T: ADVANTAGES["maxrl"],
    "here, `tailrl`": lambda T: ADVANTAGES["tailrl"],
}
ROWS = [line.strip("| ").split(" | ") for line in re.findall(r"(?m)^\|.*\|$", PAGE)[2:]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_table(row):
    """Orders, and the advantages in the three corners."""
    (rule,) = (FORMULAS[name] for name in FORMULAS if name in row[0])
    order, *corners = row[2:]
    for N in (2, 5):
        for T in range(1, N + (order == "T")):
            found = weight(rule(T), PASS_RATES, rollouts=N)
            expected = weight("maxrl", PASS_RATES, order=eval(order, {"N": N, "T": T}))
            torch.testing.assert_close(found, expected, atol=0, rtol=1e-5)
    for rewards, T, cell in zip(([1], [0] * 5, [1, -1, -1]), (1, 3, 3), corners, strict=True):
        group = torch.tensor([rewards], dtype=F64)
        if cell == "refused":
            with pytest.raises(RewardError):
                rule(T)(group)
        elif cell == "as 1, 0, 0":
            assert torch.equal(rule(T)(group), rule(T)(torch.tensor([[1, 0, 0]], dtype=F64)))
        else:
            shown = torch.tensor(eval(cell, {"T": T}), dtype=F64).expand(1, len(rewards))
            torch.testing.assert_close(rule(T)(group), shown, atol=0, rtol=1e-4)


def test_every_formula_has_its_row():
    assert len(ROWS) == len(FORMULAS)
