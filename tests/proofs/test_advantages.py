"""Proofs by enumeration: the expected gradient of every estimator over all its outcomes is
weight(p) * grad p.
"""

import pytest
import torch

from maxrl.advantages import ADVANTAGES, weight
from tests.helpers.outcomes import (
    NEEDS_GROUP,
    PASS_RATES,
    all_outcomes,
    any_options,
    every_count,
    expected_gradient,
)
from tests.helpers.tables import each
from tests.helpers.tensors import F64, close, seeded

# Entries of ADVANTAGES whose expected gradient is no multiple of grad p, and why. Everything else
# is proven below.
NO_WEIGHT = {
    "supervised": "its rollouts are demonstrations, not samples of the policy",
    "differential_smoothing": "it depends on the log-probabilities of the rollouts",
}


def order_sum(p, order):
    """w_T(p) as the plain sum of (1-p)^k over k < T, not as maxrl.advantages computes it."""
    return sum((1 - p) ** k for k in range(order))


# name -> closed form of the weight with N rollouts and these options, or None where there is none
# (GRPO)
CLOSED_FORM = {
    "reinforce": lambda p, N: order_sum(p, 1),
    "reinforce_mean": lambda p, N: (N - 1) / N * order_sum(p, 1),
    "rloo": lambda p, N: order_sum(p, 1),
    "grpo": None,
    "dr_grpo": lambda p, N: (N - 1) / N * order_sum(p, 1),
    "maxrl": lambda p, N: order_sum(p, max(N - 1, 1)),
    "tailrl": lambda p, N: order_sum(p, max(N - 1, 1)),
    "maxrl_success": lambda p, N, order=None: order_sum(p, order or N),
    "maxrl_centered": lambda p, N: order_sum(p, N),
    "maxrl_order": lambda p, N, order: order_sum(p, order),
    "maxrl_leave_two_out": lambda p, N, order: order_sum(p, order),
    "maxrl_rare": lambda p, N, order=None: order_sum(p, order or N),
    "pkpo": lambda p, N, k: k * (1 - p) ** (k - 1),  # d pass@k / dp
}


def all_options(name, N):
    orders = [{"order": T} for T in range(1, N + 1)]
    cases = {
        "grpo": [{}, {"ddof": 0}, {"ddof": 1}],
        "maxrl_success": [{}, *orders],
        "maxrl_rare": [{}, *orders],
        "maxrl_order": orders,
        "maxrl_leave_two_out": orders[:-1],
        "pkpo": [{"k": k} for k in range(1, N + 1)],
    }
    return cases.get(name, [{}])


def test_every_entry_is_proven_or_named():
    known = set(CLOSED_FORM) | set(NO_WEIGHT)
    new = set(ADVANTAGES) - known
    assert not new, (
        f"{', '.join(new)}: say what it weighs. A row in CLOSED_FORM above, `lambda p, N: ...`, "
        "the weight w(p) that N rollouts have (None where only weight() knows it), and its options "
        "in all_options; or a row in NO_WEIGHT with the reason why it has none, and limit=False "
        "at its @estimator line"
    )
    assert known <= set(ADVANTAGES)
    for name in NO_WEIGHT:
        for rollouts in (None, 4):
            with pytest.raises(ValueError, match=f"{name} has no weight: .* no multiple of grad p"):
                weight(name, 0.5, rollouts=rollouts)


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_expected_gradient_is_weight_times_grad_p(name):
    """All 2^N outcomes, N = 1..8, every order: to 1e-12 the weight that weight() states, and the
    closed form.

    1e-12 is not pedantry: an integer tensor over another divides in float32, which once made c_T
    wrong by 1e-8.
    """
    for N in range(2 if name in NEEDS_GROUP else 1, 9):
        rewards = all_outcomes(N)
        for options in all_options(name, N):
            case = f"{name} N={N} {options}"
            expected = expected_gradient(rewards, ADVANTAGES[name](rewards, **options), PASS_RATES)
            close(weight(name, PASS_RATES, rollouts=N, **options), expected, name=case)
            if CLOSED_FORM[name]:
                close(expected, CLOSED_FORM[name](PASS_RATES, N, **options), name=case)
            if options.get("order") or name == "pkpo":
                close(weight(name, PASS_RATES, **options), expected, name=case)


def test_order_one_is_rloo_and_reinforce_and_order_n_is_eq_9():
    rewards = (torch.rand(50, 7, generator=seeded()) < 0.4).to(F64)
    success = ADVANTAGES["maxrl_success"]
    close(ADVANTAGES["maxrl_order"](rewards, order=1), ADVANTAGES["rloo"](rewards))
    close(success(rewards, order=1), ADVANTAGES["reinforce"](rewards))
    close(success(rewards, order=7), success(rewards))


