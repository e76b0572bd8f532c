"""Initial weights, and two forms of attention that are one. That it is Qwen2 and others:
test_families.py; that rows behind a prefix are what they are as whole sequences:
learning/test_policy.py; token by token: learning/test_sampler.py.
"""

import pytest
import torch

from maxrl.models import attention
from maxrl.models.attention import attend, prefix_mask
from maxrl.models.cpu import attend_by_products
from maxrl.models.transformer import Transformer, TransformerConfig
from tests.helpers import tiny
from tests.helpers.tensors import F64, close, normal


def test_initial_weights():
    sizes = tiny.SIZES | {"hidden_size": 64, "initializer_range": 0.05}
    model = Transformer(TransformerConfig.from_hf(sizes))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert abs(float(parameter.detach().std()) - 0.05) < 0.005, name
        else:
            assert (parameter == (0 if name.endswith("bias") else 1)).all(), name


def attention_inputs(lengths, M, L, H, Hk, D=8):
    """q, k, v of M rows for each prefix, and the prefixes' keys and values; the mask."""
    Lp = max(lengths)
    own = len(lengths) * M, L
    prefix = len(lengths), Lp
    shapes = ((*own, H), (*own, Hk), (*own, Hk), (*prefix, Hk), (*prefix, Hk))
    # As the projections leave them.
    tensors = [normal(*shape, D, seed=i).transpose(1, 2) for i, shape in enumerate(shapes)]
    lengths = torch.tensor(lengths)
    return tensors, prefix_mask(lengths, Lp, L, lengths)


def attended(function, tensors, mask, dtype=F64):
    """The result and its gradients for all that goes in."""
    leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in tensors]
    q, k, v, *prefix = leaves
    out = function(q, k, v, prefix or None, mask)
    gradients = torch.autograd.grad(out, leaves, normal(*out.shape).to(dtype))
    return [tensor.detach().double() for tensor in (out, *gradients)]


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
    tensors = [tensor.bfloat16().double() for tensor in tensors]
    exact = attended(attend, tensors, mask)
    found = attended(attend_by_products, tensors, mask, torch.bfloat16)
    taken = attended(attend, tensors, mask, torch.bfloat16)
    for ours, theirs, expected in zip(found, taken, exact):
        assert torch.equal(ours, theirs) == (Lp + 20 <= attention.KEYS)
        assert tiny.distance(ours, expected) < 2**-7
