"""Rotary positions: the frequencies that a config.json asks for, and the rotation of queries and keys."""

import functools
import math
from dataclasses import dataclass

import torch

# What each rope_type reads besides rope_theta. A value without a default in `Rope` must be given.
TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "truncate",
    ),
}


@dataclass(frozen=True)
class Rope:
    """Rotary positions, by the names of Hugging Face's `rope_parameters`. hf_config.py reads and checks them."""

    rope_theta: float = 10000.0
    rope_type: str = "default"
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None  # of yarn; None: its default
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    @functools.lru_cache(maxsize=32)  # noqa: B019 (of a frozen value; decoding asks for every token)
    def frequencies(self, D: int, dtype, device) -> tuple[torch.Tensor, float]:
        """Return the radians per position of each pair, (D / 2,), and the factor of cosines and sines."""
        plain = self.rope_theta ** -(torch.arange(0, D, 2, device=device, dtype=dtype) / D)
        if self.rope_type == "linear":
            return plain / self.factor, 1.0
        if self.rope_type == "llama3":
            return self.llama3(plain), 1.0
        if self.rope_type == "yarn":
            default = 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0
            return self.yarn(
                plain
            ), default if self.attention_factor is None else self.attention_factor
        return plain, 1.0

    @functools.lru_cache(maxsize=32)  # noqa: B019 (as above)
    def step_parts(self, D: int, H: int, Hk: int, dtype, device):
        """Return radians per position, and what their cosines and sines are multiplied by in `turn`: (H + 2 Hk, D) each.

        Of H queries, which are divided by the root of D on this way, Hk keys, and Hk values, which are not turned.
        """
        frequencies, scale = self.frequencies(D, dtype, device)
        radians = torch.cat([frequencies, frequencies]).repeat(H + 2 * Hk, 1)
        radians[H + Hk :] = 0
        cos_factor = torch.full_like(radians, scale)
        cos_factor[:H] *= D**-0.5
        cos_factor[H + Hk :] = 1
        sin_factor = cos_factor.clone()
        sin_factor[:, : D // 2] *= -1
        return radians, cos_factor, sin_factor

    def llama3(self, plain):
        """Keep short waves, stretch long ones by `factor`, and change linearly between them."""
        low = self.low_freq_factor
        length = 2 * math.pi / plain  # of a wave, in positions
        turns = self.original_max_position_embeddings / length
        smooth = ((turns - low) / (self.high_freq_factor - low)).clamp(0, 1)
        return (1 - smooth) * plain / self.factor + smooth * plain

    def yarn(self, plain):
        """Keep pairs that turn more than `beta_fast` times within the original length, stretch those that turn less
        than `beta_slow` times by `factor`, and change linearly between them."""
        D = 2 * len(plain)
        length = self.original_max_position_embeddings

        def pair(turns):  # the one that turns so many times within the original length
            return D * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(self.rope_theta))

        first = pair(self.beta_fast)
        last = pair(self.beta_slow)
        if self.truncate:
            first = math.floor(first)
            last = math.ceil(last)
        first = max(first, 0)
        last = min(last, D - 1)
        if first == last:
            last += 0.001
        pairs = torch.arange(D // 2, device=plain.device, dtype=plain.dtype)
        stretched = ((pairs - first) / (last - first)).clamp(0, 1)
        return plain / self.factor * stretched + plain * (1 - stretched)

    def rotation(self, positions, D: int, dtype):
        """Return cosines and sines (*positions.shape, D)."""
        frequencies, scale = self.frequencies(D, dtype, positions.device)
        angles = positions[..., None] * frequencies  # (..., D / 2)
        angles = torch.cat([angles, angles], -1)
        return angles.cos() * scale, angles.sin() * scale


def rotate(x, rotation):
    """Rotary embedding of x (..., L, D); the pairs are (i, i + D/2), as in the published checkpoints."""
    cos, sin = rotation
    a, b = x.chunk(2, -1)
    # Low precision times float32 is float32, which the flash kernels refuse: back to what the projection gave.
    return (x * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


def turn(x, rotation):
    """`rotate` with sines whose first half is negative, as in `Rope.step_parts`: x cos + (x with its halves swapped) sin."""
    cos, sin = rotation
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos, swapped, sin).to(x.dtype)
