"""What attends to what: the rows of a group to the group's prefix and to themselves, in training and in sampling.

Letters: G groups, M rows of a group, B = G M rows, H query heads, Hk key-value heads, D size of a head, L own tokens of a
row, Lp tokens of a prefix, C room for own tokens in a cache.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right


def prefix_mask(lengths, Lp: int, L: int):
    """What L own tokens may see of [Lp prefix slots | L own tokens]: None if all prefixes are full, else (G, 1, L, Lp + L)."""
    if bool((lengths == Lp).all()):
        return None
    slots = torch.arange(Lp, device=lengths.device) < lengths[:, None]  # (G, Lp)
    own = torch.ones(L, L, dtype=torch.bool, device=lengths.device).tril()
    G = len(lengths)
    return torch.cat([slots[:, None].expand(G, L, Lp), own.expand(G, L, L)], -1)[:, None]


def attend(q, k, v, prefix_kv=None, mask=None):
    """Causal attention of rows to themselves and to their group's prefix, (B, H, L, D) from k, v (B, Hk, L, D).

    prefix_kv is a pair (G, Hk, Lp, D) with B = G M. Without a mask every prefix is full and the flash kernel is reached;
    with one (ragged prefixes) the heads are repeated, because a mask with grouped heads falls to the slow kernel.
    """
    if prefix_kv is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    M = len(q) // len(prefix_kv[0])
    # expand, not indexing: its backward sums the rows' gradients in float32
    k, v = (torch.cat([p[:, None].expand(-1, M, -1, -1, -1).flatten(0, 1), own], 2) for p, own in zip(prefix_kv, (k, v)))
    if mask is None:
        bias = causal_lower_right(q.shape[2], k.shape[2])  # plain is_causal would be aligned to the upper left
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.repeat_interleave(M, 0))


def attend_cached(q, k, v, prefix_k, prefix_v, own_bias, prefix_bias=None):
    """Attention of one new token of each row, q (G M, H, 1, D), to [its group's prefix | its own tokens so far].

    All queries that read the same prefix head, M rows times H / Hk heads, are one matrix: the prefix is read once per
    group, not once per row. k, v (G M, Hk, C, D) with room for C own tokens; prefix_k, prefix_v (G, Hk, Lp, D);
    own_bias (C,) and prefix_bias (G, Lp), None if all are full, are -inf at the slots that hold nothing.
    """
    (B, Hk, C, D), (G, _, Lp, _) = k.shape, prefix_k.shape
    M, R = B // G, q.shape[1] // Hk
    q = (q * D**-0.5).view(G, M, Hk, R, D)
    grouped = q.transpose(1, 2).reshape(G, Hk, M * R, D)
    prefix_scores = (grouped @ prefix_k.mT).view(G, Hk, M, R, Lp)
    if prefix_bias is not None:
        prefix_scores = prefix_scores + prefix_bias[:, None, None, None].to(q.dtype)
    own_scores = ((q.view(B, Hk, R, D) @ k.mT) + own_bias.to(q.dtype)).view(G, M, Hk, R, C).transpose(1, 2)
    scores = torch.cat([prefix_scores, own_scores], -1)  # (G, Hk, M, R, Lp + C)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
    to_prefix, to_own = weights.split([Lp, C], -1)
    out = (to_prefix.reshape(G, Hk, M * R, Lp) @ prefix_v).view(G, Hk, M, R, D).transpose(1, 2)
    out = out + (to_own.transpose(1, 2).reshape(B, Hk, R, C) @ v).view(G, M, Hk, R, D)
    return out.reshape(B, Hk * R, 1, D)


class Cache:
    """Keys and values during sampling: a group's prefix, shared by its M rows, and every row's own tokens.

    All rows of a cache are at the same own length. Room for own tokens grows by blocks; the room that is not filled yet
    is zeros behind a bias of -inf, because a slice of it would be copied for every matrix product.
    """

    BLOCK = 32

    def __init__(self, prefix_kv, prefix_lengths, rows: int, limit: int = 2**31):
        """prefix_kv as from `Transformer.encode`, prefix_lengths (G,), rows M per group, at most `limit` own tokens."""
        self.limit = self.full(limit)
        self.prefix_lengths, self.rows, self.length, self.capacity = prefix_lengths, rows, 0, 0
        # The projections leave (G, Lp, Hk, D) in memory, which every matrix product would copy again.
        self.prefix = [(k.contiguous(), v.contiguous()) for k, v in prefix_kv]
        slots = torch.arange(prefix_kv[0][0].shape[2], device=prefix_lengths.device)
        padding = slots >= prefix_lengths[:, None]  # (G, Lp)
        self.prefix_bias = torch.zeros(padding.shape, device=padding.device).masked_fill(padding, -torch.inf)  # (G, Lp)
        if not bool(padding.any()):
            self.prefix_bias = None
        self.own_bias = torch.zeros(0, device=padding.device)  # (C,)
        self.own = [None] * len(prefix_kv)  # per layer (2, G M, Hk, C, D): keys, values

    @classmethod
    def full(cls, limit: int) -> int:
        """The room that a row of `limit` own tokens ends up with."""
        return -(-limit // cls.BLOCK) * cls.BLOCK

    def extend(self):
        """Make room for one more token of every row."""
        if self.length == self.capacity:
            room = min(max(self.BLOCK, self.capacity // 2 // self.BLOCK * self.BLOCK), self.limit - self.capacity)
            self.capacity += room
            self.own_bias = F.pad(self.own_bias, (0, room), value=-torch.inf)
            for i, (k, _) in enumerate(self.prefix):
                G, Hk, _, D = k.shape
                own = k.new_zeros(2, G * self.rows, Hk, self.capacity, D)
                if self.length:
                    own[:, :, :, : self.length] = self.own[i]
                self.own[i] = own
        self.own_bias[self.length] = 0
        self.length += 1

    def append(self, layer: int, k, v):
        """Put the newest token's k, v (G M, Hk, 1, D) into the room made by `extend`; returns all of (G M, Hk, C, D)."""
        own = self.own[layer]
        own[0, :, :, self.length - 1] = k[:, :, 0]
        own[1, :, :, self.length - 1] = v[:, :, 0]
        return own[0], own[1]

    def select(self, groups, rows):
        """Keep only groups (G',) and of each of them rows (G', M')."""
        flat = (groups[:, None] * self.rows + rows).flatten()
        if len(groups) < len(self.prefix_lengths):
            self.prefix = [(k[groups], v[groups]) for k, v in self.prefix]
            self.prefix_bias = None if self.prefix_bias is None else self.prefix_bias[groups]
            self.prefix_lengths = self.prefix_lengths[groups]
        for i, own in enumerate(self.own):  # one after the other: at no time are there two whole caches
            self.own[i] = own.index_select(1, flat)
        self.rows = rows.shape[1]
