"""Micro-batches: every row once, within the budget, little padding, and the gradient of the plain form."""

import numpy as np
import pytest
import tiny
import torch

from maxrl.packing import rectangles
from maxrl.recipes import RECIPES


def lognormal(rng, shape, mean, cv, cap):
    """Lengths of responses: integers from 1 to cap, the mean before they are cut."""
    spread = np.sqrt(np.log(1 + cv**2))
    lengths = np.exp(np.log(mean) - spread**2 / 2 + spread * rng.standard_normal(shape))
    return np.clip(np.ceil(lengths), 1, cap).astype(int)


def size(prompts, lengths, groups, columns) -> int:
    """Padded tokens of a rectangle."""
    rows = lengths[groups, columns]
    return len(groups) * (prompts[groups].max() + rows.shape[1] * rows.max())


@pytest.mark.parametrize("G, M", [(1, 1), (1, 7), (6, 1), (5, 8), (40, 3)])
@pytest.mark.parametrize("budget", [1, 60, 300, 10**6])
def test_every_row_stands_once_within_the_budget(G, M, budget):
    rng = np.random.default_rng(G + M)
    lengths = -np.sort(-lognormal(rng, (G, M), 20, 0.8, 90), 1)
    prompts = rng.integers(0, 40, G)
    times = np.zeros((G, M), int)
    for groups, columns in rectangles(prompts, lengths, budget):
        times[groups, columns] += 1
        rows = times[groups, columns]
        assert size(prompts, lengths, groups, columns) <= budget or rows.size == 1
    assert (times == 1).all()


def test_one_rectangle_where_nothing_is_gained():
    """Rows of one length are not cut, and neither is what costs no more than a forward."""
    for lengths in (np.full((4, 8), 30), np.array([[3, 1], [2, 1]])):
        found = list(rectangles(np.full(len(lengths), 50), lengths, 4096))
        assert [(len(groups), columns) for groups, columns in found] == [(len(lengths), slice(0, lengths.shape[1]))]


def test_cuts_that_cost_the_same_are_even():
    """512 rows of 48 tokens behind a prompt of 310 do not fit into 8,192: four times 128, not three of 164 and one of 20."""
    found = rectangles(np.array([310]), np.full((1, 512), 48), 8192)
    assert sorted(columns.stop - columns.start for _, columns in found) == [128] * 4


# Prompts of a rank, tokens of a prompt and their spread, mean, cv and cap of the responses.
LENGTHS = {
    "maze17": (32, 310, 0, 45, 0.5, 180),
    "maze17_sft": (32, 310, 0, 31, 0.2, 180),
    "maze9_laptop": (16, 94, 0, 14, 0.3, 48),
    "maze9_laptop_sft": (32, 94, 0, 14, 0.3, 48),
    "gsm8k_smollm2": (32, 100, 30, 200, 0.6, 2048),
    "gsm8k_smollm2_24gb": (32, 100, 30, 200, 0.6, 1024),
    "subset_sum": (16, 14, 1, 5, 0.3, 8),
    "subset_sum_sft": (32, 14, 1, 5, 0.3, 8),
    "reverse_text": (16, 16, 2, 10, 0.2, 12),
    "reverse_text_sft": (32, 16, 2, 10, 0.2, 12),
    "gsm8k_laptop": (32, 40, 8, 25, 0.4, 48),
    "gsm8k_laptop_sft": (64, 40, 8, 25, 0.4, 48),
    "polaris_qwen3_1_7b": (8, 150, 60, 1400, 0.6, 4096),
    "polaris_qwen3_4b": (8, 150, 60, 2300, 0.6, 4096),
    "polaris_qwen3_4b_1gpu": (256, 150, 60, 2300, 0.6, 4096),
    "prompts": (32, 200, 100, 300, 0.6, 1024),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_recipe_pads_little(name):
    """Padded tokens of a step over those that are needed, each prompt once, on lognormal lengths."""
    prompts_of_a_rank, prompt, spread, *distribution = LENGTHS[name]
    cfg = RECIPES[name]()
    rng = np.random.default_rng(0)
    computed = needed = forwards = 0
    for _ in range(5):
        lengths = -np.sort(-lognormal(rng, (prompts_of_a_rank, cfg.rollouts), *distribution), 1)
        prompts = np.clip(prompt + spread * rng.standard_normal(len(lengths)), 1, None).astype(int)
        needed += prompts.sum() + lengths.sum()
        for rectangle in rectangles(prompts, lengths, cfg.micro_batch_tokens):
            computed += size(prompts, lengths, *rectangle)
            forwards += 1
    print(f"{name}: {computed / needed:.2f} times the tokens needed, {forwards / 5:.0f} micro-batches a step")
    assert computed / needed <= 1.5
    assert forwards <= 3 * computed / cfg.micro_batch_tokens + 5 * 8


def test_every_language_model_recipe_is_simulated():
    assert {name for name, recipe in RECIPES.items() if recipe().task != "images"} - {"tiny", "tiny_sft"} == set(LENGTHS)


@pytest.mark.parametrize("budget", [1, 100, 400, 10**6])
def test_the_gradient_is_that_of_the_plain_form(budget):
    """Ragged rows in float64, against all of them in their order in one rectangle; also what belongs to each row."""
    rng = np.random.default_rng(0)
    model, rollouts = tiny.model(), tiny.rollouts((9, 5, 1, 7), N=8, L=60)
    rollouts.lengths = torch.from_numpy(lognormal(rng, (4, 8), 15, 0.8, 60))
    advantages = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    policy = tiny.policy(model, micro_batch_tokens=budget)
    batch = tiny.whole(rollouts)
    log_probs, _ = policy.module(batch)
    model.zero_grad()
    (-(advantages[..., None] * log_probs * batch.mask).sum() / rollouts.lengths.sum()).backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert tiny.distance(tiny.gradient(policy, rollouts, advantages), plain) < 1e-12
    policy.record(rollouts)
    L = log_probs.shape[-1]
    torch.testing.assert_close(rollouts.old_log_probs[..., :L], log_probs.detach().float(), atol=1e-6, rtol=0)
