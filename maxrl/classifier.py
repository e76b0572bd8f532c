"""A classifier as a policy: the one whose pass rate is known exactly (arXiv 2602.02710, Sec. 6.1, App. D)."""

from dataclasses import dataclass

import torch

from maxrl import checkpoint, distributed
from maxrl.batches import prefetched
from maxrl.errors import UsageError
from maxrl.losses import policy_gradient_loss
from maxrl.metrics import exact_pass_at_k
from maxrl.sampler import distribution, inverse_cdf, noise


@dataclass
class Draws:
    """N classes drawn for each of this rank's images."""

    drawn: torch.Tensor  # (P_local, N)
    logits: torch.Tensor  # (P_local, C) of the one forward, with its graph
    labels: torch.Tensor  # (P_local,) the right ones
    classes: tuple[str, ...]

    def mean_log_probs(self) -> torch.Tensor:
        """(P_local, N): log-probability of each class drawn."""
        return self.logits.detach().log_softmax(-1).gather(1, self.drawn)

    def text(self, i: int, j: int) -> str:
        return self.classes[self.drawn[i, j]]

    def row(self, i: int, j: int) -> dict:
        """A rollout for people to look at."""
        return {"label": self.classes[self.labels[i]], "drawn": self.text(i, j), "logits": self.logits[i].tolist()}

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
        self.device, self.before = next(model.parameters()).device, []
        self.scorer = distributed.data_parallel(model)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """(P_local, C) in float32, through the module that synchronises gradients where there will be any."""
        model = self.scorer if torch.is_grad_enabled() else self.model
        if torch.is_grad_enabled():
            self.before = [buffer.clone() for buffer in self.model.buffers()]  # batch-norm's averages, which a forward moves
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

    def backward(self, rollouts: Draws, advantages: torch.Tensor, groups=None) -> dict[str, float]:
        """Adds the gradient of the step's loss to the parameters' .grad. advantages (P_local, N); groups: None, all."""
        advantages = advantages.to(self.device)
        count = distributed.all_reduce({"rollouts": advantages.numel()}, device=self.device)["rollouts"]
        log_probs = rollouts.logits.log_softmax(-1).gather(1, rollouts.drawn)                      # (P_local, N)
        loss = policy_gradient_loss(log_probs[..., None], advantages, torch.ones_like(log_probs)[..., None], count)
        (loss * distributed.world_size()).backward()  # DDP divides by the world size
        return distributed.all_reduce({"loss": float(loss.detach()), "images": len(advantages)}, device=self.device)

    @torch.no_grad()
    def restore_buffers(self):
        """Of an update that is left out: what its forward has done to batch-norm's averages."""
        for buffer, before in zip(self.model.buffers(), self.before):
            buffer.copy_(before)

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
        p, right = distributed.sum_tensor(p), distributed.sum_tensor(right)
        if not p.isfinite().all():
            raise UsageError("the classifier's logits are not finite: its training has diverged, try a lower --lr")
        return p, right

    def save(self, path, **state):
        checkpoint.save(path, self.model, **state)
