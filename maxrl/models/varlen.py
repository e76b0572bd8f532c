"""Attention behind prompts of several lengths, on GPUs, by torch's kernel for sequences.

Without the padding of prompts no mask is needed: flash attention. A GPU where it fails a
trial goes on with the masked form of attention.py. Letters as there.
"""

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Sequences:
    """Where the queries and keys of B rows lie, one row after the other."""

    kept: Tensor  # (keys,) which of the B (Lp + L) keys are none of a prompt's padding
    query_starts: Tensor  # (B + 1,) int32: row b has queries query_starts[b] to [b + 1]
    key_starts: Tensor  # (B + 1,) int32: the same for its keys among the kept
    most_keys: int  # of a row


def sequences(lengths: Tensor, Lp: int, L: int, M: int, device: torch.device) -> Sequences:
    """Return those of M rows of L tokens behind each prefix, of `lengths` (G,) on the host."""
    column = torch.arange(Lp + L)
    kept = (column < lengths[:, None]) | (column >= Lp)  # (G, Lp + L)
    kept = kept.repeat_interleave(M, 0).flatten().nonzero().squeeze(1)
    keys = (lengths + L).repeat_interleave(M)  # (B,)
    key_starts = F.pad(keys.cumsum(0), (1, 0)).int()
    query_starts = torch.arange(len(key_starts), dtype=torch.int32) * L
    most_keys = int(keys.max())
    tensors = kept, query_starts, key_starts
    kept, query_starts, key_starts = (x.to(device, non_blocking=True) for x in tensors)
    return Sequences(kept, query_starts, key_starts, most_keys)


def attend_sequences(q: Tensor, k: Tensor, v: Tensor, where: Sequences) -> Tensor:
    """Causal attention of rows to [their group's prefix | themselves], (B, H, L, D).

    q     (B, H, L, D)
    k, v  (B, Hk, Lp + L, D)
    """
    # Imported here: the import is slow.
    from torch.nn.attention.varlen import varlen_attn

    def flat(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)  # (B length, heads, D)

    # Each key is chosen once at most, so that the backward adds nothing in low precision.
    k = flat(k).index_select(0, where.kept)  # (keys, Hk, D)
    v = flat(v).index_select(0, where.kept)
    starts = where.query_starts, where.key_starts
    most = q.shape[2], where.most_keys
    # Nothing to the right is causal, aligned to the last query and the last key.
    causal = (-1, 0)
    out: Any = varlen_attn(flat(q), k, v, *starts, *most, window_size=causal, enable_gqa=True)
    return out.unflatten(0, (len(q), -1)).transpose(1, 2)


@functools.cache
def passes(device: torch.device, dtype: torch.dtype, H: int, Hk: int, D: int) -> bool:
    """Whether the kernel gives there what the masked form gives on the CPU; if not, warn.

    The first call makes the trial. It may not be in a layer that the backward computes again, as
    what the trial saves would count as the layer's.
    """
    from maxrl.models.attention import Ragged

    lengths = torch.tensor([3, 0, 9])
    mask = Ragged(lengths, 9, 5, 2, lengths).mask(torch.float32)
    where = sequences(lengths, 9, 5, 2, device)
    # Not the numbers of the process, which a resumed run draws again.
    numbers = torch.Generator().manual_seed(0)
    shapes = (6, H, 5, D), (6, Hk, 14, D), (6, Hk, 14, D)
    leaves = [torch.randn(shape, generator=numbers).to(dtype).float() for shape in shapes]

    def results(leaves: list[Tensor], kernel: bool) -> Tensor:
        q, k, v = (leaf.requires_grad_() for leaf in leaves)
        if kernel:
            out = attend_sequences(q, k, v, where)
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        gradients = torch.autograd.grad(out.float().square().sum(), leaves)
        return torch.cat([x.flatten().float().cpu() for x in (out, *gradients)])

    said = "its results are not those of the masked form"
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            expected = results(leaves, False)
            found = results([leaf.detach().to(device, dtype) for leaf in leaves], True)
        if (found - expected).norm() < expected.norm() / 32:
            return True
    except torch.OutOfMemoryError:
        raise
    except (ImportError, TypeError, RuntimeError) as error:
        said, _, _ = str(error).partition("\n")
    warnings.warn(f"ragged prompts go on with a mask, slower: {said}", stacklevel=2)
    return False
