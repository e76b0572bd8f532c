"""Proofs by enumeration: the expected gradient of every estimator over all its outcomes is
weight(p) * grad p.
"""

import itertools
import math

import pytest
import torch
from outcomes import (
    F64,
    NEEDS_GROUP,
    PASS_RATES,
    all_outcomes,
    any_options,
    expected_gradient,
)

from maxrl.advantages import ADVANTAGES, weight

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
    "maxrl_success": lambda p, N, order=None: order_sum(p, order or N),
    "maxrl_centered": lambda p, N: order_sum(p, N),
    "maxrl_order": lambda p, N, order: order_sum(p, order),
    "maxrl_rare": lambda p, N, order=None: order_sum(p, order or N),
    "pkpo": lambda p, N, k: k * (1 - p) ** (k - 1),  # d pass@k / dp
}


def all_options(name, N):
    orders = [{"order": T} for T in range(1, N + 1)]
    cases = {
        "grpo": [{}, {"ddof": 0}, {"ddof": 1}],
        "maxrl_success": [{}, *orders],
        "maxrl_order": orders,
    }
    cases["maxrl_rare"] = cases["maxrl_success"]
    cases["pkpo"] = [{"k": k} for k in range(1, N + 1)]
    return cases.get(name, [{}])


def test_every_entry_is_proven_or_named():
    new, gone = (
        set(ADVANTAGES) - set(CLOSED_FORM) - set(NO_WEIGHT),
        set(CLOSED_FORM) | set(NO_WEIGHT),
    )
    assert not new, (
        f"{', '.join(new)}: say what it weighs. A row in CLOSED_FORM above, `lambda p, N: ...`, "
        f"the weight w(p) "
        "that N rollouts have (None where only weight() knows it), and its options in "
        "all_options; or a row in "
        "NO_WEIGHT with the reason why it has none, and limit=False at its @estimator line"
    )
    assert gone <= set(ADVANTAGES)
    for name, reason in NO_WEIGHT.items():
        assert reason
        with pytest.raises(ValueError, match=f"{name} has no weight"):
            weight(name, 0.5)


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
            expected = expected_gradient(rewards, ADVANTAGES[name](rewards, **options), PASS_RATES)
            stated = weight(name, PASS_RATES, rollouts=N, **options)
            torch.testing.assert_close(
                stated, expected, rtol=1e-12, atol=1e-12, msg=f"{name} N={N} {options}"
            )
            if CLOSED_FORM[name]:
                closed = CLOSED_FORM[name](PASS_RATES, N, **options) * torch.ones_like(PASS_RATES)
                torch.testing.assert_close(
                    expected, closed, rtol=1e-12, atol=1e-12, msg=f"{name} N={N} {options}"
                )
            if options.get("order") or name == "pkpo":
                torch.testing.assert_close(
                    weight(name, PASS_RATES, **options), expected, rtol=1e-12, atol=1e-12
                )


def test_grpo_is_far_from_its_limit():
    """1/sqrt(p(1-p)) is what GRPO weighs with endless rollouts: 10.05 at p = 0.01, but 3.73 with N
    = 16.
    """
    limit = weight("grpo", 0.01)
    assert limit == pytest.approx(10.0504, abs=1e-4)
    for N, ddof, expected in ((16, 0, 3.733), (16, 1, 3.614), (1024, 0, 9.920), (1024, 1, 9.915)):
        w = weight("grpo", 0.01, rollouts=N, ddof=ddof)
        print(
            f"grpo at p = 0.01 with N = {N}, ddof = {ddof}: weight {w:.3f}, {limit - w:.3f} below "
            f"1/sqrt(p(1-p))"
        )
        assert w == pytest.approx(expected, abs=1e-3)
    assert weight("grpo", 0.99, rollouts=16) == pytest.approx(
        weight("grpo", 0.01, rollouts=16)
    )  # up again at p -> 1


