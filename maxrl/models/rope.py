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
OPTIONAL = ("attention_factor", "beta_fast", "beta_slow", "truncate")


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
    attention_factor: float = 0.0  # 0: yarn's default
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    # The cache is for decoding, which asks for the same frequencies at every token.
    @functools.lru_cache(maxsize=32)  # noqa: B019 (a frozen value is small)
    def frequencies(self, D: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, float]:
        """Return radians per position of each pair (D / 2,), and a factor of cosines and sines."""
        plain = self.rope_theta ** -(torch.arange(0, D, 2, device=device, dtype=dtype) / D)
        if self.rope_type == "linear":
            return plain / self.factor, 1.0
        if self.rope_type == "llama3":
            return self.llama3(plain), 1.0
        if self.rope_type == "yarn":
            default = 0.1 * math.log(max(self.factor, 1)) + 1
            return self.yarn(plain), self.attention_factor or default
        return plain, 1.0

    def llama3(self, plain: Tensor) -> Tensor:
        """Keep short waves, stretch long ones by `factor`, and interpolate between them."""
        low = self.low_freq_factor
        length = 2 * math.pi / plain  # of a wave, in positions
        turns = self.original_max_position_embeddings / length
        smooth = ((turns - low) / (self.high_freq_factor - low)).clamp(0, 1)
        return (1 - smooth) * plain / self.factor + smooth * plain

    def yarn(self, plain: Tensor) -> Tensor:
        """Stretch by `factor` the pairs that turn seldom within the original length.

        Pairs that turn more than `beta_fast` times keep their frequency, those that turn less than
        `beta_slow` times are stretched, and the ones between are interpolated.
        """
        D = 2 * len(plain)
        length = self.original_max_position_embeddings

        def pair(turns: float) -> float:
            """Return the index of the pair that turns so many times."""
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

    def rotation(self, positions: Tensor, D: int, dtype: torch.dtype) -> Rotation:
        """Return cosines and sines (*positions.shape, D)."""
        frequencies, scale = self.frequencies(D, dtype, positions.device)
        angles = positions[..., None] * frequencies  # (..., D / 2)
        angles = torch.cat([angles, angles], -1)
        return angles.cos() * scale, angles.sin() * scale

    def step_rotation(
        self, positions: Tensor, H: int, Hk: int, D: int, dtype: torch.dtype
    ) -> Rotation:
        """Return the rotation of a token's [H queries | Hk keys | Hk values] for `rotate_step`.

        positions  (G,) of the newest token of each group

        Cosines and sines are (G, 1, 1, H + 2 Hk, D). They also divide the queries by the square
        root of D, and leave the values as they are.
        """
        radians, cos_factor, sin_factor = self.step_parts(H, Hk, D, dtype, positions.device)
        angles = positions.view(-1, 1, 1, 1, 1) * radians
        return angles.cos() * cos_factor, angles.sin() * sin_factor

    @functools.lru_cache(maxsize=32)  # noqa: B019 (as above)
    def step_parts(
        self, H: int, Hk: int, D: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return radians per position and factors of cosines and sines, (H + 2 Hk, D) each."""
        frequencies, scale = self.frequencies(D, dtype, device)
        radians = torch.cat([frequencies, frequencies]).repeat(H + 2 * Hk, 1)
        radians[H + Hk :] = 0
        cos_factor = torch.full_like(radians, scale)
        cos_factor[:H] *= D**-0.5
        cos_factor[H + Hk :] = 1
        sin_factor = cos_factor.clone()
        sin_factor[:, : D // 2] *= -1
        return radians, cos_factor, sin_factor


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the pairs (i, i + D/2) of x (..., L, D), as the published checkpoints do."""
    cos, sin = rotation
    a, b = x.chunk(2, -1)
    # Low precision times float32 is float32, which the flash kernels refuse.
    return (x * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


def rotate_step(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate x (G, M, 1, H + 2 Hk, D) by `Rope.step_rotation`, in fewer kernels than `rotate`.

    As the first half of the sines is negative, x cos + (x with its halves swapped) sin is enough.
    """
    cos, sin = rotation
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos, swapped, sin).to(x.dtype)
