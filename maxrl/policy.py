"""A policy makes rollouts and turns their advantages into gradients. Three verbs: rollout, demonstrate, backward.

SequencePolicy samples the tokens of a language model, ClassifierPolicy draws the class of an image. Both give rollouts
with a (P_local, N) of everything, so that one loop and one set of estimators serve both; evaluate() gives pass@k.
"""

from dataclasses import dataclass

import torch
from torch import nn

from maxrl import checkpoint, distributed
from maxrl.losses import normaliser, policy_gradient_loss, token_log_probs
from maxrl.metrics import exact_pass_at_k, pass_at_k_table
from maxrl.sampler import check_prompts, distribution, generate, inverse_cdf, noise, pad
from maxrl.tasks.base import prefetched
from maxrl.tokenizer import Tokenizer


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

    def text(self, i: int, j: int) -> str:
        return self.tokenizer.decode(self.tokens[i, j, : self.lengths[i, j]].tolist())

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


class TokenLogProbs(nn.Module):
    """The one forward that gradients go through: DDP and fully_shard synchronise nothing that goes around it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch: "MicroBatch | None"):
        """Log-probabilities (G, M, L) of the targets. None, for a rank with nothing to train: 0 that needs a gradient."""
        if batch is None:
            return sum(p.sum() * 0 for p in self.model.parameters())
        hidden = self.model(batch.inputs, batch.prefix, batch.prefix_lengths)
        return token_log_probs(self.model.lm_head(hidden), batch.targets)


class SequencePolicy:
    """A language model as a policy: samples tokens, and scores them again in micro-batches with gradients."""

    unit = "tokens"  # what its work is counted in

    def __init__(self, model, tokenizer: Tokenizer, stop_tokens, *, max_tokens: int, seed: int = 0, aggregation: str = "token",
                 micro_batch_tokens: int = 32768, wave_rows: int = 4096, autocast: bool = False, share_prompt: bool = True):
        """stop_tokens: ids that end a response; max_tokens: longest response; the rest as in Config."""
        if not stop_tokens:
            raise ValueError("the policy has no stop tokens: no response would ever end")
        self.model, self.tokenizer, self.stop_tokens = model, tokenizer, list(stop_tokens)
        self.device = model.lm_head.weight.device
        self.max_tokens, self.seed, self.aggregation, self.share_prompt = max_tokens, seed, aggregation, share_prompt
        self.micro_batch_tokens, self.wave_rows, self.autocast = micro_batch_tokens, wave_rows, autocast
        self.scorer = distributed.data_parallel(TokenLogProbs(model))

    def precision(self):
        """Matrix products in bfloat16 around float32 parameters; each weight is cast once per context, not per token."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    def rollout(self, examples, rollouts: int, *, step: int = 0, indices=None, seed=None, **sampling) -> Rollouts:
        """N = `rollouts` responses to each example; `indices` are the prompts' positions in the whole batch."""
        prompts = [torch.tensor(self.tokenizer.encode_prompt(e.prompt)) for e in examples]
        indices = range(len(prompts)) if indices is None else indices
        seed = self.seed if seed is None else seed
        waves, per_wave = [], max(1, self.wave_rows // rollouts)
        for i in range(0, len(prompts), per_wave):
            uniforms = noise(seed, step, indices[i : i + per_wave], rollouts, self.max_tokens)
            with self.precision():
                waves.append(generate(self.model, prompts[i : i + per_wave], rollouts, self.max_tokens, self.stop_tokens,
                                      uniforms, **sampling))
        L = max(w.tokens.shape[-1] for w in waves)
        tokens, log_probs, entropies = (
            torch.cat([nn.functional.pad(getattr(w, name), (0, L - w.tokens.shape[-1])) for w in waves])
            for name in ("tokens", "log_probs", "entropies"))
        lengths, finished = (torch.cat([getattr(w, name) for w in waves]) for name in ("lengths", "finished"))
        return Rollouts(prompts, tokens, lengths, finished, self.tokenizer, log_probs, entropies)

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

    def backward(self, rollouts: Rollouts, advantages: torch.Tensor) -> dict[str, float]:
        """Adds the gradient of the step's loss to the parameters' .grad. advantages (P_local, N).

        Groups whose advantages are all 0 are not run, but the normaliser counts them. Every rank does exactly one
        synchronised backward. Returns statistics over all ranks.
        """
        advantages = advantages.to(self.device)
        counts = distributed.all_reduce({"rollouts": advantages.numel(), "tokens": int(rollouts.lengths.sum())},
                                        device=self.device)
        divisor = normaliser(self.aggregation, counts["rollouts"], counts["tokens"], self.max_tokens)
        live = (advantages != 0).any(1).nonzero().squeeze(1).tolist()  # groups with a gradient
        batches = list(self.micro_batches(rollouts, live)) or [None]
        sums = {"loss": 0.0, "difference": 0.0, "scored": 0.0}
        largest = 0.0
        for i, batch in enumerate(batches):
            with distributed.synchronised(self.scorer, now=i == len(batches) - 1):
                with self.precision():
                    log_probs = self.scorer(batch)
                loss = log_probs if batch is None else policy_gradient_loss(
                    log_probs, advantages[batch.groups][:, batch.rows], batch.mask, divisor)
                (loss * distributed.world_size()).backward()  # DDP divides by the world size
            sums["loss"] += float(loss.detach())
            if batch is not None and batch.sampled is not None:
                difference = ((log_probs.detach() - batch.sampled) * batch.mask).abs()
                sums["difference"] += float(difference.sum())
                sums["scored"] += float(batch.mask.sum())
                largest = max(largest, float(difference.max()))
        sums = distributed.all_reduce(sums, device=self.device)
        stats = {"loss": sums["loss"], "tokens": counts["tokens"]}
        if rollouts.log_probs is not None:
            largest = distributed.all_reduce({"max": largest}, "max", self.device)["max"]
            stats["sampling/logprob_abs_diff/mean"] = sums["difference"] / max(sums["scored"], 1)
            stats["sampling/logprob_abs_diff/max"] = largest
        return stats

    def evaluate(self, task, prompts: int, ks, samples: int) -> dict[str, float]:
        """pass@k on the first `prompts` prompts of a task, from `samples` rollouts each; the same noise every time."""
        counts = count_successes(self, task, range(min(prompts, len(task))), samples)
        return {f"pass@{k}": mean for k, (mean, _) in pass_at_k_table(counts, samples, ks).items()}

    def save(self, path, **state):
        checkpoint.save(path, self.model, self.tokenizer, self.stop_tokens, **state)

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
        sampled = None if rollouts.log_probs is None else rollouts.log_probs[groups][:, rows, :L]
        mask = torch.arange(L, device=self.device) < lengths[..., None]
        prompts = [rollouts.prompts[g] for g in groups]
        batch = MicroBatch(groups, rows, targets, mask, sampled)
        return batch.with_shared_prompt(prompts) if self.share_prompt else batch.with_plain_rows(prompts)


@dataclass
class MicroBatch:
    """What one forward scores: M rows for each of G groups."""

    groups: list[int]  # which groups of the rank's rollouts, G of them
    rows: slice  # which of their rows, M of them
    targets: torch.Tensor  # (G, M, L)
    mask: torch.Tensor  # (G, M, L) which targets are response tokens
    sampled: torch.Tensor | None  # (G, M, L) the sampler's log-probs
    inputs: torch.Tensor | None = None  # (G, M, L) each predicts the target at its place
    prefix: torch.Tensor | None = None  # (G, Lp)
    prefix_lengths: torch.Tensor | None = None  # (G,)

    def with_shared_prompt(self, prompts) -> "MicroBatch":
        """The prompt but its last token is the prefix, encoded once; the last token is every row's first input."""
        device = self.targets.device
        self.prefix, self.prefix_lengths = pad([p[:-1] for p in prompts], device)
        last = torch.stack([p[-1] for p in prompts]).to(device)
        last = last[:, None, None].expand(-1, self.targets.shape[1], -1)
        self.inputs = torch.cat([last, self.targets[..., :-1]], -1)
        return self

    def with_plain_rows(self, prompts) -> "MicroBatch":
        """Every row is its prompt and its response, as if the rows had nothing in common."""
        (G, M, L), longest = self.targets.shape, max(map(len, prompts))
        rows = self.targets.new_zeros(G, M, longest + L)
        mask = torch.zeros_like(rows, dtype=torch.bool)
        sampled = None if self.sampled is None else self.sampled.new_zeros(rows.shape)
        for g, prompt in enumerate(prompts):
            n = len(prompt)
            rows[g, :, :n] = prompt.to(rows.device)
            rows[g, :, n : n + L], mask[g, :, n : n + L] = self.targets[g], self.mask[g]
            if sampled is not None:
                sampled[g, :, n : n + L] = self.sampled[g]
        self.inputs, self.targets, self.mask = rows[..., :-1], rows[..., 1:], mask[..., 1:]
        self.sampled = None if sampled is None else sampled[..., 1:]
        return self


@torch.no_grad()
def count_successes(policy, task, indices, samples: int, *, seed: int = 0, progress=None, **sampling) -> torch.Tensor:
    """How many of `samples` rollouts succeed (reward 1), for each of the prompts `indices` of a task: (len(indices),).

    The ranks share the prompts and all get all counts. The noise depends on (seed, place in `indices`, rollout, position).
    """
    counts = torch.zeros(len(indices), dtype=torch.float64, device=policy.device)
    at_once = max(1, policy.wave_rows // samples)
    mine = range(distributed.rank(), len(indices), distributed.world_size())
    for i in range(0, len(mine), at_once):
        places = mine[i : i + at_once]
        examples = [task[int(indices[place])] for place in places]
        rollouts = policy.rollout(examples, samples, indices=places, seed=seed, **sampling)
        counts[list(places)] = (task.rewards(examples, rollouts) == 1).sum(1).to(counts)
        if progress:
            progress(len(places))
    return distributed.sum_tensor(counts).long()


@dataclass
class Draws:
    """N classes drawn for each of this rank's images."""

    drawn: torch.Tensor  # (P_local, N)
    logits: torch.Tensor  # (P_local, C) of the one forward, with its graph
    labels: torch.Tensor  # (P_local,) the right ones
    classes: tuple[str, ...]

    def text(self, i: int, j: int) -> str:
        return self.classes[self.drawn[i, j]]

    def statistics(self) -> dict[str, float]:
        """Exact means over the images of all ranks: the pass rate p (whatever was drawn), top-1 accuracy, entropy in nats."""
        log_probs = self.logits.detach().double().log_softmax(-1)                                  # (P_local, C)
        p = log_probs.gather(1, self.labels[:, None]).exp()                                        # (P_local, 1)
        sums = {"images": len(p), "pass_rate": float(p.sum()), "top1": float((log_probs.argmax(1) == self.labels).sum()),
                "entropy": float(torch.special.entr(log_probs.exp()).sum())}
        sums = distributed.all_reduce(sums, device=self.logits.device)
        return {name: sums[name] / sums["images"] for name in ("pass_rate", "top1", "entropy")}


class ClassifierPolicy:
    """A classifier as a policy: the distribution over classes is its (P, C) logits, a rollout is one class drawn from it.

    The images of a step are one forward, whose graph backward() uses; it is not cut into micro-batches, since
    batch-norm would see other statistics. A rollout costs a uniform number and no forward.
    """

    unit = "images"

    def __init__(self, model, classes, *, seed: int = 0, autocast: bool = False, workers: int = 0):
        self.model, self.classes, self.seed, self.autocast, self.workers = model, tuple(classes), seed, autocast, workers
        self.device = next(model.parameters()).device
        self.scorer = distributed.data_parallel(model)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """(P_local, C) in float32, through the module that synchronises gradients where there will be any."""
        model = self.scorer if torch.is_grad_enabled() else self.model
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            logits = model(images.contiguous(memory_format=torch.channels_last))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def rollout(self, examples, rollouts: int, *, step: int = 0, indices=None, seed=None, temperature: float = 1.0) -> Draws:
        """N = `rollouts` classes for each image; `indices` are the images' positions in the whole batch."""
        examples = examples.to(self.device)
        indices = range(len(examples)) if indices is None else indices
        logits = self.logits(examples.images)                                                      # (P_local, C)
        uniforms = noise(self.seed if seed is None else seed, step, indices, rollouts, 1)[..., 0]  # (P_local, N)
        drawn = inverse_cdf(distribution(logits.detach(), temperature), uniforms.to(self.device))  # (P_local, N)
        return Draws(drawn, logits, examples.labels, self.classes)

    def demonstrate(self, examples) -> Draws:
        """The right classes as rollouts, N = 1: with advantage 1 the loss is cross-entropy."""
        examples = examples.to(self.device)
        return Draws(examples.labels[:, None], self.logits(examples.images), examples.labels, self.classes)

    def backward(self, rollouts: Draws, advantages: torch.Tensor) -> dict[str, float]:
        """Adds the gradient of the step's loss to the parameters' .grad. advantages (P_local, N)."""
        advantages = advantages.to(self.device)
        count = distributed.all_reduce({"rollouts": advantages.numel()}, device=self.device)["rollouts"]
        log_probs = rollouts.logits.log_softmax(-1).gather(1, rollouts.drawn)                      # (P_local, N)
        loss = policy_gradient_loss(log_probs[..., None], advantages, torch.ones_like(log_probs)[..., None], count)
        (loss * distributed.world_size()).backward()  # DDP divides by the world size
        return distributed.all_reduce({"loss": float(loss.detach()), "images": len(advantages)}, device=self.device)

    def evaluate(self, task, prompts: int, ks, samples: int = 0) -> dict[str, float]:
        """Exact pass@k (D.4) and top-1 accuracy, what majority voting converges to (D.3), of the first `prompts` images."""
        p, right = self.pass_rates(task, min(prompts, len(task)))
        return {f"pass@{k}": float(exact_pass_at_k(p, k).mean()) for k in ks} | {"top1": float(right.mean())}

    @torch.no_grad()
    def pass_rates(self, task, count: int, progress=None) -> tuple[torch.Tensor, torch.Tensor]:
        """The pass rate p (count,) of the first `count` images of a task, and whether the likeliest class is right (count,).

        In eval mode. The ranks share the images and all get all results.
        """
        distributed.broadcast_buffers(self.model)  # batch-norm's averages: rank 0's, which are in the checkpoint
        training, world = self.model.training, distributed.world_size()
        mine = range(distributed.rank(), count, world)
        p, right = torch.zeros(2, count, dtype=torch.float64, device=self.device)
        self.model.eval()
        plan = [(mine[i : i + 256], None) for i in range(0, len(mine), 256)]
        for (places, _), examples in zip(plan, prefetched(task, plan, self.workers)):
            examples = examples.to(self.device)
            log_probs = self.logits(examples.images).double().log_softmax(-1)                      # (B, C)
            p[list(places)] = log_probs.gather(1, examples.labels[:, None]).squeeze(1).exp()
            right[list(places)] = (log_probs.argmax(1) == examples.labels).double()
            if progress:
                progress(len(places))
        self.model.train(training)
        return distributed.sum_tensor(p), distributed.sum_tensor(right)

    def save(self, path, **state):
        checkpoint.save(path, self.model, **state)


def make_policy(model, tokenizer, stop_tokens, task, device, *, seed: int = 0, autocast: bool = False, workers: int = 0,
                **options):
    """The policy for a task: a ClassifierPolicy where it has classes, else a SequencePolicy with `options`.

    ValueError where model and task do not fit each other.
    """
    if bool(task.classes) != (tokenizer is None):
        raise ValueError(f"the model is {'a classifier' if tokenizer is None else 'a language model'}, the task is not made "
                         "for one")
    if task.classes:
        if model.config.num_labels != len(task.classes):
            raise ValueError(f"the model has {model.config.num_labels} classes, the images have {len(task.classes)}")
        model = model.to(device, memory_format=torch.channels_last)
        return ClassifierPolicy(model, task.classes, seed=seed, autocast=autocast, workers=workers)
    stop = [tokenizer.id(token) for token in task.stop_tokens] or stop_tokens
    if tokenizer.size > model.config.vocab_size:
        raise ValueError(f"the tokenizer has {tokenizer.size} tokens, the model's vocab_size is {model.config.vocab_size}")
    return SequencePolicy(model.to(device), tokenizer, stop, seed=seed, autocast=autocast, **options)
