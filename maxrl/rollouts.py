"""What travels from the sampler to the loss: Rollouts, and the MicroBatches cut from them.

Tally is what comes back of micro-batches: the statistics of an update.

Rollouts lie on the host: texts, verdicts and the sizes of micro-batches are asked of them without
waiting for a GPU. A MicroBatch lies on the device.

Letters: P_local prompts of this rank, N rollouts of each, L tokens of the longest response. A
micro-batch has M of the rows of G groups; Lp is the longest prompt without its last token.
"""

from dataclasses import dataclass
from itertools import compress

import numpy as np
import torch
import torch.nn.functional as F

from maxrl.io.tokenizer import Tokenizer
from maxrl.packing import rectangles
from maxrl.parallel import distributed
from maxrl.sampling.sampler import split


@dataclass
class Rollouts:
    """N responses to each of this rank's prompts. Masks come from lengths, never from token ids.

    Tokens, lengths and `finished` are brought to the host. Log-probabilities and entropies stay
    where they were made. Of prompts that were sampled in rounds some have fewer than N: the others
    have length 0.
    """

    prompts: list[torch.Tensor]  # P_local one-dimensional tensors of ids
    tokens: torch.Tensor  # (P_local, N, L), right-padded, the end token included
    lengths: torch.Tensor  # (P_local, N)
    finished: torch.Tensor  # (P_local, N) bool: has an end token
    tokenizer: Tokenizer
    log_probs: torch.Tensor | None = None  # (P_local, N, L) by the sampler; None for demonstrations
    entropies: torch.Tensor | None = None  # (P_local, N, L), nats
    # (P_local, N, L) by the training forward, for several updates
    old_log_probs: torch.Tensor | None = None

    def __post_init__(self):
        # Here once for all of them; asked one by one, each would wait for the device.
        self.tokens = self.tokens.cpu()
        self.lengths = self.lengths.cpu()
        self.finished = self.finished.cpu()

    def mean_log_probs(self) -> torch.Tensor:
        """(P_local, N): mean log-probability of the tokens of each response, by the sampler."""
        return self.log_probs.sum(-1).cpu() / self.lengths

    def text(self, i: int, j: int) -> str:
        """Response j to prompt i, with its end token."""
        return self.tokenizer.decode(self.response(i, j))

    def completion(self, i: int, j: int) -> str:
        """What reward functions read: the response without its end and other special tokens."""
        ids = self.response(i, j)
        # Not every end token is a special one: a maze ends with a word.
        if self.finished[i, j]:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special=True)

    def response(self, i, j):
        """The ids of response j to prompt i, without padding."""
        length = self.lengths[i, j]
        return self.tokens[i, j, :length].tolist()

    def row(self, i: int, j: int) -> dict:
        """Rollout j of prompt i for people to look at."""
        prompt = self.prompts[i].tolist()
        return {
            "prompt": self.tokenizer.decode(prompt),
            "response": self.text(i, j),
        }

    def select(self, groups) -> "Rollouts":
        """Return the rollouts of some groups.

        groups  (P_local,) bool, True for those to keep
        """
        chosen = dict(vars(self))
        for name, value in chosen.items():
            if isinstance(value, torch.Tensor):
                kept = groups.to(value.device)
                chosen[name] = value[kept]
        chosen["prompts"] = list(compress(self.prompts, groups.tolist()))
        return Rollouts(**chosen)

    def weights(self) -> torch.Tensor:
        """(P_local, 1): N / m of groups with m responses, so that every prompt counts once."""
        counts = (self.lengths > 0).double().sum(1, keepdim=True)  # (P_local, 1)
        return self.lengths.shape[1] / counts

    def counts(self, groups) -> dict[str, float]:
        """Return rollouts and tokens of some groups; "weighted" are the tokens times weights()."""
        lengths = self.lengths[groups]  # (groups, N)
        weighted = lengths * self.weights()[groups]
        return {
            "rollouts": lengths.numel(),
            "tokens": int(lengths.sum()),
            "weighted": float(weighted.sum()),
        }

    @staticmethod
    def joined(parts: list, N: int) -> "Rollouts":
        """Return the groups of several Rollouts as one, in which groups have up to N responses."""
        L = max(part.tokens.shape[2] for part in parts)
        values = {"prompts": [prompt for part in parts for prompt in part.prompts]}
        for name in ("tokens", "lengths", "finished", "log_probs", "entropies"):
            padded = []
            for part in parts:
                value = getattr(part, name)
                room = [0, N - value.shape[1]]
                if value.dim() == 3:
                    room = [0, L - value.shape[2], *room]
                padded.append(F.pad(value, room))
            values[name] = torch.cat(padded)
        return Rollouts(**values, tokenizer=parts[0].tokenizer)

    def statistics(self) -> dict[str, float]:
        """Return lengths and entropy over all ranks, which must all call this."""
        lengths = self.lengths.double()  # (P_local, N)
        sums = {
            "rollouts": lengths.numel(),
            "length": float(lengths.sum()),
            "finished": float(self.finished.sum()),
        }
        if self.entropies is not None:
            sums["entropy"] = float(self.entropies.double().sum())
        sums = distributed.all_reduce(sums)
        # One collective finds both ends: the shortest is the largest of the negative lengths.
        ends = {
            "longest": float(lengths.max()),
            "shortest": float(-lengths.min()),
        }
        ends = distributed.all_reduce(ends, "max")
        result = {}
        if self.entropies is not None:
            result["entropy"] = sums["entropy"] / sums["length"]
        rollouts = sums["rollouts"]
        result["completions/mean_length"] = sums["length"] / rollouts
        result["completions/max_length"] = ends["longest"]
        result["completions/min_length"] = -ends["shortest"]
        result["completions/clipped_ratio"] = 1 - sums["finished"] / rollouts
        return result


