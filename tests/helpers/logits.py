"""Logits on the same tokens, of ours and of another implementation."""

import torch
from transformers import AutoModelForCausalLM

from tests.helpers import tiny

TOKENS = torch.stack(tiny.prompts((40, 40, 40)))


def logits(model, tokens=TOKENS):
    return model.lm_head(model(tokens[:, None])).squeeze(1)


def close(ours, theirs, atol=None):
    """Allow 128 roundings of the largest number, for sums of some 40 products in two layers."""
    if atol is None:
        atol = 128 * torch.finfo(theirs.dtype).eps * float(theirs.detach().abs().max())
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


def read_by_transformers(path):
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
