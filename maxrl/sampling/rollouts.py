"""Rollouts travel from the sampler to the loss; learning/packing.py cuts micro-batches from them.

Tokens, lengths and `finished` are on the host, so that texts, verdicts and the sizes of
micro-batches are known without waiting for a GPU. Log-probabilities and entropies are on the
device.

Letters: P_local prompts of this rank, N rollouts of each, L tokens of the longest response.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maxrl.models.tokenizer import Tokenizer
from maxrl.system.totals import Totals


@dataclass
class Rollouts:
    """N responses to each of this rank's prompts. Masks come from lengths, never from token ids.

    A prompt that was sampled in rounds may have fewer than N responses: the missing ones have
    length 0.
    """

    prompts: list[Tensor]  # P_local one-dimensional tensors of ids
    tokens: Tensor  # (P_local, N, L), right-padded, the stop token included
    lengths: Tensor  # (P_local, N)
    finished: Tensor  # (P_local, N) bool: has a stop token
    tokenizer: Tokenizer | None  # of the texts
    log_probs: Tensor | None = None  # (P_local, N, L) by the sampler; None for demonstrations
    entropies: Tensor | None = None  # (P_local, N, L), nats
    # (P_local, N, L) by the training forward, for several updates
    old_log_probs: Tensor | None = None
    row_bytes: float = 0.0  # what sampling took at most, divided by the rows it began with

    def mean_log_probs(self) -> Tensor:
        """(P_local, N): mean log-probability of each response's tokens when they were sampled."""
        assert self.log_probs is not None, "demonstrations have no log-probabilities"
        log_probs = self.log_probs.sum(-1)  # (P_local, N)
        return log_probs.cpu() / self.lengths

    def text(self, i: int, j: int) -> str:
        """Response j to prompt i, with its stop token."""
        return self.decode(self.response(i, j))

    def completion(self, i: int, j: int) -> str:
        """What reward functions read: the response without its stop and other special tokens."""
        ids = self.response(i, j)
        # Not every stop token is a special token: a maze ends with a word.
        if self.finished[i, j]:
            ids.pop()
        return self.decode(ids, skip_special=True)

    def response(self, i: int, j: int) -> list[int]:
        """The token ids of response j to prompt i, without padding."""
        length = self.lengths[i, j]
        return self.tokens[i, j, :length].tolist()

    def prompt_text(self, i: int) -> str:
        """Prompt i, with its special tokens."""
        ids = self.prompts[i].tolist()
        return self.decode(ids)

    def decode(self, ids: list[int], **options) -> str:
        """The text of token ids."""
        assert self.tokenizer is not None, "these rollouts have no tokenizer"
        return self.tokenizer.decode(ids, **options)

    def select(self, keep: Tensor) -> "Rollouts":
        """Return the rollouts of the groups that are True in `keep` (P_local,)."""
        chosen = dict(vars(self))
        # Not indexed by the mask: a GPU would have to tell the host how many elements it selects.
        ids = keep.nonzero().squeeze(1)
        for name, value in chosen.items():
            if isinstance(value, Tensor):
                rows = ids.to(value.device, non_blocking=True)
                chosen[name] = value[rows]
        chosen["prompts"] = [self.prompts[i] for i in ids]
        return type(self)(**chosen)

    def group_scale(self) -> Tensor:
        """(P_local, 1): N / n for groups with n responses, so that prompts have equal weight."""
        responses = self.lengths > 0  # (P_local, N)
        counts = responses.double().sum(1, keepdim=True)  # (P_local, 1)
        return self.lengths.shape[1] / counts

    def counts(self, group_ids: list[int]) -> dict[str, float]:
        """Count P N and the tokens of some groups; "scaled" are tokens times group_scale()."""
        lengths = self.lengths[group_ids]  # (groups, N)
        scaled = lengths * self.group_scale()[group_ids]
        return {
            "rollouts": lengths.numel(),
            "tokens": int(lengths.sum()),
            "scaled": float(scaled.sum()),
        }

    def count(self, totals: Totals) -> None:
        """Add lengths and entropies to the metrics. All groups need N responses."""
        lengths = self.lengths.double()  # (P_local, N)
        tokens = lengths.sum()
        rollouts = lengths.numel()
        if self.entropies is not None:
            entropy = self.entropies.sum(dtype=torch.float64)
            totals.mean("entropy", entropy, tokens)
        totals.mean("completions/mean_length", tokens, rollouts)
        totals.highest("completions/max_length", lengths.max())
        totals.lowest("completions/min_length", lengths.min())
        clipped = ~self.finished
        totals.mean("completions/clipped_ratio", clipped.sum(), rollouts)


def joined(parts: Sequence[Rollouts], dim: int = 0, N: int = 0) -> Rollouts:
    """Return sampled Rollouts as one, padded to the longest response.

    dim  0: of several prompts; 1: several rollouts of the same prompts
    N    for dim 0, the rollouts that every group is padded to, by responses of length 0
    """
    L = max(part.tokens.shape[2] for part in parts)
    prompts = parts[0].prompts
    if dim == 0:
        prompts = [prompt for part in parts for prompt in part.prompts]
    values: dict = {"prompts": prompts}
    values["tokenizer"] = parts[0].tokenizer
    values["row_bytes"] = max(part.row_bytes for part in parts)
    for name in ("tokens", "lengths", "finished", "log_probs", "entropies"):
        padded = []
        for part in parts:
            value = getattr(part, name)
            missing = max(0, N - value.shape[1])
            room = [0, missing]
            if value.dim() == 3:
                room = [0, L - value.shape[2], *room]
            padded.append(F.pad(value, room))
        values[name] = torch.cat(padded, dim)
    return Rollouts(**values)


def with_verdict(rollouts: Any, rewards: Tensor) -> tuple[Any, Tensor]:
    """Leave out the groups without any verdict, and return the other rollouts and rewards.

    rollouts  of this rank, of a language model or a classifier
    rewards   (P_local, N), NaN where there is no verdict (maxrl/tasks/rewards.py)
    """
    # With --no-verdict group, one missing verdict has already made its whole group NaN. With
    # --no-verdict rollout the others stay, and the one without a verdict gets advantage 0.
    judged = rewards.isfinite().any(1)  # (P_local,)
    # The usual case, in which nothing is copied.
    if judged.all():
        return rollouts, rewards
    return rollouts.select(judged), rewards[judged]
