"""Reward functions that say None: what each way of leaving them out has as its expectation, by
enumeration."""

import math

import pytest
import torch
from judged import judged
from tensors import close

from maxrl.advantages import ADVANTAGES, weight
from maxrl.rewards.functions import Rewards
from maxrl.rollouts import with_verdict

N = 4
LOGITS = torch.tensor([0.3, -0.8, 0.5, 0.1], dtype=torch.float64, requires_grad=True)
CENTERED = ["maxrl", "rloo", "reinforce_mean", "grpo", "dr_grpo"]  # advantages that add up to 0


def judge(completions):
    """Of the four responses two are right, one is wrong, and of the last there is no verdict."""
    return [{"a": 1.0, "b": 1.0, "c": 0.0, "d": None}[text] for text in completions]


def coin(completions):
    """Right or wrong by the first letter; whether there is a verdict is a coin's, the second
    letter."""
    return [None if text[1] == "-" else float(text[0] in "ab") for text in completions]


def outcomes(texts, chances):
    """Every group of N responses: its texts, its probability, its scores (N, 4). The first
    letter of a text is the response."""
    scores = torch.eye(4, dtype=torch.float64) - LOGITS.detach().softmax(0)
    groups = torch.cartesian_prod(*[torch.arange(len(texts))] * N)  # (groups, N)
    chance = torch.stack(list(chances)).detach()[groups].prod(1)
    letters = torch.tensor(["abcd".index(text[0]) for text in texts])
    return [[texts[i] for i in group] for group in groups], chance, scores[letters[groups]]


def expected(name, function, texts, chances, no_verdict):
    """The mean gradient of a group, the chance that it stays, and the mean of its advantages,
    over all outcomes."""
    groups, chance, score = outcomes(texts, chances)
    judge = Rewards([function], no_verdict=no_verdict)
    rewards, _ = judged(judge, ["p"] * len(groups), groups)

    class Kept:
        def select(self, kept):
            return kept

    kept, rewards = with_verdict(Kept(), rewards.double())
    options = {"allow_missing": True} if no_verdict == "rollout" else {}
    A = ADVANTAGES[name](rewards, **options)
    chance, score = chance[kept], score[kept]
    gradient = (chance[:, None, None] * A[..., None] * score).sum((0, 1)) / N
    return gradient, chance.sum(), (chance[:, None] * A).sum() / N


def exact():
    """Pass rate among the responses with a verdict, chance q of a verdict, and the gradients of
    the first and of log q."""
    m = LOGITS.softmax(0)
    q = m[:3].sum()
    p = m[:2].sum() / q
    (grad_p,) = torch.autograd.grad(p, LOGITS, retain_graph=True)
    (grad_log_q,) = torch.autograd.grad(q.log(), LOGITS)
    return p.item(), q.item(), grad_p, grad_log_q


def shares(q, least):
    """{n: chance that n of N rollouts have a verdict}, n >= least."""
    return {n: math.comb(N, n) * q**n * (1 - q) ** (N - n) for n in range(least, N + 1)}


@pytest.mark.parametrize("name", [*CENTERED, "reinforce", "maxrl_success", "maxrl_centered"])
def test_without_the_group_the_estimator_is_what_it_says(name):
    """Of a group that stays the gradient's mean is w(p) grad p, with the weight of N rollouts.
    Where advantages do not add up to 0 there is a second term, which moves the chance of a
    verdict."""
    p, q, grad_p, grad_log_q = exact()
    gradient, stays, mean = expected(name, judge, "abcd", LOGITS.softmax(0), "group")
    assert stays.item() == pytest.approx(q**N)
    assert (name in CENTERED) == (abs(mean.item()) < 1e-12)
    wanted = weight(name, p, rollouts=N) * grad_p + mean / stays * grad_log_q
    close(gradient / stays, wanted)


def test_the_likelihood_of_those_with_a_verdict():
    """Each group has the advantages that it would have by itself."""
    rule = ADVANTAGES["differential_smoothing"]
    rewards = torch.tensor([[1.0, math.nan, 0, 0], [math.nan, 0, 1, math.nan], [0, 1, 1, 0]])
    likely = -torch.arange(12.0).view(3, 4)
    found = rule(rewards, mean_log_probs=likely, allow_missing=True)
    for group, values, advantages in zip(rewards, likely, found):
        judged = group.isfinite()
        alone = rule(group[None, judged], mean_log_probs=values[None, judged])[0]
        torch.testing.assert_close(advantages[judged], alone * 4 / judged.sum())
        assert not advantages[~judged].any()


@pytest.mark.parametrize("name", CENTERED)
def test_without_the_rollout_it_is_that_of_fewer_rollouts(name):
    """n of N have a verdict, and the gradient is that of n, so that MaxRL's order varies. With
    one verdict there is none."""
    p, q, grad_p, _ = exact()
    gradient, stays, _ = expected(name, judge, "abcd", LOGITS.softmax(0), "rollout")
    some = shares(q, 2)
    assert stays.item() == pytest.approx(sum(some.values()))
    mixed = sum(chance * weight(name, p, rollouts=n) for n, chance in some.items())
    close(gradient, mixed * grad_p)
    whole = weight(name, p, rollouts=N)
    ratio = mixed / stays.item() / whole
    assert ratio == pytest.approx(1) if name == "rloo" else ratio < 0.999


@pytest.mark.parametrize("name", [*CENTERED, "reinforce", "maxrl_success", "maxrl_centered"])
@pytest.mark.parametrize("no_verdict", ["group", "rollout"])
def test_a_verdict_that_does_not_depend_on_the_response(name, no_verdict):
    """Such as that of a judge who times out: then no estimator has a second term."""
    q = 0.7
    m = LOGITS.softmax(0)
    texts = [f"{z}{sign}" for z in "abcd" for sign in "+-"]
    chances = [m[i // 2] * (1 - q if i % 2 else q) for i in range(8)]
    gradient, stays, _ = expected(name, coin, texts, chances, no_verdict)
    p = m[:2].sum()
    (grad_p,) = torch.autograd.grad(p, LOGITS)
    some = shares(q, N if no_verdict == "group" else 2)
    mixed = sum(chance * weight(name, p.item(), rollouts=n) for n, chance in some.items())
    close(gradient, mixed * grad_p)
