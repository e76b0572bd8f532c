"""What a task is: prompts, and a verdict on each response."""

from dataclasses import dataclass, field

import torch
from torch.utils.data import DataLoader, Dataset

from maxrl.config import UsageError


@dataclass(frozen=True)
class Example:
    """One prompt of a task. `answer` is a reference solution: the demonstration of the supervised warm-up."""

    prompt: str
    answer: str
    columns: dict = field(default_factory=dict)


class Task:
    """A task gives `len(task)`, `task[i] -> Example` and `verify(response, example) -> float`.

    A new task is one file with a subclass and one line in `TASKS`. Its constructor takes `split` ("train",
    "validation" or "test") and whatever `--task.NAME VALUE` may set.
    """

    vocabulary: tuple[str, ...] = ()  # words of a model trained from scratch; a checkpoint brings its own tokenizer
    stop_tokens: tuple[str, ...] = ()  # tokens that end a response, by name; the checkpoint's when empty
    classes: tuple[str, ...] = ()  # labels of a classification task, whose policy is a classifier; empty for texts

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Example:
        raise NotImplementedError

    def batch(self, indices, seeds=None):
        """The examples of a step: a list, or of a classification task an ImageBatch (maxrl/tasks/images.py). `seeds`, one
        for each, are for what is random in them (augmentation)."""
        return [self[int(i)] for i in indices]

    def verify(self, response: str, example: Example) -> float:
        """1.0 or 0.0, for any text at all."""
        raise NotImplementedError

    def rewards(self, examples: list[Example], rollouts) -> torch.Tensor:
        """Rewards of all rollouts, (P_local, N), on their device: decode every response and verify it; of a classifier,
        1 where the class drawn is the label."""
        if self.classes:
            return (rollouts.drawn == examples.labels.to(rollouts.drawn.device)[:, None]).float()
        rewards = torch.zeros(rollouts.lengths.shape)
        for i, example in enumerate(examples):
            for j in range(rewards.shape[1]):
                rewards[i, j] = self.verify(rollouts.text(i, j), example)
        return rewards.to(rollouts.lengths.device)  # (P_local, N)

    def show(self, response: str, example: Example, colour: bool) -> str:
        """A rollout for people to look at; `colour` allows ANSI escapes."""
        return f"{example.prompt}\n--- response\n{response}"


class Batches(Dataset):
    """Batch i is what plan[i] = (indices, seeds) asks of a task."""

    def __init__(self, task: Task, plan):
        self.task, self.plan = task, plan

    def __getitem__(self, i: int):
        try:
            return self.task.batch(*self.plan[i])
        except UsageError as error:  # a worker's exception would arrive inside a traceback
            return error


def prefetched(task: Task, plan, workers: int = 0, first: int = 0):
    """Yields the batches of plan[first], plan[first + 1], ... in this order; `workers` processes make them ahead of time."""
    loader = DataLoader(Batches(task, plan), batch_size=None, sampler=range(first, len(plan)), num_workers=workers,
                        pin_memory=torch.cuda.is_available())
    for batch in loader:
        if isinstance(batch, UsageError):
            raise batch
        yield batch
