"""The formulas that circulate under the name MaxRL, or next to it, and what each of them really
does.

Every rule here is wrong or worse than it looks; it stays so that nobody brings it back. Weights are
summed with math.comb, apart from the code under test.
"""

from math import comb, sqrt

import pytest
import torch

from maxrl.advantages import ADVANTAGES, weight
from tests.helpers.outcomes import binomial, every_count
from tests.helpers.tensors import F64


def exact_weight(rule, N, p):
    """1/N sum_K Bin(K; N, p) [K a_s / p - (N-K) a_f / (1-p)] for rule(K) -> (a_s, a_f)."""
    total = 0.0
    for K, chance in enumerate(binomial(N, p)):
        success, failure = rule(K)
        total += chance * (K * success / p - (N - K) * failure / (1 - p))
    return total / N


def w(p, T):
    return (1 - (1 - p) ** T) / p


def c(T, f, N):
    """c_T(f) with binomials."""
    return sum(comb(f, k) / comb(N - 1, k) for k in range(T))


def algorithm_1(N):
    return lambda K: (N / K - 1, -1) if K else (0, 0)


def test_the_yardstick_itself():
    ours = exact_weight(algorithm_1(16), 16, 0.3)
    assert ours == pytest.approx(w(0.3, 15), rel=1e-12)
    assert ours == pytest.approx(weight("maxrl", 0.3, rollouts=16), rel=1e-12)


def test_divisor_std_times_mean():
    """An encyclopedia page on MaxRL, and one branch of the published code, divide r - mean by std *
    mean. That weighs 1 / (p sqrt(p(1-p))): at p = 0.01 with N = 128 it is 676, where maximum
    likelihood asks for 100 and Algorithm 1 gives 72."""
    N = 128

    def std_times_mean(K):
        mean = K / N
        divisor = sqrt(K * (N - K) / (N * (N - 1))) * mean + 1e-6
        return (1 - mean) / divisor, -mean / divisor

    assert exact_weight(std_times_mean, N, 0.01) == pytest.approx(676, abs=5)
    assert weight("maxrl", 0.01, rollouts=N) == pytest.approx(72.1, abs=0.05)


@pytest.mark.parametrize("N, lost", [(1024, 0.0929), (128, 0.0126)])
def test_epsilon_in_the_divisor(N, lost):
    """(r - mean) / (mean + eps): a trainer's 1e-4 takes 9.3 % from the rarest and most precious
    successes, K = 1 of N = 1024 (1.3 % at N = 128). K is a count: there is nothing to protect
    against but K = 0, which is a case."""
    rewards = every_count(N)[1:2]
    ours = ADVANTAGES["maxrl"](rewards)[0, 0].item()
    with_epsilon = (1 - 1 / N) / (1 / N + 1e-4)
    assert ours == N - 1
    assert 1 - with_epsilon / ours == pytest.approx(lost, abs=1e-4)


def test_singleton_groups():
    """Published code sets the mean of a one-rollout group to 0 and divides by mean + 1e-6:
    advantage 1,000,000, and every other prompt of the batch is clipped away with it. One rollout
    gives order 1, plain REINFORCE."""
    reward = torch.tensor([[1.0]])
    for name, options in (("maxrl", {}), ("maxrl_success", {}), ("maxrl_order", {"order": 1})):
        assert ADVANTAGES[name](reward, **options).item() == 1


def test_signed_rewards_flip_every_sign():
    """(r - mean) / mean with rewards -1 and +1: below half, the mean is negative and the *failures*
    are reinforced.
    """
    rewards = torch.tensor([[1.0, -1, -1, -1]])
    mean = rewards.mean()
    assert ((rewards - mean) / mean).tolist() == [[-3, 1, 1, 1]]
    with pytest.raises(ValueError, match="maxrl got a reward of -1"):
        ADVANTAGES["maxrl"](rewards)


