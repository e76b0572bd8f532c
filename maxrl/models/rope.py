"""Rotary positions: the frequencies that a config.json asks for, and the rotation."""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]  # cosines and sines

# What each rope_type reads besides rope_theta.
TYPES = {
    "default": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True)
class Rope:
    """Rotary positions, by the names of Hugging Face's `rope_parameters`.

    hf_config.py reads and checks them.
    """

    rope_theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 0.0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    original_max_position_embeddings: int = 0

    # The cache is for decoding, which asks for the same frequencies at every token.
    @functools.lru_cache(maxsize=32)  # noqa: B019 (a frozen value is small)
    def frequencies(self, D: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return radians per position of each pair (D / 2,)."""
        plain = self.rope_theta ** -(torch.arange(0, D, 2, device=device, dtype=dtype) / D)
        if self.rope_type == "default":
            return plain
        # llama3: short waves are kept, long ones stretched by the factor, others in between.
        low = self.low_freq_factor
        length = 2 * math.pi / plain  # of a wave, in positions
        turns = self.original_max_position_embeddings / length
        smooth = ((turns - low) / (self.high_freq_factor - low)).clamp(0, 1)
        return (1 - smooth) * plain / self.factor + smooth * plain

    def rotation(self, positions: Tensor, D: int, dtype: torch.dtype) -> Rotation:
        """Return cosines and sines (*positions.shape, D)."""
        angles = positions[..., None] * self.frequencies(D, dtype, positions.device)
        angles = torch.cat([angles, angles], -1)  # (..., D)
        return angles.cos(), angles.sin()

    def decode_rotation(
        self, positions: Tensor, H: int, Hk: int, D: int, dtype: torch.dtype
    ) -> Rotation:
        """Return the rotation of a token's [H queries | Hk keys | Hk values] for `rotate_newest`.

        positions  (G,) of the newest token of each group

        Cosines and sines are (G, 1, 1, H + 2 Hk, D). They also divide the queries by the square
        root of D, and leave the values as they are.
        """
        radians, cos_factor, sin_factor = self.decode_factors(H, Hk, D, dtype, positions.device)
        angles = positions.view(-1, 1, 1, 1, 1) * radians
        return angles.cos() * cos_factor, angles.sin() * sin_factor

    @functools.lru_cache(maxsize=32)  # noqa: B019 (as above)
    def decode_factors(
        self, H: int, Hk: int, D: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return radians per position and factors of cosines and sines, (H + 2 Hk, D) each."""
        frequencies = self.frequencies(D, dtype, device)
        radians = torch.cat([frequencies, frequencies]).repeat(H + 2 * Hk, 1)
        radians[H + Hk :] = 0
        cos_factor = torch.ones_like(radians)
        cos_factor[:H] = D**-0.5
        sin_factor = cos_factor.clone()
        sin_factor[:, : D // 2] *= -1
        return radians, cos_factor, sin_factor


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the pairs (i, i + D/2) of x (..., L, D), as the published checkpoints do."""
    cos, sin = rotation
    a, b = x.chunk(2, -1)
    # Low precision times float32 is float32, which the flash kernels refuse.
    return (x * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


def rotate_newest(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate x (G, M, 1, H + 2 Hk, D) by `Rope.decode_rotation`, in fewer kernels than `rotate`.

    As the first half of the sines is negative, x cos + (x with its halves swapped) sin is enough.
    """
    cos, sin = rotation
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos, swapped, sin).to(x.dtype)