LOGITS = torch.tensor([0.3, -1.2, 0.8, -0.4, 1.5], dtype=F64)
RIGHT = torch.tensor([0, 1, 0, 1, 0], dtype=F64)  # two of five outcomes are right


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_softmax_policy_against_autograd(name):
    """Gradient vectors of a softmax over 5 outcomes, all 5^N samples, N <= 5: equal to autograd's
    grad J_T to 1e-12.
    """
    logits = LOGITS.clone().requires_grad_()
    p = (logits.softmax(0) * RIGHT).sum()
    grad = lambda value: torch.autograd.grad(value, logits, retain_graph=True)[0]  # noqa: E731
    J = lambda order: -sum((1 - p) ** k / k for k in range(1, order + 1))  # noqa: E731  Eq. (6)
    probs = LOGITS.softmax(0)
    for N in range(2 if name in NEEDS_GROUP else 1, 6):
        z = torch.tensor(list(itertools.product(range(5), repeat=N)))  # (5^N, N)
        scores = torch.eye(5, dtype=F64)[z] - probs  # (5^N, N, 5)
        for options in all_options(name, N):
            advantages = ADVANTAGES[name](RIGHT[z], **options)  # (5^N, N)
            g = (probs[z].prod(1)[:, None] * (advantages[..., None] * scores).mean(1)).sum(
                0
            )  # (5,)
            torch.testing.assert_close(
                g, weight(name, p.item(), rollouts=N, **options) * grad(p), rtol=0, atol=1e-12
            )
            if name.startswith("maxrl"):
                T = options.get("order") or (max(N - 1, 1) if name == "maxrl" else N)
                torch.testing.assert_close(g, grad(J(T)), rtol=0, atol=1e-12)
                left = (1 - p.item()) ** T  # g = (1 - (1-p)^T) grad log p
                torch.testing.assert_close(g, (1 - left) * grad(p.log()), rtol=0, atol=1e-12)


def test_order_one_is_rloo_and_reinforce_and_order_n_is_eq_9():
    rewards = (torch.rand(50, 7, generator=torch.Generator().manual_seed(0)) < 0.4).to(F64)
    same = lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-14)  # noqa: E731
    same(ADVANTAGES["maxrl_order"](rewards, order=1), ADVANTAGES["rloo"](rewards))
    same(ADVANTAGES["maxrl_success"](rewards, order=1), ADVANTAGES["reinforce"](rewards))
    same(ADVANTAGES["maxrl_success"](rewards, order=7), ADVANTAGES["maxrl_success"](rewards))


