"""What travels from the sampler to the loss: Rollouts, and the MicroBatches that they are cut into."""

from dataclasses import dataclass

import torch

from maxrl import distributed
from maxrl.io.tokenizer import Tokenizer
from maxrl.sampler import pad


@dataclass
class Rollouts:
    """N responses for each of this rank's prompts. Masks come from lengths, never from token ids."""

    prompts: list[torch.Tensor]  # P_local one-dimensional tensors of ids
    tokens: torch.Tensor  # (P_local, N, L), right-padded, the end token included
    lengths: torch.Tensor  # (P_local, N)
    finished: torch.Tensor  # (P_local, N) bool: has an end token
    tokenizer: Tokenizer
    log_probs: torch.Tensor | None = None  # (P_local, N, L) by the sampler; None for demonstrations
    entropies: torch.Tensor | None = None  # (P_local, N, L), nats
    old_log_probs: torch.Tensor | None = None  # (P_local, N, L) by the training forward, for more than one update

    def mean_log_probs(self) -> torch.Tensor:
        """(P_local, N): mean log-probability of the tokens of each response, by the sampler."""
        return self.log_probs.sum(-1) / self.lengths

    def text(self, i: int, j: int) -> str:
        return self.tokenizer.decode(self.tokens[i, j, : self.lengths[i, j]].tolist())

    def row(self, i: int, j: int) -> dict:
        """A rollout for people to look at."""
        return {"prompt": self.tokenizer.decode(self.prompts[i].tolist()), "response": self.text(i, j)}

    def completion(self, i: int, j: int) -> str:
        """What reward functions read: the response without its end token and without special tokens."""
        ids = self.tokens[i, j, : self.lengths[i, j] - int(self.finished[i, j])].tolist()
        return self.tokenizer.decode(ids, skip_special=True)

    def select(self, groups: torch.Tensor) -> "Rollouts":
        """The rollouts of some groups, chosen by bools (P_local,): those whose rewards could be had."""
        rows = {name: value if value is None else value[groups.to(value.device)] for name, value in vars(self).items()
                if name not in ("prompts", "tokenizer")}
        return Rollouts([p for p, chosen in zip(self.prompts, groups.tolist()) if chosen], tokenizer=self.tokenizer, **rows)

    def statistics(self) -> dict[str, float]:
        """Lengths and entropy over the rollouts of all ranks; README.md defines the names."""
        lengths, device = self.lengths.double(), self.lengths.device
        sums = {"rollouts": lengths.numel(), "length": float(lengths.sum()), "finished": float(self.finished.sum())}
        if self.entropies is not None:
            sums["entropy"] = float(self.entropies.double().sum())
        sums = distributed.all_reduce(sums, device=device)
        longest = distributed.all_reduce({"max": float(lengths.max()), "-min": -float(lengths.min())}, "max", device)
        entropy = {"entropy": sums["entropy"] / sums["length"]} if self.entropies is not None else {}
        return entropy | {
            "completions/mean_length": sums["length"] / sums["rollouts"], "completions/max_length": longest["max"],
            "completions/min_length": -longest["-min"], "completions/clipped_ratio": 1 - sums["finished"] / sums["rollouts"]}


@dataclass
class MicroBatch:
    """What one forward scores: M rows for each of G groups."""

    groups: list[int]  # which groups of the rank's rollouts, G of them
    rows: slice  # which of their rows, M of them
    targets: torch.Tensor  # (G, M, L)
    mask: torch.Tensor  # (G, M, L) which targets are response tokens
    inputs: torch.Tensor | None = None  # (G, M, tokens of a row)
    scored: torch.Tensor | None = None  # of inputs' shape: which of them predict the targets of the mask, in their order
    prefix: torch.Tensor | None = None  # (G, Lp)
    prefix_lengths: torch.Tensor | None = None  # (G,)

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """The part of values (P_local, N) or (P_local, N, L) that belongs to the rows: (G, M) or (G, M, L)."""
        part = values[self.groups][:, self.rows]
        return part if part.dim() == 2 else part[..., : self.targets.shape[-1]]

    def with_shared_prompt(self, prompts) -> "MicroBatch":
        """The prompt but its last token is the prefix, encoded once; the last token is every row's first input."""
        device = self.targets.device
        self.prefix, self.prefix_lengths = pad([p[:-1] for p in prompts], device)
        last = torch.stack([p[-1] for p in prompts]).to(device)
        last = last[:, None, None].expand(-1, self.targets.shape[1], -1)
        self.inputs, self.scored = torch.cat([last, self.targets[..., :-1]], -1), self.mask
        return self

    def with_plain_rows(self, prompts) -> "MicroBatch":
        """Every row is its prompt and its response, as if the rows had nothing in common."""
        (G, M, L), longest = self.targets.shape, max(map(len, prompts))
        self.inputs = self.targets.new_zeros(G, M, longest + L - 1)
        self.scored = torch.zeros_like(self.inputs, dtype=torch.bool)
        for g, prompt in enumerate(prompts):
            n = len(prompt)
            self.inputs[g, :, :n] = prompt.to(self.inputs.device)
            self.inputs[g, :, n : n + L - 1] = self.targets[g, :, :-1]
            self.scored[g, :, n - 1 : n - 1 + L] = self.mask[g]
        return self


def with_verdict(rollouts, rewards: torch.Tensor):
    """Rollouts and rewards (P_local, N) of the groups that have all their rewards; reward functions may leave some out."""
    kept = rewards.isfinite().all(1)                                                           # (P_local,)
    return (rollouts, rewards) if kept.all() else (rollouts.select(kept), rewards[kept])
