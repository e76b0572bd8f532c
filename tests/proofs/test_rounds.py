"""Rounds (maxrl/learning/rounds.py): sampling until a round has a success has the order of all
rounds together, by enumeration.
"""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from maxrl.advantages import ADVANTAGES, weight
from maxrl.advantages.formulas import _c
from maxrl.learning.config import Config
from maxrl.learning.losses import k3
from maxrl.learning.rounds import sample
from maxrl.sampling.rollouts import joined
from tests import ROOT
from tests.helpers import tiny
from tests.helpers.outcomes import (
    LOGITS,
    PASS_RATES,
    RIGHT,
    binomial,
    every_count,
    over_all_outcomes,
    scores,
)
from tests.helpers.tensors import F64, close

EXACT = ("maxrl_success", "maxrl_rare")


def last_round(outcomes, sizes):
    """Cut all rollouts (total,) of a prompt into its rounds and return the first with a success, or
    the last.
    """
    for group in outcomes.split(sizes):
        if RIGHT[group].any():
            break
    return group


def majority_of_all(rewards):
    """maxrl_rare with a majority that includes rollout i."""
    N = rewards.shape[1]
    baseline = (rewards.sum(1, keepdim=True) > N / 2).to(rewards)
    return (rewards - baseline) * _c(rewards, N)


def difference(rule, sizes):
    """By how much the expected gradient (3,) differs from that of Eq. (6), whose order is the sum
    of the sizes.

    The former is the sum over all 3^total outcomes of probability times gradient, each of the round
    that is used alone.
    """
    logits = LOGITS.clone().requires_grad_()
    p = (logits.softmax(0) * RIGHT).sum()
    J = -sum((1 - p) ** k / k for k in range(1, sum(sizes) + 1))
    (wanted,) = torch.autograd.grad(J, logits)

    def gradient(outcomes):
        group = last_round(outcomes, sizes)
        advantages = rule(RIGHT[group][None])[0]  # (m,)
        return (advantages[:, None] * scores(group)).mean(0)

    return (over_all_outcomes(sum(sizes), gradient) - wanted).abs().max()


def test_which_estimators_are_declared():
    assert {name for name, rule in ADVANTAGES.items() if rule.rounds} == set(EXACT)


@pytest.mark.parametrize("sizes", [(2,), (2, 2), (1, 2, 4), (3, 1)])
@pytest.mark.parametrize("name", EXACT)
def test_expected_gradient_of_rounds_is_that_of_the_sum_of_their_sizes(name, sizes):
    assert difference(ADVANTAGES[name], sizes) < 1e-12


@pytest.mark.parametrize(
    "rule, sizes",
    [
        (ADVANTAGES["maxrl"], (2, 2)),
        (ADVANTAGES["maxrl_centered"], (2, 2)),
        (ADVANTAGES["rloo"], (2, 2)),
        (majority_of_all, (2, 2)),
        (majority_of_all, (3,)),
    ],
)
def test_others_have_another_weight_in_rounds(rule, sizes):
    """So that they are refused: Algorithm 1 has order m - 1 in each round, a centred form pushes
    failed rounds down; a majority that includes the rollout itself is biased also in one round.
    """
    assert difference(rule, sizes) > 1e-3


@pytest.mark.parametrize("sizes", [(2, 2), (1, 2, 4), (8, 8, 16, 32, 64), (64, 64, 128, 256, 512)])
@pytest.mark.parametrize("name", EXACT)
def test_weight_of_rounds(name, sizes):
    p = torch.tensor([0.0, 1e-6, *PASS_RATES, 1.0], dtype=F64)
    expected = weight("maxrl", p, order=sum(sizes))
    close(weight(name, p, rollouts=sizes) / expected, torch.ones_like(p), 1e-10)


def test_the_noise_and_rows_of_the_rare_side():
    """Of maxrl/README.md: sum over K of Bin(K; N, p) sum_i A_i^2 / N^2, and the share of rows with
    an advantage."""
    page = " ".join((ROOT / "maxrl/README.md").read_text().split())
    N = 32
    chances = torch.tensor(binomial(N, 0.05), dtype=F64)
    noise = []
    shares = []
    for name, options in (("maxrl", {}), ("maxrl_rare", {"order": 31}), ("maxrl_rare", {})):
        advantages = ADVANTAGES[name](every_count(N), **options)  # (N + 1, N)
        noise.append(f"{chances @ (advantages**2).sum(1) / N**2:.3f}"[1:])
        shares.append(f"{chances @ (advantages != 0).double().mean(1):.2f}"[1:])
    (said,) = re.findall("With 32 rollouts at p = .05.*?at order 32", page)
    numbers = [shares[1], shares[0], *noise]
    assert re.findall(r"\.\d+", said)[1:] == numbers


# --- what rounds sample
PROMPTS = [tiny.Up("train")[i] for i in range(10)]


class Judge:
    """Verdicts on the first token: every seventh one is right."""

    def __init__(self, convert=torch.Tensor.double):
        self.convert = convert
        self.calls = []

    def rewards(self, examples, rollouts):
        self.calls.append(len(examples))
        return self.convert(rollouts.tokens[..., 0] % 7 == 0)


def sampled(policy, judge, sizes):
    cfg = Config(estimator="maxrl_rare", rollouts=sizes)
    return sample(cfg, policy, judge.rewards, PROMPTS, 3, range(1, 21, 2))


