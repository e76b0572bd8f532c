"""Rewards of texts, without a policy."""

from types import SimpleNamespace

import torch

from maxrl.run.logger import count_groups
from maxrl.system.totals import Totals
from maxrl.tasks import Example


def judged(rewards, prompts, texts, columns=None, ids=None, finished=None):
    """(rewards (P, N), statistics) of N texts for each prompt; columns {name: P values}."""
    examples = []
    for i, prompt in enumerate(prompts):
        examples.append(Example(prompt, "", {key: c[i] for key, c in (columns or {}).items()}))
    rollouts = SimpleNamespace(
        lengths=torch.zeros(len(texts), len(texts[0])),
        finished=torch.tensor(finished or [[True] * len(row) for row in texts]),
        completion=lambda i, j: texts[i][j],
        response=lambda i, j: ids[i][j] if ids else [0],
    )
    return rewards(examples, rollouts), rewards.counted().metrics()


def group_metrics(rewards):
    """The metrics of groups of rewards (P, N)."""
    totals = Totals()
    rewards = torch.as_tensor(rewards, dtype=torch.float64)
    count_groups(totals, rewards, rewards)
    return totals.metrics()


class Faulty:
    """A pool of processes with the next faults whenever it is asked for them."""

    def __init__(self, faults):
        self.waiting = iter(faults)

    faults = property(lambda self: next(self.waiting), lambda self, new: None)
