"""A decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Modules carry the names of the published checkpoints, so that weights load with strict=True; a model family is a row of
FAMILIES. Three ways through the same layers:

    forward(tokens, prefix)   training: M rows of each group attend to [the group's prefix | their own tokens]
    encode(prefix)            keys and values of the prefixes, once per group, for training and for sampling
    decode(tokens, cache)     sampling: one more token of every row, with cached keys and values

Letters of this file: G groups, M rows of a group, E hidden size, H query heads, Hk key-value heads, D size of a head,
L own tokens of a row, Lp tokens of a prefix.
"""

from dataclasses import MISSING, dataclass, field, fields

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from maxrl.models.attention import Cache, attend, attend_cached, prefix_mask
from maxrl.models.rope import Rope, rotate

# qkv_bias: always, whatever attention_bias says. head_dim: where config.json names none, instead of hidden_size / heads.
# window: the key that switches a sliding window on.
FAMILIES = {
    "llama": dict(architecture="LlamaForCausalLM", qkv_bias=False, qk_norm=False, head_dim=None, window="sliding_window"),
    "qwen2": dict(architecture="Qwen2ForCausalLM", qkv_bias=True, qk_norm=False, head_dim=None, window="use_sliding_window"),
    "qwen3": dict(architecture="Qwen3ForCausalLM", qkv_bias=False, qk_norm=True, head_dim=128, window="use_sliding_window"),
}

# What a config.json may ask for beside the sizes, and the only values implemented here (as good as absent: null).
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
    "original_max_position_embeddings": (),  # beside rope_scaling, where it would win over the one within
}


