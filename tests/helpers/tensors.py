"""Shared by tests."""

import torch

F64 = torch.float64


def close(found, expected, tolerance=1e-12, name=""):
    """Tensors agree, in proportion to what is expected where that is larger than 1."""
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance, msg=lambda said: f"{name}: {said}"
    )


def seeded(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, dtype=F64, generator=seeded(seed))
