"""What a task is: prompts, and a verdict on each response."""

from dataclasses import dataclass, field

import torch


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

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Example:
        raise NotImplementedError

    def verify(self, response: str, example: Example) -> float:
        """1.0 or 0.0, for any text at all."""
        raise NotImplementedError

    def rewards(self, examples: list[Example], rollouts) -> torch.Tensor:
        """Rewards of all rollouts, (P_local, N), on their device: decode every response and verify it."""
        rewards = torch.zeros(rollouts.lengths.shape)
        for i, example in enumerate(examples):
            for j in range(rewards.shape[1]):
                rewards[i, j] = self.verify(rollouts.text(i, j), example)
        return rewards.to(rollouts.lengths.device)  # (P_local, N)

    def show(self, response: str, example: Example, colour: bool) -> str:
        """A rollout for people to look at; `colour` allows ANSI escapes."""
        return f"{example.prompt}\n--- response\n{response}"