def test_algorithm_1_as_order_n():
    """Two frameworks document (r - mean) / mean as unbiased for order N. At N = 4 and p = 0.02 it
    gives 2.94, not 3.88; at N = 2 it is plain REINFORCE."""
    assert exact_weight(algorithm_1(4), 4, 0.02) == pytest.approx(2.9404, abs=1e-4)
    assert w(0.02, 4) == pytest.approx(3.8816, abs=1e-4)
    assert exact_weight(algorithm_1(2), 2, 0.02) == pytest.approx(1)


def test_equation_10_without_its_failed_groups():
    """Filtering "useless" groups (K = 0) out of Eq. (10) removes the very term that its proof
    needs: order N - 1 again. For orders below N the dropped form is no order at all: beta
    (1-p)^(N-1) is missing from w_T."""
    N = 8
    p = 0.05

    def eq_10(K):
        return (N / K - 1 if K else -1), -1

    def dropped(K):
        return (c(T, N - K, N) - 1, -1) if K else (0, 0)

    assert exact_weight(eq_10, N, p) == pytest.approx(w(p, N))
    for T in range(1, N + 1):
        assert exact_weight(dropped, N, p) == pytest.approx(w(p, T) - (1 - p) ** (N - 1))


@pytest.mark.parametrize("T, factor", [(1, 0.75), (4, 0.77)])
def test_plugging_the_best_constant_in_as_an_estimate(T, factor):
    """The best constant control variate is beta = E[K c_T]. Using K c_T of the group itself makes
    the advantages sum to zero, which looks right, but then the baseline knows r_i: a quarter of the
    gradient is lost at N = 4, p = 0.05."""

    def plugged(K):
        success = c(T, 4 - K, 4) if K else 0
        return success - K * success / 4, -K * success / 4

    assert exact_weight(plugged, 4, 0.05) / w(0.05, T) == pytest.approx(factor, abs=0.005)


@pytest.mark.parametrize("N, k, ratio", [(8, 2, 1.14), (8, 4, 1.43), (8, 8, 2.0), (128, 16, 1.12)])
def test_published_pkpo_is_biased(N, k, ratio):
    """PKPO's own estimator (arXiv 2505.15201), r_i k C(N-K, k-1) / C(N-1, k-1), is unbiased for
    grad pass@k. The code published with MaxRL subtracts the mean over the *other* rollouts of the
    same quantity, which depends on r_i through K (and leaves out k): its gradient is up to twice
    too long."""

    def paper(K):
        return k * comb(N - K, k - 1) / comb(N - 1, k - 1), 0

    def published(K):
        a, _ = paper(K)
        return a - (K - 1) * a / (N - 1), -K * a / (N - 1)

    target = k * 0.5 ** (k - 1)  # d pass@k / dp
    assert exact_weight(paper, N, 0.5) == pytest.approx(target)
    assert exact_weight(published, N, 0.5) / target == pytest.approx(ratio, abs=0.006)


def test_maclaurin_form_is_unbiased_and_noisy():
    """Failures pushed down by the series term by term, successes at 1: the right mean, but at N = T
    = 16, p = 0.1 the expected squared advantages are 62.7 where Eq. (10) needs 7.85 and the
    leave-one-out form 8.23."""
    N = 16
    p = 0.1

    def maclaurin(K):
        F = N - K
        return 1, -sum(comb(F - 1, k - 1) / comb(N - 1, k - 1) for k in range(2, F + 1))

    rows = []
    for K in range(N + 1):
        success, failure = maclaurin(K)
        rows.append([success] * K + [failure] * (N - K))
    chances = torch.tensor(binomial(N, p), dtype=F64)

    def spread(advantages):
        return (chances @ (advantages**2).mean(dim=1)).item()

    assert exact_weight(maclaurin, N, p) == pytest.approx(w(p, N))
    assert spread(torch.tensor(rows, dtype=F64)) == pytest.approx(62.7, abs=0.05)
    for name, options, noise in (
        ("maxrl_centered", {}, 7.85),
        ("maxrl_order", {"order": N}, 8.23),
        ("maxrl_success", {}, 8.48),
        ("maxrl", {}, 7.67),
    ):
        ours = ADVANTAGES[name](every_count(N), **options)
        assert spread(ours) == pytest.approx(noise, abs=0.005), name
