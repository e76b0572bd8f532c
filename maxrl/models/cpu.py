"""A Linear whose float32 products oneDNN computes where torch's usual library is slow."""

import functools
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ENOUGH = 2**22  # multiplications: below, changing the layout takes longer than it saves


class Linear(nn.Linear):
    """nn.Linear, the same up to rounding: x (..., in) to (..., out)."""

    def forward(self, x):
        if not self.by_onednn(x):
            return super().forward(x)
        # Of a tensor in oneDNN's layout torch takes the product there, in the backward too.
        product = F.linear(x.to_mkldnn(), self.weight, self.bias)
        return product.to_dense()

    def by_onednn(self, x) -> bool:
        """Whether the product of x is oneDNN's."""
        if x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return False
        return x.numel() * self.out_features >= ENOUGH and mkl_is_slow()


@functools.cache
def mkl_is_slow() -> bool:
    """Whether this CPU has AVX-512 and is not Intel's: MKL, which torch multiplies float32 with,
    does not use it there.
    """
    if (
        torch.backends.cpu.get_cpu_capability() != "AVX512"
        or not torch.backends.mkldnn.is_available()
    ):
        return False
    try:
        about = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", about, re.M)
    return vendor is not None and vendor[1] != "GenuineIntel"


def attend_by_products(q, k, v, prefix_kv=None, mask=None):
    """The same as `attend` on a CPU, from its arguments, as plain matrix products.

    It reads a prefix once per group and not once per row, and keeps a weight for every pair of a
    query and a key: 2 H (Lp + L) bytes for each own token of a layer, and copies of them.
    """
    H, L, D = q.shape[1:]
    B, Hk = k.shape[:2]
    R = H // Hk
    # Own keys belong to one row: the R heads that share one are a matrix.
    queries = q * D**-0.5
    queries = queries.reshape(B, Hk, R * L, D)
    dots = queries @ k.mT  # (B, Hk, R L, L)
    later = torch.ones(L, L, dtype=torch.bool)
    later = later.triu(1)
    later = later.repeat(R, 1)
    dots = dots.masked_fill(later, -torch.inf)
    if prefix_kv is None:
        # Of bfloat16 too the kernel takes the sum in float32.
        weights = dots.softmax(-1)
        attended = weights @ v
        return attended.reshape(q.shape)

    # All queries that read the same prefix head, of M rows and R heads, are one matrix.
    prefix_k, prefix_v = prefix_kv
    G, _, Lp, _ = prefix_k.shape
    M = B // G
    queries = by_group(queries, G)
    prefix_dots = queries @ prefix_k.mT  # (G, Hk, M R L, Lp)
    if mask.dim() == 4:
        padding = ~mask[:, :, :1, :Lp]
        prefix_dots = prefix_dots.masked_fill(padding, -torch.inf)
    dots = by_group(dots, G)
    dots = torch.cat([prefix_dots, dots], -1)
    weights = dots.softmax(-1)
    on_prefix, on_own = weights.split([Lp, L], -1)

    # The values are read as the keys were.
    from_prefix = on_prefix @ prefix_v
    from_prefix = by_row(from_prefix, M)  # (B, Hk, R L, D)
    on_own = by_row(on_own, M)
    from_own = on_own @ v
    attended = from_prefix + from_own
    return attended.reshape(q.shape)


def by_group(rows, G: int):
    """Stack what the M rows of each of G groups have: (B, Hk, n, m) to (G, Hk, M n, m)."""
    rows = rows.unflatten(0, (G, -1))
    rows = rows.transpose(1, 2)
    return rows.flatten(2, 3)


def by_row(groups, M: int):
    """Undo `by_group`: (G, Hk, M n, m) to (B, Hk, n, m)."""
    groups = groups.unflatten(2, (M, -1))
    groups = groups.transpose(1, 2)
    return groups.flatten(0, 1)
