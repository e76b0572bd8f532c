"""The statistics of an update, summed over its micro-batches and the ranks."""

from typing import Any

import torch
from torch import Tensor

from maxrl.parallel import distributed
from maxrl.rollouts import MicroBatch, Rollouts


class UpdateStats:
    """Sums over the micro-batches of an update, and in the end over all ranks.

    rollouts  what the micro-batches are cut from
    clip      (low, high) distance of the importance ratio from 1
    device    of the micro-batches
    """

    def __init__(self, rollouts: Rollouts, clip: tuple[float, float], device: torch.device):
        self.rollouts = rollouts
        self.clip = clip
        names = "loss", "tokens", "difference", "kl", "low", "high"
        # Tensors until over_ranks(): reading a number would make the host wait each time.
        zero = torch.zeros((), dtype=torch.float64, device=device)
        self.sums: dict[str, Any] = dict.fromkeys(names, zero)
        self.largest: Any = zero
        # Only with several updates are there old log-probabilities, and ratios to clip.
        self.clips = rollouts.old_log_probs is not None
        self.compares = rollouts.log_probs is not None and not self.clips

    def add(self, name: str, values: Tensor) -> None:
        """Add the sum of a tensor's values to a name."""
        # Detached, or the sum would keep the graph of its micro-batch.
        total = values.detach().sum(dtype=torch.float64)
        self.sums[name] = self.sums[name] + total

    def take(self, batch: MicroBatch, log_probs: Tensor, advantages: Tensor) -> None:
        """Note the statistics of a micro-batch.

        log_probs   (G, M, L) by the training forward
        advantages  (G, M)
        """
        self.add("tokens", batch.mask)
        if self.compares:
            self.compare(batch, log_probs)
        if not self.clips:
            return
        # Clipping leaves tokens without a gradient, but stops only moves further in the advantage's
        # direction.
        old = batch.select(self.rollouts.old_log_probs)  # (G, M, L)
        ratio = ((log_probs.detach() - old) * batch.mask).exp()
        advantages = advantages[..., None] * batch.mask  # (G, M, L)
        low, high = self.clip
        self.add("low", (ratio < 1 - low) & (advantages < 0))
        self.add("high", (ratio > 1 + high) & (advantages > 0))

    def compare(self, batch: MicroBatch, log_probs: Tensor) -> None:
        """Compare the sampler's log-probabilities with the training forward's (G, M, L)."""
        sampled = batch.select(self.rollouts.log_probs)  # (G, M, L)
        difference = ((log_probs.detach() - sampled) * batch.mask).abs()
        self.add("difference", difference)
        self.largest = torch.maximum(self.largest, difference.max())

    def total(self, batch: MicroBatch, values: Tensor) -> Tensor:
        """Return the sum of the tokens' values (G, M, L) over prompts that count equally."""
        scale = self.rollouts.group_scale().expand_as(self.rollouts.lengths)  # (P_local, N)
        scale = batch.select(scale.to(batch.mask.device, non_blocking=True))  # (G, M)
        return (values * scale[..., None].to(values)).sum()

    def over_ranks(self) -> None:
        """Sum over the ranks, which must all call this."""
        # A single synchronisation with the device for all numbers.
        values = torch.stack([*self.sums.values(), self.largest])
        *sums, largest = values.tolist()
        self.sums = distributed.all_reduce(dict(zip(self.sums, sums)))
        self.largest = distributed.all_reduce({"max": largest}, "max")["max"]

    def mean(self, name: str) -> float:
        """Return a sum per response token of the micro-batches, 0 if there was none."""
        return self.sums[name] / max(self.sums["tokens"], 1)

    def differences(self) -> dict[str, float]:
        """Return the result of compare(), under the names of metrics.jsonl."""
        return {
            "sampling/logprob_abs_diff/mean": self.mean("difference"),
            "sampling/logprob_abs_diff/max": self.largest,
        }

    def statistics(self, tokens: float) -> dict[str, float]:
        """Return the loss and the results of take(), under the names of metrics.jsonl.

        tokens  all response tokens of the update, also of rows that were not run
        """
        stats = {"loss": self.sums["loss"]}
        if self.compares:
            stats |= self.differences()
        if self.clips:
            parts = {"low": self.sums["low"], "high": self.sums["high"]}
            parts["region"] = parts["low"] + parts["high"]
            for name, count in parts.items():
                stats[f"clip_ratio/{name}_mean"] = count / max(tokens, 1)
        return stats
