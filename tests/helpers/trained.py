"""Shared by tests."""

import torch

from maxrl.models.tokenizer import Tokenizer
from maxrl.tasks.maze import VOCABULARY
from tests.helpers import tiny

TOKENIZER = Tokenizer.from_vocabulary(VOCABULARY)


def trained(seed=0, **changes):
    """A model and an AdamW that has state."""
    model = tiny.model(torch.float32, seed=seed, **changes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(6)[None, None]).square().sum().backward()
        model.lm_head.weight.grad = torch.randn_like(model.lm_head.weight)
        optimizer.step()
    return model, optimizer
