"""Rounds (maxrl/rounds.py): sampling until a round has a success has the order of all rounds
together, by enumeration.
"""

import itertools
from types import SimpleNamespace

import pytest
import tiny
import torch
from conftest import ROOT
from tensors import close, seeded

from maxrl.advantages import ADVANTAGES, _c, weight
from maxrl.config import Config
from maxrl.registry import check_sizes
from maxrl.rollouts import Rollouts, joined
from maxrl.rounds import way_of_sampling
from maxrl.sampling.sampler import noise
from maxrl.tasks import Example

F64 = torch.float64
PASS_RATES = torch.tensor([0.02, 0.1, 0.3, 0.5, 0.75, 0.98], dtype=F64)
SIZES = [(2,), (2, 2), (1, 2, 4), (3, 1)]
EXACT = [name for name, rule in ADVANTAGES.items() if rule.rounds]
LOGITS = torch.tensor([0.3, -1.2, 0.8], dtype=F64)
RIGHT = torch.tensor([0, 1, 0], dtype=F64)  # one of three outcomes is right


def rounds_of(outcomes, sizes):
    """Cut all rollouts (..., total) of a prompt into its rounds and return the first with a
    success, or the last.
    """
    for group in outcomes.split(sizes):
        if RIGHT[group].any():
            return group
    return group


def majority_of_all(rewards):
    """maxrl_rare with a majority that includes rollout i."""
    N = rewards.shape[1]
    baseline = (rewards.sum(1, keepdim=True) > N / 2).to(rewards)
    return (rewards - baseline) * _c(rewards, N)


def expected_gradient(rule, sizes):
    """The sum over all 3^total outcomes of probability times gradient (3,), each of the round that
    is used alone.
    """
    probabilities = LOGITS.softmax(0)
    total = torch.zeros(3, dtype=F64)
    for z in itertools.product(range(3), repeat=sum(sizes)):
        z = torch.tensor(z)
        group = rounds_of(z, sizes)
        scores = torch.eye(3, dtype=F64)[group] - probabilities  # (m, 3)
        advantages = rule(RIGHT[group][None])[0]  # (m,)
        total += probabilities[z].prod() * (advantages[:, None] * scores).mean(0)
    return total


def grad_J(order):
    """The gradient (3,) of Eq. (6), by autograd."""
    logits = LOGITS.clone().requires_grad_()
    p = (logits.softmax(0) * RIGHT).sum()
    J = -sum((1 - p) ** k / k for k in range(1, order + 1))
    return torch.autograd.grad(J, logits)[0]


def test_which_estimators_are_declared():
    assert set(EXACT) == {"maxrl_success", "maxrl_rare"}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", EXACT)
def test_expected_gradient_of_rounds_is_that_of_the_sum_of_their_sizes(name, sizes):
    close(expected_gradient(ADVANTAGES[name], sizes), grad_J(sum(sizes)))
    expected = weight("maxrl", PASS_RATES, order=sum(sizes))
    close(weight(name, PASS_RATES, rollouts=sizes), expected)


@pytest.mark.parametrize("name", ["maxrl", "maxrl_centered", "rloo", "majority_of_all"])
def test_others_have_another_weight_in_rounds(name):
    """So that they are refused: Algorithm 1 has order m - 1 in each round, a centred form pushes
    failed rounds down.
    """
    rule = ADVANTAGES.get(name, majority_of_all)
    difference = expected_gradient(rule, (2, 2)) - grad_J(4)
    assert difference.abs().max() > 1e-3
    if name in ADVANTAGES:
        with pytest.raises(ValueError, match="maxrl_success or maxrl_rare"):
            weight(name, 0.5, rollouts=(2, 2))


def test_a_majority_that_includes_the_rollout_itself_is_biased():
    """Also in one round; with the majority of the others the same enumeration is exact."""
    assert (expected_gradient(majority_of_all, (3,)) - grad_J(3)).abs().max() > 1e-3


@pytest.mark.parametrize("sizes", [(8, 8, 16, 32), (8, 8, 16, 32, 64), (64, 64, 128, 256, 512)])
def test_weight_of_large_rounds(sizes):
    p = torch.tensor([0.0, 1e-6, 1e-3, 0.05, 0.5, 1.0], dtype=F64)
    for name in EXACT:
        expected = weight("maxrl", p, order=sum(sizes))
        close(weight(name, p, rollouts=sizes) / expected, torch.ones_like(p), 1e-10)


