"""An image classifier as a policy, whose pass rate is known exactly (Sec. 6.1, App. D).

Letters: P_local images of this rank, N classes drawn for each, C classes.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor, nn

from maxrl.learning.losses import policy_gradient_loss
from maxrl.learning.prompt_order import prefetched
from maxrl.models.checkpoint import Checkpoint
from maxrl.sampling.drawing import at_least_float32, distribution, inverse_cdf
from maxrl.system import distributed, rng
from maxrl.system.errors import UsageError
from maxrl.system.totals import Metrics, Totals
from maxrl.tasks.base import ImageBatch, Task


@dataclass
class Draws:
    """N classes drawn for each of this rank's images."""

    drawn: Tensor  # (P_local, N)
    logits: Tensor  # (P_local, C) of the one forward, with its graph
    labels: Tensor  # (P_local,) the right ones
    classes: tuple[str, ...]

    def select(self, keep: Tensor) -> "Draws":
        """Return the draws of the images that are True in `keep` (P_local,)."""
        keep = keep.to(self.drawn.device)
        return Draws(self.drawn[keep], self.logits[keep], self.labels[keep], self.classes)

    def mean_log_probs(self) -> Tensor:
        """(P_local, N): log-probability of each class drawn."""
        return self.logits.detach().log_softmax(-1).gather(1, self.drawn)

    def text(self, i: int, j: int) -> str:
        """The name of class j drawn for image i."""
        return self.classes[self.drawn[i, j]]

    def count(self, totals: Totals) -> None:
        """Add exact means over images: the pass rate p, whatever was drawn, top-1 accuracy, and the
        entropy in nats.
        """
        log_probs, p, right = outcomes(self.logits, self.labels)
        totals.mean("pass_rate", p.sum(), len(p))
        totals.mean("top1", right.sum(), len(p))
        totals.mean("entropy", torch.special.entr(log_probs.exp()).sum(), len(p))


