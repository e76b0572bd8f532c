"""A language model as a policy: it makes rollouts, and turns advantages into gradients.

classifier.py has the same methods for an image classifier. Both shape their results (P_local, N),
so that one loop and one set of estimators serve both.

Letters: P_local prompts of this rank, N rollouts of each, L tokens, E the hidden size. A
micro-batch has M rows of each of G groups.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from maxrl.learning.losses import k2, k3, log_probs_and_entropies, normaliser, policy_gradient_loss
from maxrl.learning.packing import MicroBatch, micro_batches
from maxrl.learning.update_stats import UpdateStats, per_token
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.lora import drop_casts
from maxrl.models.tokenizer import Tokenizer
from maxrl.models.transformer import Transformer
from maxrl.sampling import cuda
from maxrl.sampling.memory import in_waves
from maxrl.sampling.prompts import PromptError, check_prompts, pad
from maxrl.sampling.rollouts import Rollouts
from maxrl.sampling.sampler import generate, noise
from maxrl.system import distributed, sharding
from maxrl.system.totals import Metrics, Totals
from maxrl.tasks.base import Example

MARGIN = 0.95  # of the rows that would have fitted in the last step: responses may be longer now


class TokenLogProbs(nn.Module):
    """The one forward with gradients: DDP synchronises only calls through this forward."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, batch: MicroBatch | None, with_entropy: bool = False) -> Any:
        """Return log-probabilities of the targets, and entropies of their distributions or None.

        Both are (G, M, L) and 0 in the padding. A rank with fewer micro-batches than another one
        passes None for a batch; the result is then a 0 that is connected to every parameter.
        """
        head = self.model.lm_head
        if batch is None:
            # Every layer takes part, because under fully_shard the other ranks wait in each.
            token = torch.zeros(1, 1, 1, dtype=torch.long, device=head.weight.device)
            return head(self.model(token)).sum() * 0
        hidden = self.model(batch.inputs, batch.prefix, batch.prefix_lengths)  # (G, M, L, E)
        # Logits take more memory than anything else, so they are computed for response tokens only.
        hidden = hidden.flatten(0, 2).index_select(0, batch.token_index)  # (tokens, E)
        targets = batch.targets.flatten()[batch.token_index]  # (tokens,)
        log_probs, entropies = log_probs_and_entropies(hidden, head, targets, with_entropy)
        return batch.spread(log_probs), batch.spread(entropies)


