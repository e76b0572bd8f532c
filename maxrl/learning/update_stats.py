"""The statistics of an update: Totals of what its micro-batches add."""

import numpy as np
import torch
from torch import Tensor

from maxrl.learning.packing import MicroBatch
from maxrl.sampling.rollouts import Rollouts
from maxrl.system.totals import Totals


class UpdateStats:
    """Adds up the statistics of an update's micro-batches in `totals`, under their metrics' names.

    rollouts  what the micro-batches are cut from
    clip      (low, high) distance of the importance ratio from 1
    tokens    this rank's response tokens of the update, also of rows that are not run
    """

    def __init__(self, rollouts: Rollouts, clip: tuple[float, float], tokens: float = 0):
        self.rollouts = rollouts
        self.clip = clip
        self.totals = Totals()
        # Only with several updates are there old log-probabilities, and ratios to clip.
        self.clips = rollouts.old_log_probs is not None
        self.compares = rollouts.log_probs is not None and not self.clips
        # A rank without a micro-batch has the names as well.
        self.totals.sum("loss", 0)
        self.totals.sum("tokens", tokens)
        if self.compares:
            self.totals.add("sampling/logprob_abs_diff/mean", per_token, 0, 0)
            self.totals.highest("sampling/logprob_abs_diff/max", 0)
        if self.clips:
            for name in ("low", "high", "region"):
                self.totals.add(f"clip_ratio/{name}_mean", per_token, 0, tokens)

    def take(self, batch: MicroBatch, log_probs: Tensor, advantages: Tensor) -> None:
        """Note the statistics of a micro-batch.

        log_probs   (G, M, L) by the training forward
        advantages  (G, M)
        """
        if self.compares:
            self.compare(batch, log_probs)
        if not self.clips:
            return
        # Clipped tokens have no gradient, but clipping applies only where the ratio would move
        # further in the direction of the advantage.
        old = batch.select(self.rollouts.old_log_probs)  # (G, M, L)
        ratio = ((log_probs.detach() - old) * batch.mask).exp()
        advantages = advantages[..., None] * batch.mask  # (G, M, L)
        low = (ratio < 1 - self.clip[0]) & (advantages < 0)
        high = (ratio > 1 + self.clip[1]) & (advantages > 0)
        for name, clipped in {"low": low, "high": high, "region": low | high}.items():
            self.totals.add(f"clip_ratio/{name}_mean", per_token, clipped.sum(), 0)

    def compare(self, batch: MicroBatch, log_probs: Tensor) -> None:
        """Compare the sampler's log-probabilities with the training forward's (G, M, L)."""
        sampled = batch.select(self.rollouts.log_probs)  # (G, M, L)
        difference = ((log_probs.detach() - sampled) * batch.mask).abs()
        self.mean("sampling/logprob_abs_diff/mean", difference, batch)
        self.totals.highest("sampling/logprob_abs_diff/max", difference.max())

    def mean(self, name: str, values: Tensor, batch: MicroBatch) -> None:
        """Add the values (G, M, L) of a micro-batch's tokens to their mean."""
        self.totals.add(name, per_token, values.sum(dtype=torch.float64), len(batch.token_index))

    def total(self, batch: MicroBatch, values: Tensor) -> Tensor:
        """Return the sum of the tokens' values (G, M, L) over prompts that count equally."""
        scale = self.rollouts.group_scale().expand_as(self.rollouts.lengths)  # (P_local, N)
        scale = batch.select(scale.to(batch.mask.device, non_blocking=True))  # (G, M)
        return (values * scale[..., None].to(values)).sum()


def per_token(parts: np.ndarray) -> float:
    """Return the sum of the values by that of tokens, (ranks, 2); 0 without a token."""
    value, tokens = parts.sum(0)
    return value / max(tokens, 1)
