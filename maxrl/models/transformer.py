"""A decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Modules carry the names of the published checkpoints, so that weights load with strict=True; a model family is a row of
FAMILIES. Three ways through the same layers:

    forward(tokens, prefix)   training: M rows of each group attend to [the group's prefix | their own tokens]
    encode(prefix)            keys and values of the prefixes, once per group, for training and for sampling
    decode(tokens, cache)     sampling: one more token of every row, with cached keys and values

Letters of this file: G groups, M rows of a group, E hidden size, H query heads, Hk key-value heads, D size of a head,
L own tokens of a row, Lp tokens of a prefix.
"""

from dataclasses import MISSING, dataclass, fields

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right

FAMILIES = {
    "qwen2": {"architecture": "Qwen2ForCausalLM", "qkv_bias": True},
}

# What a config.json may ask for beside the sizes, and the only values implemented here.
IMPLEMENTED = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "attention_dropout": (0, None),
    "rope_scaling": (None,),
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
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    model_type: str = "qwen2"

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_hf(cls, config: dict) -> "TransformerConfig":
        """From a parsed config.json, in the dialect of the hubs (`rope_theta`) or of transformers 5 (`rope_parameters`).

        Raises ValueError where the config asks for something that is not implemented here.
        """
        family = config.get("model_type")
        if family not in FAMILIES:
            raise ValueError(f"model_type {family!r} is not implemented; known: {', '.join(FAMILIES)}")
        for key, values in IMPLEMENTED.items():
            if key in config and config[key] not in values:
                raise ValueError(f"config.json asks for {key} = {config[key]!r}, which is not implemented")
        if set(config.get("layer_types") or ["full_attention"]) != {"full_attention"}:
            raise ValueError(f"config.json asks for layer_types {config['layer_types']}, only full_attention is implemented")
        rope = config.get("rope_parameters") or {}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(f"config.json asks for rope_type {rope['rope_type']!r}, which is not implemented")
        known = {k: v for k, v in config.items() if k in cls.__dataclass_fields__ and v is not None}
        if "rope_theta" in rope:
            known["rope_theta"] = rope["rope_theta"]
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in known]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        result = cls(**known)
        if result.hidden_size % result.num_attention_heads or result.num_attention_heads % result.num_key_value_heads:
            raise ValueError(f"{result.num_attention_heads} heads and {result.num_key_value_heads} key-value heads do not "
                             f"divide hidden_size {result.hidden_size}")
        if config.get("head_dim") not in (None, result.head_dim):
            raise ValueError(f"config.json asks for head_dim {config['head_dim']}, only hidden_size / heads is implemented")
        return result

    def to_hf(self) -> dict:
        """The config.json that transformers reads."""
        sizes = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"architectures": [FAMILIES[self.model_type]["architecture"]], **sizes, "hidden_act": "silu",
                "attention_dropout": 0.0, "use_sliding_window": False, "torch_dtype": "float32"}


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        normed = F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # Only projections read this: under autocast one cast serves them all, where each would make its own.
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
        bias, D = FAMILIES[config.model_type]["qkv_bias"], config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * D, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * D, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * D, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * D, config.hidden_size, bias=False)
        self.head_dim = D


