"""Evaluation: how many rollouts of each prompt succeed, and pass@k."""

import math

import torch

from maxrl.metrics import majority_vote, pass_at_k_table
from maxrl.parallel import distributed


def count_successes(policy, task, indices, samples: int, **options) -> torch.Tensor:
    """Return how many rollouts of each prompt have reward 1, (len(indices),), as in judge_samples.

    The count is -1 for a prompt with a rollout that has no verdict (NaN).
    """
    return judge_samples(policy, task, indices, samples, **options)[0]


@torch.no_grad()
def judge_samples(
    policy, task, indices, samples: int, *, judge=None, seed: int = 0, progress=None, **sampling
):
    """Sample and judge; the ranks share the prompts and all get all results.

    policy    a SequencePolicy
    task      the prompts
    indices   of the prompts in the task
    samples   rollouts per prompt
    judge     judge(examples, rollouts) gives the rewards (default: task.rewards)
    seed      of the noise, which depends on (seed, position in `indices`, rollout, token)
    progress  is called with the number of prompts after each wave
    sampling  temperature and top_p, if not those of training

    Returns count_successes and, for the same prompts, whether the answer of most rollouts is right
    (metrics.majority_vote), float64 (len(indices),), None if the task has no `final`.
    """
    # A collective for a sharded model, so also on a rank that gets no prompt.
    policy.unsharded_model()
    results = torch.zeros(2, len(indices), dtype=torch.float64, device=policy.device)
    at_once = max(1, policy.wave_rows // samples)
    mine = range(distributed.rank(), len(indices), distributed.world_size())
    for i in range(0, len(mine), at_once):
        places = mine[i : i + at_once]
        examples = [task[int(indices[place])] for place in places]
        rollouts = policy.rollout(examples, samples, indices=places, seed=seed, **sampling)
        rewards = (judge or task.rewards)(examples, rollouts)  # (places, samples)
        right = rewards == 1
        judged = rewards.isfinite().all(1)  # (places,)
        results[0, list(places)] = right.sum(1).to(results).where(judged, -1)
        if task.final:
            answers = []
            for group in task.responses(rollouts):
                answers.append([task.final(response) for response in group])
            results[1, list(places)] = torch.from_numpy(majority_vote(answers, right)).to(results)
        if progress:
            progress(len(places))
    counts, majority = distributed.sum_tensor(results)
    return counts.long(), majority if task.final else None


def pass_at_ks(policy, task, indices, ks, samples: int, **sampling) -> dict:
    """Return pass@k for each k of ks over the prompts with a verdict, and how many have none.

    The other arguments are those of judge_samples; the noise is the same every time. NaN if no
    prompt has a verdict.
    """
    counts = count_successes(policy, task, indices, samples, **sampling)
    judged = counts[counts >= 0]
    stats = {f"pass@{k}": math.nan for k in ks}
    if len(judged):
        for k, (mean, _) in pass_at_k_table(judged, samples, ks).items():
            stats[f"pass@{k}"] = mean
    stats["groups_left_out"] = float(len(counts) - len(judged))
    return stats


def evaluation(cfg, step: int, policy, task, judge) -> dict:
    """Return the metrics of the recipe's evaluation, or nothing if none is due after this step."""
    return evaluate(cfg, policy, task, judge.validation) if cfg.evaluates(step) else {}


def evaluate(cfg, policy, task, judge) -> dict:
    """Return the metrics of the recipe's evaluation of a task, with the rewards of its judge."""
    prompts = min(cfg.eval_prompts, len(task))
    if task.classes:
        found = policy.evaluate(task, prompts, cfg.eval_k)
    else:
        sampling = {"temperature": cfg.eval_temperature, "top_p": cfg.eval_top_p}
        total = torch.zeros(2, dtype=torch.float64, device=policy.device)

        def counted(examples, rollouts):
            rewards = judge(examples, rollouts)
            known = rewards[rewards.isfinite()]
            total.add_(torch.stack([known.sum(), known.new_tensor(known.numel())]))
            return rewards

        sampling |= {"judge": counted}
        prompts = range(prompts)
        found = pass_at_ks(policy, task, prompts, cfg.eval_k, cfg.eval_samples, **sampling)
        rewards, count = distributed.sum_tensor(total).tolist()
        found["reward"] = rewards / count if count else math.nan
    return {f"eval/{name}": value for name, value in found.items()}
