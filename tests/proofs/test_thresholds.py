"""Rewards that are not 0 or 1: the expected gradient is the integral of w(p_t) grad p_t over all
thresholds t, by enumeration."""

import itertools
import re

import pytest
import torch

from maxrl.advantages import ADVANTAGES, RewardError, by_group, weight, weights
from tests.helpers.outcomes import NEEDS_GROUP, any_options
from tests.helpers.tensors import F64, close, seeded

# A policy over five outcomes, and what they are worth: with ties, a zero, and below zero.
LOGITS = torch.tensor([0.3, -1.2, 0.8, -0.4, 0.1], dtype=F64)
WORTH = {
    "ties": [0, 0.25, 0.25, 0.6, 1],
    "above 1": [0.5, 3.0, 0.1, 0.5, 2.0],
    "verdicts": [0, 1, 0, 0, 1],
    "negative": [-2.0, 0.7, -0.1, 0.7, 0.0],
}
LIFTED = ["maxrl", "maxrl_success", "maxrl_order", "maxrl_leave_two_out", "maxrl_rare", "pkpo"]
# Each takes any rewards as they are.
PLAIN = ["reinforce", "reinforce_mean", "rloo", "tailrl"]
FROM_ZERO = ["reinforce", "maxrl_success", "pkpo"]
# The thresholds of FROM_ZERO begin at 0.
CASES = [
    (name, worth)
    for name, worth in itertools.product(LIFTED + PLAIN, WORTH)
    if not (worth == "negative" and name in FROM_ZERO)
]


def options_of(name, N):
    """Every order and k, and none where it may be left out."""
    count = {"maxrl": "", "pkpo": "k"}.get(name, "order") if name in LIFTED else ""
    most = N - 1 if name == "maxrl_leave_two_out" else N
    cases = [{count: T} for T in range(1, most + 1)] if count else [{}]
    return cases + [{}] * (name in ("maxrl_success", "maxrl_rare"))


def expected(rule, worth, N):
    """The gradient (5,) over the logits of (1/N) sum_i A_i log m(z_i), over all 5^N outcomes."""
    z = torch.tensor(list(itertools.product(range(5), repeat=N)))  # (5^N, N)
    m = LOGITS.softmax(0)
    scores = torch.eye(5, dtype=F64)[z] - m  # (5^N, N, 5)
    advantages = rule(worth[z])  # (5^N, N)
    return (m[z].prod(1)[:, None] * (advantages[..., None] * scores).mean(1)).sum(0)


def integral(weigh, worth, start=0.0):
    """The integral of weigh(p_t) grad p_t over t from `start`, where p_t = P(worth >= t)."""
    logits = LOGITS.clone().requires_grad_()
    values = worth.unique()  # in order
    p = logits.softmax(0) @ (worth[:, None] >= values).to(F64)  # all thresholds at once
    gaps = values.diff(prepend=torch.tensor([start], dtype=F64))
    (grad,) = torch.autograd.grad((gaps * weigh(p.detach().clamp(max=1)) * p).sum(), logits)
    return grad


@pytest.mark.parametrize("name, worth", CASES)
def test_every_threshold_has_its_weight(name, worth):
    """N = 1 to 5, every order and k, to 1e-12."""
    values = torch.tensor(WORTH[worth], dtype=F64)
    for N in range(2 if name in NEEDS_GROUP else 1, 6):
        for options in options_of(name, N):
            given = options | ({"thresholds": True} if name in LIFTED else {})
            found = expected(lambda r: ADVANTAGES[name](r, **given), values, N)  # noqa: B023
            wanted = integral(lambda p: weight(name, p, rollouts=N, **given), values)  # noqa: B023
            close(found, wanted, name=f"{name} N={N} {options}")


def test_the_example_of_weights():
    """Its lines run, and all but the first give the numbers that are told behind them."""
    names = {"torch": torch, "weight": weight}
    lines = re.findall(r"(?m)^ {4}(\S.*?) +# (.*)$", weights.__doc__)
    assert len(lines) == 5
    for place, (code, told) in enumerate(lines):
        name, _, value = code.rpartition(" = ")
        names[name] = found = eval(value, names)
        if place > 0:
            close(found, torch.tensor([*map(float, told.split(","))]).to(found), 0.05)


def best_of(k, worth):
    """The gradient of the expected largest of k rewards that are not negative."""
    logits = LOGITS.clone().requires_grad_()
    total = below = 0.0
    for t in worth.unique():
        p = logits.softmax(0)[worth >= t].sum()
        total = total + (t - below) * (1 - (1 - p) ** k)
        below = t
    (grad,) = torch.autograd.grad(total, logits)
    return grad


