"""What attends to what: a row to its group's prefix and to itself.

This is attention where all tokens of a row are known: in training, and for the prompts in sampling.
The tokens of responses are sampled one at a time: cache.py.

Letters of this file:
    G  groups, one for each prompt         H   query heads
    M  rows of a group, B = G M in all     Hk  key-value heads
    L  own tokens of a row                 R   = H / Hk query heads that share a key-value head
    Lp tokens of a prefix                  D   size of a head
"""

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maxrl.models.cpu import attend_by_products
from maxrl.models.varlen import Sequences, attend_sequences, sequences

KV = tuple[Tensor, Tensor]  # keys and values
KEYS = 1024  # the most keys for attend_by_products, since it stores all attention weights


class Ragged:
    """Prefixes of several lengths, in the forms that attention reads: each is made once for all
    layers.

    lengths    (G,), of each prefix without its padding, on the host
    on_device  the same where the rows are: its copy from the host would wait for the device
    """

    def __init__(self, lengths: Tensor, Lp: int, L: int, M: int, on_device: Tensor):
        self.sizes = lengths, Lp, L, M
        self.on_device = on_device
        self.by_sequences = False  # without a mask, by the kernel of varlen.py
        self.added: Tensor | None = None

    @cached_property
    def sequences(self) -> Sequences:
        """Where each row's keys lie, without padding."""
        return sequences(*self.sizes, self.on_device.device)

    @cached_property
    def padding(self) -> Tensor:
        """Which positions of each prefix are padding: bool (G, 1, 1, Lp)."""
        _, Lp, _, _ = self.sizes
        column = torch.arange(Lp, device=self.on_device.device)
        return column >= self.on_device.view(-1, 1, 1, 1)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """What is added to the dot products: 0, or -inf where an own token must not attend.

        The mask is (B, 1, L, Lp + L), for the keys of [Lp prefix tokens | L own tokens].
        """
        # The same tensor for all layers, because the backward keeps it.
        if self.added is None:
            _, Lp, L, M = self.sizes
            own = self.padding.new_ones(L, L).triu(1).expand(len(self.padding), 1, L, L)
            hidden = torch.cat([self.padding.expand(-1, -1, L, -1), own], -1)
            added = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            added.masked_fill_(hidden, -torch.inf)
            # Rows of 16 numbers in memory, or a GPU's kernel would copy it in every layer.
            added = F.pad(added, (0, -(Lp + L) % 16)).repeat_interleave(M, 0)
            self.added = added[..., : Lp + L]
        return self.added


def prefix_mask(lengths: Tensor, Lp: int, L: int, M: int, on_device: Tensor) -> Any:
    """Which of [Lp prefix tokens | L own tokens] the M rows behind each prefix attend to.

    Arguments as in Ragged. The result is a Ragged, or a CausalBias if all prefixes are full.
    """
    if (lengths < Lp).any():
        return Ragged(lengths, Lp, L, M, on_device)
    # A CausalBias reaches the flash kernel. is_causal would align its triangle to the upper left,
    # and the first own token would see one token only. Imported here: the import is slow.
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(L, Lp + L)


def after_prefix(prefix: Tensor, own: Tensor) -> Tensor:
    """Prepend its group's prefix (G, Hk, Lp, D) to each row's own keys or values (B, Hk, L, D).

    Returns (B, Hk, Lp + L, D).
    """
    G = len(prefix)
    own = own.unflatten(0, (G, -1))  # (G, M, Hk, L, D)
    M = own.shape[1]
    # The backward of expand sums the rows' gradients in float32; that of indexing does not.
    shared = prefix.unsqueeze(1).expand(-1, M, -1, -1, -1)
    # Flattening before concatenating would copy the prefix twice.
    return torch.cat([shared, own], 3).flatten(0, 1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix_kv: KV | None = None,
    mask: Any = None,
) -> Tensor:
    """Causal attention of rows to [their group's prefix | themselves].

    q          (B, H, L, D)
    k, v       (B, Hk, L, D)
    prefix_kv  a pair of (G, Hk, Lp, D), or None: the rows stand alone
    mask       from `prefix_mask`; None without prefix_kv

    Returns (B, H, L, D).
    """
    # On a CPU the flash kernel's backward is no faster in bfloat16 than in float32, while matrix
    # products are. Over many keys the attention weights would take too much memory.
    low_on_cpu = q.device.type == "cpu" and q.dtype == torch.bfloat16
    keys = k.shape[2]
    if prefix_kv is not None:
        keys += prefix_kv[0].shape[2]
    if low_on_cpu and keys <= KEYS:
        return attend_by_products(q, k, v, prefix_kv, mask)
    if prefix_kv is not None:
        prefix_k, prefix_v = prefix_kv
        k = after_prefix(prefix_k, k)
        v = after_prefix(prefix_v, v)
    ragged = isinstance(mask, Ragged)
    if ragged:
        if mask.by_sequences:
            return attend_sequences(q, k, v, mask.sequences)
        mask = mask.mask(q.dtype)
    # Grouped heads with a mask, and on a GPU those in float32, would select the slow kernel, which
    # stores all attention weights: the heads are repeated.
    R = q.shape[1] // k.shape[1]
    if R > 1 and (ragged or q.is_cuda and q.dtype.itemsize > 2):
        k = k.repeat_interleave(R, 1)
        v = v.repeat_interleave(R, 1)
    how = {"is_causal": prefix_kv is None, "enable_gqa": q.shape[1] > k.shape[1]}
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **how)
