"""A decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Modules carry the names of the published checkpoints, so that weights load with strict=True.
hf_config.py reads the sizes, attention.py decides what attends to what.

There are three ways through the same layers:

    forward(tokens, prefix)  training: each row attends to [its group's prefix | its own tokens]
    encode(prefix)           sampling: keys and values of the prefixes, once per group
    decode(tokens, cache)    sampling: one more token of every row, with cached keys and values

Letters of this file:
    G  groups of rows with one prompt           H   query heads
    M  rows of a group, its rollouts            Hk  key-value heads
    L  own tokens of a row                      D   size of a head
    Lp tokens of a prefix                       E   hidden size, V vocabulary
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maxrl.models.attention import KV, Ragged, attend, prefix_mask
from maxrl.models.cache import Cache
from maxrl.models.hf_config import FAMILIES, TransformerConfig
from maxrl.models.rope import Rotation, rotate, rotate_newest
from maxrl.models.varlen import passes


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension.

    x  (..., size), of any floating-point type
    Returns (..., size), of the weight's type, or of autocast's if that is on.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        x = super().forward(x)
        # One cast here serves all matrix products that read the result, where autocast would cast
        # once for each of them.
        device = x.device.type
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        return x


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)), from (..., E) to (..., E)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        E = config.hidden_size
        inner = config.intermediate_size
        self.gate_proj = nn.Linear(E, inner, bias=False)
        self.up_proj = nn.Linear(E, inner, bias=False)
        self.down_proj = nn.Linear(inner, E, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = F.silu(self.gate_proj(x))
        return self.down_proj(gate * self.up_proj(x))


class Attention(nn.Module):
    """The four projections. `attend` and `Cache.attend` do the rest."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        family = FAMILIES[config.model_type]
        E = config.hidden_size
        D = config.head_dim
        query_size = config.num_attention_heads * D
        key_size = config.num_key_value_heads * D
        bias = family.qkv_bias or config.attention_bias
        self.q_proj = nn.Linear(E, query_size, bias=bias)
        self.k_proj = nn.Linear(E, key_size, bias=bias)
        self.v_proj = nn.Linear(E, key_size, bias=bias)
        self.o_proj = nn.Linear(query_size, E, bias=config.attention_bias)
        # nn.Identity takes any arguments and has no weights, as in checkpoints without these norms.
        norm = RMSNorm if family.qk_norm else nn.Identity
        self.q_norm = norm(D, config.rms_norm_eps)
        self.k_norm = norm(D, config.rms_norm_eps)
        self.head_dim = D

    def heads(self, projected: Tensor) -> Tensor:
        """Split (..., L, heads D) into (..., L, heads, D)."""
        return projected.unflatten(-1, (-1, self.head_dim))

    def queries(self, h: Tensor, rotation: Rotation) -> Tensor:
        """Return the rotated queries (..., H, L, D) of normalised states h (..., L, E)."""
        q = self.heads(self.q_proj(h))
        q = self.q_norm(q)
        return rotate(q.transpose(-3, -2), rotation)

    def keys_values(self, h: Tensor, rotation: Rotation) -> KV:
        """Return the rotated keys and the values of h, both (..., Hk, L, D)."""
        k = self.heads(self.k_proj(h))
        k = self.k_norm(k)
        k = rotate(k.transpose(-3, -2), rotation)
        # Positions matter only for the dot products, so values are not rotated.
        v = self.heads(self.v_proj(h))
        return k, v.transpose(-3, -2)

    def newest(self, h: Tensor, rotation: Rotation) -> tuple[Tensor, ...]:
        """Return queries, and keys with values, of the newest tokens for `Cache.attend`.

        h         (G, M, 1, E), normalised
        rotation  from `Rope.decode_rotation`
        """
        q = self.heads(self.q_proj(h))
        q = self.q_norm(q)
        k = self.heads(self.k_proj(h))
        k = self.k_norm(k)
        v = self.heads(self.v_proj(h))
        # One kernel for all heads: launching a small kernel takes as long as running it.
        # rotate_newest leaves v as it is, and divides q by sqrt(D).
        heads = torch.cat([q, k, v], -2)  # (G, M, 1, H + 2 Hk, D)
        heads = rotate_newest(heads, rotation)
        H = q.shape[-2]
        return heads.tensor_split([H], -2)