@pytest.mark.parametrize(
    "name, options, rewards, expected",
    [
        ("maxrl", {}, [1, 0, 0, 0], [3, -1, -1, -1]),
        ("maxrl", {}, [1, 1, 0, 0], [1, 1, -1, -1]),
        ("maxrl", {}, [0, 0, 0, 0], [0, 0, 0, 0]),
        ("maxrl", {}, [1, 1, 1, 1], [0, 0, 0, 0]),
        ("maxrl", {}, [1], [1]),
        ("maxrl", {}, [0], [0]),
        ("maxrl_success", {}, [1, 0, 0, 0], [4, 0, 0, 0]),
        ("maxrl_success", {}, [0, 0, 0, 0], [0, 0, 0, 0]),
        ("maxrl_success", {}, [1], [1]),
        ("maxrl_success", {"order": 2}, [1, 0, 0, 0], [2, 0, 0, 0]),
        ("maxrl_success", {"order": 2}, [1, 1, 0, 0], [5 / 3, 5 / 3, 0, 0]),
        ("maxrl_success", {"order": 3}, [1, 1, 1, 0], [4 / 3, 4 / 3, 4 / 3, 0]),
        ("maxrl_centered", {}, [1, 0, 0, 0], [3, -1, -1, -1]),
        ("maxrl_centered", {}, [0, 0, 0, 0], [-1, -1, -1, -1]),
        ("maxrl_order", {"order": 1}, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ("maxrl_order", {"order": 2}, [1, 0, 0, 0], [2, -5 / 9, -5 / 9, -5 / 9]),
        ("maxrl_order", {"order": 3}, [1, 0, 0, 0], [3, -2 / 3, -2 / 3, -2 / 3]),
        ("maxrl_order", {"order": 4}, [1, 0, 0, 0], [4, -2 / 3, -2 / 3, -2 / 3]),
        ("maxrl_order", {"order": 4}, [1, 1, 0, 0], [4 / 3, 4 / 3, -8 / 9, -8 / 9]),
        ("maxrl_order", {"order": 3}, [0, 0, 0, 0], [0, 0, 0, 0]),
        ("maxrl_order", {"order": 3}, [1, 1, 1, 1], [0, 0, 0, 0]),
        ("maxrl_order", {"order": 1}, [1], [1]),
        ("reinforce", {}, [1, 0, -2, 0.5], [1, 0, -2, 0.5]),
        ("reinforce_mean", {}, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ("dr_grpo", {}, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ("rloo", {}, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ("rloo", {}, [3, -1], [4, -4]),
        ("grpo", {}, [1, 0, 0, 0], [1.5 - 3e-6, -0.5 + 1e-6, -0.5 + 1e-6, -0.5 + 1e-6]),  # std 0.5
        ("grpo", {"ddof": 0}, [1, 0], [1 - 2e-6, -1 + 2e-6]),  # std 0.5
        ("supervised", {}, [0, 1, 0.5], [1, 1, 1]),
        ("maxrl", {"allow_fractional": True}, [0.5, 0, 1, 0.5], [0, -1, 1, 0]),
        ("maxrl_success", {"allow_fractional": True}, [0.5, 0, 0, 0.5], [2, 0, 0, 2]),
        ("maxrl_centered", {"allow_fractional": True}, [0.5, 0, 0, 0.5], [1, -1, -1, 1]),
    ],
)
def test_hand_vectors(name, options, rewards, expected):
    got = ADVANTAGES[name](torch.tensor([rewards], dtype=F64), **options)
    torch.testing.assert_close(got, torch.tensor([expected], dtype=F64), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "order, expected", [(4, [4.0, 3.6, 2.91217, 1.92307]), (8, [8.0, 6.13333, 3.84615, 1.99983])]
)
def test_hand_vectors_of_sixteen_rollouts(order, expected):
    """c_T of 1, 2, 4, 8 successes among 16, to the digits known: 16 times .25, .225, .18201, .12019
    and so on.
    """
    rewards = torch.tensor([[float(i < K) for i in range(16)] for K in (1, 2, 4, 8)], dtype=F64)
    got = ADVANTAGES["maxrl_success"](rewards, order=order)[:, 0]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=F64), rtol=0, atol=2e-4)


def test_large_groups_in_float32():
    """No factorial overflows at N = 2048, and float32 is good to 1e-6 at every order."""
    rewards = (torch.rand(20, 2048, generator=torch.Generator().manual_seed(0)) < 0.01).float()
    rewards[0], rewards[1] = 0, 1
    rewards[2] = torch.arange(2048) == 5  # K = 1
    for order in (1, 2, 64, 2047, 2048):
        for name in ("maxrl_order", "maxrl_success"):
            single, double = (ADVANTAGES[name](r, order=order) for r in (rewards, rewards.double()))
            torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=0)
    assert double.max() == pytest.approx(2048)  # c_N of one success is N


# ------------------------------------------------- weights
def test_limits_and_orders():
    p = torch.tensor([0.01, 0.5, 1.0], dtype=F64)
    for name in ("reinforce", "reinforce_mean", "rloo", "dr_grpo"):
        assert weight(name, p).tolist() == [1, 1, 1]
    for name in ("maxrl", "maxrl_success", "maxrl_centered"):
        assert weight(name, p).tolist() == [100, 2, 1]
        torch.testing.assert_close(weight(name, p, order=16), order_sum(p, 16), rtol=1e-14, atol=0)
    torch.testing.assert_close(
        weight("maxrl_order", p, order=16), order_sum(p, 16), rtol=1e-14, atol=0
    )
    assert weight("grpo", 0.5) == 2
    assert weight("maxrl", 0.05, order=16) == pytest.approx(11.1975, abs=1e-4)  # not the 20 of 1/p
    assert isinstance(weight("maxrl", 0.5), float) and weight("maxrl", [0.5, 1]).tolist() == [2, 1]


def test_weight_of_many_rollouts_approaches_the_limit():
    for name in CLOSED_FORM:
        options = any_options(name)
        gaps = [
            abs(weight(name, 0.2, rollouts=N, **options) / weight(name, 0.2, **options) - 1)
            for N in (4, 32, 1024)
        ]
        assert gaps[2] <= gaps[1] + 1e-11 and gaps[1] <= gaps[0] + 1e-11 and gaps[2] < 2e-3, (
            name,
            gaps,
        )


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_ends_are_limits_and_continuous(name):
    """p = 0 and p = 1 are the limits, and nothing is lost near them: finite-N weights are
    polynomials in p.
    """
    for N in (2, 3, 16, 255):
        for options in [any_options(name, 2)]:
            ends = weight(name, torch.tensor([0.0, 1.0], dtype=F64), rollouts=N, **options)
            assert ends.isfinite().all()
            near = weight(
                name, torch.tensor([1e-300, 1e-12, 1 - 1e-12], dtype=F64), rollouts=N, **options
            )
            torch.testing.assert_close(near[:2], ends[:1].expand(2), rtol=1e-8, atol=0)
            torch.testing.assert_close(near[2], ends[1], rtol=1e-8, atol=1e-11)  # pkpo ends at 0
            if CLOSED_FORM[name]:
                exact = [CLOSED_FORM[name](p, N, **options) for p in (0.0, 1.0)]
                torch.testing.assert_close(ends, torch.tensor(exact, dtype=F64), rtol=1e-10, atol=0)


def test_w_near_zero():
    """(1 - (1-p)^T) / p as written gives 0 at p = 1e-17 and misses at 1e-12; expm1 and log1p lose
    nothing.
    """
    T = 1000
    naive = lambda p: (1 - (1 - p) ** T) / p  # noqa: E731
    assert naive(1e-17) == 0 and abs(naive(1e-12) / T - 1) > 1e-5
    for p in (0, 1e-300, 1e-17, 1e-12):
        assert weight("maxrl", p, order=T) == pytest.approx(T - T * (T - 1) / 2 * p, rel=1e-14)
    assert weight("maxrl", 1, order=T) == 1
    assert weight("maxrl", 0) == math.inf == weight("grpo", 1) and weight(
        "maxrl", 1e-300
    ) == pytest.approx(1e300)
    assert weight("maxrl", 1e-4, rollouts=2048) == pytest.approx(
        weight("maxrl", 1e-4, order=2047), rel=1e-11
    )


# ------------------------------------------------- shapes and dtypes
def test_differential_smoothing():
    """GRPO with divisor N, then -gamma l for successes and +gamma l for failures; groups without
    success learn too.
    """
    rewards, l = (
        torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]]),
        torch.tensor([[-0.1, -2, -3, -0.4], [-1, -1, -1, -2]]),
    )
    got = ADVANTAGES["differential_smoothing"](rewards, mean_log_probs=l)
    grpo = ADVANTAGES["grpo"](rewards, ddof=0)
    torch.testing.assert_close(
        got, grpo + 0.05 * torch.tensor([[0.1, -2, -3, -0.4], [-1, -1, -1, -2]])
    )
    torch.testing.assert_close(
        ADVANTAGES["differential_smoothing"](rewards, mean_log_probs=l, gamma=0), grpo
    )
    torch.testing.assert_close(grpo[0], torch.tensor([3, -1, -1, -1]) / 3**0.5, rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match="mean_log_probs"):
        ADVANTAGES["differential_smoothing"](rewards, mean_log_probs=l[:, :1])


