"""pass@k against all subsets, its wrong relatives, and the other statistics by hand."""

import itertools
import math
import random
import statistics
from fractions import Fraction

import numpy as np
import pytest
import torch

from maxrl.analysis.metrics import (
    best_at_k,
    distinct_right,
    exact_best_at_k,
    exact_pass_at_k,
    majority_vote,
    mean_and_se,
    pass_at_k,
    samples_to_match,
)
from maxrl.system import distributed
from maxrl.system.totals import Totals, higher
from tests.helpers.judged import group_metrics
from tests.helpers.outcomes import binomial
from tests.helpers.tables import each


def test_pass_at_k_is_the_share_of_subsets_with_a_success():
    for n in range(1, 9):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = [min(subset) < c for subset in itertools.combinations(range(n), k)]
            expected = sum(subsets) / len(subsets)
            assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-15)


def test_pass_at_k_is_unbiased():
    """Averaged over all outcomes of n rollouts it is 1 - (1-p)^k exactly."""
    for n, k, p in ((5, 3, 0.2), (12, 12, 0.05), (20, 1, 0.9)):
        mean = np.dot(binomial(n, p), pass_at_k(n, np.arange(n + 1), k))
        assert mean == pytest.approx(1 - (1 - p) ** k, rel=1e-12)


def test_pass_at_k_at_2048():
    ks = [1, 2, 16, 256, 1024, 2047, 2048]
    for c in (0, 1, 2, 7, 1024, 2047, 2048):
        exact = [float(1 - Fraction(math.comb(2048 - c, k), math.comb(2048, k))) for k in ks]
        np.testing.assert_allclose(pass_at_k(2048, c, ks), exact, rtol=1e-11, atol=1e-14)


def test_pass_at_k_shapes_and_types():
    c = torch.tensor([[0, 1], [2, 4]])
    got = pass_at_k(4, c, 2)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, [[0, 0.5], [5 / 6, 1]], rtol=1e-15)
    assert type(pass_at_k(4, 1, 2)) is float
    assert pass_at_k([4, 8], 1, 2.0).tolist() == [0.5, 0.25]
    assert pass_at_k(np.array([4, 8]), [1, 1], [4, 8]).tolist() == [1, 1]
    assert pass_at_k(4, np.zeros(0), 2).shape == (0,)


REWARDS = ["0", ".5 .5 .5", "1 0 0 .25", "-1 .5 -2 .5 3 0"]


@pytest.mark.parametrize("rewards", [[*map(float, text.split())] for text in REWARDS])
def test_best_at_k_is_the_mean_best_of_subsets(rewards):
    for k in range(1, len(rewards) + 1):
        subsets = [max(subset) for subset in itertools.combinations(rewards, k)]
        assert best_at_k(rewards, k) == pytest.approx(statistics.fmean(subsets), abs=1e-15)


