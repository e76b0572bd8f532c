"""How many steps sampling takes: the sampler's own policy (when rows leave, how room grows, when a wave is halved) replayed on
lengths alone."""

import numpy as np
import pytest
import torch

from maxrl.models.cache import Cache, CacheFull
from maxrl.recipes import RECIPES
from maxrl.run.dry_run import shape
from maxrl.sampling.memory import cache_bytes, in_waves
from maxrl.sampling.sampler import CHECK_EVERY, LOGIT_BYTES, SHRINK_AT, Samples


def lognormal(shape, mean, cv, limit, seed=0):
    """Lengths of this mean and coefficient of variation, before they are cut at the limit."""
    variance = np.log(1 + cv**2)
    drawn = np.random.default_rng(seed).lognormal(np.log(mean) - variance / 2, variance**0.5, shape)
    return drawn.round().clip(1, limit).astype(int)


def replay(lengths, token, logits, budget, rows):
    """Steps, slots in all steps and the most bytes of sampling rollouts of these lengths (P, N)."""
    steps, slots, most = [], [], []

    def sample(groups, columns):
        left = lengths[groups, columns]
        size, room, position = left.size, 0, 0
        while position < lengths.max():
            if position and position % CHECK_EVERY == 0:
                live = (left > position).sum(1)
                packed = live.max() * (live > 0).sum()
                if packed == 0:
                    break
                size = packed if packed <= SHRINK_AT * size else size
            if position == room:
                room += Cache.BLOCK
                needed = size * (room * token + logits)
                if needed > budget and size > 1:
                    raise CacheFull
                most.append(needed)
            position += 1
            steps.append(1)
            slots.append(size)
        none = torch.zeros(*left.shape, 1)
        return Samples(none, none[..., 0], none, none, none[..., 0])

    in_waves(sample, *lengths.shape, rows)
    return len(steps), sum(slots), max(most)


# Prompts of a rank, rollouts, mean and variation of lengths, about as published runs have them.
CASES = {
    "maze17": (32, 128, 45, 0.5),
    "gsm8k_smollm2": (32, 128, 200, 0.6),  # of 8 ranks
    "polaris_qwen3_1_7b": (8, 16, 1400, 0.6),  # of 32 ranks
    "polaris_qwen3_4b": (8, 16, 2100, 0.6),  # of 32 ranks
    "polaris_qwen3_4b_1gpu": (8, 16, 2100, 0.6),
    "maze9_laptop": (16, 32, 14, 0.3),
    "gsm8k_laptop": (32, 16, 24, 0.3),
}


@pytest.mark.parametrize("name", CASES)
def test_decode_steps_of_the_recipes(name):
    """All rows begin at once, so that the longest one says how many steps there are; reserved for the longest, the rows of
    GSM8K would need eight waves."""
    P, N, mean, cv = CASES[name]
    cfg = RECIPES[name]()
    config = shape(cfg).config
    lengths = lognormal((P, N), mean, cv, cfg.max_response)
    token = cache_bytes(config, Cache.BLOCK, 2) // Cache.BLOCK
    budget = cfg.kv_memory_gb * 2**30 or np.inf
    rows = P * N if cfg.kv_memory_gb else max(1, cfg.wave_rows // N) * N
    steps, slots, most = replay(lengths, token, LOGIT_BYTES * config.vocab_size, budget, rows)
    print(
        f"{name}: {steps} steps, longest {lengths.max()}, {slots / lengths.sum():.2f} slots a live token, "
        f"{most / 2**30:.1f} GiB in use, {P * N * cfg.max_response * token / 2**30:.0f} if all were longest, "
        f"{steps * P * N / lengths.sum():.2f} steps a row's mean"
    )
    assert steps <= 1.1 * lengths.max() and most <= budget
    assert slots <= 2.5 * lengths.sum()
