"""The sizes of a transformer, read from a config.json in Hugging Face's format and written back to one.

Both dialects are read: that of the hubs (`rope_theta`, `rope_scaling`) and that of transformers 5 (`rope_parameters`).
A file that asks for something that is not implemented here is refused: another model would be built without a word.
"""

from dataclasses import dataclass, field, fields

from maxrl.models.rope import TYPES, Rope

# qkv_bias: whatever attention_bias says. head_dim: what a config.json without one means, if not hidden_size / heads.
# window: the key that switches a sliding window on.
FAMILIES = {
    "llama": dict(
        architecture="LlamaForCausalLM",
        qkv_bias=False,
        qk_norm=False,
        head_dim=None,
        window="sliding_window",
    ),
    "qwen2": dict(
        architecture="Qwen2ForCausalLM",
        qkv_bias=True,
        qk_norm=False,
        head_dim=None,
        window="use_sliding_window",
    ),
    "qwen3": dict(
        architecture="Qwen3ForCausalLM",
        qkv_bias=False,
        qk_norm=True,
        head_dim=128,
        window="use_sliding_window",
    ),
}

# Other keys that change the model, and their only values that are implemented. Null is as good as absent.
IMPLEMENTED = {
    "hidden_act": ("silu",),
    "attention_dropout": (0,),
    "mlp_bias": (False,),
    "is_causal": (True,),
    "pretraining_tp": (1,),
    "partial_rotary_factor": (1,),
    "rope_interleaved": (False,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "quantization_config": (),
    "compression_config": (),
    "dual_chunk_attention_config": (),
    "original_max_position_embeddings": (),  # at this level it would win over the one inside rope_scaling
}

LARGEST = 2**31 - 1  # of any size
DEEPEST = 300  # layers: even without weights their modules take time and memory


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
    hf: dict = field(
        compare=False, repr=False
    )  # the parsed config.json itself, written back on saving
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    model_type: str = "qwen2"

    @classmethod
    def from_hf(cls, config: dict) -> "TransformerConfig":
        """Read a parsed config.json; ValueError if it asks for something that is not implemented here."""
        model_type = config.get("model_type")
        if model_type not in tuple(FAMILIES):  # a tuple also takes what has no hash
            raise ValueError(
                f"model_type {repr(model_type)[:40]} is not implemented; known: {', '.join(FAMILIES)}"
            )
        family = FAMILIES[model_type]
        allowed = IMPLEMENTED | {
            family["window"]: (False,),
            "architectures": ([family["architecture"]],),
        }
        for key, values in allowed.items():
            if config.get(key) is not None and config[key] not in values:
                raise ValueError(
                    f"config.json asks for {key} = {repr(config[key])[:80]}, which is not implemented"
                )
        layers = config.get("layer_types") or ["full_attention"]
        if not isinstance(layers, list) or any(layer != "full_attention" for layer in layers):
            raise ValueError(
                f"config.json asks for layer_types {str(layers)[:80]}, only full_attention is implemented"
            )

        types = {f.name: f.type for f in fields(cls) if f.type in (int, float, bool)}
        sizes = {name: config[name] for name in types if config.get(name) is not None}
        missing = [
            name
            for name in types
            if not (name in sizes or hasattr(cls, name) or name == "head_dim")
        ]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        for name, value in sizes.items():
            check_size(name, value, types[name])

        E = sizes["hidden_size"]
        H = sizes["num_attention_heads"]
        Hk = sizes["num_key_value_heads"]
        D = sizes.get("head_dim") or family["head_dim"] or E / H
        if H % Hk or D % 2:
            raise ValueError(
                f"{H} heads of size {D:g} and {Hk} key-value heads (hidden_size {E}): the size must be even and "
                "the heads a multiple of the key-value heads"
            )
        sizes["head_dim"] = int(D)
        if family["qkv_bias"]:
            sizes["attention_bias"] = False  # not a key of this family
        return cls(**sizes, model_type=model_type, rope=read_rope(config), hf=dict(config))

    def to_hf(self, dtype: str = "float32") -> dict:
        """Return the config.json that transformers reads: the one this came from, with the dtype of the weights."""
        keys = [k for k in ("dtype", "torch_dtype") if k in self.hf] or ["torch_dtype"]
        return {
            "architectures": [FAMILIES[self.model_type]["architecture"]],
            **self.hf,
            **dict.fromkeys(keys, dtype),
        }


def check_size(name: str, value, kind: type):
    """Raise ValueError unless `value` is of its kind and as large as a model's may be: a file may hold anything."""
    largest = DEEPEST if name == "num_hidden_layers" else LARGEST
    good, expected = {
        int: (type(value) is int and 0 < value <= largest, f"a whole number from 1 to {largest}"),
        bool: (type(value) is bool, "true or false"),
        float: (type(value) in (int, float) and 0 <= value <= 1e9, "a number, not negative"),
    }[kind]
    if not good:
        raise ValueError(f"config.json has {name} = {repr(value)[:40]}, expected {expected}")


def read_rope(config: dict) -> Rope:
    """Read the rotary positions of a parsed config.json; ValueError for what is not implemented here."""
    asked = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(asked, dict):
        raise ValueError(f"config.json has rope_scaling {repr(asked)[:40]}, expected an object")
    asked = {"rope_theta": config.get("rope_theta")} | asked
    older = asked.pop("type", "default")  # some files hold both
    kind = asked.pop("rope_type", older)
    if kind not in tuple(TYPES):
        raise ValueError(
            f"config.json asks for rope_type {repr(kind)[:40]}, which is not implemented; known: "
            f"{', '.join(TYPES)}"
        )
    if asked.get("partial_rotary_factor") == 1:
        del asked["partial_rotary_factor"]
    if "original_max_position_embeddings" in TYPES[kind]:
        asked.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    asked = {name: value for name, value in asked.items() if value is not None}
    unknown = [name for name in asked if name not in ("rope_theta", *TYPES[kind])]
    if unknown:
        raise ValueError(
            f"config.json asks for {unknown[0]} of rope_type {kind!r}, which is not implemented"
        )
    for name, value in asked.items():
        good, expected = type(value) in (int, float) and 0 < value < 1e15, "a number above 0"
        if name == "truncate":
            good, expected = type(value) is bool, "true or false"
        if not good:
            raise ValueError(
                f"config.json has {name} = {repr(value)[:40]} of rope_type {kind!r}, expected {expected}"
            )
    rope = Rope(rope_type=kind, **asked)
    lacking = [
        name for name in TYPES[kind] if name != "attention_factor" and getattr(rope, name) is None
    ]
    if lacking:
        raise ValueError(f"config.json asks for rope_type {kind!r} without {lacking[0]}")
    if rope.rope_theta <= 1 or kind == "llama3" and rope.low_freq_factor >= rope.high_freq_factor:
        raise ValueError(
            f"config.json asks for impossible frequencies: rope_theta {rope.rope_theta}, low and high "
            f"factors {rope.low_freq_factor}, {rope.high_freq_factor}"
        )
    return rope
