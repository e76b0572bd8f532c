"""What attends to what: a row to its group's prefix and to itself.

`attend` is for training, where all tokens of a row are known; a `Cache` is for sampling, where they
come one at a time.

Letters of this file:
    G  groups, one for each prompt         H   query heads
    M  rows of a group, B = G M in all     Hk  key-value heads
    L  own tokens of a row                 R   = H / Hk query heads that share a key-value head
    Lp tokens of a prefix, the prompt      D   size of a head
    C  slots for own tokens in a cache
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from maxrl.models.cpu import attend_by_products

KEYS = 1024  # the most keys for which attention weights of all pairs are kept


def prefix_mask(lengths: Tensor, Lp: int, L: int, device="cpu"):
    """Which of [Lp prefix slots | L own tokens] each own token attends to.

    lengths  (G,), the filled slots of each prefix, on the host
    device   where the mask goes

    Returns a bool (G, 1, L, Lp + L), or a CausalBias if all prefixes are full.
    """
    if (lengths == Lp).all():
        # This reaches the flash kernel. is_causal would align its triangle to the upper left, and
        # the first own token would see only the first slot. Imported here because it loads much of
        # torch.
        from torch.nn.attention.bias import causal_lower_right

        return causal_lower_right(L, Lp + L)
    G = len(lengths)
    slots = torch.arange(Lp)
    lengths = lengths.view(G, 1, 1)
    filled = slots < lengths
    filled = filled.expand(G, L, Lp)
    own = torch.ones(L, L, dtype=torch.bool)
    own = own.tril()
    own = own.expand(G, L, L)
    mask = torch.cat([filled, own], -1)
    mask = mask.unsqueeze(1)
    return mask.to(device)


def after_prefix(prefix: Tensor, own: Tensor) -> Tensor:
    """Prepend its group's prefix (G, Hk, Lp, D) to each row's own keys or values (B, Hk, L, D).

    Returns (B, Hk, Lp + L, D).
    """
    G = len(prefix)
    own = own.unflatten(0, (G, -1))  # (G, M, Hk, L, D)
    M = own.shape[1]
    rows = prefix.unsqueeze(1)
    # The backward of expand sums the rows' gradients in float32; that of indexing does not.
    rows = rows.expand(-1, M, -1, -1, -1)
    # Flattening before concatenating would copy the prefix twice.
    both = torch.cat([rows, own], 3)
    return both.flatten(0, 1)


def attend(
    q: Tensor, k: Tensor, v: Tensor, prefix_kv: tuple[Tensor, Tensor] | None = None, mask=None
) -> Tensor:
    """Causal attention of rows to [their group's prefix | themselves], in training.

    q          (B, H, L, D)
    k, v       (B, Hk, L, D)
    prefix_kv  a pair of (G, Hk, Lp, D), or None: the rows stand alone
    mask       from `prefix_mask`, or None

    Returns (B, H, L, D).
    """
    # On a CPU the flash kernel's backward is no faster in bfloat16 than in float32, while matrix
    # products are. Over many keys their weights would take too much memory.
    on_cpu = q.device.type == "cpu"
    keys = q.shape[2]
    if prefix_kv is not None:
        keys += prefix_kv[0].shape[2]
    if on_cpu and q.dtype == torch.bfloat16 and keys <= KEYS:
        return attend_by_products(q, k, v, prefix_kv, mask)
    attention = F.scaled_dot_product_attention
    if prefix_kv is None:
        return attention(q, k, v, is_causal=True, enable_gqa=True)
    prefix_k, prefix_v = prefix_kv
    k = after_prefix(prefix_k, k)
    v = after_prefix(prefix_v, v)
    if mask.dim() < 4:
        return attention(q, k, v, attn_mask=mask, enable_gqa=True)
    # Grouped heads with a mask would select the slow kernel, so the heads are repeated.
    R = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(R, 1)
    v = v.repeat_interleave(R, 1)
    M = len(q) // len(mask)
    mask = mask.repeat_interleave(M, 0)
    return attention(q, k, v, attn_mask=mask)


class CacheFull(RuntimeError):
    """The keys and values of a cache have reached its budget."""


class Cache:
    """Keys and values during sampling: a group's prefix, shared by its M rows, and own tokens.

    All rows have the same number of own tokens, and slots for them are added in blocks. Slots that
    are not filled yet hold zeros and are hidden by a bias of -inf, because a slice without them
    would be copied for every matrix product. The index of the next slot is a tensor on the device,
    so that a GPU can replay a decoding step without the host.
    """

    BLOCK = 32

    def __init__(
        self,
        prefix_kv,
        prefix_lengths,
        rows: int,
        budget: float = torch.inf,
        extra_bytes: int = 0,
    ):
        """Begin with the prefixes alone.

        prefix_kv       from `Transformer.encode`: for each layer a pair of (G, Hk, Lp, D)
        prefix_lengths  (G,)
        rows            M of each group
        budget          the most bytes of own keys and values and of the extra bytes
        extra_bytes     what a row takes besides its keys and values
        """
        self.budget = budget
        self.extra_bytes = extra_bytes
        self.token_bytes = 0  # of one token's keys and values
        self.prefix = []  # keys and values of each layer, a pair of (G, Hk, Lp, D)
        self.own = []  # keys and values of each layer, (2, G, Hk, M, C, D)
        for k, v in prefix_kv:
            # The projections leave (G, Lp, Hk, D) in memory, which every product would copy.
            k = k.contiguous()
            v = v.contiguous()
            self.prefix.append((k, v))
            G, Hk, Lp, D = k.shape
            own = k.new_zeros(2, G, Hk, rows, 0, D)
            self.own.append(own)
            numbers = 2 * Hk * D
            self.token_bytes += numbers * k.element_size()

        # Added to the dot products: -inf hides a slot of a prefix or of a row.
        slots = torch.arange(Lp, device=prefix_lengths.device)
        filled = prefix_lengths.view(G, 1, 1, 1, 1)
        hidden = slots >= filled
        bias = torch.where(hidden, -torch.inf, 0.0)
        self.bias = bias.to(k.dtype)  # (G, 1, 1, 1, Lp + C)
        none = prefix_lengths.new_full((1,), -1)
        last = prefix_lengths - 1
        self.set_position(none, last)

    def set_position(self, slot: Tensor, positions: Tensor) -> None:
        """Set slot (1,) and positions (G,) of the newest token; every token adds 1 to both."""
        prefix_k, _ = self.prefix[0]
        Lp = prefix_k.shape[2]
        column = slot + Lp
        # Views of one tensor, so that a single kernel adds to all of them.
        self.counters = torch.cat([slot, column, positions])
        self.slot = self.counters[:1]
        self.column = self.counters[1:2]  # of the slot among [prefix | own]
        self.positions = self.counters[2:]

    def reserve(self, length: int) -> None:
        """Make room for `length` own tokens of every row; CacheFull beyond the budget."""
        _, G, _, M, C, _ = self.own[0].shape
        if length <= C:
            return
        blocks = -(-length // self.BLOCK)
        room = blocks * self.BLOCK
        rows = G * M
        row = room * self.token_bytes
        row += self.extra_bytes
        size = rows * row
        # A single row is sampled whatever it takes.
        if size > self.budget and rows > 1:
            raise CacheFull(f"{rows} rows of {room} tokens take more memory than their budget")
        more = room - C
        # One layer after the other, so that there are never two full caches in memory.
        for i, own in enumerate(self.own):
            longer = F.pad(own, (0, 0, 0, more))
            self.own[i] = longer
        self.bias = F.pad(self.bias, (0, more), value=-torch.inf)

    def extend(self) -> None:
        """Open the slot of one more token of every row, for which there must be room."""
        self.counters += 1
        self.bias.index_fill_(-1, self.column, 0)

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        """Attention of each row's newest token to [its group's prefix | its own tokens].

        q   (G, M, 1, H, D), divided by the square root of D
        kv  (G, M, 1, 2 Hk, D), keys and values, stored in the slot that `extend` opened

        Returns (G, M, H, 1, D).
        """
        own = self.own[layer]
        _, G, Hk, M, _, D = own.shape
        newest = kv.unflatten(3, (2, Hk))  # (G, M, 1, 2, Hk, D)
        newest = newest.permute(3, 0, 4, 1, 2, 5)
        own.index_copy_(4, self.slot, newest)
        own_k, own_v = own.flatten(1, 3)  # (G Hk M, C, D)
        prefix_k, prefix_v = self.prefix[layer]
        Lp = prefix_k.shape[2]

        # The queries of M rows and R heads that share a prefix head form one matrix, so that the
        # prefix is read once per group and not once per row.
        queries = q.view(G, M, Hk, -1, D)
        queries = queries.transpose(1, 2)
        queries = queries.reshape(G, Hk, -1, D)  # (G, Hk, M R, D)
        prefix_dots = queries @ prefix_k.mT  # (G, Hk, M R, Lp)
        prefix_dots = prefix_dots.unflatten(2, (M, -1))
        # Own keys belong to one row: only the R heads that share them form a matrix.
        queries = queries.unflatten(2, (M, -1))
        queries = queries.flatten(0, 2)  # (G Hk M, R, D)
        own_dots = queries @ own_k.mT  # (G Hk M, R, C)
        own_dots = own_dots.unflatten(0, (G, Hk, M))

        # One softmax over both; it sums in float32 whatever its input is.
        dots = torch.cat([prefix_dots, own_dots], -1)  # (G, Hk, M, R, Lp + C)
        dots += self.bias
        weights = dots.softmax(-1, dtype=dots.dtype)
        on_prefix, on_own = weights.tensor_split([Lp], -1)

        # Values are read in the same way.
        on_prefix = on_prefix.flatten(2, 3)
        on_own = on_own.flatten(0, 2)
        from_prefix = on_prefix @ prefix_v  # (G, Hk, M R, D)
        from_prefix = from_prefix.view_as(queries)
        attended = torch.baddbmm(from_prefix, on_own, own_v)  # (G Hk M, R, D)
        attended = attended.unflatten(0, (G, Hk, M))
        attended = attended.transpose(1, 2)  # (G, M, Hk, R, D)
        attended = attended.flatten(2, 3)
        return attended.unsqueeze(3)

    def select(self, groups: Tensor, rows: Tensor) -> None:
        """Keep the groups (G',) and of each of them the rows (G', M'); drop the others."""
        if len(groups) < len(self.bias):
            positions = self.positions[groups]
            self.set_position(self.slot, positions)
            self.bias = self.bias[groups]
            for i, (k, v) in enumerate(self.prefix):
                k = k[groups]
                v = v[groups]
                self.prefix[i] = (k, v)
        # One layer after the other, as in `reserve`.
        groups = groups[:, None]
        for i, own in enumerate(self.own):
            kept = own[:, groups, :, rows]  # (G', M', 2, Hk, C, D)
            kept = kept.permute(2, 0, 3, 1, 4, 5)
            self.own[i] = kept.contiguous()
