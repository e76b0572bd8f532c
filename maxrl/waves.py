"""How much is sampled at once: as many rollouts as there is memory for."""

import warnings

import torch
import torch.nn.functional as F

from maxrl.models.attention import Cache
from maxrl.sampler import Samples


def in_waves(sample, prompts: int, rollouts: int, rows: int) -> tuple[Samples, int]:
    """Samples of P = `prompts` groups of N = `rollouts`, at most `rows` rows at once, and how many rows there was memory for.

    sample(groups, columns), two slices, gives the Samples of a part. Where it runs out of memory the waves are halved, down to
    slices of a group: the noise rule keeps the rollouts the same.
    """
    waves, g = [], 0
    while g < prompts:
        groups = slice(g, min(g + max(1, rows // rollouts), prompts))
        columns = [slice(n, n + rows) for n in range(0, rollouts, rows)] if rows < rollouts else [slice(rollouts)]
        try:
            waves.append(joined([sample(groups, part) for part in columns], 1))
            g = groups.stop
            continue
        except RuntimeError as error:
            if rows == 1 or not out_of_memory(error):
                raise
        # Not within `except`, where the error still holds the tensors of the call that failed.
        rows = max(1, min(rows, (groups.stop - g) * rollouts) // 2)
        warnings.warn(f"out of memory in sampling: at most {rows} rollouts at once from now on", stacklevel=2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return joined(waves, 0), rows


def out_of_memory(error: RuntimeError) -> bool:
    """Of a GPU, or of a CPU, whose error is no class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def joined(parts: list[Samples], dim: int) -> Samples:
    """Samples of several groups (dim 0) or of several rows of the same groups (dim 1) as one."""
    L = max(part.tokens.shape[-1] for part in parts)

    def cat(name):
        values = [getattr(part, name) for part in parts]
        return torch.cat([F.pad(v, (0, L - v.shape[-1])) if v.dim() == 3 else v for v in values], dim)

    return Samples(*map(cat, Samples.__dataclass_fields__))


def cache_bytes(config, max_tokens: int, element_size: int) -> int:
    """Of the keys and values of one row's own tokens when it is max_tokens long; its group's prompt is not counted."""
    return config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * Cache.full(max_tokens) * element_size


def groups_within(gigabytes: float, rollouts: int, row_bytes: int) -> int:
    """How many whole groups of `rollouts` rows have room for their keys and values in so many GiB; at least one."""
    groups = int(gigabytes * 2**30 // (rollouts * row_bytes))
    if groups == 0:
        warnings.warn(f"the keys and values of one group of {rollouts} rollouts can take {rollouts * row_bytes / 2**30:.3g} "
                      f"GiB, more than --kv-memory-gb {gigabytes:g}: sampling one group at a time all the same", stacklevel=2)
    return max(1, groups)
