"""Products by oneDNN: as exact as torch's own, forward and backward, and only where they are meant
to be.
"""

import pytest
import tiny
import torch
from tensors import close
from torch import nn

from maxrl.models import cpu
from maxrl.models.cpu import Linear
from maxrl.models.lora import add_lora

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


@pytest.fixture
def asked(monkeypatch):
    """Use oneDNN for every float32 product, on any machine; the list of its inputs."""
    seen, plain = [], torch.Tensor.to_mkldnn

    def noted(x, *rest):
        seen.append(x.shape)
        return plain(x, *rest)

    monkeypatch.setattr(cpu, "ENOUGH", 1)
    monkeypatch.setattr(cpu, "mkl_is_slow", lambda: True)
    monkeypatch.setattr(torch.Tensor, "to_mkldnn", noted)
    return seen


@needs_onednn
@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 3, 7), (2, 3, 1, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_as_exact_as_a_plain_linear(asked, shape, bias):
    torch.manual_seed(0)
    ours = Linear(7, 4, bias=bias)
    exact = nn.Linear(7, 4, bias=bias).double()
    exact.load_state_dict(ours.state_dict())
    x, weights = torch.randn(shape), torch.randn(*shape[:-1], 4)
    # A transposed view is what attention hands over.
    here = x.transpose(0, -2).contiguous().transpose(0, -2)

    def results(linear, x, dtype):
        x = x.to(dtype).requires_grad_()
        y = linear(x)
        assert y.layout == torch.strided
        return y, *torch.autograd.grad(y, [x, *linear.parameters()], weights.to(dtype))

    found = results(ours, here, torch.float32)
    assert asked == [shape]
    # Each is a sum of at most 7 products of numbers of order 1.
    for a, b in zip(found, results(exact, x, torch.float64)):
        assert a.dtype == torch.float32
        close(a.double(), b, 7 * 8 * torch.finfo(torch.float32).eps)


@needs_onednn
@pytest.mark.parametrize("lora, again", [(False, False), (True, True)])
def test_a_models_gradient(asked, lora, again):
    """Of all its weights, from rows after a prefix; with an adapter and layers that are made again
    too.
    """
    model = tiny.model(torch.float32)
    if lora:
        add_lora(model, 2, 4)
        nn.init.normal_(model.model.layers[0].self_attn.q_proj.lora_B.weight)
    model.gradient_checkpointing = again
    rows = torch.randint(32, (2, 3, 5)), torch.randint(32, (2, 4)), torch.tensor([4, 2])
    gradients = []
    for dtype in (torch.float32, torch.float64):
        model.zero_grad()
        model.to(dtype)
        model.lm_head(model(*rows)).square().mean().backward()
        gradients.append(tiny.grads(model).double())
    # 7 products a layer, of rows and of the prefix, and in the backward as many again where layers
    # are made again.
    assert len(asked) >= 2 * 7
    assert tiny.distance(*gradients) < 1e-5


def test_where_it_is_not_meant_to_be(asked, monkeypatch):
    """Other types, autocast, no rows, other devices: nn.Linear's own."""
    plain = Linear(4, 4)
    assert Linear(4, 4).double()(torch.randn(2, 4).double()).dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert plain(torch.randn(2, 4)).dtype == torch.bfloat16
    assert plain(torch.randn(0, 4)).shape == (0, 4)
    assert Linear(4, 4, device="meta")(torch.randn(2, 4, device="meta")).shape == (2, 4)
    monkeypatch.setattr(cpu, "ENOUGH", 33)
    plain(torch.randn(2, 4))  # 32 multiplications
    assert asked == []
    if torch.backends.mkldnn.is_available():
        plain(torch.randn(3, 4))
        assert asked == [(3, 4)]


@pytest.mark.parametrize(
    "capability, vendor, slow",
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
        ("AVX512", None, False),
    ],
)
def test_which_cpu(capability, vendor, slow, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    text = "processor\t: 0\n" + (f"vendor_id\t: {vendor}\nflags\t: fpu\n" if vendor else "")
    monkeypatch.setattr(cpu.Path, "read_text", lambda path: text)
    assert cpu.mkl_is_slow.__wrapped__() is slow