LARGEST, DEEPEST = 2**31 - 1, 300  # of any size; of layers


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
    hf: dict = field(compare=False, repr=False)  # the parsed config.json itself, written back on saving
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    model_type: str = "qwen2"

    @classmethod
    def from_hf(cls, config: dict) -> "TransformerConfig":
        """From a parsed config.json, in the dialect of the hubs (`rope_theta`) or of transformers 5 (`rope_parameters`).

        Raises ValueError where the config asks for something that is not implemented here.
        """
        name = config.get("model_type")
        if not isinstance(name, str) or name not in FAMILIES:
            raise ValueError(f"model_type {repr(name)[:40]} is not implemented; known: {', '.join(FAMILIES)}")
        family = FAMILIES[name]
        allowed = IMPLEMENTED | {family["window"]: (False,), "architectures": ([family["architecture"]],)}
        for key, values in allowed.items():
            if config.get(key) is not None and config[key] not in values:
                raise ValueError(f"config.json asks for {key} = {repr(config[key])[:80]}, which is not implemented")
        layers = config.get("layer_types") or ["full_attention"]
        if not isinstance(layers, list) or any(layer != "full_attention" for layer in layers):
            raise ValueError(f"config.json asks for layer_types {str(layers)[:80]}, only full_attention is implemented")
        sizes = {k: v for k, v in config.items() if k in cls.__dataclass_fields__ and k not in ("rope", "hf") and v is not None}
        derived = ("head_dim", "rope", "hf")
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in (*sizes, *derived)]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        check_sizes(sizes, {f.name: f.type for f in fields(cls)}, "num_hidden_layers")
        E, H, Hk = (sizes[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
        D = sizes.get("head_dim") or family["head_dim"] or E / H
        if H % Hk or D % 2:
            raise ValueError(f"{H} heads of size {D:g} and {Hk} key-value heads (hidden_size {E}): the size must be even and "
                             "the heads a multiple of the key-value heads")
        sizes["head_dim"] = int(D)
        if family["qkv_bias"]:
            sizes["attention_bias"] = False  # not a key of this family
        return cls(**sizes, rope=Rope.from_hf(config), hf=dict(config))

    def to_hf(self, dtype: str = "float32") -> dict:
        """The config.json that transformers reads: the one this came from, with the dtype of the weights beside it."""
        keys = [k for k in ("dtype", "torch_dtype") if k in self.hf] or ["torch_dtype"]
        return {"architectures": [FAMILIES[self.model_type]["architecture"]], **self.hf, **dict.fromkeys(keys, dtype)}


def check_sizes(sizes: dict, types: dict, depth: str):
    """ValueError unless every size has its type and lies where a model's may: config.json may come from anywhere. `depth`
    names the number of layers, whose modules take time and memory even without weights."""
    for key, value in sizes.items():
        kind, largest = types[key], DEEPEST if key == depth else LARGEST
        good = {int: type(value) is int and 0 < value <= largest, bool: type(value) is bool, str: type(value) is str,
                float: type(value) in (int, float) and 0 <= value <= 1e9}
        if not good[kind]:
            wanted = {int: f"a whole number from 1 to {largest}", bool: "true or false", str: "a text",
                      float: "a number, not negative"}
            raise ValueError(f"config.json has {key} = {repr(value)[:40]}, expected {wanted[kind]}")


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        normed = F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps)
        # Only products read this: under autocast one cast serves them all, where each would make its own.
        device = x.device.type
        return normed.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else normed


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """The four projections; what attends to what is decided in `attend` and `attend_cached`."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        family, E, D = FAMILIES[config.model_type], config.hidden_size, config.head_dim
        bias = family["qkv_bias"] or config.attention_bias
        self.q_proj = nn.Linear(E, config.num_attention_heads * D, bias=bias)
        self.k_proj = nn.Linear(E, config.num_key_value_heads * D, bias=bias)
        self.v_proj = nn.Linear(E, config.num_key_value_heads * D, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * D, E, bias=config.attention_bias)
        self.q_norm, self.k_norm = (RMSNorm(D, config.rms_norm_eps) if family["qk_norm"] else nn.Identity() for _ in "qk")
        self.head_dim = D


class Layer(nn.Module):
    """One block; called in training for the rows and their prefix at once, so that recomputing it needs nothing else."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def heads(self, projected):
        return projected.unflatten(-1, (-1, self.self_attn.head_dim))  # (..., L, heads, D)

    def keys_values(self, h, rotation):
        """Of normed states h (..., L, E): keys, rotated, and values, both (..., Hk, L, D)."""
        k = self.self_attn.k_norm(self.heads(self.self_attn.k_proj(h))).transpose(-3, -2)
        v = self.heads(self.self_attn.v_proj(h)).transpose(-3, -2)
        return rotate(k, rotation), v

    def queries(self, h, rotation):
        q = self.self_attn.q_norm(self.heads(self.self_attn.q_proj(h))).transpose(-3, -2)
        return rotate(q, rotation)  # (..., H, L, D)

    def forward(self, x, prefix, rotation, prefix_rotation, mask, last: bool):
        """States (G M, L, E) of the rows and (G, Lp, E) of the prefixes after this layer; prefix None: there are none, or,
        in the result, after the `last` layer none are needed."""
        prefix_kv = None
        if prefix is not None:
            prefix, prefix_kv = self.encode(prefix, prefix_rotation, last)
        h = self.input_layernorm(x)
        q, (k, v) = self.queries(h, rotation), self.keys_values(h, rotation)
        return self.finish(x, attend(q, k, v, prefix_kv, mask)), prefix

    def encode(self, x, rotation, last: bool):
        """Of prefixes (G, Lp, E): their states after this layer and their keys and values in it.

        Nothing is predicted from a prefix (its successor is the first token of the rows), so the last layer's queries
        and MLP are left out: there the states are None.
        """
        h = self.input_layernorm(x)
        k, v = self.keys_values(h, rotation)
        return None if last else self.finish(x, attend(self.queries(h, rotation), k, v)), (k, v)

    def finish(self, x, attended):
        """Residual stream (..., L, E) after attention's result (..., H, L, D) and the MLP."""
        x = x + self.self_attn.o_proj(attended.transpose(-3, -2).flatten(-2))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Only holds the names: `model.embed_tokens`, `model.layers.0`, ..., `model.norm`."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Transformer(nn.Module):
    """Parameters are float32 (Gaussian, sd `initializer_range`; biases 0, norms 1) until a checkpoint replaces them."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False  # whether the backward makes each layer again instead of keeping its inside
        self.generation_config = {}  # the file of that name beside a loaded checkpoint, written back on saving
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=config.initializer_range)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens, prefix=None, prefix_lengths=None):
        """Hidden states of `tokens`, after the last norm; `lm_head` makes logits of them.

        tokens (G, M, L) continue prefix[g, :prefix_lengths[g]] of their group, (G, Lp), right-padded; without a prefix
        they stand alone. Tokens are right-padded too: a causal model needs no mask for that. Returns (G, M, L, E).
        """
        (G, M, L), layers = tokens.shape, self.model.layers
        start, mask, p, prefix_rotation = torch.zeros(G, device=tokens.device, dtype=torch.long), None, None, None
        if prefix is not None and prefix.shape[1]:
            start, mask = prefix_lengths, prefix_mask(prefix_lengths, prefix.shape[1], L)
            p, prefix_rotation = self.embed_prefix(prefix)
        rotation = self.rotation(start[:, None] + torch.arange(L, device=tokens.device))  # (G, L, D) twice
        rotation = [r[:, None, None].expand(G, M, 1, L, -1).flatten(0, 1) for r in rotation]  # (G M, 1, L, D)
        x = self.model.embed_tokens(tokens).flatten(0, 1)  # (G M, L, E)
        again = self.gradient_checkpointing and torch.is_grad_enabled()
        for layer in layers:
            given = (x, p, rotation, prefix_rotation, mask, layer is layers[-1])
            # Nothing here is random, so there is no generator's state to keep.
            x, p = checkpoint(layer, *given, use_reentrant=False, preserve_rng_state=False) if again else layer(*given)
        return self.model.norm(x).unflatten(0, (G, M))  # (G, M, L, E)

    def encode(self, prefix):
        """Keys and values of every layer for prefix (G, Lp): a list of pairs, each (G, Hk, Lp, D)."""
        (x, rotation), kv = self.embed_prefix(prefix), []
        for layer in self.model.layers:
            x, layer_kv = layer.encode(x, rotation, layer is self.model.layers[-1])
            kv.append(layer_kv)
        return kv

    def embed_prefix(self, prefix):
        """(G, Lp, E) and, the same for all groups, the rotation (Lp, D) twice."""
        return self.model.embed_tokens(prefix), self.rotation(torch.arange(prefix.shape[1], device=prefix.device))

    def decode(self, tokens, cache: Cache):
        """Logits (G, M, V) after one more token (G, M) of every row; the cache takes up its keys and values."""
        G, M = tokens.shape
        rotation = self.rotation(cache.prefix_lengths + cache.length)  # (G, D) twice
        rotation = [r[:, None, None, None].expand(G, M, 1, 1, -1).flatten(0, 1) for r in rotation]  # (G M, 1, 1, D)
        x = self.model.embed_tokens(tokens.reshape(G * M, 1))  # (G M, 1, E)
        cache.extend()
        for i, layer in enumerate(self.model.layers):
            h = layer.input_layernorm(x)
            k, v = cache.append(i, *layer.keys_values(h, rotation))
            q = layer.queries(h, rotation)
            x = layer.finish(x, attend_cached(q, k, v, *cache.prefix[i], cache.own_bias, cache.prefix_bias))
        return self.lm_head(self.model.norm(x)).view(G, M, -1)

    def rotation(self, positions):
        """Cosines and sines (*positions.shape, D) of the rotary embedding, in float32 or, for float64 models, float64."""
        dtype = torch.promote_types(self.model.norm.weight.dtype, torch.float32)
        return self.config.rope.rotation(positions, self.config.head_dim, dtype)