def outcomes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities (B, C), pass rates (B,) and whether top-1 is right (B,).

    logits  (B, C)
    labels  (B,)

    In float64, because pass@k takes powers of the pass rates.
    """
    log_probs = logits.detach().double().log_softmax(-1)
    p = log_probs.gather(1, labels[:, None]).exp()
    return log_probs, p.squeeze(1), log_probs.argmax(1) == labels


def noise(seed: int, step: int, indices: Sequence[int], num_rollouts: int) -> tuple[Tensor, Tensor]:
    """Return ascending uniform numbers (P_local, N) in [0, 1) and a random order (N,) of the draws.

    indices  P_local positions of the images in the batch of all ranks

    Searching for ascending numbers is five times as fast. In the random order, which is the same
    for all images, the draws of an image are independent again. One generator serves the whole
    batch, since making one for each image would take longer than the numbers.
    """
    generator = rng.classes(seed, step)
    order = torch.from_numpy(generator.permutation(num_rollouts))
    # Sorted uniform numbers are normalised sums of exponential gaps (Devroye 1986, V.3).
    gaps = generator.standard_exponential((max(indices) + 1, num_rollouts + 1))
    sums = torch.from_numpy(gaps[list(indices)]).cumsum(1)  # (P_local, N + 1)
    return sums[:, :-1] / sums[:, -1:], order


@dataclass(eq=False)
class ClassifierPolicy:
    """A classifier as a policy: a rollout is one class drawn from the softmax of its (P, C) logits.

    The images of a step are one forward, whose graph backward() uses. It is not cut into
    micro-batches, because batch-norm would see other statistics.
    """

    items = "images"  # what throughput is counted in: a key of what backward returns

    model: nn.Module  # gives logits (P, C) of images
    classes: tuple[str, ...]  # the names of its C classes
    _: KW_ONLY
    seed: int = 0  # of the noise that classes are drawn by
    autocast: bool = False  # forwards in bfloat16
    workers: int = 0  # processes that read images for an evaluation
    watch: Callable[[str], object] = str  # is told where a long step is; `str` shows nothing

    def __post_init__(self):
        self.device = next(self.model.parameters()).device
        self.module = distributed.data_parallel(self.model)
        self.saved_buffers: list[Tensor] = []
        self.checkpoint = Checkpoint(self.model)

    def logits(self, images: Tensor) -> Tensor:
        """Return logits (P_local, C) in float32; gradients go through the synchronised module."""
        model = self.model
        if torch.is_grad_enabled():
            model = self.module
            # A forward moves batch-norm's averages.
            self.saved_buffers = [buffer.clone() for buffer in self.model.buffers()]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            logits = model(images.contiguous(memory_format=torch.channels_last))
        return at_least_float32(logits)

    def rollout(
        self,
        examples: ImageBatch,
        num_rollouts: int,
        *,
        step: int = 0,
        indices: Sequence[int] | None = None,
        seed: int | None = None,
        temperature: float = 1.0,
    ) -> Draws:
        """Draw N = `num_rollouts` classes for each image.

        examples     a batch of P_local images with their labels
        step         of the run; every step has noise of its own
        indices      P_local positions of the images in the batch of all ranks (default: 0, 1, ...)
        seed         in place of the policy's
        temperature  divides the logits that classes are drawn by
        """
        indices = range(len(examples)) if indices is None else indices
        seed = self.seed if seed is None else seed
        examples = examples.to(self.device)
        logits = self.logits(examples.images)  # (P_local, C)
        uniforms, order = noise(seed, step, indices, num_rollouts)  # (P_local, N), (N,)
        log_probs = distribution(logits.detach(), temperature)
        drawn = inverse_cdf(log_probs.exp(), uniforms.to(self.device))  # (P_local, N)
        return Draws(drawn[:, order], logits, examples.labels, self.classes)

    def demonstrate(self, examples: ImageBatch) -> Draws:
        """Return the labels as rollouts, N = 1; with advantage 1 the loss is cross-entropy."""
        examples = examples.to(self.device)
        labels = examples.labels
        return Draws(labels[:, None], self.logits(examples.images), labels, self.classes)

    def backward(
        self, rollouts: Draws, advantages: Tensor, group_ids: Sequence[int] | None = None
    ) -> Totals:
        """Add the gradient of the step's loss to the parameters' .grad.

        rollouts    of this rank
        advantages  (P_local, N)
        group_ids   None or all: an update is made of all images

        Returns the Totals of its statistics. All ranks must call this.
        """
        advantages = advantages.to(self.device, non_blocking=True)
        counts = distributed.gathered([advantages.numel()])  # (ranks, 1)
        # Without a verdict on any rank the loss is a sum of nothing, and not 0 / 0.
        divisor = max(1.0, float(counts.sum()))
        of_classes = rollouts.logits.log_softmax(-1)  # (P_local, C)
        log_probs = of_classes.gather(1, rollouts.drawn)  # (P_local, N)
        log_probs = log_probs[..., None]  # (P_local, N, 1): one token
        mask = torch.ones_like(log_probs)
        loss = policy_gradient_loss(log_probs, advantages, mask, divisor)
        # DDP's average divides by the number of ranks.
        (loss * distributed.world_size()).backward()
        totals = Totals()
        totals.sum("loss", loss)
        totals.sum("images", len(advantages))
        return totals

    def record(self, rollouts: Draws) -> Metrics:
        """A classifier's step has one update: its graph is used once."""
        raise NotImplementedError("a classifier has no --minibatches or --passes")

    @torch.no_grad()
    def restore_buffers(self) -> None:
        """Undo what the forward of a skipped update did to batch-norm's averages."""
        for buffer, saved in zip(self.model.buffers(), self.saved_buffers):
            buffer.copy_(saved)

    @torch.no_grad()
    def pass_rates(
        self, task: Task, count: int, progress: Callable[[int], object] = int
    ) -> tuple[Tensor, Tensor]:
        """Return the pass rates (count,) of the first images and whether top-1 is right (count,).

        In eval mode. The ranks share the images and all get all results. `progress` is called with
        the number of images after each batch. UsageError if p is not finite.
        """
        # Batch-norm's averages are each rank's own: rank 0's are in the checkpoint.
        distributed.broadcast_buffers(self.model)
        training = self.model.training
        mine = range(distributed.rank(), count, distributed.world_size())
        results = torch.zeros(2, count, dtype=torch.float64, device=self.device)
        self.model.eval()
        plan = [(mine[i : i + 256],) for i in range(0, len(mine), 256)]
        with contextlib.closing(prefetched(task, plan, self.workers)) as batches:
            for (positions,), examples in zip(plan, batches):
                examples = examples.to(self.device)
                logits = self.logits(examples.images)  # (B, C)
                _, p, right = outcomes(logits, examples.labels)
                found = torch.stack([p, right.double()])  # (2, B)
                results[:, list(positions)] = found
                progress(len(positions))
        self.model.train(training)
        p, right = distributed.sum_tensor(results)
        if not p.isfinite().all():
            raise UsageError(
                "the classifier's logits are not finite: its training has diverged, try a lower "
                "--lr"
            )
        return p, right