def test_joined_rollouts_keep_their_responses():
    """Also where a part has shorter ones, and fewer of them, than the others."""
    parts = [tiny.rollouts((3,), N=2, L=2), tiny.rollouts((4, 1), N=3, L=5)]
    parts[0].row_bytes = 7.0
    whole = joined(parts, N=3)
    assert whole.row_bytes == 7
    expected = [part.response(i, j) for part in parts for i, j in np.ndindex(*part.lengths.shape)]
    found = [whole.response(i, j) for i, j in np.ndindex(*whole.lengths.shape)]
    assert [response for response in found if response] == expected


@pytest.mark.parametrize("wave_rows", [1, 7, 1000])
def test_all_rounds_draw_what_one_group_of_their_sum_would_have_drawn(wave_rows):
    """And of each prompt the group is the first round with a success, or the last."""
    sizes = (2, 4, 3)
    policy = tiny.policy(seed=5, wave_rows=wave_rows)
    result = sampled(policy, Judge(), sizes)
    whole = policy.rollout(PROMPTS, 9, step=3, indices=range(1, 21, 2))
    right = Judge().rewards(PROMPTS, whole)
    ours = result.rollouts
    L = ours.tokens.shape[2]
    prompts = [prompt.tolist() for prompt in whole.prompts]
    places = [prompts.index(prompt.tolist()) for prompt in ours.prompts]
    assert sorted(places) == list(range(10))
    for g, i in enumerate(places):
        start = 0
        for m in sizes:
            columns = slice(start, start + m)
            start += m
            if right[i, columns].any():
                break
        assert result.num_rollouts[i] == start
        assert result.num_rounds[i] == sizes.index(m) + 1
        missing = (0, 4 - m)
        assert torch.equal(ours.lengths[g], F.pad(whole.lengths[i, columns], missing))
        assert torch.equal(ours.tokens[g, :m], whole.tokens[i, columns, :L])
        close(ours.log_probs[g, :m], whole.log_probs[i, columns, :L])
        rewards = F.pad(right[i, columns], missing, value=torch.nan)
        torch.testing.assert_close(result.rewards[g], rewards, equal_nan=True)
    assert torch.equal(result.first_rewards, right[:, :2])
    assert set(result.num_rounds.tolist()) == {1, 2, 3}


def test_one_number_is_no_round():
    """The very rollouts that the policy gives, in their order."""
    policy = tiny.policy(seed=5)
    judge = Judge()
    result = sampled(policy, judge, (6,))
    whole = policy.rollout(PROMPTS, 6, step=3, indices=range(1, 21, 2))
    assert torch.equal(result.rollouts.tokens, whole.tokens)
    assert judge.calls == [10]
    assert result.rollouts is result.first
    assert result.rewards is result.first_rewards


def test_a_prompt_without_a_verdict_is_not_sampled_again():
    judge = Judge(lambda right: right * torch.nan)
    result = sampled(tiny.policy(), judge, (2, 2, 2))
    assert judge.calls == [10]
    assert result.rewards.isnan().all()
    assert result.num_rollouts.tolist() == [2] * 10


@pytest.mark.parametrize("convert", [torch.Tensor.long, torch.Tensor.bool])
@pytest.mark.parametrize("sizes", [(6,), (2, 4)])
def test_verdicts_may_be_whole_numbers(sizes, convert):
    policy = tiny.policy(seed=5)
    found = sampled(policy, Judge(convert), sizes).rewards.double()
    expected = sampled(policy, Judge(), sizes).rewards
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("aggregation", ["sequence", "token", "constant"])
@pytest.mark.parametrize("beta, bonus", [(0, 0), (0.2, 0.1)])
def test_every_prompt_counts_once(aggregation, beta, bonus):
    """The gradient of groups of 2, 4 and 3 rollouts: a row weighs 1 / m in the loss and in its
    divisor.
    """
    options = {"beta": beta, "entropy_bonus": bonus, "reference": tiny.model(seed=1)}
    policy = tiny.policy(seed=5, micro_batch_tokens=50, aggregation=aggregation, **options)
    result = sampled(policy, Judge(), (2, 4, 3))
    advantages = ADVANTAGES["maxrl_rare"](result.rewards, allow_missing=True)
    gradient = tiny.gradient(policy, result.rollouts, advantages)

    loss = divisor = 0.0
    for g, rewards in enumerate(result.rewards):
        group = result.rollouts.select(torch.arange(10) == g)
        batch = tiny.whole(group)
        m = int(rewards.isfinite().sum())
        A = F.pad(ADVANTAGES["maxrl_rare"](rewards[None, :m]), (0, 4 - m))  # (1, N)
        log_probs, entropies = policy.module(batch, True)  # (1, N, L)
        terms = A[..., None] * log_probs + bonus * entropies
        if beta:
            terms = terms - beta * k3(log_probs, policy.frozen(batch)[0], batch.mask)
        loss = loss - (terms * batch.mask).sum() / m
        counts = {"sequence": m, "token": int(group.lengths.sum()), "constant": m * 12}
        divisor += counts[aggregation] / m
    policy.model.zero_grad()
    (loss / divisor).backward()
    assert tiny.distance(gradient, tiny.grads(policy.model)) < 1e-12