def test_best_at_k_of_verdicts_is_pass_at_k():
    """Of all counts of successes among n, also where binomials would overflow."""
    for n in (1, 2, 7, 2048):
        c = np.unique(np.linspace(0, n, 9).astype(int))
        verdicts = np.arange(n) < c[:, None]  # (counts, n)
        for k in {1, (n + 1) // 2, n}:
            np.testing.assert_allclose(best_at_k(verdicts, k), pass_at_k(n, c, k), rtol=1e-11)


def test_best_at_k_is_unbiased():
    """Averaged over all samples of n rewards it is the best of k of their distribution."""
    outcomes = {0.25: 0.3, -0.5: 0.1, 1.0: 0.15, 0.0: 0.45}
    for n, k in ((1, 1), (4, 1), (5, 3), (4, 4)):
        mean = 0.0
        for sample in itertools.product(outcomes, repeat=n):
            mean += math.prod(outcomes[reward] for reward in sample) * best_at_k(sample, k)
        assert mean == pytest.approx(exact_best_at_k(outcomes, [k])[0], abs=1e-14)
    # The best of one is the mean, and of very many the largest.
    mean = sum(reward * chance for reward, chance in outcomes.items())
    np.testing.assert_allclose(exact_best_at_k(outcomes, [1, 10**4]), [mean, 1], atol=1e-14)


@pytest.mark.parametrize("chances", [(0.5, 0.4), (1.5, -0.5), (math.nan, 1), (0.7, 0.7)])
def test_best_at_k_of_no_distribution_is_refused(chances):
    with pytest.raises(ValueError, match="probabilities"):
        exact_best_at_k(dict(zip((0.0, 1.0), chances)), [1])


@pytest.mark.parametrize("k", [0, -1, 4, 1.5])
def test_best_at_k_of_no_subset_is_refused(k):
    with pytest.raises(ValueError, match=f"k={k}"):
        best_at_k([0, 0.5, 1], k)


NO_COUNTS = ["4 1 5", "4 1 0", "4 5 1", "4 -1 1", "4 1.5 1", "4 1 nan", "inf 1 1", "0 0 1"]


@pytest.mark.parametrize(
    "n, c, k", [*([*map(float, row.split())] for row in NO_COUNTS), (4, [0, 1, 9], 2)]
)
def test_pass_at_k_refusals(n, c, k):
    with pytest.raises(ValueError, match="pass_at_k needs whole 0 <= c <= n and 1 <= k <= n"):
        pass_at_k(n, c, k)


def test_pass_at_k_of_known_rates():
    """A softmax in float32 may be a little above 1."""
    rates = [0, 0.25, 1, 1 + 1e-7]
    assert exact_pass_at_k(rates, 2).tolist() == pytest.approx([0, 0.4375, 1, 1])


def test_wrong_relatives_of_pass_at_k():
    """Plugging c/n into 1 - (1-p)^k reports 66 % of pass@8 when all 8 samples hold the success.

    The same happens with the best of n draws *with* replacement from n samples, which published
    code logs as "pass@n": for n = k = 1024 it is 1 - 1/e, whereas every 1024-subset holds it.
    """
    for n, wrong in ((8, 0.656), (1024, 0.632)):
        assert 1 - (1 - 1 / n) ** n == pytest.approx(wrong, abs=1e-3)
        assert pass_at_k(n, 1, n) == 1
    plugged = np.dot(binomial(8, 0.1), 1 - (1 - np.arange(9) / 8) ** 8)
    assert plugged == pytest.approx(0.422, abs=1e-3)
    assert 1 - 0.9**8 > 0.569, "what it should be"


def test_mean_and_se():
    assert mean_and_se([0, 1, 1, 0]) == pytest.approx((0.5, math.sqrt(1 / 3 / 4)))
    assert mean_and_se(torch.tensor([2.0, 2.0])) == (2, 0)
    assert mean_and_se([3]) == pytest.approx((3, math.nan), nan_ok=True)


# Values of k, pass@k of a and of b, and how many samples b needs for those of a: in the first row
# 32 for a's pass@4, and no number is enough for its pass@16.
MATCHES = """
1 4 16 64 | .4 .6 .9 .95 | .1 .4 .5 .8 | 4 32 inf inf
1 4 16 64 | .1 .4 .5 .8 | .4 .6 .9 .95 | 1 1 2.5 12
1 4 16 64 | .1 .4 .5 .8 | .1 .4 .5 .8 | 1 4 16 64
1 2 4 | .5 .5 .5 | .2 .5 .5 | 2 2 2
1 2 3 4 | .1 .3 .2 .5 | .1 .1 .1 .5 | 1 3.5 3.25 4
1 | .5 | .4 | inf
"""


@each("line", MATCHES)
def test_samples_to_match(line):
    ks, a, b, expected = ([*map(float, part.split())] for part in line.split("|"))
    assert samples_to_match(ks, a, b).tolist() == pytest.approx(expected)
    # Equal means may differ by rounding.
    assert samples_to_match(ks, a, np.nextafter(b, 0)).tolist() == pytest.approx(expected)
    falling = np.array(b) - 1e-15 * np.arange(len(b))
    assert samples_to_match(ks, a, falling).tolist() == pytest.approx(expected)


def test_curves_that_do_not_match():
    for ks, a in (
        ([1, 2], [0.1]),
        ([2, 1], [0.1, 0.2]),
        ([1, 1], [0.1, 0.2]),
        ([1, 2], [0.2, 0.1]),
    ):
        with pytest.raises(ValueError, match="samples_to_match"):
            samples_to_match(ks, a, a)


def test_groups_of_one_and_no_groups():
    assert math.isnan(group_metrics([[1]])["reward_std"])
    with pytest.raises(ValueError):
        group_metrics([1, 0])


# Rewards of groups, and how many of these are all 0, all 1 and all equal: neither 0 nor 1; a mean
# of 0 by cancellation and a highest reward of 0, which are no failures; without a verdict.
GROUPS = """
-1 -1, .5 .5, 2 1 | 0 0 2
-1 1, 0 0 | 1 0 1
-1 0, 1 1 | 0 1 1
1 nan 0, nan nan 1 | 0 1 1
0 0 0 0, 1 1 1 1, 1 0 0 0, 1 1 0 0, 0 0 0 0 | 2 1 3
"""


@each("line", GROUPS)
def test_shares_of_groups(line):
    groups, counts = line.split("|")
    rewards = [[*map(float, group.split())] for group in groups.split(",")]
    got = group_metrics(rewards)
    shares = [got[f"frac_reward_{name}"] for name in ("zero_mean", "one_mean", "zero_std")]
    assert shares == pytest.approx([int(count) / len(rewards) for count in counts.split()])
    values = [value for row in rewards for value in row if not math.isnan(value)]
    assert got["reward"] == pytest.approx(statistics.mean(values))
    assert got["reward_std"] == pytest.approx(statistics.stdev(values))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_totals_do_not_depend_on_who_adds(ranks, monkeypatch):
    """Micro-batches and ranks, one of them with nothing, together make the metrics of all."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=40)
    totals = [Totals() for _ in range(ranks)]
    for i, part in enumerate(np.split(values, [7, 8, 21, 21])):
        each = totals[i % ranks]
        each.sum("sum", part.sum())
        each.mean("mean", part.sum(), len(part))
        each.std("std", part.sum(), (part**2).sum(), len(part))
        each.highest("highest", part.max(initial=-np.inf))
        each.lowest("lowest", torch.tensor(part.min(initial=np.inf)))
        each.mean("nothing", 0, 0)
    kept = totals[0]
    if ranks > 1:
        rows = [[v for name in sorted(t.parts) for v in t.parts[name]] for t in totals]
        monkeypatch.setattr(distributed, "gathered", lambda row: np.array([row, *rows[1:]]))
    expected = {
        "sum": values.sum(),
        "mean": values.mean(),
        "std": values.std(ddof=1),
        "highest": values.max(),
        "lowest": values.min(),
        "nothing": math.nan,
    }
    assert kept.metrics() == pytest.approx(expected, nan_ok=True)
    assert list(kept.metrics()) == list(expected)


def test_totals_of_equal_values_and_of_nan():
    """Rounding makes no negative variance, and a value that is not known is no highest one."""
    for value, count in itertools.product((0.1, 0.7, 1 / 3), range(2, 30)):
        totals = Totals()
        for _ in range(count):
            totals.std("std", value, value**2, 1)
            totals.highest("highest", value)
        assert totals.metrics() == {"std": pytest.approx(0, abs=1e-7), "highest": value}
        totals.highest("highest", math.nan)
        totals.highest("highest", value)
        assert math.isnan(totals.metrics()["highest"])
    # Of a GPU they are tensors.
    for held, value in ((2.0, 3.0), (3.0, 2.0), (3.0, math.nan), (math.nan, 3.0)):
        for first in (held, torch.tensor(held)):
            found = higher(first, torch.tensor(value)).item()
            assert found == pytest.approx(np.maximum(held, value), nan_ok=True)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_majority_vote_is_the_expectation_over_drawn_ties(n):
    """All ways in which n samples answer a, b, c or nothing, and all ways to break the ties."""
    orders = list(itertools.permutations("abc"))
    rows = list(itertools.product(["a", "b", "c", None], repeat=n))
    right = torch.tensor([[answer == "b" for answer in row] for row in rows])
    for row, value in zip(rows, majority_vote(rows, right), strict=True):
        # The first of those with most votes.
        chosen = [max(order, key=row.count) for order in orders]
        expected = chosen.count("b") / len(orders) if any(row) else 0
        assert value == pytest.approx(expected, abs=1e-15), row


def test_distinct_right_counts_each_right_answer_once():
    """One by one; a right sample without an answer is no answer."""
    rng = random.Random(3)
    for _ in range(50):
        row = rng.choices(["a", "b", "c", None], k=6)
        right = rng.choices([0, 1], k=6)
        each = [any(r and a == name for a, r in zip(row, right)) for name in "abc"]
        assert distinct_right([row], [right]).tolist() == [sum(each)]
    assert distinct_right([], np.zeros((0, 4))).shape == (0,)


def test_majority_vote_by_hand():
    """Where verdicts differ an answer is partly right."""
    assert majority_vote([["a", "a", "b"]], [[1, 0, 0]]).tolist() == [0.5]
    assert majority_vote([], np.zeros((0, 4))).shape == (0,)
    for answers in ([["a"]], [["a", "b"]] * 2):
        with pytest.raises(ValueError):
            majority_vote(answers, [[0, 1]])