def test_the_ends_of_leave_two_out():
    """Order 1 is RLOO and order N - 1 Algorithm 1, and every order adds up to 0 in a group."""
    rule = ADVANTAGES["maxrl_leave_two_out"]
    for N in range(2, 9):
        rewards = all_outcomes(N)
        close(rule(rewards, order=1), ADVANTAGES["rloo"](rewards))
        close(rule(rewards, order=N - 1), ADVANTAGES["maxrl"](rewards))
        for order in range(1, N):
            total = rule(rewards, order=order).sum(1)
            close(total, torch.zeros_like(total))


# Rewards of a group and their advantages; the standard deviation of GRPO is 0.5.
BY_HAND = """
maxrl 1,0,0,0 | 3,-1,-1,-1
maxrl_success 1,0,0,1 | 2,0,0,2
maxrl_centered 1,0,0,1 | 1,-1,-1,1
reinforce 1,0,-2,.5 | 1,0,-2,.5
dr_grpo 1,0,0,0 | .75,-.25,-.25,-.25
rloo 3,-1 | 4,-4
grpo 1,0 | .999998,-.999998
supervised 0,1,.5 | 1,1,1
"""


@each("line", BY_HAND)
def test_hand_vectors(line):
    """What the expectation leaves open: a baseline, rewards between 0 and 1, epsilon."""
    name, *vectors = line.replace("|", "").split()
    rewards, expected = torch.tensor([[[*map(float, v.split(","))]] for v in vectors], dtype=F64)
    options = {"grpo": {"ddof": 0}}.get(name, {})
    close(ADVANTAGES[name](rewards, **options), expected, 1e-11)


def test_large_groups_in_float32():
    """No factorial overflows at N = 2048, and float32 is good to 1e-6 at every order."""
    rewards = (torch.rand(20, 2048, generator=seeded()) < 0.01).float()
    rewards[0] = 0
    rewards[1] = 1
    rewards[2] = torch.arange(2048) == 5  # K = 1
    for order in (1, 2, 64, 2047, 2048):
        for name in ("maxrl_order", "maxrl_success", "maxrl_leave_two_out"):
            if (name, order) == ("maxrl_leave_two_out", 2048):
                continue
            single = ADVANTAGES[name](rewards, order=order)
            double = ADVANTAGES[name](rewards.double(), order=order)
            torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=0)
    assert double.max() == pytest.approx(2048)  # c_N of one success is N


# ------------------------------------------------- weights
def test_numbers_and_lists():
    assert isinstance(weight("maxrl", 0.5), float)
    assert isinstance(weight("maxrl", 1), float)
    sizes = {"rollouts": (2, 3)}, {"rollouts": [2, 3]}
    assert weight("maxrl_rare", 0.5, **sizes[0]) == weight("maxrl_rare", 0.5, **sizes[1])
    assert weight("maxrl", [0.5, 1]).tolist() == [2, 1]


# A pass rate and the limit of the weight; of GRPO 1 / sqrt(p (1 - p)).
LIMITS = """
maxrl 1e-300 1e300
maxrl 0 inf
maxrl 1 1
grpo .8 2.5
grpo 1 inf
"""


@each("line", LIMITS)
def test_known_limits(line):
    name, *numbers = line.split()
    p, expected = map(float, numbers)
    assert weight(name, p) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_weight_of_many_rollouts_approaches_the_limit(name):
    options = any_options(name)
    limit = weight(name, 0.2, **options)
    off = [abs(weight(name, 0.2, rollouts=N, **options) / limit - 1) for N in (4, 32, 1024)]
    assert off[2] <= off[1] + 1e-11
    assert off[1] <= off[0] + 1e-11
    assert off[2] < 2e-3


@pytest.mark.parametrize("name", CLOSED_FORM)
@pytest.mark.parametrize("N", [2, 3, 16, 255])
def test_ends_are_limits_and_continuous(name, N):
    """p = 0 and p = 1 are the limits, and nothing is lost near them: finite-N weights are
    polynomials in p.
    """
    options = any_options(name, 2)
    ends = torch.tensor([0.0, 0.0, 1.0], dtype=F64)
    near = torch.tensor([1e-300, 1e-12, 1 - 1e-12], dtype=F64)
    at_ends = weight(name, ends, rollouts=N, **options)
    assert at_ends.isfinite().all()
    found = weight(name, near, rollouts=N, **options)
    torch.testing.assert_close(found, at_ends, rtol=1e-8, atol=1e-11)  # pkpo ends at 0
    if CLOSED_FORM[name]:
        closed = CLOSED_FORM[name](ends, N, **options)
        torch.testing.assert_close(at_ends, closed, rtol=1e-10, atol=0)


