"""The statistics of an update, summed over its micro-batches and the ranks."""

import torch

from maxrl.parallel import distributed
from maxrl.rollouts import Rollouts, upload


class UpdateStats:
    """What is logged of an update: sums over its micro-batches, in the end over all ranks."""

    def __init__(self, rollouts: Rollouts, clip, device):
        """Start with nothing.

        rollouts  what the micro-batches are cut from
        clip      (low, high): how far the importance ratio may be from 1
        device    of the micro-batches
        """
        self.rollouts = rollouts
        self.clip = clip
        names = "loss", "tokens", "difference", "kl", "low", "high"
        # Tensors until over_ranks(): a number would make the host wait for every micro-batch.
        zero = torch.zeros((), dtype=torch.float64, device=device)
        self.sums = dict.fromkeys(names, zero)
        self.largest = zero
        # Only several updates have old log-probs: then the ratio is clipped and counted.
        self.clips = rollouts.old_log_probs is not None
        self.compares = rollouts.log_probs is not None and not self.clips

    def add(self, name: str, values):
        """Add up the values of a tensor under a name."""
        # Detached: it would keep the graph of its micro-batch.
        total = values.detach().sum(dtype=torch.float64)
        self.sums[name] = self.sums[name] + total

    def take(self, batch, log_probs, advantages):
        """Note what there is to log of a micro-batch.

        log_probs   (G, M, L) by the training forward
        advantages  (G, M)
        """
        self.add("tokens", batch.mask)
        if self.compares:
            self.compare(batch, log_probs)
        if self.clips:
            self.count_clipped(batch, log_probs, advantages)

    def compare(self, batch, log_probs):
        """Note how far the sampler's log-probs are from the training forward's (G, M, L)."""
        sampled = batch.select(self.rollouts.log_probs)  # (G, M, L)
        difference = (log_probs.detach() - sampled) * batch.mask
        difference = difference.abs()
        self.add("difference", difference)
        self.largest = torch.maximum(self.largest, difference.max())

    def count_clipped(self, batch, log_probs, advantages):
        """Count the tokens that the clip leaves without a gradient; arguments as in take."""
        old = batch.select(self.rollouts.old_log_probs)  # (G, M, L)
        log_ratio = (log_probs.detach() - old) * batch.mask
        ratio = log_ratio.exp()
        advantages = advantages[..., None] * batch.mask  # (G, M, L)
        low, high = self.clip
        # Only on the side to which the advantage pushes: back it may go from anywhere.
        self.add("low", (ratio < 1 - low) & (advantages < 0))
        self.add("high", (ratio > 1 + high) & (advantages > 0))

    def weights(self, batch):
        """Return what the rows of a micro-batch count, (G, M, 1), see Rollouts.weights."""
        rows = self.rollouts.weights().expand_as(self.rollouts.lengths)
        return batch.select(upload(rows, batch.rows.device))[..., None]

    def over_ranks(self):
        """Sum over the ranks, which must all call this."""
        # One question to the device for all of them.
        values = torch.stack([*self.sums.values(), self.largest])
        *sums, largest = values.tolist()
        sums = dict(zip(self.sums, sums))
        self.sums = distributed.all_reduce(sums)
        largest = distributed.all_reduce({"max": largest}, "max")
        self.largest = largest["max"]

    def mean(self, name: str) -> float:
        """Return a sum per response token of the micro-batches."""
        # Without a group to run there is none.
        return self.sums[name] / max(self.sums["tokens"], 1)

    def differences(self) -> dict:
        """Return what compare() has found, by the names of metrics.jsonl."""
        return {
            "sampling/logprob_abs_diff/mean": self.mean("difference"),
            "sampling/logprob_abs_diff/max": self.largest,
        }

    def statistics(self, tokens: float) -> dict:
        """Return the loss and what take() has found, by the names of metrics.jsonl.

        tokens  all response tokens of the update, those of groups that were not run too
        """
        stats = {"loss": self.sums["loss"]}
        if self.compares:
            stats |= self.differences()
        if self.clips:
            # Of what was not run nothing is clipped.
            self.sums["region"] = self.sums["low"] + self.sums["high"]
            for part in ("low", "high", "region"):
                stats[f"clip_ratio/{part}_mean"] = self.sums[part] / max(tokens, 1)
        return stats
