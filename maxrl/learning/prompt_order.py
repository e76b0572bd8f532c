"""Which prompts each step takes, prepared ahead of time."""

import functools
import signal
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from maxrl.learning.config import Config
from maxrl.system import distributed, rng, user_code
from maxrl.system.errors import UsageError, blaming
from maxrl.tasks.base import Task
from maxrl.tasks.rewards import task_class


@dataclass
class Batches(Dataset):
    """Batch i holds the examples of plan[i] = (indices, seeds)."""

    task: Task
    plan: Sequence

    def __getitem__(self, i: int):
        try:
            with blaming(f"in its batch {i} the task {task_class(self.task).__name__}"):
                batch = self.task.batch(*self.plan[i])
                # Now, because a worker that finds no room when it sends them is waited for forever.
                for value in getattr(batch, "__dict__", {}).values() if get_worker_info() else ():
                    if isinstance(value, torch.Tensor):
                        value.share_memory_()
                return batch
        except UsageError as error:  # a worker's exception would arrive inside a traceback
            return error

    def __getstate__(self) -> dict:
        # In this order: a worker that is no fork needs the task's class before it reads the task.
        return {"code": user_code.files.get(task_class(self.task).__module__)} | vars(self)


def ignore_signals(worker: int):
    """A signal to the whole process group is for the run, whose step still needs its workers."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def prefetched(task: Task, plan, workers: int = 0, first: int = 0) -> Generator:
    """Yield the batches of plan[first], plan[first + 1], ..., made ahead by `workers` processes.

    The processes end with the last batch, or when the generator is closed.
    """
    loader = DataLoader(
        Batches(task, plan),
        batch_size=None,
        sampler=range(first, len(plan)),
        num_workers=workers,
        # Not for a run on the CPU of a machine that has GPUs.
        pin_memory=torch.cuda.is_initialized(),
        worker_init_fn=ignore_signals,
    )
    with blaming(f"the start of --workers {workers} (--workers 0 has none)"):
        batches: Any = iter(loader)
    try:
        for batch in batches:
            if isinstance(batch, UsageError):
                raise batch
            yield batch
    finally:
        # Collecting `batches` would end the processes, but a traceback may keep it alive. At exit,
        # the interpreter would then wait for the processes, since they ignore its signal.
        if workers:
            processes = batches._workers
            # Makes torch forget them, so that it does not take a killed one for a failure.
            batches._workers = []
            batches._shutdown_workers()
            for process in processes:
                process.kill()
                process.join()


class Plan:
    """Which prompts this rank gets at each step, and the seeds of what is random in them."""

    def __init__(self, cfg: Config, size: int):
        self.cfg = cfg
        self.size = size
        # Positions in the batch.
        self.mine = range(distributed.rank(), cfg.prompts, distributed.world_size())
        # RL after a warm-up does not begin with the prompts of the warm-up.
        self.order = 2 * cfg.seed + (cfg.supervised or not cfg.init)

    def __len__(self) -> int:
        return self.cfg.steps

    def __getitem__(self, step: int):
        indices = batch_indices(self.size, self.cfg.prompts, step, self.order)  # (P,)
        seeds = [rng.augmentation(self.cfg.seed, step, position) for position in self.mine]
        return indices[self.mine].tolist(), seeds


def batch_indices(size: int, prompts: int, step: int, seed: int) -> np.ndarray:
    """Return the prompts of a step, (P,); every epoch is a shuffle that leaves none out."""
    positions = range(step * prompts, (step + 1) * prompts)
    return np.array([shuffle(size, i // size, seed)[i % size] for i in positions])


@functools.lru_cache(maxsize=2)
def shuffle(size: int, epoch: int, seed: int) -> np.ndarray:
    """The order of all prompts in an epoch, (size,)."""
    return rng.prompt_order(seed, epoch).permutation(size)
