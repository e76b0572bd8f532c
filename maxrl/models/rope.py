"""Rotary positions: the frequencies that a config.json asks for, and the rotation of queries and keys."""

import functools
import math
from dataclasses import dataclass

import torch

# What each rope_type reads beside rope_theta; the values without a default in `Rope` must be given.
TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "truncate"),
}


@dataclass(frozen=True)
class Rope:
    """By the names of Hugging Face's `rope_parameters` (in the older dialect `rope_scaling`)."""

    rope_theta: float = 10000.0
    rope_type: str = "default"
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    @classmethod
    def from_hf(cls, config: dict) -> "Rope":
        """From a parsed config.json; ValueError for what is not implemented here."""
        asked = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(asked, dict):
            raise ValueError(f"config.json has rope_scaling {repr(asked)[:40]}, expected an object")
        asked = dict(asked)
        kind = asked.pop("rope_type", asked.pop("type", "default"))
        asked.pop("type", None)  # some files hold both
        if not isinstance(kind, str) or kind not in TYPES:
            raise ValueError(f"config.json asks for rope_type {repr(kind)[:40]}, which is not implemented; known: "
                             f"{', '.join(TYPES)}")
        if asked.get("partial_rotary_factor") == 1:
            del asked["partial_rotary_factor"]
        asked = {"rope_theta": config.get("rope_theta")} | asked
        if "original_max_position_embeddings" in TYPES[kind]:
            asked.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
        asked = {name: value for name, value in asked.items() if value is not None}
        unknown = [name for name in asked if name not in ("rope_theta", *TYPES[kind])]
        if unknown:
            raise ValueError(f"config.json asks for {unknown[0]} of rope_type {kind!r}, which is not implemented")
        for name, value in asked.items():
            if type(value) is not bool if name == "truncate" else type(value) not in (int, float) or not 0 < value < 1e15:
                raise ValueError(f"config.json has {name} = {repr(value)[:40]} of rope_type {kind!r}, expected "
                                 + ("true or false" if name == "truncate" else "a number above 0"))
        result = cls(rope_type=kind, **asked)
        lacking = [n for n in TYPES[kind] if n != "attention_factor" and getattr(result, n) is None]
        if lacking:
            raise ValueError(f"config.json asks for rope_type {kind!r} without {lacking[0]}")
        if result.rope_theta <= 1 or kind == "llama3" and result.low_freq_factor >= result.high_freq_factor:
            raise ValueError(f"config.json asks for impossible frequencies: rope_theta {result.rope_theta}, low and high "
                             f"factors {result.low_freq_factor}, {result.high_freq_factor}")
        return result

    @functools.lru_cache(maxsize=32)  # noqa: B019 (of a frozen value; decoding asks for every token)
    def frequencies(self, D: int, dtype, device) -> tuple[torch.Tensor, float]:
        """Radians per position of each pair, (D / 2,), and what cosines and sines are multiplied by."""
        plain = self.rope_theta ** -(torch.arange(0, D, 2, device=device, dtype=dtype) / D)
        if self.rope_type == "linear":
            return plain / self.factor, 1.0
        if self.rope_type == "llama3":
            return self.llama3(plain), 1.0
        if self.rope_type == "yarn":
            default = 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0
            return self.yarn(plain), default if self.attention_factor is None else self.attention_factor
        return plain, 1.0

    def llama3(self, plain):
        """Short waves as they are, long ones stretched by `factor`, a linear change between."""
        low, high, before = self.low_freq_factor, self.high_freq_factor, self.original_max_position_embeddings
        length = 2 * math.pi / plain  # of a wave, in positions
        smooth = ((before / length - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * plain / self.factor + smooth * plain

    def yarn(self, plain):
        """Pairs that turn more than `beta_fast` times within the original length as they are, those that turn less
        than `beta_slow` times stretched, a linear change between."""
        D = 2 * len(plain)

        def pair(turns):
            return D * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(self.rope_theta))

        first, last = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, D - 1)
        last += 0.001 if first == last else 0
        pairs = torch.arange(D // 2, device=plain.device, dtype=plain.dtype)
        stretched = ((pairs - first) / (last - first)).clamp(0, 1)
        return plain / self.factor * stretched + plain * (1 - stretched)

    def rotation(self, positions, D: int, dtype):
        """Cosines and sines (*positions.shape, D)."""
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
