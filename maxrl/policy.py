"""A policy makes rollouts and turns their advantages into gradients. Three verbs: rollout, demonstrate, backward.

SequencePolicy, here, samples the tokens of a language model; ClassifierPolicy, in classifier.py, draws the class of an
image. Both give (P_local, N) of everything, so that one loop and one set of estimators serve both; evaluate() gives pass@k.
"""

import math
import sys

import torch
from torch import nn

from maxrl import checkpoint, distributed, sharding
from maxrl.classifier import ClassifierPolicy
from maxrl.evaluate import count_successes
from maxrl.io.tokenizer import Tokenizer
from maxrl.losses import k3, log_probs_and_entropies, normaliser, policy_gradient_loss
from maxrl.metrics import pass_at_k_table
from maxrl.models.lora import drop_casts
from maxrl.rollouts import MicroBatch, Rollouts
from maxrl.sampler import check_prompts, generate, noise, pad
from maxrl.waves import cache_bytes, groups_within, in_waves


class TokenLogProbs(nn.Module):
    """The one forward that gradients go through: DDP and fully_shard synchronise nothing that goes around it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch: "MicroBatch | None", with_entropy: bool = False):
        """Log-probabilities (G, M, L) of the targets, and entropies (G, M, L) or None. For batch None, of a rank with
        nothing to train, a 0 that needs a gradient: a token through every layer, because fully_shard waits at each."""
        if batch is None:
            token = torch.zeros(1, 1, 1, dtype=torch.long, device=self.model.lm_head.weight.device)
            return self.model.lm_head(self.model(token)).sum() * 0
        hidden = self.model(batch.inputs, batch.prefix, batch.prefix_lengths)[batch.scored]   # (tokens, E)
        scored = log_probs_and_entropies(hidden, self.model.lm_head, batch.targets[batch.mask], with_entropy)
        return [None if x is None else x.new_zeros(batch.mask.shape).masked_scatter(batch.mask, x) for x in scored]


class SequencePolicy:
    """A language model as a policy: samples tokens, and scores them again in micro-batches with gradients."""

    unit = "tokens"  # what its work is counted in

    def __init__(self, model, tokenizer: Tokenizer, stop_tokens, *, max_tokens: int, seed: int = 0, aggregation: str = "token",
                 micro_batch_tokens: int = 32768, wave_rows: int = 4096, autocast: bool = False, share_prompt: bool = True,
                 clip=(0.2, 0.2), entropy_bonus: float = 0.0, beta: float = 0.0, reference=None, kv_memory_gb: float = 0.0,
                 gradient_checkpointing: bool = False, shard: bool = False):
        """stop_tokens: ids that end a response; max_tokens: longest response; reference: the frozen model of the KL
        penalty `beta`; the rest as in Config. With `shard` the model comes on the CPU and goes to the ranks' devices."""
        if not stop_tokens:
            raise ValueError("the policy has no stop tokens: no response would ever end")
        self.model, self.tokenizer, self.stop_tokens = model, tokenizer, list(stop_tokens)
        self.max_tokens, self.seed, self.aggregation, self.share_prompt = max_tokens, seed, aggregation, share_prompt
        self.micro_batch_tokens, self.wave_rows, self.autocast = micro_batch_tokens, wave_rows, autocast
        self.clip, self.entropy_bonus, self.beta = clip, entropy_bonus, beta
        self.kv_memory_gb, model.gradient_checkpointing = kv_memory_gb, gradient_checkpointing
        self.reference = TokenLogProbs(reference.requires_grad_(False)) if beta else None
        self.rows_in_memory = sys.maxsize  # how many rollouts fit at once: fewer after an out-of-memory error
        self.unwrapped = TokenLogProbs(model)
        self.frame, self.copy = sharding.meta_skeleton(model) if shard else None, None
        self.scorer = (sharding.fully_sharded(self.unwrapped, model.model.layers) if shard else
                       distributed.data_parallel(self.unwrapped))
        self.device = model.lm_head.weight.device

    def precision(self):
        """Matrix products in bfloat16 around float32 parameters; each weight is cast once per context, not per token."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    def whole(self):
        """The model for all that needs no gradient: itself, or of a sharded one a whole copy, which all ranks must ask for
        and which the next backward lets go. With that, ranks may sample to different lengths."""
        if self.frame is None:
            return self.model
        if self.copy is None:
            self.copy = sharding.gathered(self.model, self.frame, linear=torch.bfloat16 if self.autocast else None)
        return self.copy

    def wave_groups(self, rollouts: int) -> int:
        """How many groups of `rollouts` rows are sampled at once."""
        if not self.kv_memory_gb:
            return max(1, self.wave_rows // rollouts)
        size = 2 if self.autocast else self.model.lm_head.weight.element_size()
        return groups_within(self.kv_memory_gb, rollouts, cache_bytes(self.model.config, self.max_tokens, size))

    def rollout(self, examples, rollouts: int, *, step: int = 0, indices=None, seed=None, **sampling) -> Rollouts:
        """N = `rollouts` responses to each example; `indices` are the prompts' positions in the whole batch."""
        prompts = [torch.tensor(self.tokenizer.encode_prompt(e.prompt)) for e in examples]
        indices = range(len(prompts)) if indices is None else indices
        seed = self.seed if seed is None else seed
        model = self.whole()

        def sample(groups: slice, columns: slice):
            drawn = noise(seed, step, indices[groups], rollouts, self.max_tokens)[:, columns]      # (G, M, max_tokens)
            with self.precision():
                return generate(model, prompts[groups], drawn.shape[1], self.max_tokens, self.stop_tokens, drawn, **sampling)

        rows = min(self.wave_groups(rollouts) * rollouts, self.rows_in_memory)
        out, fitting = in_waves(sample, len(prompts), rollouts, rows)
        self.rows_in_memory = fitting if fitting < rows else self.rows_in_memory
        return Rollouts(prompts, out.tokens, out.lengths, out.finished, self.tokenizer, out.log_probs, out.entropies)

    def demonstrate(self, examples) -> Rollouts:
        """The reference answers as rollouts, N = 1: with advantage 1, maximum likelihood of demonstrations."""
        prompts = [torch.tensor(self.tokenizer.encode_prompt(e.prompt)) for e in examples]
        eos = self.tokenizer.backend.token_to_id(self.tokenizer.special("eos_token") or "")
        end = eos if eos in self.stop_tokens else self.stop_tokens[0]  # of answers whose task does not write its own
        answers = [self.tokenizer.encode(e.answer) for e in examples]
        answers = [torch.tensor(a if a and a[-1] in self.stop_tokens else [*a, end]) for a in answers]
        tokens, lengths = pad(answers, self.device)
        check_prompts(self.model, prompts, tokens.shape[1])
        return Rollouts(prompts, tokens[:, None], lengths[:, None], torch.ones_like(lengths[:, None]).bool(), self.tokenizer)

    @torch.no_grad()
    def record(self, rollouts: Rollouts) -> dict[str, float]:
        """Notes the log-probs of the rollouts before the first of several updates, by the training forward; statistics over
        all ranks."""
        scorer, sums, largest = TokenLogProbs(self.whole()), {"difference": 0.0, "scored": 0.0}, 0.0
        rollouts.old_log_probs = torch.zeros(rollouts.tokens.shape, device=self.device)
        for batch in self.micro_batches(rollouts, range(len(rollouts.prompts))):
            with self.precision():
                log_probs, _ = scorer(batch)                                                       # (G, M, L)
            for g, values in zip(batch.groups, log_probs):
                rollouts.old_log_probs[g, batch.rows, : values.shape[-1]] = values
            largest = max(largest, self.compare(rollouts, batch, log_probs, sums))
            sums["scored"] += float(batch.mask.sum())
        return self.differences(distributed.all_reduce(sums, device=self.device), largest)

    def compare(self, rollouts, batch, log_probs, sums: dict) -> float:
        """How far the sampler's log-probs are from the training forward's: adds to `sums`, returns the largest difference."""
        difference = ((log_probs.detach() - batch.of(rollouts.log_probs)) * batch.mask).abs()      # (G, M, L)
        sums["difference"] += float(difference.sum())
        return float(difference.max())

    def differences(self, sums: dict, largest: float) -> dict[str, float]:
        largest = distributed.all_reduce({"max": largest}, "max", self.device)["max"]
        return {"sampling/logprob_abs_diff/mean": sums["difference"] / max(sums["scored"], 1),
                "sampling/logprob_abs_diff/max": largest}

    def backward(self, rollouts: Rollouts, advantages: torch.Tensor, groups=None) -> dict[str, float]:
        """Adds the gradient of an update's loss to the parameters' .grad. advantages (P_local, N); groups: which of the
        P_local the update is made of, all without it.

        Groups whose advantages are all 0 are not run, unless the loss has other terms too, but the normaliser counts them.
        Every rank runs as many micro-batches as the one with the most. Returns statistics over all ranks.
        """
        self.copy = None  # of weights that are about to change
        advantages = advantages.to(self.device)
        groups = list(range(len(advantages)) if groups is None else groups)
        lengths = rollouts.lengths[groups]
        counts = distributed.all_reduce({"rollouts": lengths.numel(), "tokens": int(lengths.sum())}, device=self.device)
        divisor = normaliser(self.aggregation, counts["rollouts"], counts["tokens"], self.max_tokens)
        every = bool(self.beta or self.entropy_bonus)
        live = [g for g, some in zip(groups, (advantages[groups] != 0).any(1).tolist()) if some or every]
        batches = list(self.micro_batches(rollouts, live))
        most = distributed.all_reduce({"batches": len(batches)}, "max", self.device)["batches"]
        batches = [None] * (max(1, int(most)) - len(batches)) + batches
        sums, largest = dict.fromkeys(("loss", "scored", "difference", "kl", "low", "high"), 0.0), 0.0
        for i, batch in enumerate(batches):
            with distributed.synchronised(self.scorer, now=i == len(batches) - 1):
                with self.precision():
                    scored = self.scorer(batch, bool(self.entropy_bonus))
                loss = scored if batch is None else self.loss(rollouts, batch, advantages, *scored, divisor, sums)
                (loss * distributed.world_size()).backward()  # both ways to average divide by it
            sums["loss"] += float(loss.detach())
            if batch is not None and rollouts.log_probs is not None and rollouts.old_log_probs is None:
                largest = max(largest, self.compare(rollouts, batch, scored[0], sums))
        sums = distributed.all_reduce(sums, device=self.device)
        if self.frame is not None:
            drop_casts(self.model)
        return self.named(rollouts, sums, largest, counts["tokens"]) | {"tokens": counts["tokens"]}

    def loss(self, rollouts, batch, advantages, log_probs, entropies, divisor: float, sums: dict) -> torch.Tensor:
        """A micro-batch's share of the loss; adds to `sums` what is logged of it."""
        advantages, old = batch.of(advantages), rollouts.old_log_probs
        old = None if old is None else batch.of(old)
        loss = policy_gradient_loss(log_probs, advantages, batch.mask, divisor, old_log_probs=old, clip=self.clip)
        sums["scored"] += float(batch.mask.sum())
        if self.beta:
            with torch.no_grad(), self.precision():
                reference, _ = self.reference(batch)
            kl = k3(log_probs, reference, batch.mask)                                              # (G, M, L)
            loss = loss + self.beta * kl.sum() / divisor
            sums["kl"] += float(kl.detach().sum())
        if self.entropy_bonus:
            loss = loss - self.entropy_bonus * entropies.sum() / divisor
        if old is not None:
            ratio, A = ((log_probs.detach() - old) * batch.mask).exp(), advantages[..., None] * batch.mask
            sums["low"] += float(((ratio < 1 - self.clip[0]) & (A < 0)).sum())
            sums["high"] += float(((ratio > 1 + self.clip[1]) & (A > 0)).sum())
        return loss

    def named(self, rollouts: Rollouts, sums: dict, largest: float, count: float) -> dict[str, float]:
        """The statistics of backward() by the names of metrics.jsonl, those that there are; count: all response tokens, those
        of groups that were not scored too, where there is nothing to clip."""
        stats, tokens = {"loss": sums["loss"]}, max(sums["scored"], 1)
        if rollouts.log_probs is not None and rollouts.old_log_probs is None:
            stats |= self.differences(sums, largest)
        if rollouts.old_log_probs is not None:
            stats |= {f"clip_ratio/{side}_mean": sums[side] / max(count, 1) for side in ("low", "high")}
        return stats | ({"kl": sums["kl"] / tokens} if self.beta else {})

    def restore_buffers(self):
        """Of an update that is left out: nothing, for a forward changes nothing."""

    def evaluate(self, task, prompts: int, ks, samples: int, **sampling) -> dict[str, float]:
        """pass@k on the first `prompts` prompts of a task, from `samples` rollouts each; the same noise every time. Groups
        without a verdict are left out and counted. sampling: temperature and top_p, where they are not those of training."""
        counts = count_successes(self, task, range(min(prompts, len(task))), samples, **sampling)
        judged = counts[counts >= 0]
        table = pass_at_k_table(judged, samples, ks) if len(judged) else {k: (math.nan, math.nan) for k in ks}
        return {f"pass@{k}": mean for k, (mean, _) in table.items()} | {"groups_left_out": float(len(counts) - len(judged))}

    def gathered_state(self, optimizer) -> dict:
        """Of a sharded model, what save() takes: all ranks call this, rank 0 saves."""
        return sharding.gathered_state(self.model, self.frame, optimizer)

    def save(self, path, model=None, **state):
        if model is None and self.frame is not None:
            raise ValueError("of a sharded model this rank has slices: save(path, **gathered_state(optimizer)) writes it whole")
        checkpoint.save(path, model or self.model, self.tokenizer, self.stop_tokens, **state)

    def micro_batches(self, rollouts: Rollouts, groups: list[int]):
        """Cut groups into MicroBatches of at most `micro_batch_tokens` padded tokens: whole groups or a slice of one."""
        budget, chosen, N = self.micro_batch_tokens, [], rollouts.lengths.shape[1]
        for g in groups:
            if chosen and self.padded_tokens(rollouts, [*chosen, g], N) > budget:
                yield self.micro_batch(rollouts, chosen, slice(N))
                chosen = []
            if self.padded_tokens(rollouts, [g], N) <= budget:
                chosen.append(g)
                continue
            rows = N  # one group is too much for a forward: its prompt is encoded again for every slice
            while rows > 1 and self.padded_tokens(rollouts, [g], rows) > budget:
                rows = -(-rows // 2)
            for start in range(0, N, rows):
                yield self.micro_batch(rollouts, [g], slice(start, start + rows))
        if chosen:
            yield self.micro_batch(rollouts, chosen, slice(N))

    def padded_tokens(self, rollouts: Rollouts, groups: list[int], rows: int) -> int:
        """How many tokens a forward over `rows` rollouts of each of the groups runs through the model."""
        prompt, response = max(len(rollouts.prompts[g]) for g in groups), int(rollouts.lengths[groups].max())
        return len(groups) * (prompt + rows * response if self.share_prompt else rows * (prompt + response))

    def micro_batch(self, rollouts: Rollouts, groups: list[int], rows: slice) -> "MicroBatch":
        lengths = rollouts.lengths[groups][:, rows]  # (G, M)
        L = int(lengths.max())
        targets = rollouts.tokens[groups][:, rows, :L]  # (G, M, L)
        mask = torch.arange(L, device=self.device) < lengths[..., None]
        prompts = [rollouts.prompts[g] for g in groups]
        batch = MicroBatch(groups, rows, targets, mask)
        return batch.with_shared_prompt(prompts) if self.share_prompt else batch.with_plain_rows(prompts)


def make_policy(model, tokenizer, stop_tokens, task, device, *, seed: int = 0, autocast: bool = False, workers: int = 0,
                **options):
    """The policy for a task: a ClassifierPolicy where it has classes, else a SequencePolicy with `options`.

    ValueError where model and task do not fit each other.
    """
    if bool(task.classes) != (tokenizer is None):
        kind = "a classifier" if tokenizer is None else "a language model"
        raise ValueError(f"the model is {kind}, the task is not made for one")
    if task.classes:
        if model.config.num_labels != len(task.classes):
            raise ValueError(f"the model has {model.config.num_labels} classes, the images have {len(task.classes)}")
        model = model.to(device, memory_format=torch.channels_last)
        return ClassifierPolicy(model, task.classes, seed=seed, autocast=autocast, workers=workers)
    if tokenizer.size > model.config.vocab_size:
        raise ValueError(f"the tokenizer has {tokenizer.size} tokens, the model's vocab_size is {model.config.vocab_size}")
    stop = [tokenizer.id(token) for token in task.stop_tokens] or stop_tokens
    if not options.get("shard"):  # sharding takes the model to the device layer by layer
        model = model.to(device)
    return SequencePolicy(model, tokenizer, stop, seed=seed, autocast=autocast, **options)
