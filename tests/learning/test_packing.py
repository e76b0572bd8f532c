"""Micro-batches: every row once, within the budget, little padding, and the gradient of the plain
form.
"""

import numpy as np
import pytest

from maxrl.advantages import ADVANTAGES
from maxrl.learning.losses import normaliser, policy_gradient_loss
from maxrl.learning.packing import LAUNCH, cuts, middle, rectangles
from maxrl.models.lora import add_lora
from tests.helpers import tiny
from tests.helpers.outcomes import any_options, every_count
from tests.helpers.tensors import close


def lognormal(rng, shape, mean, cv, cap):
    """Lengths of responses: integers from 1 to cap, the mean before they are cut."""
    spread = np.sqrt(np.log(1 + cv**2))
    lengths = np.exp(np.log(mean) - spread**2 / 2 + spread * rng.standard_normal(shape))
    return np.clip(np.ceil(lengths), 1, cap).astype(int)


def size(prompts, lengths, groups, columns) -> int:
    """Padded tokens of a rectangle."""
    rows = lengths[groups, columns]
    return len(groups) * (prompts[groups].max() + rows.shape[1] * rows.max())


@pytest.mark.parametrize("live", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("G, M", [(1, 1), (1, 7), (6, 1), (5, 8), (40, 3)])
@pytest.mark.parametrize("budget", [1, 60, 300, 10**6])
def test_every_row_stands_once_within_the_budget(G, M, budget, live):
    """Rows with a length do; one without stands at most once, beside others."""
    rng = np.random.default_rng(G + M)
    lengths = lognormal(rng, (G, M), 20, 0.8, 90) * (rng.random((G, M)) < live)
    lengths = -np.sort(-lengths, 1)
    prompts = rng.integers(0, 40, G)
    times = np.zeros((G, M), int)
    for groups, columns in rectangles(prompts, lengths, budget):
        times[groups, columns] += 1
        rows = lengths[groups, columns]
        assert size(prompts, lengths, groups, columns) <= budget or rows.size == 1
        assert rows[:, 0].all()
        assert rows[:, -1].any()
    assert (times[lengths > 0] == 1).all()
    assert (times <= 1).all()


@pytest.mark.parametrize("budget", [20, 100])
def test_the_costs_by_hand(budget):
    """Of two prompts, of 3 and 5 tokens, with three rows and two."""
    prompts = np.array([3, 5])
    lengths = np.array([[9, 4, 2], [6, 5, 0]])

    def cost(tokens):
        return tokens + np.ceil(tokens / budget) * budget / LAUNCH

    between_groups, between_columns, whole = cuts(prompts, lengths, budget)
    assert between_groups.tolist() == [cost(3 + 3 * 9) + cost(5 + 2 * 6)]
    assert between_columns.tolist() == [
        cost(2 * (5 + 9)) + cost(2 * (5 + 2 * 5)),
        cost(2 * (5 + 2 * 9)) + cost(5 + 2),
    ]
    assert whole == (np.inf if budget == 20 else cost(2 * (5 + 3 * 9)))


@pytest.mark.parametrize("true, index", [([1], 0), ([0, 1, 0, 1, 1], 3), ([1] * 7, 3)])
def test_of_equally_cheap_cuts_the_middle_one(true, index):
    """So that the number of cuts is that of halvings."""
    assert middle(np.array(true) > 0) == index


@pytest.mark.parametrize(
    "prompt, mean, spread, cap, budget",
    [
        (310, 45, 0.5, 180, 32768),
        (94, 14, 0.3, 48, 32768),
        (100, 200, 0.6, 1024, 32768),
        (150, 1400, 0.6, 4096, 8192),
    ],
)
def test_the_cut_follows_the_counts(prompt, mean, spread, cap, budget):
    """64 groups with one row to run, 32 of them beside 32 with twenty: none is padded to twenty.
    Those with twenty take at most 1.5 times the tokens that they need, in few forwards."""
    rng = np.random.default_rng(0)
    rows = -np.sort(-lognormal(rng, (64, 64), mean, spread, cap), 1)

    def computed(counts):
        lengths = rows[: len(counts)] * (np.arange(64) < np.array(counts)[:, None])
        prompts = np.full(len(counts), prompt)
        cut = list(rectangles(prompts, lengths, budget))
        tokens = sum(size(prompts, lengths, *rectangle) for rectangle in cut)
        return tokens, tokens / (prompts.sum() + lengths.sum()), len(cut)

    single, share, _ = computed([1] * 64)
    assert share <= 1.3
    twenty, share, forwards = computed([20] * 32)
    assert share <= 1.5
    assert forwards <= 3 * twenty / budget + 8
    assert computed([20] * 32 + [1] * 32)[0] <= 1.1 * (twenty + single / 2)


# A group with one success, one with most, one with half of them, one without any.
REWARDS = every_count(8)[[1, 7, 4, 0]]


AGGREGATIONS = ("sequence", "token", "constant")


def policy_and_rollouts(lora=False, **options):
    model = tiny.model()
    if lora:
        add_lora(model, 2, 2.0)
    policy = tiny.policy(model, micro_batch_tokens=60, **options)
    return policy, tiny.rollouts((9, 5, 1, 7), N=8, L=12)


@pytest.mark.parametrize(
    "setting, aggregation",
    [*zip(["one update"] * 3, AGGREGATIONS), ("several updates", "token"), ("LoRA", "token")],
)
def test_rows_without_an_advantage_change_nothing(aggregation, setting):
    """The gradient of every estimator is that of the whole batch in one rectangle, in which such
    rows are run.
    """
    policy, rollouts = policy_and_rollouts(setting == "LoRA", aggregation=aggregation)
    if setting == "several updates":
        policy.record(rollouts)
        rollouts.old_log_probs = rollouts.old_log_probs.double() + 0.1
    for p in policy.model.parameters():  # B of an adapter begins with zeros
        p.data += 0.01
    batch = tiny.whole(rollouts)
    old = batch.select(rollouts.old_log_probs)
    divisor = normaliser(aggregation, 32, int(rollouts.lengths.sum()), 12)
    for name, rule in ADVANTAGES.items():
        advantages = rule(REWARDS, **any_options(name, rewards=REWARDS))
        log_probs, _ = policy.module(batch)
        loss = policy_gradient_loss(log_probs, advantages, batch.mask, divisor, old_log_probs=old)
        policy.model.zero_grad()
        loss.backward()
        plain = tiny.grads(policy.model)
        close(tiny.gradient(policy, rollouts, advantages), plain, name=name)


@pytest.mark.parametrize("penalty", [{}, {"entropy_bonus": 0.1}, {"beta": 0.1}])
def test_rows_that_are_run(penalty):
    """Those with an advantage; all where KL or entropy have a gradient of their own."""
    policy, rollouts = policy_and_rollouts(reference=tiny.model(seed=1), **penalty)
    advantages = ADVANTAGES["maxrl_rare"](REWARDS)
    batches, _ = policy.batches(rollouts, range(4), advantages)
    run = sum(int(batch.mask.sum()) for batch in batches)
    live = rollouts.lengths[advantages != 0].sum()
    assert run == (rollouts.lengths.sum() if penalty else live)
