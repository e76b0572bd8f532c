"""Keys and values during sampling.

Letters of this file:
    G  groups of rows with one prompt      H   query heads
    M  rows of a group                     Hk  key-value heads
    C  slots for own tokens                R   = H / Hk query heads that share a key-value head
    Lp tokens of a prefix, the prompt      D   size of a head
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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
    ROW = 128  # besides the tokens it reads, a row costs about as much as reading this many more

    def __init__(
        self,
        prefix_kv: Sequence[tuple[Tensor, Tensor]],
        prefix_lengths: Tensor,
        num_rows: int,
        budget: float = torch.inf,
        extra_bytes: int = 0,
    ):
        """Begin with the prefixes alone.

        prefix_kv       from `Transformer.encode`: for each layer a pair of (G, Hk, Lp, D)
        prefix_lengths  (G,)
        num_rows        M, rows of each group
        budget          the most bytes of own keys and values, of the extra bytes, and of prefixes
                        beyond the G given
        extra_bytes     what a row takes besides its keys and values
        """
        self.budget = budget
        self.extra_bytes = extra_bytes
        self.num_prompts = len(prefix_lengths)
        self.peak = 0  # the most bytes that counted towards the budget
        self.token_bytes = 0  # of one token's keys and values
        self.prefix = []  # keys and values of each layer, a pair of (G, Hk, Lp, D)
        self.own = []  # keys and values of each layer, (2, G, Hk, M, C, D)
        for k, v in prefix_kv:
            self.prefix.append((k, v))
            G, Hk, Lp, D = k.shape
            self.own.append(k.new_zeros(2, G, Hk, num_rows, 0, D))
            self.token_bytes += 2 * Hk * D * k.element_size()

        # Added to the dot products: -inf hides a slot of a prefix or of a row.
        slots = torch.arange(Lp, device=prefix_lengths.device)
        hidden = slots >= prefix_lengths.view(G, 1, 1, 1, 1)
        bias = torch.where(hidden, -torch.inf, 0.0)
        self.bias = bias.to(k.dtype)  # (G, 1, 1, 1, Lp + C)
        # Of the newest token; every token adds 1 to both.
        self.slot = prefix_lengths.new_full((1,), -1)
        self.positions = prefix_lengths - 1  # (G,)

    def cost(self, rows: Any, groups: Any) -> Any:
        """Return what a step of so many rows in so many groups costs, in tokens that are read."""
        prefix_k, _ = self.prefix[0]
        return rows * (self.own[0].shape[4] + self.ROW) + groups * prefix_k.shape[2]

    def reserve(self, length: int, longest: int | None = None) -> None:
        """Make room for `length` own tokens of every row; CacheFull beyond the budget.

        longest  the most that a row will ever have (default: length)
        """
        _, G, _, M, C, _ = self.own[0].shape
        if length <= C:
            return

        def whole_blocks(tokens: int) -> int:
            return -(-tokens // self.BLOCK) * self.BLOCK

        def size(room: int) -> int:
            copies = max(0, G - self.num_prompts) * self.prefix[0][0].shape[2]  # in tokens
            return (G * M * room + copies) * self.token_bytes + G * M * self.extra_bytes

        room = whole_blocks(length)
        # A quarter more if the budget allows: growing copies the cache and ends a CUDA graph.
        quarter = C // 4 // self.BLOCK * self.BLOCK
        larger = min(C + quarter, whole_blocks(longest or length))
        if larger > room and size(larger) <= self.budget:
            room = larger
        # A single row is sampled whatever it takes.
        if size(room) > self.budget and G * M > 1:
            raise CacheFull(f"{G * M} rows of {room} tokens take more memory than their budget")
        self.peak = max(self.peak, size(room))
        more = room - C
        # One layer after the other, so that there are never two full caches in memory.
        for i, own in enumerate(self.own):
            self.own[i] = F.pad(own, (0, 0, 0, more))
        self.bias = F.pad(self.bias, (0, more), value=-torch.inf)

    def extend(self) -> None:
        """Open the slot of one more token of every row, for which there must be room."""
        self.slot += 1
        self.positions += 1
        prefix_k, _ = self.prefix[0]
        self.bias.index_fill_(-1, prefix_k.shape[2] + self.slot, 0)

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
        queries = q.view(G, M, Hk, -1, D).transpose(1, 2)
        queries = queries.reshape(G, Hk, -1, D)  # (G, Hk, M R, D)
        prefix_dots = queries @ prefix_k.mT  # (G, Hk, M R, Lp)
        prefix_dots = prefix_dots.unflatten(2, (M, -1))
        # Own keys belong to one row: only the R heads that share them form a matrix.
        queries = queries.unflatten(2, (M, -1)).flatten(0, 2)  # (G Hk M, R, D)
        own_dots = queries @ own_k.mT  # (G Hk M, R, C)
        own_dots = own_dots.unflatten(0, (G, Hk, M))

        # One softmax over both; it sums in float32 whatever its input is.
        dots = torch.cat([prefix_dots, own_dots], -1)  # (G, Hk, M, R, Lp + C)
        dots += self.bias
        weights = dots.softmax(-1, dtype=dots.dtype)
        on_prefix, on_own = weights.tensor_split([Lp], -1)

        # Values are read in the same way.
        from_prefix = on_prefix.flatten(2, 3) @ prefix_v  # (G, Hk, M R, D)
        from_prefix = from_prefix.view_as(queries)
        attended = torch.baddbmm(from_prefix, on_own.flatten(0, 2), own_v)  # (G Hk M, R, D)
        attended = attended.unflatten(0, (G, Hk, M))
        attended = attended.transpose(1, 2)  # (G, M, Hk, R, D)
        return attended.flatten(2, 3).unsqueeze(3)

    def select(self, rows: Tensor, regrouped: bool = True) -> None:
        """Keep the given rows.

        rows       (G', M'), indices into all G M rows; those of a new group had the same prefix
        regrouped  whether any group gets a prefix other than the one it has
        """
        M = self.own[0].shape[3]
        group_ids = rows // M
        if regrouped:
            first = group_ids[:, 0]
            self.positions = self.positions[first]
            self.bias = self.bias[first]
            for i, (k, v) in enumerate(self.prefix):
                self.prefix[i] = (k[first], v[first])
        # One layer after the other, as in `reserve`.
        for i, own in enumerate(self.own):
            kept = own[:, group_ids, :, rows % M]  # (G', M', 2, Hk, C, D)
            kept = kept.permute(2, 0, 3, 1, 4, 5)
            self.own[i] = kept.contiguous()
