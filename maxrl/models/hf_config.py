"""The sizes of a transformer, read from a config.json in Hugging Face's format and written back.

Two dialects are read: that of the hub (`rope_theta`, `rope_scaling`, `torch_dtype`) and that of
transformers 5 (`rope_parameters`, `dtype`). A file that asks for something not implemented here is
refused, as the model would silently be another one.
"""

import sys
from dataclasses import dataclass, field, fields
from typing import Any

from maxrl.models.rope import TYPES, Rope


@dataclass(frozen=True)
class Family:
    """What sets a family of models apart."""

    qkv_bias: bool | None = None  # of queries, keys and values; None: attention_bias decides
    qk_norm: bool = False  # queries and keys are normed
    head_dim: int | None = None  # the default, if it is not hidden_size / heads


FAMILIES = {
    "llama": Family(),
    "mistral": Family(qkv_bias=False),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True, head_dim=128),
}

# Further keys that change the model, with those of their values that are implemented. null counts
# as absent.
IMPLEMENTED: dict[str, tuple] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "is_causal": (True,),
    "partial_rotary_factor": (1,),
    "quantization_config": (),
    # At this level it would override the one inside rope_scaling.
    "original_max_position_embeddings": (),
}


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a transformer, by the names of Hugging Face's config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    head_dim: int
    rope: Rope
    # The parsed config.json itself, which is written back when the model is saved.
    hf: dict = field(compare=False, repr=False)
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    model_type: str = "qwen2"

    @classmethod
    def from_hf(cls, config: dict) -> "TransformerConfig":
        """Read a parsed config.json; ValueError if it asks for something not implemented here."""
        model_type = config.get("model_type")
        if model_type not in list(FAMILIES):
            raise ValueError(
                f"model_type {model_type!r:.40} is not implemented; known: {', '.join(FAMILIES)}"
            )
        family = FAMILIES[model_type]
        check_implemented(config)
        names = {f.name for f in fields(cls)} - {"rope", "hf", "model_type"}
        given = {name: config[name] for name in names if config.get(name) is not None}
        for name in names - given.keys() - {"head_dim"}:
            if not hasattr(cls, name):
                raise ValueError(f"config.json lacks {name}")
        for name, value in given.items():
            kind = cls.__annotations__[name]
            kinds = (int, float) if kind is float else (kind,)
            if type(value) not in kinds or kind is not bool and not positive(value):
                raise ValueError(f"config.json has {name} = {value!r:.40}, which cannot be")
        if given["num_hidden_layers"] > 1000:
            raise ValueError("config.json asks for more than 1,000 layers")
        usual = family.head_dim or given["hidden_size"] // given["num_attention_heads"]
        given.setdefault("head_dim", usual)
        if family.qkv_bias is not None:
            given["attention_bias"] = False  # not a key of this family
        return cls(**given, model_type=model_type, rope=read_rope(config), hf=dict(config))

    def to_hf(self) -> dict:
        """Return the config.json that transformers reads.

        It is the one this was read from, with the dtype that weights are saved in.
        """
        keys = [key for key in ("dtype", "torch_dtype") if key in self.hf] or ["torch_dtype"]
        # So transformers calls the classes of all these families.
        architecture = f"{self.model_type.title()}ForCausalLM"
        return {"architectures": [architecture], **self.hf, **dict.fromkeys(keys, "float32")}


def positive(value: Any) -> bool:
    """Tell whether a value is a number above 0 and finite; NaN is not."""
    return type(value) in (int, float) and 0 < value <= sys.float_info.max


def check_implemented(config: dict) -> None:
    """ValueError for a key whose value asks for something not implemented here."""
    for key, values in IMPLEMENTED.items():
        if config.get(key) is not None and config[key] not in values:
            raise ValueError(
                f"config.json asks for {key} = {config[key]!r:.80}, which is not implemented"
            )
    # Mistral has a window of 4,096 unless the key is null.
    window = config["model_type"] == "mistral" and config.get("sliding_window", 4096)
    if window or "sliding_attention" in (config.get("layer_types") or []):
        raise ValueError("config.json asks for a sliding window, which is not implemented")


def read_rope(config: dict) -> Rope:
    """Read the rotary positions of a parsed config.json; ValueError if they are not implemented."""
    asked = config.get("rope_scaling") or config.get("rope_parameters") or {}
    asked = {"rope_theta": config.get("rope_theta")} | asked
    older = asked.pop("type", "default")  # some files hold both names
    kind = asked.pop("rope_type", older)
    if kind not in list(TYPES):
        raise ValueError(
            f"config.json asks for rope_type {kind!r:.40}, which is not implemented; known: "
            f"{', '.join(TYPES)}"
        )
    asked = {name: value for name, value in asked.items() if value is not None}
    if asked.keys() - {"rope_theta"} != {*TYPES[kind]}:
        raise ValueError(
            f"config.json has {', '.join(asked)} of rope_type {kind!r}; implemented is rope_theta "
            f"with {', '.join(TYPES[kind]) or 'nothing else'}"
        )
    if not all(map(positive, asked.values())):
        raise ValueError(f"config.json asks for rotary positions {asked!r:.80}, which cannot be")
    return Rope(rope_type=kind, **asked)