@dataclass(eq=False)
class SequencePolicy:
    """A language model that samples tokens and runs them again with gradients.

    Raises ValueError if there are no stop tokens.
    """

    items = "tokens"  # what the metrics count

    # With stop tokens; on the CPU if `shard`, so that no GPU must hold all of it in float32.
    checkpoint: Checkpoint
    _: KW_ONLY
    max_tokens: int  # the longest response
    seed: int = 0  # of the noise that tokens are drawn with
    aggregation: str = "token"  # what the loss is divided by, see losses.normaliser
    micro_batch_tokens: int = 32768  # the most tokens of a training forward, with padding
    wave_rows: int = 4096  # the most rollouts sampled at once, but at least one whole group
    autocast: bool = False  # matrix products of forwards in bfloat16
    clip: tuple[float, float] = (0.2, 0.2)  # (low, high) distance of the importance ratio from 1
    entropy_bonus: float = 0.0  # weight of the entropy, aggregated as the loss is
    beta: float = 0.0  # weight of the KL divergence from the reference, aggregated as the loss is
    kl: str = "k3"  # or "k2": the direction of the KL divergence, see losses.py
    reference: Transformer | None = None  # for beta; it is frozen here
    kv_memory_gb: float = 0.0  # GiB that sampling may use; 0: wave_rows is the limit
    cuda_graphs: bool = True  # replay the steps of sampling on a GPU
    gradient_checkpointing: bool = False  # recompute each layer in the backward, to save memory
    shard: bool = False  # divide the model among the ranks of a node (FSDP2)
    watch: Callable[[str], object] = str  # called with a progress message; `str` discards it

    def __post_init__(self):
        self.model: Transformer = self.checkpoint.model
        # What a row took of the memory for sampling the last time, by how it was drawn.
        self.row_bytes: dict[tuple, float] = {}
        if not self.stop_tokens:
            raise ValueError("the policy has no stop tokens: no response would ever end")
        if self.kl not in ("k2", "k3"):
            raise ValueError(f"kl must be k2 or k3, got {self.kl!r}")
        self.model.gradient_checkpointing = self.gradient_checkpointing
        self.frozen = TokenLogProbs(self.reference.requires_grad_(False)) if self.beta else None
        # The gathered copy is made before sharding, so that it does not get the hooks of sharding.
        self.gathered = sharding.Gathered(self.model) if self.shard else None
        self.module = TokenLogProbs(self.model)
        if self.shard:
            self.module = sharding.fully_sharded(self.module, self.model.model.layers)
        else:
            self.module = distributed.data_parallel(self.module, None)
        self.device = self.model.lm_head.weight.device

    # Read from the checkpoint, so that what samples is what is saved.
    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint."""
        return cast(Tokenizer, self.checkpoint.tokenizer)

    @property
    def stop_tokens(self) -> Sequence[int]:
        """The ids that end a response."""
        return self.checkpoint.stop_tokens

    def precision(self) -> AbstractContextManager:
        """Return the context of a forward: with autocast, matrix products in bfloat16.

        Parameters stay in float32 and are cast once per context, not once per token.
        """
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    def unsharded_model(self) -> Transformer:
        """Return the model for what needs no gradient.

        If it is sharded, the first call after an update is a collective of all ranks.

        Ranks sample to different lengths, so they could not join in the collectives of a sharded
        model's forwards. Each has a whole copy, whose linear layers are in bfloat16 under autocast.
        """
        if self.gathered is None:
            return self.model
        return self.gathered.get(linear=torch.bfloat16 if self.autocast else None)

    def encode_prompts(self, examples: Sequence[Example]) -> list[Tensor]:
        """Return the token ids of each example's prompt, one-dimensional."""
        return [torch.tensor(self.tokenizer.encode_prompt(e.prompt)) for e in examples]

    def rollout(
        self,
        examples: Sequence[Example],
        num_rollouts: int,
        *,
        step: int = 0,
        indices: Sequence[int] | None = None,
        seed: int | None = None,
        earlier: int = 0,
        **sampling,
    ) -> Rollouts:
        """Sample N = `num_rollouts` responses to each of P_local examples.

        step      of the run; every step has noise of its own
        indices   P_local positions of the prompts in the batch of all ranks (default: 0, 1, ...)
        seed      in place of the policy's
        earlier   how many responses to each example were sampled before: their noise is skipped
        sampling  temperature, top_k, top_p of drawing.distribution (default: temperature 1)

        Raises PromptError for a prompt that the model cannot answer.
        """
        prompts = self.encode_prompts(examples)
        indices = range(len(prompts)) if indices is None else indices
        seed = self.seed if seed is None else seed
        model = self.unsharded_model()
        budget = self.kv_memory_gb * 2**30 or math.inf

        def sample(part: slice, columns: slice) -> Rollouts:
            # Noise is drawn for the whole group, so that it is the same if the memory has room for
            # a part of the group alone.
            uniforms = noise(seed, step, indices[part], num_rollouts, self.max_tokens, earlier)
            uniforms = uniforms[:, columns]  # (G, M, max_tokens)

            def watch(position: int) -> None:
                token = f"token {position}/{self.max_tokens}"
                self.watch(f"sampling {token} (prompt {part.stop}/{len(prompts)})")

            options = {"watch": watch, "cuda_graphs": self.cuda_graphs, **sampling}
            with self.precision():
                return generate(model, prompts[part], uniforms, self.stop_tokens, budget, **options)

        rows = max(num_rollouts, self.wave_rows)
        drawn = tuple(sorted(sampling.items()))
        # With a memory budget, all rows start together, since most end early and free their share.
        # From the second time on, only as many start as would have fitted the last time, less a
        # margin for longer responses.
        if self.kv_memory_gb:
            rows = len(prompts) * num_rollouts
            if drawn in self.row_bytes:
                rows = min(rows, max(1, int(MARGIN * budget / self.row_bytes[drawn])))
        rollouts = in_waves(sample, len(prompts), num_rollouts, rows)
        self.row_bytes[drawn] = rollouts.row_bytes
        rollouts.tokenizer = self.tokenizer
        return rollouts

    def demonstrate(self, examples: Sequence[Example]) -> Rollouts:
        """Return the reference answers of the examples as rollouts, N = 1.

        With advantage 1 their loss is that of maximum likelihood. PromptError if one is missing.
        """
        end = self.tokenizer.turn_end(self.stop_tokens)
        answers = []
        for example in examples:
            if not example.answer:
                raise PromptError(f"no answer to learn from: {example.prompt!s:.60}")
            ids = self.tokenizer.encode(example.answer)
            # Some tasks write the stop token of an answer themselves.
            if not ids or ids[-1] not in self.stop_tokens:
                ids = [*ids, end]
            answers.append(torch.tensor(ids))
        prompts = self.encode_prompts(examples)
        # An answer may be longer than max_tokens, and must fit the model's positions as well.
        for prompt, answer in zip(prompts, answers):
            check_prompts(self.model, [prompt], len(answer))
        tokens, lengths = pad(answers, "cpu")  # (P_local, L), (P_local,)
        lengths = lengths[:, None]  # (P_local, 1)
        finished = torch.ones_like(lengths, dtype=torch.bool)
        return Rollouts(prompts, tokens[:, None], lengths, finished, self.tokenizer)

    def forward(
        self, module: nn.Module, batch: MicroBatch | None, with_entropy: bool = False
    ) -> Any:
        """Run a TokenLogProbs in this policy's precision."""
        with self.precision():
            return module(batch, with_entropy)

    @torch.no_grad()
    def record(self, rollouts: Rollouts) -> Metrics:
        """Store the log-probabilities before the first of several updates as old_log_probs.

        Returns statistics over all ranks, which must all call this.
        """
        cuda.forget_graphs()  # as in `backward`
        # From the training forward, as in the updates: the sampler's values differ by rounding.
        module = TokenLogProbs(self.unsharded_model())
        shape = rollouts.tokens.shape  # (P_local, N, L)
        old = torch.zeros(shape, dtype=torch.float32, device=self.device)
        old_rows = old.flatten(0, 1)  # (P_local N, L)
        stats = UpdateStats(rollouts, self.clip)
        all_ids = range(len(old))
        for batch in micro_batches(rollouts, all_ids, self.micro_batch_tokens, self.device):
            log_probs, _ = self.forward(module, batch)  # (G, M, L)
            old_rows[batch.row_ids, : log_probs.shape[-1]] = log_probs.to(old.dtype)
            stats.compare(batch, log_probs)
        rollouts.old_log_probs = old
        return stats.totals.metrics()

    def backward(
        self, rollouts: Rollouts, advantages: Tensor, group_ids: Iterable[int] | None = None
    ) -> Totals:
        """Add the gradient of an update's loss to the parameters' .grad.

        rollouts    of this rank
        advantages  (P_local, N)
        group_ids   which of the P_local prompts the update is made of (default: all)

        Returns the Totals of its statistics. All ranks must call this.
        """
        # The copies of the weights for sampling are out of date after this update.
        self.free_copies()
        # Sampling's CUDA graphs are not used again either, and the gradient may need their memory.
        cuda.forget_graphs()
        group_ids = list(range(len(advantages)) if group_ids is None else group_ids)
        batches, sizes = self.batches(rollouts, group_ids, advantages)
        # One divisor for all micro-batches and ranks; it also counts rows that are not run.
        divisor = normaliser(self.aggregation, sizes["rollouts"], sizes["scaled"], self.max_tokens)
        stats = UpdateStats(rollouts, self.clip, rollouts.counts(group_ids)["tokens"])
        if self.beta:
            stats.totals.add("kl", per_token, 0, 0)
        advantages = advantages.to(self.device, non_blocking=True)
        for i, batch in enumerate(batches):
            self.watch(f"training micro-batch {i + 1}/{len(batches)}")
            # DDP averages gradients over the ranks once, in the last backward.
            with distributed.synchronised(self.module, now=i + 1 == len(batches)):
                loss = self.loss(batch, rollouts, advantages, divisor, stats)
                # DDP and fully_shard average over the ranks; the loss is a sum over them.
                (loss * distributed.world_size()).backward()
            stats.totals.sum("loss", loss)
        # Autocast has left unsharded bfloat16 copies of a LoRA model's frozen weights.
        self.free_copies()
        return stats.totals

    def free_copies(self) -> None:
        """Free what a rank holds of a sharded model besides its part."""
        if self.gathered:
            self.gathered.drop()
            drop_casts(self.model)

    def batches(
        self, rollouts: Rollouts, group_ids: list[int], advantages: Tensor
    ) -> tuple[list[MicroBatch | None], Metrics]:
        """Cut the groups of an update into micro-batches, the same number on every rank.

        A rank with fewer micro-batches than another one, such as a rank without a success, gets
        None for each missing one. There is at least one, so that every rank runs a backward.

        Returns the micro-batches, and the counts of the update's rollouts over all ranks.
        """
        # Rows with advantage 0 have no policy gradient, but the other terms of the loss have one.
        everything = bool(self.beta or self.entropy_bonus)
        trained = (advantages != 0) | everything  # (P_local, N)
        cut = micro_batches(rollouts, group_ids, self.micro_batch_tokens, self.device, trained)
        batches: list[MicroBatch | None] = list(cut)
        totals = Totals()
        for name, count in rollouts.counts(group_ids).items():
            totals.sum(name, count)
        # Ranks wait for each other in every forward of fully_shard and in DDP's last backward.
        totals.highest("batches", len(batches))
        sizes = totals.metrics()
        missing = max(1, int(sizes["batches"])) - len(batches)
        return [None] * missing + batches, sizes

    def loss(
        self,
        batch: MicroBatch | None,
        rollouts: Rollouts,
        advantages: Tensor,
        divisor: float,
        stats: UpdateStats,
    ) -> Tensor:
        """Return the loss of a micro-batch, a scalar, and note its statistics.

        advantages  (P_local, N), on the device
        divisor     of the update
        """
        output = self.forward(self.module, batch, bool(self.entropy_bonus))
        if batch is None:
            return output
        log_probs, entropies = output  # (G, M, L)
        chosen = batch.select(advantages)  # (G, M)
        old = batch.select(rollouts.old_log_probs)  # (G, M, L)
        stats.take(batch, log_probs, chosen)
        loss = policy_gradient_loss(  # Algorithm 1, line 8, up to the divisor
            log_probs, chosen, batch.mask, divisor, old_log_probs=old, clip=self.clip
        )
        # Both terms have the policy gradient's divisor, so that beta and entropy_bonus mean the
        # same at any batch size.
        if self.beta:
            with torch.no_grad():
                reference, _ = self.forward(self.frozen, batch)
            kl = k3(log_probs, reference, batch.mask)  # (G, M, L)
            stats.mean("kl", kl, batch)
            if self.kl == "k2":
                kl = k2(log_probs, reference, batch.mask)  # (G, M, L)
            loss = loss + self.beta * stats.total(batch, kl) / divisor
        if self.entropy_bonus:
            loss = loss - self.entropy_bonus * stats.total(batch, entropies) / divisor
        return loss

    def restore_buffers(self) -> None:
        """Undo the side effects of a skipped update's forward, of which this model has none."""