class Layer(nn.Module):
    """One pre-norm block: x + attention, then x + MLP; `last` if no block follows."""

    def __init__(self, config: TransformerConfig, last: bool):
        super().__init__()
        E = config.hidden_size
        eps = config.rms_norm_eps
        self.input_layernorm = RMSNorm(E, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(E, eps)
        self.mlp = MLP(config)
        self.last = last

    def forward(
        self,
        x: Tensor,
        prefix: Tensor | None,
        rotation: Rotation,
        prefix_rotation: Rotation | None,
        mask: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The layer in training; returns x and prefix after it (None after the last layer).

        x                (G M, L, E) states of the rows
        prefix           (G, Lp, E) states of the prefixes, or None if there are none
        rotation         of the rows' positions, a pair of (G M, 1, L, D)
        prefix_rotation  of the prefixes' positions, a pair of (Lp, D), or None
        mask             as from `prefix_mask`, or None without prefixes
        """
        # Rows and prefixes pass in one call, so that gradient checkpointing can recompute the layer
        # from these arguments alone, and sharding gathers its weights once.
        prefix_kv = None
        if prefix is not None and prefix_rotation is not None:
            prefix, prefix_kv = self.encode(prefix, prefix_rotation)
        h = self.input_layernorm(x)
        q = self.self_attn.queries(h, rotation)
        k, v = self.self_attn.keys_values(h, rotation)
        attended = attend(q, k, v, prefix_kv, mask)
        return self.finish(x, attended), prefix

    def encode(self, x: Tensor, rotation: Rotation) -> tuple[Tensor | None, KV]:
        """The layer for prefixes x (G, Lp, E) alone.

        Returns their states after it, None after the last layer, and their keys and values in it,
        a pair of (G, Hk, Lp, D).
        """
        h = self.input_layernorm(x)
        kv = self.self_attn.keys_values(h, rotation)
        # Nothing is predicted from a prefix, because the rows begin with the last prompt token: the
        # last layer is needed only for its keys and values.
        if self.last:
            return None, kv
        q = self.self_attn.queries(h, rotation)
        attended = attend(q, *kv)
        return self.finish(x, attended), kv

    def decode(self, x: Tensor, rotation: Rotation, cache: Cache, i: int) -> Tensor:
        """Layer i for the newest token of every row, x (G, M, 1, E), with a decoding rotation.

        The cache keeps the token's keys and values.
        """
        h = self.input_layernorm(x)
        q, kv = self.self_attn.newest(h, rotation)
        attended = cache.attend(i, q, kv)  # (G, M, H, 1, D)
        return self.finish(x, attended)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the states (..., L, E) after attention's result (..., H, L, D) and the MLP."""
        attended = attended.transpose(-3, -2)
        attended = attended.flatten(-2)  # (..., L, H D)
        x = x + self.self_attn.o_proj(attended)
        h = self.post_attention_layernorm(x)
        return x + self.mlp(h)


class Decoder(nn.Module):
    """Holds the names `model.embed_tokens`, `model.layers.0`, ..., `model.norm`."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        E = config.hidden_size
        last = config.num_hidden_layers - 1
        self.embed_tokens = nn.Embedding(config.vocab_size, E)
        self.layers = nn.ModuleList(Layer(config, i == last) for i in range(last + 1))
        self.norm = RMSNorm(E, config.rms_norm_eps)


class Transformer(nn.Module):
    """The language model. Its weights are random and float32 until a checkpoint replaces them."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        # Whether the backward recomputes each layer in place of keeping its activations.
        self.gradient_checkpointing = False
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        # The initialisation of transformers for these families; norms stay at 1.
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=config.initializer_range)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def layers(self) -> Any:
        return self.model.layers

    def forward(
        self,
        tokens: Tensor,
        prefix: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (G, M, L, E) of `tokens` after the last norm, for `lm_head`.

        tokens          (G, M, L), right-padded: a causal model needs no mask for that
        prefix          (G, Lp), right-padded, or None: the tokens stand alone
        prefix_lengths  (G,) on the host: tokens of group g continue prefix[g, :prefix_lengths[g]]
        """
        G, M, L = tokens.shape
        device = tokens.device
        positions = torch.arange(L, device=device)
        positions = positions.expand(G, L)
        mask = prefix_x = prefix_rotation = None
        if prefix is not None and prefix_lengths is not None and prefix.shape[1]:
            # A row's own tokens follow the last token of its prefix, not the padding.
            starts = prefix_lengths.to(device, non_blocking=True)
            positions = positions + starts[:, None]
            Lp = prefix.shape[1]
            mask = prefix_mask(prefix_lengths, Lp, L, M, starts)
            if isinstance(mask, Ragged):
                mask.by_sequences = self.has_kernel(device)
            prefix_x, prefix_rotation = self.embed_prefix(prefix)
        positions = positions.repeat_interleave(M, 0)  # (G M, L)
        rotation = self.rotation(positions[:, None])  # (G M, 1, L, D) twice
        x = self.model.embed_tokens(tokens)
        x = x.flatten(0, 1)  # (G M, L, E)
        for layer in self.layers:
            x, prefix_x = self.run(layer, x, prefix_x, rotation, prefix_rotation, mask)
        x = self.model.norm(x)
        return x.unflatten(0, (G, M))  # (G, M, L, E)

    def has_kernel(self, device: torch.device) -> bool:
        """Whether a GPU attends by sequences: in half precision, if the kernel passes a trial."""
        config = self.config
        dtype = self.lm_head.weight.dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        if device.type != "cuda" or dtype.itemsize > 2:
            return False
        heads = config.num_attention_heads, config.num_key_value_heads
        return passes(device, dtype, *heads, config.head_dim)

    def run(self, layer: Layer, *arguments: Any) -> Any:
        """Return layer(*arguments); with gradient checkpointing, the backward recomputes it."""
        # Without a backward there are no activations to save.
        if not (self.gradient_checkpointing and torch.is_grad_enabled()):
            return layer(*arguments)
        # Nothing in a layer is random, so no generator state has to be kept.
        return checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False)

    def encode(self, prefix: Tensor) -> list[KV]:
        """Keys and values of the prefixes (G, Lp) in every layer, pairs of (G, Hk, Lp, D).

        Prefixes are right-padded; no position attends to a later one, so padding has no effect.
        """
        x, rotation = self.embed_prefix(prefix)
        kv = []
        for layer in self.layers:
            x, (k, v) = layer.encode(x, rotation)
            # The projections leave (G, Lp, Hk, D) in memory, which every product of sampling would
            # copy. One layer after the other, so that there are never two copies of all.
            kv.append((k.contiguous(), v.contiguous()))
        return kv

    def decode(self, tokens: Tensor, cache: Cache) -> Tensor:
        """One decoding step: the logits (G, M, V) of the tokens that follow `tokens`.

        tokens  (G, M), the newest token of every row
        cache   keys and values of all earlier tokens, with room for these
        """
        x = self.model.embed_tokens(tokens)
        x = x.unsqueeze(2)  # (G, M, 1, E)
        cache.extend()
        config = self.config
        sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        rotation = config.rope.decode_rotation(cache.positions, *sizes, self.rotation_dtype)
        for i, layer in enumerate(self.layers):
            x = layer.decode(x, rotation, cache, i)
        x = self.model.norm(x).squeeze(2)
        return self.lm_head(x)

    def embed_prefix(self, prefix: Tensor) -> tuple[Tensor, Rotation]:
        """Return the embedded prefixes (G, Lp, E) and their rotation, (Lp, D) twice."""
        # Every prefix begins at position 0, so one rotation serves all groups.
        Lp = prefix.shape[1]
        positions = torch.arange(Lp, device=prefix.device)
        x = self.model.embed_tokens(prefix)
        return x, self.rotation(positions)

    def rotation(self, positions: Tensor) -> Rotation:
        """Return cosines and sines (*positions.shape, D)."""
        D = self.config.head_dim
        rope = self.config.rope
        return rope.rotation(positions, D, self.rotation_dtype)

    @property
    def rotation_dtype(self) -> torch.dtype:
        # At least float32, whatever the weights are: bfloat16 cannot tell distant positions apart.
        dtype = self.model.norm.weight.dtype
        return torch.promote_types(dtype, torch.float32)
