"""Products by oneDNN: as exact as torch's own, forward and backward, and only where they are meant
to be.
"""

import copy

import pytest
import torch

from maxrl.models import cpu
from maxrl.models.cpu import Linear
from tests.helpers.tensors import close

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


@pytest.fixture
def everywhere(monkeypatch):
    """Use oneDNN for every float32 product, on any machine."""
    monkeypatch.setattr(cpu, "ENOUGH", 1)
    monkeypatch.setattr(cpu, "mkl_is_slow", lambda: True)


@needs_onednn
@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 3, 7), (2, 3, 1, 7)])
@pytest.mark.parametrize("bias, trained", [(True, True), (False, True), (False, False)])
def test_as_exact_as_a_plain_linear(everywhere, shape, bias, trained):
    torch.manual_seed(0)
    ours = Linear(7, 4, bias=bias).requires_grad_(trained)
    # A transposed view is what attention hands over.
    x = torch.randn(shape).transpose(0, -2).contiguous().transpose(0, -2)
    weights = torch.randn(*shape[:-1], 4)
    results = []
    for linear in (ours, copy.deepcopy(ours).double()):
        dtype = linear.weight.dtype
        given = x.to(dtype, copy=True).requires_grad_()
        y = linear(given)
        y.backward(weights.to(dtype))
        results.append([y, given.grad, *(p.grad for p in linear.parameters() if trained)])
    assert "ToDense" in results[0][0].grad_fn.name()
    # Each is a sum of at most 7 products of numbers of order 1.
    for found, exact in zip(*results):
        close(found.double(), exact, 7 * 8 * torch.finfo(torch.float32).eps)


def test_where_it_is_not_meant_to_be(everywhere, monkeypatch):
    """Other types, autocast, no rows, other devices: nn.Linear's own."""
    linear = Linear(4, 4)
    x = torch.randn(2, 4)
    for other in (x.double(), x[:0], x.to("meta")):
        assert not linear.by_onednn(other)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x).dtype == torch.bfloat16
    monkeypatch.setattr(cpu, "ENOUGH", 32)
    assert linear.by_onednn(x)
    assert not linear.by_onednn(x[:1])


@pytest.mark.parametrize(
    "capability, vendor, slow",
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
    ],
)
def test_which_cpu(capability, vendor, slow, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(cpu.Path, "read_text", lambda path: f"vendor_id\t: {vendor}\nflags\t: fpu")
    assert cpu.mkl_is_slow.__wrapped__() is slow
