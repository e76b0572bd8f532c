"""Which prompts a step takes, made ahead of time."""

import functools
import signal
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader

from maxrl.config import Config
from maxrl.errors import FAULTS, UsageError
from maxrl.rewards.functions import kind
from maxrl.tasks.base import Task, fault


@dataclass
class Batches:
    """Batch i is what plan[i] = (indices, seeds) asks of a task."""

    task: Task
    plan: object

    def __getitem__(self, i: int):
        try:
            return self.task.batch(*self.plan[i])
        except UsageError as error:  # a worker's exception would arrive inside a traceback
            return error
        except FAULTS as error:
            name = kind(self.task).__name__
            return UsageError(f"the task {name} {fault(error)} in its batch {i}")


def ignore_signals(worker: int):
    """A signal to the whole process group is for the run, whose step still needs its workers."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def prefetched(task: Task, plan, workers: int = 0, first: int = 0):
    """Yields the batches of plan[first], plan[first + 1], ... in this order; `workers` processes make them ahead of time."""
    loader = DataLoader(
        Batches(task, plan),
        batch_size=None,
        sampler=range(first, len(plan)),
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=ignore_signals,
    )
    for batch in loader:
        if isinstance(batch, UsageError):
            raise batch
        yield batch


class Plan:
    """Which prompts this rank gets at each step, and what is random in them: (indices, seeds); see `prefetched`."""

    def __init__(self, cfg: Config, size: int, rank: int, world: int):
        self.cfg = cfg
        self.size = size
        self.mine = range(rank, cfg.prompts, world)  # the rank's places in the batch
        first = (
            cfg.estimator == "supervised" or not cfg.init
        )  # from scratch all estimators have one order
        self.order = (
            2 * cfg.seed + first
        )  # RL after a warm-up does not start with the prompts that this saw

    def __len__(self) -> int:
        return self.cfg.steps

    def __getitem__(self, step: int):
        indices = batch_indices(self.size, self.cfg.prompts, step, self.order)  # (P,)
        seeds = [[self.cfg.seed, step, place, 1] for place in self.mine]
        return indices[self.mine].tolist(), seeds


def batch_indices(size: int, prompts: int, step: int, seed: int) -> np.ndarray:
    """The prompts of a step, (P,): every epoch is a shuffle of its own, none is left out; a function of its arguments."""
    places = range(step * prompts, (step + 1) * prompts)
    return np.array([shuffle(size, place // size, seed)[place % size] for place in places])


@functools.lru_cache(maxsize=2)
def shuffle(size: int, epoch: int, seed: int) -> np.ndarray:
    # The 3 is this stream's tag: numpy fills seeds up with zeros, so that [seed, epoch] would be the noise of a first prompt.
    return np.random.default_rng([seed, epoch, 0, 3]).permutation(size)