class Layer(nn.Module):
    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def keys_values(self, h, rotation):
        """Of normed states h (..., L, E): keys, rotated, and values, both (..., Hk, L, D)."""
        k = self.self_attn.k_proj(h).unflatten(-1, (-1, self.self_attn.head_dim)).transpose(-3, -2)
        v = self.self_attn.v_proj(h).unflatten(-1, (-1, self.self_attn.head_dim)).transpose(-3, -2)
        return rotate(k, rotation), v

    def queries(self, h, rotation):
        q = self.self_attn.q_proj(h).unflatten(-1, (-1, self.self_attn.head_dim)).transpose(-3, -2)
        return rotate(q, rotation)  # (..., H, L, D)

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
        G, M, L = tokens.shape
        start, mask = torch.zeros(G, device=tokens.device, dtype=torch.long), None
        kv = [None] * len(self.model.layers)
        if prefix is not None and prefix.shape[1]:
            kv, start = self.encode(prefix), prefix_lengths
            mask = prefix_mask(prefix_lengths, prefix.shape[1], L)
        rotation = self.rotation(start[:, None] + torch.arange(L, device=tokens.device))  # (G, L, D) twice
        rotation = [r[:, None, None].expand(G, M, 1, L, -1).flatten(0, 1) for r in rotation]  # (G M, 1, L, D)
        x = self.model.embed_tokens(tokens).flatten(0, 1)  # (G M, L, E)
        for layer, prefix_kv in zip(self.model.layers, kv):
            h = layer.input_layernorm(x)
            q, (k, v) = layer.queries(h, rotation), layer.keys_values(h, rotation)
            x = layer.finish(x, attend(q, k, v, prefix_kv, mask))
        return self.model.norm(x).unflatten(0, (G, M))  # (G, M, L, E)

    def encode(self, prefix):
        """Keys and values of every layer for prefix (G, Lp): a list of pairs, each (G, Hk, Lp, D).

        Nothing is predicted from a prefix (its successor is the first token of the rows), so the last layer's queries
        and MLP are left out.
        """
        rotation = self.rotation(torch.arange(prefix.shape[1], device=prefix.device))
        x, kv = self.model.embed_tokens(prefix), []
        for layer in self.model.layers:
            h = layer.input_layernorm(x)
            k, v = layer.keys_values(h, rotation)
            kv.append((k, v))
            if len(kv) < len(self.model.layers):
                x = layer.finish(x, attend(layer.queries(h, rotation), k, v))
        return kv

    def decode(self, tokens, cache: "Cache"):
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
        D = self.config.head_dim
        exponents = torch.arange(0, D, 2, device=positions.device, dtype=dtype) / D
        angles = positions[..., None] * self.config.rope_theta**-exponents  # (..., D / 2)
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()


def rotate(x, rotation):
    """Rotary embedding of x (..., L, D); the pairs are (i, i + D/2), as in the published checkpoints."""
    cos, sin = rotation
    a, b = x.chunk(2, -1)
    # Low precision times float32 is float32, which the flash kernels refuse: back to what the projection gave.
    return (x * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


def prefix_mask(lengths, Lp: int, L: int):
    """What L own tokens may see of [Lp prefix slots | L own tokens]: None if all prefixes are full, else (G, 1, L, Lp + L)."""
    if bool((lengths == Lp).all()):
        return None
    slots = torch.arange(Lp, device=lengths.device) < lengths[:, None]  # (G, Lp)
    own = torch.ones(L, L, dtype=torch.bool, device=lengths.device).tril()
    G = len(lengths)
    return torch.cat([slots[:, None].expand(G, L, Lp), own.expand(G, L, L)], -1)[:, None]


def attend(q, k, v, prefix_kv=None, mask=None):
    """Causal attention of rows to themselves and to their group's prefix, (B, H, L, D) from k, v (B, Hk, L, D).

    prefix_kv is a pair (G, Hk, Lp, D) with B = G M. Without a mask every prefix is full and the flash kernel is reached;
    with one (ragged prefixes) the heads are repeated, because a mask with grouped heads falls to the slow kernel.
    """
    if prefix_kv is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    M = len(q) // len(prefix_kv[0])
    # expand, not indexing: its backward sums the rows' gradients in float32
    k, v = (torch.cat([p[:, None].expand(-1, M, -1, -1, -1).flatten(0, 1), own], 2) for p, own in zip(prefix_kv, (k, v)))
    if mask is None:
        bias = causal_lower_right(q.shape[2], k.shape[2])  # plain is_causal would be aligned to the upper left
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.repeat_interleave(M, 0))