@pytest.mark.parametrize("worth", ["ties", "above 1"])
def test_an_order_is_a_sum_of_best_of_k(worth):
    """Order T is sum_{k <= T} (1/k) grad best-of-k, as with pass@k, and pkpo grad best-of-k."""
    values = torch.tensor(WORTH[worth], dtype=F64)
    for T in range(1, 5):
        wanted = sum(best_of(k, values) / k for k in range(1, T + 1))
        lifted = {"order": T, "thresholds": True}
        names = ("maxrl_order", "maxrl_rare", "maxrl_success", "maxrl_leave_two_out")
        for name in names[: 3 if T == 4 else 4]:
            close(expected(lambda r: ADVANTAGES[name](r, **lifted), values, 4), wanted)  # noqa: B023
        found = expected(lambda r: ADVANTAGES["pkpo"](r, k=T, thresholds=True), values, 4)  # noqa: B023
        close(found, best_of(T, values))


def divided_by_the_mean(rewards):
    """(r - mean) / mean, which is not maximum likelihood at any threshold."""
    mean = rewards.mean(1, keepdim=True)
    return torch.where(mean > 0, (rewards - mean) / mean, 0.0)


WRONG = {
    "(r - mean) / mean": divided_by_the_mean,
    "GRPO": ADVANTAGES["grpo"],
    "Eq. (9) of the rewards": lambda r: r / r.mean(1, keepdim=True).clamp(min=1e-9),
}


@pytest.mark.parametrize("form", WRONG)
def test_wrong_forms_are_seen(form):
    """None has the integral of order N - 1 or N."""
    values = torch.tensor(WORTH["ties"], dtype=F64)
    found = expected(WRONG[form], values, 4)
    for order in (3, 4):
        wanted = integral(lambda p: weight("maxrl", p, order=order), values)  # noqa: B023
        assert (found - wanted).abs().max() > 1e-3


def test_the_form_of_its_authors():
    """w_(i) = N sum_{j <= i} (r_(j) - r_(j-1)) / (N - j + 1), and A = w - mean(w), on 1,000 groups;
    thresholds and closed form agree."""
    rewards = torch.rand(1000, 7, generator=seeded(), dtype=F64)
    rewards[:300] = (rewards[:300] * 4).round() / 4  # ties
    for r in (rewards, rewards - 0.5):
        for row, found in zip(r.tolist(), ADVANTAGES["tailrl"](r)):
            order = sorted(range(7), key=row.__getitem__)
            shares, before = [0.0] * 7, 0.0
            share = 0.0
            for j, i in enumerate(order):
                share += 7 * (row[i] - before) / (7 - j)
                before = row[i]
                shares[i] = share
            mean = sum(shares) / 7
            close(found, torch.tensor([w - mean for w in shares], dtype=F64))
        close(ADVANTAGES["maxrl"](r, thresholds=True), ADVANTAGES["tailrl"](r))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_verdicts_are_as_without_thresholds_to_the_last_bit(dtype):
    verdicts = (torch.rand(400, 9, generator=seeded()) < 0.3).to(dtype)
    assert torch.equal(ADVANTAGES["tailrl"](verdicts), ADVANTAGES["maxrl"](verdicts))
    for name in LIFTED:
        plain = ADVANTAGES[name](verdicts, **any_options(name))
        lifted = ADVANTAGES[name](verdicts, thresholds=True, **any_options(name))
        assert torch.equal(plain, lifted), name


def test_hand_vectors():
    rows = [[0, 0.3, 1, 0], [1, 0, 0, 0], [0.7, 0.7, 0.7, 0.7]]
    wanted = [[-1, -0.4, 2.4, -1], [3, -1, -1, -1], [0, 0, 0, 0]]
    rewards = torch.tensor(rows, dtype=F64)
    close(ADVANTAGES["tailrl"](rewards), torch.tensor(wanted, dtype=F64))
    assert not ADVANTAGES["tailrl"](rewards)[2].any()
    # A constant changes nothing.
    close(ADVANTAGES["tailrl"](rewards - 3), torch.tensor(wanted, dtype=F64))


def test_missing_verdicts_and_flat_rewards():
    """A group with n rewards has the advantages of n, times N / n; by_group has them unscaled."""
    rewards = torch.tensor([[0.2, torch.nan, 0.9, 0.4]], dtype=F64)
    known = torch.tensor([[0.2, 0.9, 0.4]], dtype=F64)
    for name, options in (("tailrl", {}), ("maxrl_rare", {"thresholds": True})):
        alone = ADVANTAGES[name](known, **options)[0]
        found = ADVANTAGES[name](rewards, allow_missing=True, **options)[0]
        close(found, torch.tensor([*(alone * 4 / 3)], dtype=F64)[[0, 0, 1, 2]] * (rewards[0] > 0))
        flat = by_group(rewards[0], [7, 7, 7, 7], name, **options)
        close(flat[[0, 2, 3]], alone)


@pytest.mark.parametrize("name", FROM_ZERO[1:])
def test_where_rewards_begin_matters(name):
    options = {"thresholds": True} | any_options(name)
    with pytest.raises(RewardError, match=r"-0.5 but takes \[0, inf\)"):
        ADVANTAGES[name](torch.tensor([[0.5, -0.5, 1.0]]), **options)