def test_w_near_zero():
    """(1 - (1-p)^T) / p as written gives 0 at p = 1e-17 and misses at 1e-12; expm1 and log1p lose
    nothing.
    """
    T = 1000
    for p in (0, 1e-300, 1e-17, 1e-12):
        assert weight("maxrl", p, order=T) == pytest.approx(T - T * (T - 1) / 2 * p, rel=1e-14)
    finite = weight("maxrl", 1e-4, rollouts=2048)
    assert finite == pytest.approx(weight("maxrl", 1e-4, order=2047), rel=1e-11)


# ------------------------------------------------- shapes and dtypes
def test_differential_smoothing():
    """GRPO with divisor N, then -gamma l for successes and +gamma l for failures; groups without
    success learn too.
    """
    rewards = every_count(4)[[1, 0]].float()
    l = torch.tensor([[-0.1, -2, -3, -0.4], [-1, -1, -1, -2]])
    rule = ADVANTAGES["differential_smoothing"]
    grpo = ADVANTAGES["grpo"](rewards, ddof=0)
    close(grpo[0], torch.tensor([3, -1, -1, -1]) / 3**0.5, 1e-5)
    signs = torch.tensor([[-1, 1, 1, 1], [1, 1, 1, 1]])
    close(rule(rewards, mean_log_probs=l), grpo + 0.05 * signs * l, 1e-6)
    close(rule(rewards, mean_log_probs=l, gamma=0.2), grpo + 0.2 * signs * l, 1e-6)
    # A success is a reward of exactly 1.
    partial = torch.tensor([[0.5, 1.0, 0.0, 2.0]])
    smoothing = 0.05 * torch.tensor([1, -1, 1, 1]) * l[1]
    expected = ADVANTAGES["grpo"](partial, ddof=0) + smoothing
    close(rule(partial, mean_log_probs=l[1:]), expected, 1e-6)
    assert not rule(rewards, mean_log_probs=l.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize("name", ADVANTAGES)
def test_rows_are_independent_and_rollouts_exchangeable(name):
    generator = seeded(1)
    rewards = (torch.rand(40, 6, generator=generator) < 0.3).float()

    def rule(rewards):
        return ADVANTAGES[name](rewards, **any_options(name, rewards=rewards))

    advantages = rule(rewards)
    assert advantages.shape == rewards.shape
    close(torch.cat([rule(row[None]) for row in rewards]), advantages, 1e-6)
    order = torch.rand(40, 6, generator=generator).argsort(dim=1)
    close(rule(rewards.gather(1, order)), advantages.gather(1, order), 1e-6)


DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32)


@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
@pytest.mark.parametrize("name", ADVANTAGES)
def test_dtypes_and_devices(name, device):
    rewards = every_count(5)[[2, 0, 5]]
    options = any_options(name, rewards=rewards)
    expected = ADVANTAGES[name](rewards, **options)
    assert expected.dtype == F64
    for dtype in DTYPES:
        given = rewards.to(device, dtype)
        before = given.clone()
        got = ADVANTAGES[name](given, **options)
        assert got.dtype == torch.float32
        assert got.device.type == device
        assert torch.equal(given, before)
        close(got.cpu().double(), expected, 1e-6)
    assert not ADVANTAGES[name](rewards.float().requires_grad_(), **options).requires_grad


@pytest.mark.parametrize(
    "name", ["reinforce_mean", "rloo", "grpo", "dr_grpo", "tailrl", "maxrl", "maxrl_order"]
)
def test_equal_rewards_give_exactly_zero(name):
    """The mean of seven 0.1 is not 0.1 in float32; GRPO would divide the error by 1e-6, a fresh
    Adam makes a full step of it, and groups that are exactly 0 are not run.
    """
    options = {"thresholds": True} if name.startswith("maxrl") else {}
    options |= any_options(name)
    rewards = torch.tensor([0.1, 1 / 3, 0.7])[:, None].expand(3, 7)
    assert (rewards - rewards.mean(dim=1, keepdim=True)).any()
    assert not ADVANTAGES[name](rewards, **options).any()


@pytest.mark.parametrize("N", [2, 5, 8])
def test_the_rare_side_alone_has_advantages(N):
    """With any sign of its baseline the expected gradient is the same; the rows that are left out
    of training are not."""
    rewards = every_count(N)
    advantages = ADVANTAGES["maxrl_rare"](rewards)
    for K in range(N + 1):
        wanted = rewards[K].clone()
        if K > N / 2:
            wanted -= 1
        if K < N / 2 or K > (N + 1) / 2:
            assert torch.equal(advantages[K].sign(), wanted)
