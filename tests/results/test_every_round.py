"""Eq. (10) in rounds has the order of all rounds together, by enumeration, and rounds' divisor."""

from types import SimpleNamespace

import pytest
import torch

from maxrl.advantages import weight
from maxrl.learning.rounds import in_rounds
from maxrl.sampling.rollouts import Rollouts, with_verdict
from results.failures.every_round import centered, every_round
from tests.helpers import tiny
from tests.helpers.outcomes import LOGITS, RIGHT, over_all_outcomes, scores


def gradient(outcome: torch.Tensor, sizes: tuple[int, ...], every: bool) -> torch.Tensor:
    """The gradient (3,) of the outcomes (total,) that a prompt would draw in all of its rounds."""

    def rollout(examples, size, step, indices, earlier):
        tokens = outcome[earlier : earlier + size].view(1, size, 1)
        ones = torch.ones(1, size, dtype=torch.long)
        zeros = torch.zeros(1, size, 1)
        return Rollouts([ones[0]], tokens, ones, ones.bool(), None, zeros, zeros)

    def judge(examples, rollouts):
        return RIGHT[rollouts.tokens[..., 0]]

    sampled = every_round(sizes, SimpleNamespace(rollout=rollout), judge, [None], 0, [0])
    advantages = centered(sampled.rewards, allow_missing=True)  # (rounds, N), 0 where none is
    if not every:
        advantages = advantages[-1:]
    tokens = sampled.rollouts.tokens[-len(advantages) :, :, 0]
    return (advantages[..., None] * scores(tokens)).sum((0, 1)) / max(sizes)


def expected(sizes: tuple[int, ...], every: bool = True) -> torch.Tensor:
    return over_all_outcomes(sum(sizes), lambda outcome: gradient(outcome, sizes, every))


@pytest.mark.parametrize("sizes", [(2,), (2, 2), (2, 3), (3, 2), (2, 2, 2)])
def test_the_order_is_that_of_all_rounds(sizes):
    logits = LOGITS.clone().requires_grad_()
    p = (logits.softmax(0) * RIGHT).sum()
    (grad_p,) = torch.autograd.grad(p, logits)
    wanted = weight("maxrl", p.detach(), order=sum(sizes)) * grad_p
    assert (expected(sizes) - wanted).abs().max() < 1e-12
    # Without the failed rounds it is another gradient.
    if len(sizes) > 1:
        assert (expected(sizes, every=False) - wanted).abs().max() > 1e-2


def test_the_divisor_is_that_of_rounds():
    """It counts the last round of each prompt, and no failed one before it."""

    def judge(examples, rollouts):
        return (rollouts.tokens[..., 0] % 7 == 0).double()

    policy = tiny.policy(seed=5)
    prompts = [tiny.Up("train")[i] for i in range(10)]
    where = [(2, 4, 3), policy, judge, prompts, 3, range(10)]
    every = every_round(*where).rollouts
    last = in_rounds(*where).rollouts
    groups = len(every.lengths)
    assert groups > len(last.lengths)
    counts = last.counts(list(range(10)))
    assert every.counts(list(range(groups))) == pytest.approx(counts)


def test_a_prompt_without_a_verdict_is_left_out():
    def judge(examples, rollouts):
        verdicts = (rollouts.tokens[..., 0] % 7 == 0).double()
        verdicts[0] = torch.nan
        return verdicts

    policy = tiny.policy(seed=5)
    prompts = [tiny.Up("train")[i] for i in range(10)]
    sampled = every_round((2, 4), policy, judge, prompts, 3, range(10))
    rollouts, rewards = with_verdict(sampled.rollouts, sampled.rewards)
    assert len(rollouts.lengths) == len(rollouts.last) == len(rewards)
    assert len(rewards) < len(sampled.rewards)
