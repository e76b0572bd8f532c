"""Reward functions that say None: what each way of leaving them out has as its expectation, by
enumeration."""

import math

import pytest
import torch

from maxrl.advantages import ADVANTAGES, RewardError, weight
from maxrl.sampling.rollouts import with_verdict
from maxrl.tasks.rewards import Rewards
from tests.helpers.judged import judged
from tests.helpers.outcomes import any_options, binomial
from tests.helpers.tensors import F64, close

N = 4
LOGITS = torch.tensor([0.3, -0.8, 0.5, 0.1], dtype=F64, requires_grad=True)
CENTERED = ["maxrl", "rloo", "reinforce_mean", "grpo", "dr_grpo"]  # advantages that add up to 0
ALL = [*CENTERED, "reinforce", "maxrl_success", "maxrl_centered"]


def judge(completions):
    """Of the four responses two are right, one is wrong, and of the last there is no verdict."""
    return [{"a": 1.0, "b": 1.0, "c": 0.0, "d": None}[text] for text in completions]


def coin(completions):
    """Right or wrong by the first letter; whether there is a verdict is a coin's, the second
    letter."""
    return [None if text[1] == "-" else float(text[0] in "ab") for text in completions]


class Kept:
    def select(self, kept):
        return kept


def expected(name, function, texts, chances, no_verdict):
    """The mean gradient of a group, the chance that it stays, and the mean of its advantages, over
    all groups of N responses. The first letter of a text is the response.
    """
    groups = torch.cartesian_prod(*[torch.arange(len(texts))] * N)  # (groups, N)
    chance = chances.detach()[groups].prod(1)
    letters = torch.tensor(["abcd".index(text[0]) for text in texts])
    score = torch.eye(4, dtype=F64) - LOGITS.detach().softmax(0)  # (4, 4)
    responses = [[texts[i] for i in group] for group in groups]
    judge = Rewards([function], no_verdict=no_verdict)
    rewards, _ = judged(judge, ["p"] * len(groups), responses)
    kept, rewards = with_verdict(Kept(), rewards.double())
    options = {"allow_missing": True} if no_verdict == "rollout" else {}
    A = ADVANTAGES[name](rewards, **options)
    chance = chance[kept]
    score = score[letters[groups]][kept]  # (groups, N, 4)
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


def mixed(name, p, q, least):
    """The weight of n rollouts, in the mean over those n >= least of N that have a verdict."""
    chances = enumerate(binomial(N, q))
    return sum(chance * weight(name, p, rollouts=n) for n, chance in chances if n >= least)


@pytest.mark.parametrize("name", ALL)
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


@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_group_without_any_verdict_gets_0(name):
    """And the others what they get without it. Whole numbers and bools are rewards too."""
    rule = ADVANTAGES[name]
    rewards = torch.tensor([[1, math.nan, 0, 1], [math.nan] * 4, [0, 1, 0, 0]])
    options = any_options(name, 2, rewards)
    found = rule(rewards, allow_missing=True, **options)
    rest = rewards[[0, 2]]
    expected = rule(rest, allow_missing=True, **any_options(name, 2, rest))
    assert torch.equal(found[[0, 2]], expected)
    assert not found[1].any()
    assert not rule(rewards * torch.nan, allow_missing=True, **options).any()
    for whole in (rewards[2:].long(), rewards[2:].bool()):
        options = any_options(name, 2, whole)
        given = rule(whole, allow_missing=True, **options)
        assert torch.equal(given, rule(whole.float(), **options))


@pytest.mark.parametrize(
    "rewards, options, error",
    [
        (torch.tensor([[math.nan, -math.inf, 0]]), {}, RewardError),
        (torch.zeros(3), {}, ValueError),
        (torch.zeros(3, 0), {}, ValueError),
        (torch.tensor([[math.nan] * 2]), {"gamma": 1}, TypeError),
    ],
)
@pytest.mark.parametrize("name", ["maxrl", "rloo", "maxrl_rare"])
def test_what_no_missing_verdict_explains(name, rewards, options, error):
    with pytest.raises(error, match=name):
        ADVANTAGES[name](rewards, allow_missing=True, **options)


@pytest.mark.parametrize("name", ["maxrl", "maxrl_rare", "maxrl_success", "reinforce"])
def test_a_single_reward_is_a_group_of_one(name):
    """As in a first round of one rollout."""
    rewards = torch.tensor([[math.nan, 1, math.nan, math.nan]])
    assert ADVANTAGES[name](rewards, allow_missing=True).tolist() == [[0, 4, 0, 0]]


@pytest.mark.parametrize("shape", [(2, 2), (6,), (3, 2), (1, 3), ()])
def test_log_probs_of_another_shape(shape):
    rewards = torch.tensor([[1, 0, math.nan], [0, 1, 1]])
    options = {"mean_log_probs": torch.zeros(shape), "allow_missing": True}
    with pytest.raises(ValueError, match="mean_log_probs"):
        ADVANTAGES["differential_smoothing"](rewards, **options)


@pytest.mark.parametrize("name", CENTERED)
def test_without_the_rollout_it_is_that_of_fewer_rollouts(name):
    """n of N have a verdict, and the gradient is that of n, so that MaxRL's order varies. With
    one verdict there is none."""
    p, q, grad_p, _ = exact()
    gradient, stays, _ = expected(name, judge, "abcd", LOGITS.softmax(0), "rollout")
    assert stays.item() == pytest.approx(sum(binomial(N, q)[2:]))
    close(gradient, mixed(name, p, q, 2) * grad_p)
    ratio = mixed(name, p, q, 2) / stays.item() / weight(name, p, rollouts=N)
    assert ratio == pytest.approx(1) if name == "rloo" else ratio < 0.999


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("no_verdict, least", [("group", N), ("rollout", 2)])
def test_a_verdict_that_does_not_depend_on_the_response(name, no_verdict, least):
    """Such as that of a judge who times out: then no estimator has a second term."""
    q = 0.7
    m = LOGITS.softmax(0)
    texts = [f"{z}{sign}" for z in "abcd" for sign in "+-"]
    chances = torch.outer(m, torch.tensor([q, 1 - q], dtype=F64)).flatten()
    gradient, _, _ = expected(name, coin, texts, chances, no_verdict)
    p = m[:2].sum()
    (grad_p,) = torch.autograd.grad(p, LOGITS)
    close(gradient, mixed(name, p.item(), q, least) * grad_p)
