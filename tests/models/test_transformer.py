"""Initial weights, and two forms of attention that are one. That it is Qwen2 and others:
test_families.py; that rows behind a prefix are what they are as whole sequences:
learning/test_policy.py; token by token: learning/test_sampler.py.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from maxrl.learning.packing import micro_batches
from maxrl.learning.policy import TokenLogProbs
from maxrl.models import attention, varlen
from maxrl.models.attention import Ragged, after_prefix, attend, prefix_mask
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
    return tensors, prefix_mask(lengths, Lp, L, M, lengths)


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
    for given, how in ((tensors, mask), (tensors[:3], None)):
        close(attended(attend_by_products, given, how), attended(attend, given, how))


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


def documented(q, k, v, q_starts, k_starts, most_q, most_k, *, window_size, enable_gqa):
    """What torch's page says of varlen_attn with a causal window, one sequence and head at a time:
    query i of n attends to the keys up to i + m - n of its m. Refuses what the kernel refuses."""
    assert window_size == (-1, 0)
    assert enable_gqa
    for starts, tensor, most in ((q_starts, q, most_q), (k_starts, k, most_k)):
        assert starts.dtype == torch.int32
        assert starts.is_contiguous()
        assert starts[0] == 0
        assert starts[-1] == len(tensor)
        assert starts.diff().max() == most
        assert tensor.stride(-1) == 1
    assert len(q_starts) == len(k_starts)
    assert k.shape == v.shape
    R = q.shape[1] // k.shape[1]
    rows = []
    for b in range(len(q_starts) - 1):
        queries = q[q_starts[b] : q_starts[b + 1]]  # (n, H, D)
        keys, values = (x[k_starts[b] : k_starts[b + 1]] for x in (k, v))  # (m, Hk, D)
        n, m = len(queries), len(keys)
        later = torch.ones(n, m, dtype=torch.bool).triu(1 + m - n)
        heads = []
        for h in range(q.shape[1]):
            dots = queries[:, h] @ keys[:, h // R].T / q.shape[2] ** 0.5
            weights = dots.masked_fill(later, -torch.inf).softmax(-1)
            heads.append(weights @ values[:, h // R])
        rows.append(torch.stack(heads, 1))
    return torch.cat(rows)


@pytest.fixture
def kernel(monkeypatch):
    """A stand-in for the kernel, which only a GPU has, and how often it was called."""
    calls = []

    def called(*arguments, **options):
        calls.append(1)
        return documented(*arguments, **options)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", called)
    return calls


SHAPES = (4, 5), (2, 14), (2, 14)  # heads and tokens of queries, keys and values
RAGGED = [((6, 2, 5), 2, 4), ((3, 0, 9), 4, 6), ((0, 1), 1, 1), ((1, 8), 3, 1), ((7, 7, 2), 2, 7)]


@pytest.mark.parametrize("H, Hk", [(4, 1), (4, 2), (4, 4), (15, 5)])
@pytest.mark.parametrize("lengths, M, L", RAGGED)
def test_attention_by_sequences_is_attention(lengths, M, L, H, Hk, kernel):
    """The result and the gradient of everything, with keys packed row after row."""
    tensors, mask = attention_inputs(lengths, M, L, H, Hk)

    def packed(q, k, v, prefix, mask):
        k, v = (after_prefix(ours, own) for ours, own in zip(prefix, (k, v)))
        return varlen.attend_sequences(q, k, v, mask.sequences)

    close(attended(packed, tensors, mask), attended(attend, tensors, mask))
    kept = mask.sequences.kept
    assert len(kept) == len(kept.unique()) == M * sum(n + L for n in lengths)
    assert kernel


@pytest.mark.parametrize("again", (False, True))
@pytest.mark.parametrize("family", ("qwen2", "llama", "qwen3"))
def test_a_model_by_sequences(family, again, kernel, monkeypatch):
    """Of a micro-batch: log-probs and the gradient of all parameters."""
    model = tiny.model(model_type=family, head_dim=8)
    model.gradient_checkpointing = again
    rollouts = tiny.rollouts((9, 5, 4))

    def found():
        model.zero_grad()
        parts = []
        for batch in micro_batches(rollouts, range(3), 10**6):
            log_probs, entropies = TokenLogProbs(model)(batch, True)
            (log_probs.sin() * entropies).sum().backward()
            parts.append(log_probs.detach().flatten())
        return torch.cat([*parts, tiny.grads(model)])

    expected = found()
    assert not kernel
    monkeypatch.setattr(Transformer, "has_kernel", lambda *_: True)
    close(found(), expected)
    assert kernel


def test_torch_takes_the_call():
    """Its own function, forward and backward, on tensors without numbers."""
    where = varlen.sequences(torch.tensor([3, 0, 9]), 9, 5, 2, torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        q, k, v = (torch.empty(6, H, n, 8).bfloat16().requires_grad_() for H, n in SHAPES)
        out = varlen.attend_sequences(q, k, v, where)
        assert out.shape == q.shape
        gradients = torch.autograd.grad(out.sum(), (q, k, v))
        assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize("wrong", [None, RuntimeError, TypeError, ImportError, 1.1, "upper left"])
def test_the_kernel_has_to_pass_a_trial(wrong, kernel, monkeypatch, recwarn):
    """Where it raises, or its results are others, the masked form goes on, and is told of once."""

    def tried(*arguments, **options):
        if isinstance(wrong, type):
            raise wrong("no kernel\nand more")
        if wrong == "upper left":
            q, k, v, *starts_and_most = arguments
            return documented(q, k.flip(0), v.flip(0), *starts_and_most, **options)
        return documented(*arguments, **options) * (wrong or 1)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", tried)
    varlen.passes.cache_clear()
    state = torch.get_rng_state()
    for _ in range(2):
        where = torch.device("cpu"), torch.bfloat16, 4, 2, 8
        assert varlen.passes(*where) == (wrong is None)
    assert sum("with a mask" in str(warning.message) for warning in recwarn) == (wrong is not None)
    assert torch.equal(torch.get_rng_state(), state)
    varlen.passes.cache_clear()


def test_the_mask_of_ragged_prompts_is_made_once():
    """For all layers, and in rows that no kernel has to copy."""
    lengths = torch.tensor([5, 2, 7])
    mask = prefix_mask(lengths, 7, 4, 2, lengths)
    assert isinstance(mask, Ragged)
    added = mask.mask(F64)
    assert added is mask.mask(F64)
    assert added.stride(2) % 16 == 0
    for b in range(6):
        for t in range(4):
            seen = (added[b, 0, t] == 0).nonzero().flatten().tolist()
            assert seen == [*range(lengths[b // 2]), *range(7, 8 + t)]
    full = torch.tensor([7, 7, 7])
    assert not isinstance(prefix_mask(full, 7, 4, 2, full), Ragged)
