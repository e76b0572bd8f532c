"""Sampling as many rollouts at once as fit into memory."""

import warnings
from collections.abc import Callable

import torch

from maxrl.models.cache import Cache, CacheFull
from maxrl.models.hf_config import TransformerConfig
from maxrl.sampling.cuda import forget_graphs, out_of_memory
from maxrl.sampling.rollouts import Rollouts, joined


def in_waves(
    sample: Callable[[slice, slice], Rollouts], num_prompts: int, num_rollouts: int, max_rows: int
) -> Rollouts:
    """Sample P = `num_prompts` groups of N = `num_rollouts` in waves that fit into memory.

    sample    sample(prompts, columns), with two slices, returns the Rollouts of a part
    max_rows  the most rows of a wave

    After a full budget (CacheFull) or an out-of-memory error waves are half as large, down to
    slices of a group; the noise rule keeps the rollouts the same.
    """
    waves = []
    g = 0
    while g < num_prompts:
        # Equal waves leave more room than full ones and a small last one.
        left = num_prompts - g
        num_waves = -(-left // max(1, max_rows // num_rollouts))
        prompts = slice(g, g + -(-left // num_waves))
        width = min(max_rows, num_rollouts)
        columns = [slice(n, n + width) for n in range(0, num_rollouts, width)]
        try:
            waves.append(joined([sample(prompts, part) for part in columns], 1))
            g = prompts.stop
            continue
        except RuntimeError as error:
            full = isinstance(error, CacheFull)
            if max_rows == 1 or not (full or out_of_memory(error)):
                raise
        max_rows = max(1, min(max_rows, (prompts.stop - g) * num_rollouts) // 2)
        if not full:
            warnings.warn(
                f"out of memory: sampling {max_rows} rollouts at once; every step tries again, "
                f"unless --wave-rows is {max_rows} or --kv-memory-gb limits what sampling uses",
                stacklevel=2,
            )
            # What the wave has left would be used by its own streams and pools alone. A pool that
            # may be used again is not emptied.
            forget_graphs()
            torch.cuda.empty_cache()
    return joined(waves)


def cache_bytes(config: TransformerConfig, max_tokens: int, element_size: int) -> int:
    """Return the bytes of one row's keys and values after max_tokens own tokens, its group's prompt
    not counted.
    """
    per_token = 2 * config.num_key_value_heads * config.head_dim * element_size
    blocks = -(-max_tokens // Cache.BLOCK)
    return config.num_hidden_layers * per_token * blocks * Cache.BLOCK