@pytest.mark.parametrize("name", ADVANTAGES)
def test_rows_are_independent_and_rollouts_exchangeable(name):
    g = torch.Generator().manual_seed(1)
    rewards = (torch.rand(40, 6, generator=g) < 0.3).float()
    advantages = ADVANTAGES[name](rewards, **any_options(name, rewards=rewards))
    assert advantages.shape == rewards.shape
    rows = torch.cat(
        [ADVANTAGES[name](row[None], **any_options(name, rewards=row[None])) for row in rewards]
    )
    torch.testing.assert_close(rows, advantages, rtol=1e-6, atol=0)
    order = torch.rand(40, 6, generator=g).argsort(dim=1)
    shuffled = ADVANTAGES[name](rewards.gather(1, order), **any_options(name, rewards=rewards))
    torch.testing.assert_close(shuffled, advantages.gather(1, order), rtol=1e-6, atol=0)


@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
@pytest.mark.parametrize("name", ADVANTAGES)
def test_dtypes_and_devices(name, device):
    rewards = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    expected = ADVANTAGES[name](rewards.double(), **any_options(name, rewards=rewards))
    assert expected.dtype == F64
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
    ):
        given = rewards.to(device, dtype)
        before = given.clone()
        got = ADVANTAGES[name](given, **any_options(name, rewards=rewards))
        assert (
            got.dtype == torch.float32 and got.device.type == device and torch.equal(given, before)
        )
        torch.testing.assert_close(got.cpu().double(), expected, rtol=1e-6, atol=1e-6)
    assert not ADVANTAGES[name](
        rewards.float().requires_grad_(), **any_options(name, rewards=rewards)
    ).requires_grad


@pytest.mark.parametrize("name", ["reinforce_mean", "rloo", "grpo", "dr_grpo"])
def test_equal_rewards_give_exactly_zero(name):
    """The mean of seven 0.1 is not 0.1 in float32; GRPO would divide the error by 1e-6."""
    rewards = torch.tensor([0.1, 1 / 3, -7.7, 1e6 / 3])[:, None].expand(4, 7)
    assert (rewards - rewards.mean(dim=1, keepdim=True)).abs().max() > 0
    assert ADVANTAGES[name](rewards).eq(0).all()


@pytest.mark.parametrize("name", ["maxrl", "maxrl_centered"])
def test_equal_fractional_rewards_give_exactly_zero(name):
    """A fresh Adam makes a full step of any rounding error, and groups that are exactly 0 are not
    run.
    """
    rewards = torch.tensor([0.1, 1 / 3, 0.7, 1.0])[:, None].expand(4, 7)
    assert (rewards - rewards.mean(dim=1, keepdim=True)).abs().max() > 0
    assert ADVANTAGES[name](rewards, allow_fractional=True).eq(0).all()