def attend_cached(q, k, v, prefix_k, prefix_v, own_bias, prefix_bias=None):
    """Attention of one new token of each row, q (G M, H, 1, D), to [its group's prefix | its own tokens so far].

    All queries that read the same prefix head, M rows times H / Hk heads, are one matrix: the prefix is read once per
    group, not once per row. k, v (G M, Hk, C, D) with room for C own tokens; prefix_k, prefix_v (G, Hk, Lp, D);
    own_bias (C,) and prefix_bias (G, Lp), None if all are full, are -inf at the slots that hold nothing.
    """
    (B, Hk, C, D), (G, _, Lp, _) = k.shape, prefix_k.shape
    M, R = B // G, q.shape[1] // Hk
    q = (q * D**-0.5).view(G, M, Hk, R, D)
    grouped = q.transpose(1, 2).reshape(G, Hk, M * R, D)
    prefix_scores = (grouped @ prefix_k.mT).view(G, Hk, M, R, Lp)
    if prefix_bias is not None:
        prefix_scores = prefix_scores + prefix_bias[:, None, None, None].to(q.dtype)
    own_scores = ((q.view(B, Hk, R, D) @ k.mT) + own_bias.to(q.dtype)).view(G, M, Hk, R, C).transpose(1, 2)
    scores = torch.cat([prefix_scores, own_scores], -1)  # (G, Hk, M, R, Lp + C)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
    to_prefix, to_own = weights.split([Lp, C], -1)
    out = (to_prefix.reshape(G, Hk, M * R, Lp) @ prefix_v).view(G, Hk, M, R, D).transpose(1, 2)
    out = out + (to_own.transpose(1, 2).reshape(B, Hk, R, C) @ v).view(G, M, Hk, R, D)
    return out.reshape(B, Hk * R, 1, D)


class Cache:
    """Keys and values during sampling: a group's prefix, shared by its M rows, and every row's own tokens.

    All rows of a cache are at the same own length. Room for own tokens grows by blocks; the room that is not filled yet
    is zeros behind a bias of -inf, because a slice of it would be copied for every matrix product.
    """

    BLOCK = 32

    def __init__(self, prefix_kv, prefix_lengths, rows: int):
        """prefix_kv as from `Transformer.encode`, prefix_lengths (G,), rows M per group."""
        self.prefix_lengths, self.rows, self.length, self.capacity = prefix_lengths, rows, 0, 0
        # The projections leave (G, Lp, Hk, D) in memory, which every matrix product would copy again.
        self.prefix = [(k.contiguous(), v.contiguous()) for k, v in prefix_kv]
        slots = torch.arange(prefix_kv[0][0].shape[2], device=prefix_lengths.device)
        padding = slots >= prefix_lengths[:, None]  # (G, Lp)
        self.prefix_bias = torch.zeros(padding.shape, device=padding.device).masked_fill(padding, -torch.inf)  # (G, Lp)
        if not bool(padding.any()):
            self.prefix_bias = None
        self.own_bias = torch.zeros(0, device=padding.device)  # (C,)
        self.own = [None] * len(prefix_kv)  # per layer (2, G M, Hk, C, D): keys, values

    def extend(self):
        """Make room for one more token of every row."""
        if self.length == self.capacity:
            room = max(self.BLOCK, self.capacity // 2 // self.BLOCK * self.BLOCK)
            self.capacity += room
            self.own_bias = F.pad(self.own_bias, (0, room), value=-torch.inf)
            for i, (k, _) in enumerate(self.prefix):
                G, Hk, _, D = k.shape
                own = k.new_zeros(2, G * self.rows, Hk, self.capacity, D)
                if self.length:
                    own[:, :, :, : self.length] = self.own[i]
                self.own[i] = own
        self.own_bias[self.length] = 0
        self.length += 1

    def append(self, layer: int, k, v):
        """Put the newest token's k, v (G M, Hk, 1, D) into the room made by `extend`; returns all of (G M, Hk, C, D)."""
        own = self.own[layer]
        own[0, :, :, self.length - 1] = k[:, :, 0]
        own[1, :, :, self.length - 1] = v[:, :, 0]
        return own[0], own[1]

    def select(self, groups, rows):
        """Keep only groups (G',) and of each of them rows (G', M')."""
        flat = (groups[:, None] * self.rows + rows).flatten()
        if len(groups) < len(self.prefix_lengths):
            self.prefix = [(k[groups], v[groups]) for k, v in self.prefix]
            self.prefix_bias = None if self.prefix_bias is None else self.prefix_bias[groups]
            self.prefix_lengths = self.prefix_lengths[groups]
        self.own = [own.index_select(1, flat) for own in self.own]
        self.rows = rows.shape[1]
