"""A policy makes rollouts and turns advantages into gradients: rollout, demonstrate, backward.

SequencePolicy samples the tokens of a language model, ClassifierPolicy the class of an image. Both
give (P_local, N) of everything: one loop and one set of estimators serve both.

Letters: P_local prompts of this rank, N rollouts of each, L tokens, E numbers of a hidden state. A
micro-batch has M of the rows of G groups.
"""

import math
import sys

import torch
from torch import nn

from maxrl import checkpoint
from maxrl.classifier import ClassifierPolicy
from maxrl.evaluation import pass_at_ks
from maxrl.losses import k3, log_probs_and_entropies, normaliser, policy_gradient_loss
from maxrl.models.lora import drop_casts
from maxrl.parallel import distributed, sharding
from maxrl.rollouts import Rollouts, Tally, micro_batches, upload
from maxrl.sampling.memory import in_waves
from maxrl.sampling.sampler import check_prompts, generate, noise, pad


class TokenLogProbs(nn.Module):
    """The one forward with gradients: DDP synchronises nothing that calls the model directly."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch, with_entropy: bool = False):
        """Run a micro-batch.

        batch         a MicroBatch, or None if this rank has fewer of them than another
        with_entropy  whether entropies are asked for

        Returns the log-probabilities of the targets and the entropies of their distributions or
        None, both (G, M, L) and 0 in the padding. For None, a 0 that needs a gradient.
        """
        head = self.model.lm_head
        if batch is None:
            # Through every layer: under fully_shard the other ranks wait at each.
            token = torch.zeros(1, 1, 1, dtype=torch.long, device=head.weight.device)
            return head(self.model(token)).sum() * 0
        hidden = self.model(batch.inputs, batch.prefix, batch.prefix_lengths)
        # Logits take more memory than all else, so the padding gets none.
        hidden = hidden.flatten(0, 2)
        hidden = hidden.index_select(0, batch.places)  # (tokens, E)
        targets = batch.targets.flatten()[batch.places]  # (tokens,)
        result = []
        for values in log_probs_and_entropies(hidden, head, targets, with_entropy):
            if values is not None:
                zeros = values.new_zeros(batch.mask.numel())
                values = zeros.index_copy(0, batch.places, values)
                values = values.view(batch.mask.shape)  # (G, M, L)
            result.append(values)
        return result


class SequencePolicy:
    """A language model as a policy: it samples tokens, and runs them again with gradients.

    model                   a Transformer; with `shard` it must still be on the CPU
    tokenizer               of its prompts and responses
    stop_tokens             ids that end a response
    max_tokens              the longest response
    seed                    of the noise that tokens are drawn by
    aggregation             what the loss is divided by, see losses.normaliser
    micro_batch_tokens      the most padded tokens of a training forward
    wave_rows               the most rollouts sampled at once
    autocast                whether forwards are in bfloat16
    clip                    (low, high): how far the importance ratio may be from 1
    entropy_bonus           weight of the entropy, nats per token
    beta                    weight of the KL divergence from the reference, nats per token
    reference               a Transformer for beta, frozen here
    kv_memory_gb            GiB of what sampling has in use, instead of wave_rows; 0: no limit
    gradient_checkpointing  whether the backward makes each layer again, to save memory
    shard                   whether the ranks divide the model among them (FSDP2)

    ValueError without stop tokens.
    """

    unit = "tokens"  # what its work is counted in

    def __init__(
        self,
        model,
        tokenizer,
        stop_tokens,
        *,
        max_tokens: int,
        seed: int = 0,
        aggregation: str = "token",
        micro_batch_tokens: int = 32768,
        wave_rows: int = 4096,
        autocast: bool = False,
        clip=(0.2, 0.2),
        entropy_bonus: float = 0.0,
        beta: float = 0.0,
        reference=None,
        kv_memory_gb: float = 0.0,
        gradient_checkpointing: bool = False,
        shard: bool = False,
    ):
        if not stop_tokens:
            raise ValueError("the policy has no stop tokens: no response would ever end")
        self.model = model
        self.tokenizer = tokenizer
        self.stop_tokens = list(stop_tokens)
        self.max_tokens = max_tokens
        self.seed = seed
        self.aggregation = aggregation
        self.micro_batch_tokens = micro_batch_tokens
        self.wave_rows = wave_rows
        self.autocast = autocast
        self.clip = clip
        self.entropy_bonus = entropy_bonus
        self.beta = beta
        self.kv_memory_gb = kv_memory_gb
        model.gradient_checkpointing = gradient_checkpointing
        # How many rollouts fit at once: fewer after an out-of-memory error.
        self.rows_in_memory = sys.maxsize
        self.reference = TokenLogProbs(reference.requires_grad_(False)) if beta else None
        self.skeleton = None
        self.unsharded = None
        self.module = TokenLogProbs(model)
        if shard:
            # The skeleton first: once the model is divided, its modules have hooks.
            self.skeleton = sharding.meta_skeleton(model)
            self.module = sharding.fully_sharded(self.module, model.model.layers)
        else:
            self.module = distributed.data_parallel(self.module, None)
        self.device = model.lm_head.weight.device

    def precision(self):
        """Return the context of a forward: with autocast, matrix products in bfloat16."""
        # Parameters stay in float32; each is cast once per context, not once per token.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    def unsharded_model(self):
        """Return the model for what needs no gradient; all ranks must call this."""
        # A sharded one is gathered, a whole copy on every rank: they sample to different lengths.
        if self.skeleton is None:
            return self.model
        if self.unsharded is None:
            dtype = torch.bfloat16 if self.autocast else None
            self.unsharded = sharding.gathered(self.model, self.skeleton, linear=dtype)
        return self.unsharded

    def encode_prompts(self, examples) -> list[torch.Tensor]:
        """Return the ids of each example's prompt, one-dimensional."""
        return [torch.tensor(self.tokenizer.encode_prompt(e.prompt)) for e in examples]

    def rollout(
        self, examples, rollouts: int, *, step=0, indices=None, seed=None, first=0, **sampling
    ) -> Rollouts:
        """Sample N = `rollouts` responses to each example.

        examples  P_local, each with a prompt
        step      of the run: another step, other noise
        indices   P_local places of the prompts in the batch of all ranks; without it 0, 1, ...
        seed      instead of the policy's
        first     how many responses to each example were sampled before, by other noise
        sampling  temperature, top_k, top_p of drawing.distribution; without them those of training

        Returns Rollouts. PromptError for a prompt that the model cannot answer.
        """
        prompts = self.encode_prompts(examples)
        indices = range(len(prompts)) if indices is None else indices
        seed = self.seed if seed is None else seed
        model = self.unsharded_model()
        budget = self.kv_memory_gb * 2**30 or math.inf

        def sample(groups: slice, columns: slice):
            # Drawn for all columns, so that a rollout has the same noise in any part.
            uniforms = noise(seed, step, indices[groups], rollouts, self.max_tokens, first)
            uniforms = uniforms[:, columns]  # (G, M, max_tokens)
            M = uniforms.shape[1]
            limits = self.max_tokens, self.stop_tokens
            some = prompts[groups]
            with self.precision():
                return generate(model, some, M, *limits, uniforms, budget, **sampling)

        rows = max(1, self.wave_rows // rollouts) * rollouts
        # With a budget all begin at once: few are ever as long as the longest.
        if self.kv_memory_gb:
            rows = len(prompts) * rollouts
        rows = min(rows, self.rows_in_memory)
        samples, fitting = in_waves(sample, len(prompts), rollouts, rows)
        # What has not fitted once is not tried in every step.
        if fitting < rows:
            self.rows_in_memory = fitting
        return Rollouts(prompts, tokenizer=self.tokenizer, **vars(samples))

    def demonstrate(self, examples) -> Rollouts:
        """Return the answers of the examples as rollouts, N = 1.

        examples  P_local, each with a prompt and an answer

        With advantage 1 their loss is that of maximum likelihood. PromptError as in rollout.
        """
        # Of the tokens that end a response, the one with which a text ends.
        end = self.tokenizer.backend.token_to_id(self.tokenizer.special("eos_token") or "")
        if end not in self.stop_tokens:
            end = self.stop_tokens[0]
        answers = []
        for example in examples:
            ids = self.tokenizer.encode(example.answer)
            # Some tasks write the end of an answer themselves.
            if not ids or ids[-1] not in self.stop_tokens:
                ids = [*ids, end]
            answers.append(torch.tensor(ids))
        prompts = self.encode_prompts(examples)
        # The longest answer may be longer than max_tokens, and must fit too.
        tokens, lengths = pad(answers, self.device)  # (P_local, L)
        check_prompts(self.model, prompts, tokens.shape[1])
        lengths = lengths[:, None]  # (P_local, 1)
        finished = torch.ones_like(lengths, dtype=torch.bool)
        return Rollouts(prompts, tokens[:, None], lengths, finished, self.tokenizer)

    def forward(self, module, batch, with_entropy: bool = False):
        """Run a TokenLogProbs in this policy's precision; arguments and result are its own."""
        with self.precision():
            return module(batch, with_entropy)

    @torch.no_grad()
    def record(self, rollouts) -> dict:
        """Note in old_log_probs how likely the tokens are before the first of several updates.

        rollouts  of this rank

        Returns statistics over all ranks, which must all call this.
        """
        # By the training forward, as in the updates: the sampler's differ by rounding.
        module = TokenLogProbs(self.unsharded_model())
        old = torch.zeros(rollouts.tokens.shape, device=self.device)  # (P_local, N, L)
        rows = old.flatten(0, 1)
        tally = Tally(rollouts, self.clip, self.device)
        everything = range(len(old))
        for batch in micro_batches(rollouts, everything, self.micro_batch_tokens, self.device):
            log_probs, _ = self.forward(module, batch)  # (G, M, L)
            L = log_probs.shape[-1]
            rows[batch.rows, :L] = log_probs.to(old.dtype)
            tally.compare(batch, log_probs)
            tally.add("tokens", batch.mask)
        tally.over_ranks()
        rollouts.old_log_probs = old
        return tally.differences()

    def backward(self, rollouts, advantages, groups=None) -> dict:
        """Add the gradient of an update's loss to the parameters' .grad.

        rollouts    of this rank
        advantages  (P_local, N)
        groups      which of the P_local the update is made of; without it all

        Returns statistics over all ranks, which must all call this.
        """
        # The gathered copy is of weights that are about to change.
        self.unsharded = None
        groups = list(range(len(advantages)) if groups is None else groups)
        # One divisor for all micro-batches and ranks: rows that are not run count too.
        counts = distributed.all_reduce(rollouts.counts(groups))
        sizes = counts["rollouts"], counts["weighted"], self.max_tokens
        divisor = normaliser(self.aggregation, *sizes)
        tally = Tally(rollouts, self.clip, self.device)
        batches = self.batches(rollouts, groups, advantages)
        advantages = upload(advantages, self.device)
        for i, batch in enumerate(batches):
            # DDP averages gradients over the ranks once, in the last backward.
            with distributed.synchronised(self.module, now=i + 1 == len(batches)):
                output = self.forward(self.module, batch, bool(self.entropy_bonus))
                loss = output
                # Without a micro-batch the output is a loss already, of 0.
                if batch is not None:
                    log_probs, entropies = output  # (G, M, L)
                    chosen = batch.select(advantages)  # (G, M)
                    old = batch.select(rollouts.old_log_probs)  # (G, M, L)
                    loss = policy_gradient_loss(  # Algorithm 1, line 8
                        log_probs, chosen, batch.mask, divisor, old_log_probs=old, clip=self.clip
                    )
                    loss = self.with_penalties(loss, batch, log_probs, entropies, divisor, tally)
                # Averaging, by DDP as by fully_shard, divides by the number of ranks.
                (loss * distributed.world_size()).backward()
            tally.add("loss", loss)
            if batch is not None:
                tally.take(batch, log_probs, chosen)
        tally.over_ranks()
        # Frozen weights keep a low-precision copy, here of the whole weight and not of a slice.
        if self.skeleton is not None:
            drop_casts(self.model)
        stats = tally.statistics(counts["tokens"])
        if self.beta:
            stats["kl"] = tally.mean("kl")
        return stats | {"tokens": counts["tokens"]}

    def batches(self, rollouts, groups, advantages) -> list:
        """Cut the groups of an update into micro-batches.

        rollouts    of this rank
        groups      which of the P_local the update is made of
        advantages  (P_local, N)

        Returns MicroBatches and, on a rank with fewer of them than another one, None before them.
        """
        # Advantages of 0 have no gradient, but other terms of the loss have one.
        everything = bool(self.beta or self.entropy_bonus)
        live = (advantages != 0) | everything  # (P_local, N)
        budget = self.micro_batch_tokens
        batches = list(micro_batches(rollouts, groups, budget, self.device, live))
        # Under fully_shard ranks wait for each other in every forward, under DDP in the last.
        most = distributed.all_reduce({"batches": len(batches)}, "max")
        missing = max(1, int(most["batches"])) - len(batches)
        return [None] * missing + batches

    def with_penalties(self, loss, batch, log_probs, entropies, divisor, tally):
        """Add the KL divergence from the reference to a loss, and subtract the entropy.

        loss       of the micro-batch
        log_probs  (G, M, L), entropies as well, or None without an entropy bonus
        divisor    of the update
        tally      which notes the divergence

        Returns the loss, the same one without beta and entropy bonus.
        """
        if not (self.beta or self.entropy_bonus):
            return loss
        weights = tally.weights(batch).to(log_probs)  # (G, M, 1)
        if self.beta:
            with torch.no_grad():
                reference, _ = self.forward(self.reference, batch)
            kl = k3(log_probs, reference, batch.mask)  # (G, M, L)
            tally.add("kl", kl)
            # Over the same divisor as the gradient: beta means the same at any batch size.
            loss = loss + self.beta * (kl * weights).sum() / divisor
        if self.entropy_bonus:
            loss = loss - self.entropy_bonus * (entropies * weights).sum() / divisor
        return loss

    def restore_buffers(self):
        """Undo what the forward of a skipped update did: nothing here, it has no side effect."""

    def evaluate(self, task, prompts: int, ks, samples: int, **sampling) -> dict:
        """Return pass@k on the first `prompts` of a task; the rest as in evaluate.pass_at_ks."""
        return pass_at_ks(self, task, range(min(prompts, len(task))), ks, samples, **sampling)

    def gathered_state(self, optimizer) -> dict:
        """Return what save() takes of a sharded model; all ranks must call this, rank 0 saves."""
        return sharding.gathered_state(self.model, self.skeleton, optimizer)

    def save(self, path, model=None, **state):
        """Write a checkpoint into the directory `path`, with `state` for checkpoint.save.

        ValueError for a sharded model without gathered_state: this rank has slices of it.
        """
        if model is None and self.skeleton is not None:
            raise ValueError(
                "of a sharded model this rank has slices: "
                "save(path, **gathered_state(optimizer)) writes it whole"
            )
        checkpoint.save(path, model or self.model, self.tokenizer, self.stop_tokens, **state)


def make_policy(
    model, tokenizer, stop_tokens, task, device,
    *, seed: int = 0, autocast: bool = False, workers: int = 0, **options
):  # fmt: skip
    """Return the policy for a task: a ClassifierPolicy if it has classes, else a SequencePolicy.

    model        as from checkpoint.load_model, with the tokenizer and the stop tokens
    tokenizer    None of a classifier
    stop_tokens  ids, for a task that names no stop tokens of its own
    task         what it is made for
    device       where the model goes
    seed         of the noise
    autocast     whether forwards are in bfloat16
    workers      processes that read images for an evaluation
    options      of a SequencePolicy

    ValueError if model and task do not fit each other.
    """
    if bool(task.classes) != (tokenizer is None):
        kind = "a classifier" if tokenizer is None else "a language model"
        raise ValueError(f"the model is {kind}, the task is not made for one")
    if task.classes:
        # Exactly as many; a tokenizer may have fewer tokens than the model.
        classes = len(task.classes)
        if model.config.num_labels != classes:
            raise ValueError(
                f"the model has {model.config.num_labels} classes, the images have {classes}"
            )
        model = model.to(device, memory_format=torch.channels_last)
        return ClassifierPolicy(model, task.classes, seed=seed, autocast=autocast, workers=workers)
    if tokenizer.size > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.size} tokens, "
            f"the model's vocab_size is {model.config.vocab_size}"
        )
    stop = [tokenizer.id(token) for token in task.stop_tokens] or stop_tokens
    # Sharding takes the model to the device layer by layer.
    if not options.get("shard"):
        model = model.to(device)
    return SequencePolicy(model, tokenizer, stop, seed=seed, autocast=autocast, **options)
