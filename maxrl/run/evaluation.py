"""Evaluation: the rewards of many rollouts of each prompt, pass@k and best@k."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maxrl.analysis.metrics import (
    best_at_k,
    distinct_right,
    exact_pass_at_k,
    majority_vote,
    pass_at_k,
)
from maxrl.learning.classifier import ClassifierPolicy
from maxrl.learning.config import Config
from maxrl.learning.policy import SequencePolicy
from maxrl.run.build import Learner
from maxrl.system import distributed
from maxrl.system.totals import Metrics
from maxrl.tasks.base import Task, example_of, is_success
from maxrl.tasks.rewards import Judge


@torch.no_grad()
def judge_samples(
    policy: SequencePolicy,
    task: Task,
    indices: Sequence[int],
    samples: int,
    *,
    judge: Judge | None = None,
    seed: int = 0,
    progress: Callable[[int], object] = int,
    **sampling: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sample and judge. The prompts are divided over the ranks, and every rank returns all results.

    policy    of a language model
    task      the prompts
    indices   of the prompts in the task
    samples   rollouts per prompt
    judge     judge(examples, rollouts) gives the rewards (default: task.rewards)
    seed      of the noise, which depends on (seed, position in `indices`, rollout, token)
    progress  is called with the number of prompts after each wave; `int` shows nothing
    sampling  temperature, top_k and top_p, if not those of training

    Returns
    rewards   float64 (len(indices), samples), NaN for a rollout without a verdict
    answers   {"clipped": the share of rollouts that were cut by the length limit}; if the task has
              `final`, also "majority": whether the answer of most rollouts is right
              (metrics.majority_vote), and with `several` right answers "distinct": how many
              different ones there are; float64 (len(indices),) each
    """
    # A collective for a sharded model, so also on a rank that gets no prompt.
    policy.unsharded_model()
    # Of each prompt its rewards and what its answers are, 0 where another rank has it.
    results = torch.zeros(len(indices), samples + 3, dtype=torch.float64)
    at_once = max(1, policy.wave_rows // samples)
    mine = range(distributed.rank(), len(indices), distributed.world_size())
    for i in range(0, len(mine), at_once):
        positions = mine[i : i + at_once]
        examples = [example_of(task, int(indices[position])) for position in positions]
        rollouts = policy.rollout(examples, samples, indices=positions, seed=seed, **sampling)
        rewards = (judge or task.rewards)(examples, rollouts).to(results)  # (positions, samples)
        results[list(positions), :samples] = rewards
        results[list(positions), samples] = 1 - rollouts.finished.double().mean(1)
        if task.final:
            answers = []
            for group in task.responses(rollouts):
                answers.append([task.final(response) for response in group])
            right = is_success(rewards)
            found = [majority_vote(answers, right), distinct_right(answers, right)]
            results[list(positions), samples + 1 :] = torch.from_numpy(np.stack(found, axis=1))
        progress(len(positions))
    results = distributed.sum_tensor(results.to(policy.device)).cpu()
    clipped, majority, distinct = results[:, samples:].T
    told = {"clipped": clipped}
    if task.final:
        told["majority"] = majority
    if task.final and task.several:
        told["distinct"] = distinct
    return results[:, :samples], told


def judged_prompts(rewards: Tensor) -> Tensor:
    """Which prompts, (prompts,), have a verdict on all of their rewards (prompts, samples)."""
    return rewards.isfinite().all(1)


def are_verdicts(rewards: Tensor) -> bool:
    """Return whether all rewards are 0 or 1, so that best@k is pass@k; NaN counts as neither."""
    return bool(((rewards == 0) | (rewards == 1) | rewards.isnan()).all())


def of_rewards(rewards: Tensor, ks: Sequence[int], graded: bool = False) -> Metrics:
    """Return the mean reward, pass@k, and best@k unless rewards are verdicts, for each k of ks.

    graded  whether they may be other than 0 and 1, though these are not

    rewards (prompts, samples) are those of judge_samples. A prompt without a verdict on one of them
    is left out of pass@k and best@k; NaN if that leaves none.
    """
    judged = rewards[judged_prompts(rewards)]
    found = {}  # {name: a value of each judged prompt}
    for k in ks:
        found[f"pass@{k}"] = pass_at_k(rewards.shape[1], is_success(judged).sum(1), k)
    if graded or not are_verdicts(rewards):
        found |= {f"best@{k}": best_at_k(judged, k) for k in ks}
    stats = {}
    for name, values in found.items():
        stats[name] = float(values.mean()) if len(judged) else math.nan
    stats["groups_left_out"] = float(len(rewards) - len(judged))
    stats["reward"] = float(rewards.nanmean())
    return stats


def evaluate(cfg: Config, policy: Learner, task: Task, judge: Judge | None) -> Metrics:
    """Return the metrics of the recipe's evaluation of a task, with the rewards of its judge."""
    prompts = min(cfg.eval_prompts, len(task))
    if isinstance(policy, ClassifierPolicy):
        p, right = policy.pass_rates(task, prompts)
        # Exact (D.4), and top-1 accuracy (D.3).
        found = {f"pass@{k}": float(exact_pass_at_k(p, k).mean()) for k in cfg.eval_k}
        found["top1"] = float(right.mean())
    else:
        assert judge is not None, "responses are judged"
        rewards, _ = judge_samples(
            policy,
            task,
            range(prompts),
            cfg.eval_samples,
            judge=judge,
            temperature=cfg.eval_temperature,
            top_p=cfg.eval_top_p,
        )
        # So that no evaluation on the way lacks best@k.
        graded = cfg.thresholds or cfg.estimator == "tailrl"
        found = of_rewards(rewards, cfg.eval_k, graded) | judge.means()
    return {f"eval/{name}": value for name, value in found.items()}
