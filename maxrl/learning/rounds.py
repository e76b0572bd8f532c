"""Rounds: a prompt is sampled until a round of rollouts has a success, and trained on that round.

A round of n rollouts that is reached has the expected gradient w_n(p) grad p (Theorem 2). Without a
success its gradient is exactly 0, so only the last round is trained on. Round j is reached with
probability (1-p)^(n_1 + ... + n_{j-1}), and the sum telescopes:

    sum_j (1-p)^(n_1 + ... + n_{j-1}) w_{n_j}(p) = w_{n_1 + ... + n_R}(p)

The order is that of all rounds together, and an easy prompt costs n_1 rollouts. This holds for
estimators with weight w_n from n rollouts, for every n, that give exactly 0 to a group without a
success: `rounds=True` at their `@estimator` line. AR3PO (arXiv 2509.25808) and Reinforce-Ada
(arXiv 2510.04996) sample in rounds too, until a prompt has a success or enough signal.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maxrl.learning.classifier import Draws
from maxrl.learning.config import Config
from maxrl.sampling.drawing import at_least_float32
from maxrl.sampling.rollouts import Rollouts, joined
from maxrl.tasks.base import Examples, is_success

Responses = Rollouts | Draws  # of a language model or a classifier
Clock = Callable[[str], AbstractContextManager]


@dataclass
class Sampled:
    """What a step has sampled: `rollouts` to learn from, `first` to measure the model by.

    Later rounds have only prompts without a success so far, so pass rates are computed from the
    first round alone.
    """

    first: Responses  # the Rollouts of the first round, P_local prompts in their order
    first_rewards: Tensor  # (P_local, n_1)
    rollouts: Responses  # of each prompt the last round that it had, in any order of the prompts
    rewards: Tensor  # (P_local, N), NaN without a rollout or a verdict
    num_rollouts: Tensor  # (P_local,) how many each prompt had in all its rounds
    num_rounds: Tensor  # (P_local,)


def sample(
    cfg: Config,
    policy: Any,
    judge: Callable[..., Tensor],
    examples: Examples,
    step: int,
    indices: Sequence[int],
    clock: Clock = nullcontext,
) -> Sampled:
    """Return a step's rollouts and their rewards: N for each prompt, in rounds, or its reference.

    policy   a SequencePolicy, or without rounds a ClassifierPolicy
    judge    judge(examples, rollouts) gives the rewards (P_local, n)
    indices  P_local positions in the batch of all ranks; with the step they decide the noise
    clock    clock(part) is the context in which a part of the step is timed
    """
    if cfg.supervised:
        with clock("rollout"):
            rollouts = policy.demonstrate(examples)
        # The reference answers are one rollout each, and right.
        return one_round(rollouts, torch.ones(len(examples), 1))
    if len(cfg.rollouts) > 1:
        return in_rounds(cfg.rollouts, policy, judge, examples, step, indices, clock)
    with clock("rollout"):
        rollouts = policy.rollout(examples, cfg.rollouts[0], step=step, indices=indices)
    with clock("reward"):
        rewards = at_least_float32(judge(examples, rollouts))
    return one_round(rollouts, rewards)


def one_round(rollouts: Responses, rewards: Tensor) -> Sampled:
    """Return rollouts and their rewards (P_local, N) as the only round."""
    P, N = rewards.shape
    return Sampled(rollouts, rewards, rollouts, rewards, torch.full((P,), N), torch.ones(P))


def in_rounds(
    sizes: Sequence[int],
    policy: Any,
    judge: Callable[..., Tensor],
    examples: Any,
    step: int,
    indices: Sequence[int],
    clock: Clock = nullcontext,
) -> Sampled:
    """Sample every prompt in rounds of `sizes` rollouts, (n_1, ..., n_R), until one has a success.

    The other arguments are those of `sample`, without images.

    After the first round no rank waits for another one. A prompt without a verdict is not sampled
    again.
    """
    waiting = torch.arange(len(examples))  # (P_local,)
    num_rollouts = torch.zeros(len(examples))
    num_rounds = torch.zeros(len(examples))
    ended = []
    rewards = []
    drawn = 0
    for size in sizes:
        some = [examples[i] for i in waiting]
        positions = [indices[i] for i in waiting]
        # Rounds continue each prompt's stream of noise: together they draw the same rollouts, up to
        # rounding, as a single group of sum(sizes) would.
        with clock("rollout"):
            rollouts = policy.rollout(some, size, step=step, indices=positions, earlier=drawn)
        with clock("reward"):
            # In a dtype that has NaN.
            verdicts = at_least_float32(judge(some, rollouts))  # (waiting, size)
        if drawn == 0:
            first = rollouts, verdicts
        drawn += size
        num_rollouts[waiting] += size
        num_rounds[waiting] += 1
        again = unsolved(verdicts) & (drawn < sum(sizes))  # (waiting,)
        ended.append(rollouts.select(~again))
        rewards.append(F.pad(verdicts[~again], (0, max(sizes) - size), value=torch.nan))
        waiting = waiting[again]
        if len(waiting) == 0:
            break
    rollouts = joined(ended, N=max(sizes))
    return Sampled(*first, rollouts, torch.cat(rewards), num_rollouts, num_rounds)


def unsolved(rewards: Tensor) -> Tensor:
    """Which groups of rewards (P, n) have verdicts and no success, (P,)."""
    return rewards.isfinite().any(1) & ~is_success(rewards).any(1)
