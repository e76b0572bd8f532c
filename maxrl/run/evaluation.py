"""Evaluation: how many rollouts of each prompt succeed, and pass@k."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from maxrl.analysis.metrics import exact_pass_at_k, majority_vote, pass_at_k
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
) -> tuple[Tensor, Tensor | None, float]:
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
    counts    how many rollouts of each prompt are a success, (len(indices),); -1 for a prompt with
              a rollout that has no verdict (NaN)
    majority  whether the answer of most rollouts is right (metrics.majority_vote), float64
              (len(indices),); None if the task has no `final`
    reward    the mean reward of the rollouts with a verdict
    """
    # A collective for a sharded model, so also on a rank that gets no prompt.
    policy.unsharded_model()
    # Of each prompt: successes, majority vote, sum of rewards, verdicts.
    results = torch.zeros(4, len(indices), dtype=torch.float64)
    at_once = max(1, policy.wave_rows // samples)
    mine = range(distributed.rank(), len(indices), distributed.world_size())
    for i in range(0, len(mine), at_once):
        positions = mine[i : i + at_once]
        examples = [example_of(task, int(indices[position])) for position in positions]
        rollouts = policy.rollout(examples, samples, indices=positions, seed=seed, **sampling)
        rewards = (judge or task.rewards)(examples, rollouts).to(results)  # (positions, samples)
        right = is_success(rewards)
        verdicts = rewards.isfinite().sum(1)  # (positions,)
        votes = torch.zeros_like(verdicts)
        if task.final:
            answers = []
            for group in task.responses(rollouts):
                answers.append([task.final(response) for response in group])
            votes = torch.from_numpy(majority_vote(answers, right)).to(results)
        counts = right.sum(1).where(verdicts == samples, -1)
        results[:, list(positions)] = torch.stack([counts, votes, rewards.nansum(1), verdicts])
        progress(len(positions))
    results = distributed.sum_tensor(results.to(policy.device)).cpu()
    counts, majority, sums, verdicts = results
    reward = float(sums.sum() / verdicts.sum())
    return counts.long(), majority if task.final else None, reward


def pass_at_ks(counts: Tensor, samples: int, ks: Iterable[int]) -> Metrics:
    """Return pass@k for each k of ks over the prompts with a verdict, and how many have none.

    counts (prompts,) are those of judge_samples. NaN if no prompt has a verdict.
    """
    judged = counts[counts >= 0]
    stats = {}
    for k in ks:
        found = pass_at_k(samples, judged, k)  # (judged,)
        stats[f"pass@{k}"] = float(found.mean()) if len(found) else math.nan
    stats["groups_left_out"] = float(len(counts) - len(judged))
    return stats


def class_metrics(policy: ClassifierPolicy, task: Task, count: int, ks: Iterable[int]) -> Metrics:
    """Return exact pass@k (D.4) and top-1 accuracy (D.3) on the first `count` images."""
    p, right = policy.pass_rates(task, count)
    stats = {f"pass@{k}": float(exact_pass_at_k(p, k).mean()) for k in ks}
    return stats | {"top1": float(right.mean())}


def evaluate_if_due(
    cfg: Config, step: int, policy: Learner, task: Task | None, judge: Judge | None
) -> Metrics:
    """Return the metrics of the recipe's evaluation, or nothing if none is due after this step."""
    if task is None or not cfg.evaluates(step):
        return {}
    return evaluate(cfg, policy, task, judge)


def evaluate(cfg: Config, policy: Learner, task: Task, judge: Judge | None) -> Metrics:
    """Return the metrics of the recipe's evaluation of a task, with the rewards of its judge."""
    prompts = min(cfg.eval_prompts, len(task))
    if isinstance(policy, ClassifierPolicy):
        found = class_metrics(policy, task, prompts, cfg.eval_k)
    else:
        assert judge is not None, "responses are judged"
        counts, _, reward = judge_samples(
            policy,
            task,
            range(prompts),
            cfg.eval_samples,
            judge=judge,
            temperature=cfg.eval_temperature,
            top_p=cfg.eval_top_p,
        )
        found = pass_at_ks(counts, cfg.eval_samples, cfg.eval_k) | {"reward": reward}
        found |= judge.verdicts.means()
    return {f"eval/{name}": value for name, value in found.items()}
