"""The updates of a step: their minibatches, learning rate and mean statistics."""

import math
from collections.abc import Iterator

import numpy as np

from maxrl.learning.config import Config
from maxrl.system import distributed, rng


def means(cfg: Config, items: str, updates: list[dict]) -> dict[str, float]:
    """Return the mean statistics of a step's updates; tokens or images are summed over a pass."""
    result = {}
    counts = [stats[items] for stats in updates]
    for name in updates[0]:
        values = [stats[name] for stats in updates]
        result[name] = sum(values) / len(updates)
        # Means over response tokens, of which updates have different numbers.
        if name.startswith(("kl", "clip_ratio")):
            result[name] = float(np.dot(values, counts)) / max(1, sum(counts))
    return result | {items: sum(counts) / cfg.passes}


def minibatches(cfg: Config, num_groups: int, step: int) -> Iterator[list[int] | None]:
    """Yield, for each update of a step, which of this rank's `num_groups` prompts it takes.

    None stands for all of them at once, as in the paper's recipes.
    """
    if cfg.minibatches == cfg.passes == 1:
        yield None
        return
    for i in range(cfg.passes):
        order = rng.minibatches(cfg.seed, step, distributed.rank(), i).permutation(num_groups)
        for part in np.array_split(order, cfg.minibatches):
            yield part.tolist()


def learning_rate(cfg: Config, step: int) -> float:
    """Return the rate of a step: linear warm-up over warmup_steps, then what `schedule` says.

    This is constant, or a line or a cosine down to 0 over the last decay_ratio of the steps.
    """
    if step < cfg.warmup_steps:
        return cfg.lr * (step + 1) / cfg.warmup_steps
    start = round((1 - cfg.decay_ratio) * cfg.steps)
    start = max(cfg.warmup_steps, start)
    if cfg.schedule == "constant" or step < start:
        return cfg.lr
    progress = (step - start) / max(1, cfg.steps - start)
    if cfg.schedule == "linear":
        return cfg.lr * (1 - progress)
    cosine = math.cos(math.pi * progress)
    return cfg.lr * 0.5 * (1 + cosine)
