"""Prompts as tensors: padding, and what a model cannot answer."""

from collections.abc import Iterable, Sequence, Sized

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from maxrl.models.transformer import Transformer


class PromptError(ValueError):
    """A prompt that cannot be answered."""


def check_prompts(model: Transformer, prompts: Iterable[Sized], max_tokens: int) -> None:
    """Raise PromptError unless the model can answer all prompts.

    model       a Transformer
    prompts     sequences of ids
    max_tokens  the longest response
    """
    lengths = [len(prompt) for prompt in prompts]
    if 0 in lengths:
        raise PromptError(
            f"a prompt without tokens, number {lengths.index(0)}: every prompt needs at least one"
        )
    longest = max(lengths, default=0)
    limit = model.config.max_position_embeddings
    if longest + max_tokens > limit:
        raise PromptError(
            f"a prompt of {longest} tokens and a response of up to {max_tokens} "
            f"exceed the model's {limit} positions: lower --max-response (of demonstrations, "
            "shorten the answer), or leave out longer prompts with --max-prompt"
        )


def split(prompts: Sequence[Tensor], device: torch.device | str) -> tuple[Tensor, Tensor, Tensor]:
    """Split prompts into what is encoded once per group and what every row begins with.

    prompts  G one-dimensional tensors of at least one token

    Returns all but their last tokens (G, Lp), right-padded, their lengths (G,), and the last
    tokens (G,).
    """
    last = torch.stack([p[-1] for p in prompts])
    return *pad([p[:-1] for p in prompts], device), last.to(device, non_blocking=True)


def pad(sequences: Sequence[Tensor], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return one-dimensional tensors as one, right-padded with 0 (B, L), and their lengths (B,)."""
    lengths = torch.tensor([len(s) for s in sequences])
    padded = pad_sequence(list(sequences), batch_first=True)
    return padded.to(device, non_blocking=True), lengths.to(device, non_blocking=True)