def test_the_noise_and_rows_of_the_rare_side():
    """Of maxrl/README.md: sum over K of Bin(K; N, p) sum_i A_i^2 / N^2, and the share of rows with
    an advantage."""
    page = " ".join((ROOT / "maxrl/README.md").read_text().split())
    N = 32
    rewards = torch.ones(N + 1, N, dtype=F64).tril(-1)  # K successes in row K
    successes = torch.distributions.Binomial(N, torch.tensor(0.05, dtype=F64))
    chances = successes.log_prob(torch.arange(N + 1)).exp()  # (N + 1,)
    noise = []
    shares = []
    for name, options in (("maxrl", {}), ("maxrl_rare", {"order": 31}), ("maxrl_rare", {})):
        advantages = ADVANTAGES[name](rewards, **options)  # (N + 1, N)
        noise.append(f"{chances @ (advantages**2).sum(1) / N**2:.3f}"[1:])
        shares.append(f"{chances @ (advantages != 0).double().mean(1):.2f}"[1:])
    assert f"a share of {shares[1]} of the rows has an advantage instead of {shares[0]}" in page
    plain, alike, own = noise
    same = f"{alike} with `maxrl_rare` at the same order"
    assert f"is {plain} with `maxrl` (order 31), {same} and {own} at order 32" in page


# --- what rounds sample
PROMPTS = [tiny.Up("train")[i] for i in range(10)]


class Judge:
    """Verdicts on the first token: every `every`-th one is right."""

    def __init__(self, every=7, verdict=True):
        self.every = every
        self.verdict = verdict
        self.calls = []

    def rewards(self, examples, rollouts):
        self.calls.append(len(examples))
        rewards = (rollouts.tokens[..., 0] % self.every == 0).double()
        return rewards if self.verdict else rewards * torch.nan


def sampled(policy, judge, sizes):
    cfg = Config(estimator="maxrl_rare", rollouts=sizes)
    sample = way_of_sampling(cfg, policy.rollout, judge.rewards, range(1, 21, 2))
    return sample(PROMPTS, 3)


def test_noise_goes_on_where_it_was():
    whole = noise(7, 3, [2, 5], 8, 6)
    assert torch.equal(noise(7, 3, [2, 5], 3, 6, earlier=5), whole[:, 5:])


@pytest.mark.parametrize("wave_rows", [1, 7, 1000])
def test_all_rounds_draw_what_one_group_of_their_sum_would_have_drawn(wave_rows):
    """And of each prompt the group is the first round with a success, or the last."""
    sizes = (2, 4, 3)
    policy = tiny.policy(tiny.model(), seed=5, wave_rows=wave_rows)
    result = sampled(policy, Judge(), sizes)
    whole = policy.rollout(PROMPTS, 9, step=3, indices=range(1, 21, 2))
    right = whole.tokens[..., 0] % 7 == 0
    found = {tuple(prompt.tolist()): g for g, prompt in enumerate(result.rollouts.prompts)}
    assert len(found) == 10
    assert result.rewards.shape == result.rollouts.lengths.shape == (10, 4)
    for i, prompt in enumerate(whole.prompts):
        g = found[tuple(prompt.tolist())]
        start = 0
        for m in sizes:
            columns = slice(start, start + m)
            start += m
            if right[i, columns].any():
                break
        assert result.num_rollouts[i] == start
        assert result.num_rounds[i] == sizes.index(m) + 1
        ours = result.rollouts
        assert torch.equal(ours.lengths[g, :m], whole.lengths[i, columns])
        assert not ours.lengths[g, m:].any()
        L = int(whole.lengths[i, columns].max())
        assert torch.equal(ours.tokens[g, :m, :L], whole.tokens[i, columns, :L])
        close(ours.log_probs[g, :m, :L], whole.log_probs[i, columns, :L])
        assert torch.equal(result.rewards[g, :m], right[i, columns].double())
        assert result.rewards[g, m:].isnan().all()
    assert torch.equal(result.first_rewards, right[:, :2].double())
    assert set(result.num_rounds.tolist()) == {1, 2, 3}


