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
    """Whether this CPU has AVX-512 and is not Intel's: MKL, which torch multiplies float32 with, does not use it there."""
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