def with_verdict(rollouts, rewards: torch.Tensor):
    """Leave out the groups without any reward; reward functions may have no verdict.

    rollouts  of this rank, of a language model or a classifier
    rewards   (P_local, N), NaN if there is no verdict

    Returns rollouts and rewards of the others.
    """
    judged = rewards.isfinite().any(1)  # (P_local,)
    # As it always is without faults: then nothing is copied.
    if judged.all():
        return rollouts, rewards
    return rollouts.select(judged), rewards[judged]


@dataclass
class MicroBatch:
    """What one forward runs: M rows for each of G groups. All but prefix_lengths is on the device.

    The prompt but its last token is the group's prefix, encoded once for all its rows. The last
    token is every row's first input, so that input t predicts target t.
    """

    rows: torch.Tensor  # (G, M): which of the rank's P_local N rollouts each is, group after group
    prefix: torch.Tensor  # (G, Lp), right-padded
    prefix_lengths: torch.Tensor  # (G,), on the host
    inputs: torch.Tensor  # (G, M, L)
    targets: torch.Tensor  # (G, M, L)
    mask: torch.Tensor  # (G, M, L) bool: which targets are response tokens of rows to run
    places: torch.Tensor  # (tokens,): where the mask is true, counted through the rows

    def select(self, values):
        """Cut out what belongs to the rows.

        values  (P_local, N), (P_local, N, at least L) or None, on the device

        Returns (G, M), (G, M, L) or None.
        """
        if values is None:
            return None
        part = values.flatten(0, 1)[self.rows]
        if part.dim() == 2:
            return part
        L = self.targets.shape[-1]
        return part[..., :L]


def micro_batches(rollouts: Rollouts, groups, budget: int, device="cpu", live=None):
    """Cut groups into MicroBatches, whose cost follows the tokens that are there.

    rollouts  of this rank
    groups    which of the P_local to cut
    budget    the most padded tokens of a micro-batch, unless it is a single row
    device    where the micro-batches go
    live      (P_local, N) bool, the rows to run; without it all

    Yields MicroBatches, in which every row to run stands once.
    """
    # A row that is not run has no tokens: what follows knows of lengths alone.
    lengths = rollouts.lengths
    if live is not None:
        lengths = lengths * live.to(lengths.device)
    groups = np.array(groups, dtype=int)
    cut = lengths.numpy()[groups]  # (G, N)
    # Long rows beside long ones: what is cut off together is padded to one length.
    order = np.argsort(-cut, axis=1, kind="stable")
    cut = np.take_along_axis(cut, order, 1)
    prompts = np.array([len(rollouts.prompts[g]) for g in groups])  # (G,)
    for part, columns in rectangles(prompts, cut, budget):
        rows = order[part][:, columns]  # (G', M)
        yield micro_batch(rollouts, groups[part], rows, device, lengths)


def micro_batch(rollouts: Rollouts, groups, rows, device="cpu", lengths=None) -> MicroBatch:
    """Return the MicroBatch of G groups of this rank's rollouts.

    groups   (G,), an array: which of the P_local
    rows     (G, M), an array: which of the N rollouts of each
    device   where it goes
    lengths  (P_local, N), 0 for a row that is not run; without it those of the rollouts
    """
    if lengths is None:
        lengths = rollouts.lengths
    N = lengths.shape[1]
    rows = groups[:, None] * N + rows
    rows = torch.from_numpy(rows)  # (G, M)
    lengths = lengths.flatten()[rows]  # (G, M)
    # As long as its own longest response, not as the longest of all.
    L = int(lengths.max())
    tokens = rollouts.tokens[..., :L]
    targets = tokens.flatten(0, 1)[rows]  # (G, M, L)
    # From lengths: the padding's id may be that of an end token.
    mask = torch.arange(L) < lengths[..., None]  # (G, M, L)
    # A device that looked for them would have to be waited for.
    places = mask.flatten().nonzero()
    places = places.squeeze(1)  # (tokens,)

    prompts = [rollouts.prompts[g] for g in groups]
    prefix, prefix_lengths, last = split(prompts, "cpu")
    # Nothing is predicted from the last target.
    M = rows.shape[1]
    first = last[:, None, None]
    first = first.expand(-1, M, 1)  # (G, M, 1)
    inputs = torch.cat([first, targets[..., :-1]], -1)  # (G, M, L)
    batch = MicroBatch(rows, prefix, prefix_lengths, inputs, targets, mask, places)
    for name, values in vars(batch).items():
        if name != "prefix_lengths":
            setattr(batch, name, upload(values, device))
    return batch


def upload(values: torch.Tensor, device) -> torch.Tensor:
    """Copy a tensor of the host to a device, which need not be waited for."""
    # Of memory that may be paged out a copy is made first, and waited for.
    if torch.device(device).type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


class Tally:
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
