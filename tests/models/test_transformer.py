"""The transformer is Qwen2 (others: test_families.py), and its three ways through the layers are
one function.
"""

import pytest
import tiny
import torch
from tensors import close, seeded

from maxrl.models import attention
from maxrl.models.attention import attend, prefix_mask
from maxrl.models.cache import Cache
from maxrl.models.cpu import attend_by_products
from maxrl.models.hf_config import FAMILIES
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.sampling.prompts import pad


def test_initial_weights():
    sizes = tiny.SIZES | {"hidden_size": 64, "initializer_range": 0.05}
    model = Transformer(TransformerConfig.from_hf(sizes))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert abs(float(parameter.detach().std()) - 0.05) < 0.005, name
        else:
            assert (parameter == (0 if name.endswith("bias") else 1)).all(), name


def grouped(lengths, M=3, L=5, seed=1):
    """Prefixes of these lengths and M rows of L tokens for each: prefix (G, Lp), lengths (G,),
    tokens (G, M, L).
    """
    prefix, lengths = pad([torch.randint(32, (n,)) for n in lengths], "cpu")
    tokens = torch.randint(32, (len(lengths), M, L), generator=seeded(seed))
    return prefix, lengths, tokens


# one length; ragged; a one-token prompt, whose prefix is empty, beside others and alone
PREFIXES = [(6, 6), (6, 2, 5), (4, 0, 7), (0, 0), (0,), (1,)]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("lengths", PREFIXES)
def test_prefix_form_equals_plain_form(lengths, kv_heads):
    """Rows behind a prefix that is encoded once are what they are as whole sequences: the rotation
    starts at the prefix's length of each row, not at the padded one, and no row sees another
    prefix's padding."""
    model = tiny.model(num_key_value_heads=kv_heads)
    prefix, prefix_lengths, tokens = grouped(lengths)
    shared = model(tokens, prefix, prefix_lengths)  # (G, M, L, E)
    tiny.share_prompts(model, False)
    close(shared, model(tokens, prefix, prefix_lengths))


@pytest.mark.parametrize("lengths", [(6, 6), (6, 2, 5), (4, 0, 7)])
def test_contents_of_padding_never_matter(lengths):
    """Once a mask was made of `tokens != pad_id`; with pad = <eos>, as in instruct tokenizers, it
    hid end tokens.
    """
    model = tiny.model()
    prefix, prefix_lengths, tokens = grouped(lengths)
    outside = torch.arange(prefix.shape[1]) >= prefix_lengths[:, None]
    with torch.no_grad():
        expected = model(tokens, prefix, prefix_lengths)
        for other in (3, 31):
            changed = tokens.clone()
            # Behind the third token is padding: nothing before it may change.
            changed[..., 3:] = other
            found = model(changed, prefix.masked_fill(outside, other), prefix_lengths)
            close(found[..., :3, :], expected[..., :3, :])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("lengths", [(6, 6), (6, 2, 5), (4, 0, 7), (0, 0)])
def test_decoding_with_a_cache_equals_the_forward(lengths, kv_heads, monkeypatch):
    """Across growth of the cache (blocks of 2) and when rows and groups leave in between."""
    monkeypatch.setattr(Cache, "BLOCK", 2)
    model = tiny.model(num_key_value_heads=kv_heads)
    prefix, prefix_lengths, tokens = grouped(lengths, M=4, L=9)
    groups, rows = torch.arange(len(lengths)), torch.arange(4).expand(len(lengths), 4)
    with torch.no_grad():
        expected = model.lm_head(model(tokens, prefix, prefix_lengths))  # (G, M, L, V)
        cache = Cache(model.encode(prefix), prefix_lengths, 4)
        for position in range(9):
            if position == 3:  # rows leave, others of each group stay
                kept = torch.tensor([[3, 1, 0], [0, 1, 2], [1, 2, 3]])[: len(groups)]
                cache.select(torch.arange(len(groups)), kept)
                rows = rows.gather(1, kept)
            if position == 6:  # the first group leaves, and another row of those that stay
                kept = torch.tensor([[2, 0], [1, 2]])[: len(groups) - 1]
                cache.select(torch.arange(1, len(groups)), kept)
                groups, rows = groups[1:], rows[1:].gather(1, kept)
            cache.reserve(position + 1)
            here = groups[:, None], rows, position
            close(model.decode(tokens[here], cache), expected[here])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_through_a_prefix_equal_the_plain_ones(family):
    """Values may agree where gradients do not (a detached prefix): the prompt's layers learn
    through it too.
    """
    model = tiny.model(model_type=family, head_dim=16)
    prefix, prefix_lengths, tokens = grouped((6, 2, 5))
    weights = torch.randn(3, 3, 5, 32, dtype=torch.float64, generator=seeded(3))
    gradients = []
    for shared in (True, False):
        model.zero_grad(set_to_none=True)
        tiny.share_prompts(model, shared)
        hidden = model(tokens, prefix, prefix_lengths)
        (model.lm_head(hidden).tanh() * weights).sum().backward()
        gradients.append(tiny.grads(model))
    assert tiny.distance(*gradients) < 1e-12


def attention_inputs(lengths, M, L, H, Hk, D=8):
    """q, k, v of M rows for each prefix, and the prefixes' keys and values; the mask."""
    B, Lp = len(lengths) * M, max(lengths)
    generator = seeded()
    key, prefix = (B, L, Hk, D), (len(lengths), Lp, Hk, D)
    tensors = [
        # As the projections leave them.
        torch.randn(shape, generator=generator, dtype=torch.float64).transpose(1, 2)
        for shape in ((B, L, H, D), key, key, prefix, prefix)
    ]
    return tensors, prefix_mask(torch.tensor(lengths), Lp, L)


def attended(function, tensors, mask, dtype=torch.float64):
    """The result and its gradients for all that goes in."""
    q, k, v, *prefix = leaves = [t.to(dtype, copy=True).requires_grad_() for t in tensors]
    out = function(q, k, v, prefix or None, mask)
    weights = torch.randn(out.shape, generator=seeded(1), dtype=torch.float64).to(dtype)
    return [out.detach().double(), *(g.double() for g in torch.autograd.grad(out, leaves, weights))]


@pytest.mark.parametrize("H, Hk", [(4, 1), (4, 2), (4, 4)])
@pytest.mark.parametrize(
    "lengths, M, L", [((7, 7), 3, 5), ((6, 2, 5), 2, 4), ((4,), 1, 1), ((3, 0, 9), 4, 6)]
)
def test_attention_by_products_is_attention(lengths, M, L, H, Hk):
    tensors, mask = attention_inputs(lengths, M, L, H, Hk)
    for given in (tensors, tensors[:3]):
        close(attended(attend_by_products, given, mask), attended(attend, given, mask))


@pytest.mark.parametrize("Lp", [309, 4000])
def test_attention_by_products_in_bfloat16(Lp):
    """A CPU takes it there, unless keys are many. Dots are rounded, as the sampler's are: a few
    units of 2**-8, over long prefixes too."""
    tensors, mask = attention_inputs((Lp, Lp), 3, 20, 4, 2, 64)
    tensors = [t.bfloat16().double() for t in tensors]
    exact = attended(attend, tensors, mask)
    found = (
        attended(function, tensors, mask, torch.bfloat16)
        for function in (attend_by_products, attend)
    )
    for ours, taken, expected in zip(*found, exact):
        assert torch.equal(ours, taken) == (Lp + 20 <= attention.KEYS)
        assert tiny.distance(ours, expected) < 2**-7