def test_one_number_is_no_round():
    """The very rollouts that the policy gives, in their order."""
    policy, judge = tiny.policy(tiny.model(), seed=5), Judge()
    result = sampled(policy, judge, (6,))
    whole = policy.rollout(PROMPTS, 6, step=3, indices=range(1, 21, 2))
    assert torch.equal(result.rollouts.tokens, whole.tokens)
    assert judge.calls == [10]
    assert result.rollouts is result.first
    assert result.rewards is result.first_rewards


def test_demonstrations_are_one_round_of_right_rollouts():
    examples = [Example("UP", f"{'LEFT ' * n}DONE") for n in range(3)]
    policy = tiny.policy(tiny.model())
    cfg = Config(estimator="supervised", rollouts=(1,))
    result = way_of_sampling(cfg, policy.demonstrate, None, range(3))(examples, 0)
    assert result.rollouts.lengths.tolist() == [[1], [2], [3]]
    assert result.rewards.tolist() == [[1], [1], [1]]


def test_a_prompt_without_a_verdict_is_not_sampled_again():
    judge = Judge(verdict=False)
    result = sampled(tiny.policy(tiny.model()), judge, (2, 2, 2))
    assert judge.calls == [10]
    assert result.rewards.isnan().all()
    assert result.num_rollouts.tolist() == [2] * 10


@pytest.mark.parametrize("dtype", [torch.long, torch.bool])
@pytest.mark.parametrize("sizes", [(6,), (2, 4)])
def test_verdicts_may_be_whole_numbers(sizes, dtype):
    policy, judge = tiny.policy(tiny.model(), seed=5), Judge()
    whole = SimpleNamespace(rewards=lambda *given: judge.rewards(*given).to(dtype))
    found = sampled(policy, whole, sizes).rewards.double()
    expected = sampled(policy, judge, sizes).rewards
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("aggregation", ["sequence", "token", "constant"])
@pytest.mark.parametrize("options", [{}, {"beta": 0.2, "entropy_bonus": 0.1}])
def test_every_prompt_counts_once(aggregation, options):
    """The gradient of groups of 2, 4 and 3 rollouts: a row weighs 1 / m in the loss and in its
    divisor.
    """
    more = {"aggregation": aggregation, "reference": tiny.model(seed=1)} | options
    policy = tiny.policy(tiny.model(), seed=5, micro_batch_tokens=50, **more)
    result = sampled(policy, Judge(), (2, 4, 3))
    advantages = ADVANTAGES["maxrl_rare"](result.rewards, allow_missing=True)
    gradient = tiny.gradient(policy, result.rollouts, advantages)

    loss = divisor = 0.0
    for g, prompt in enumerate(result.rollouts.prompts):
        m = int(result.rewards[g].isfinite().sum())
        own = result.rollouts
        own = Rollouts(
            [prompt],
            *(values[g, None, :m] for values in (own.tokens, own.lengths, own.finished)),
            None,
        )
        batch = tiny.whole(own)
        log_probs, entropies = policy.module(batch, True)  # (1, m, L)
        A = ADVANTAGES["maxrl_rare"](result.rewards[g : g + 1, :m])  # (1, m)
        terms = A[..., None] * log_probs
        if options:
            with torch.no_grad():
                reference, _ = policy.frozen(batch)
            log_q = (reference - log_probs) * batch.mask
            terms = terms - 0.2 * (log_q.exp() - 1 - log_q) + 0.1 * entropies
        loss = loss - (terms * batch.mask).sum() / m
        counts = {"sequence": m, "token": int(own.lengths.sum()), "constant": m * 12}
        divisor += counts[aggregation] / m
    policy.model.zero_grad()
    (loss / divisor).backward()
    assert tiny.distance(gradient, tiny.grads(policy.model)) < 1e-12


def test_groups_of_one_size_have_todays_loss_to_the_bit():
    policy = tiny.policy(tiny.model(torch.float32), micro_batch_tokens=50)
    rollouts = tiny.rollouts(dtype=torch.float32)
    advantages = torch.randn(4, 4, generator=seeded())
    gradient = tiny.gradient(policy, rollouts, advantages)
    assert (rollouts.group_scale() == 1).all()
    assert torch.equal(gradient, tiny.gradient(policy, joined([rollouts], N=4), advantages))


def test_an_order_beside_rounds_is_refused():
    """The order of rounds is their sum."""
    with pytest.raises(ValueError):
        check_sizes(ADVANTAGES["maxrl_rare"], (2, 2), {"order": 3})
