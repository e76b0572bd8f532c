"""Train a recipe: `python train.py maze9_laptop`, or `torchrun --nproc-per-node 8 train.py maze17 --estimator grpo`.

The loop in `train` is Algorithm 1 of the paper. Each prompt gets N rollouts with rewards r_i of 0 or 1. Five estimators,
each one change of one line of maxrl/advantages.py:

1. REINFORCE weighs the score of rollout i, the gradient of its log-probability, by A_i = r_i.
2. A baseline removes noise and no signal: A_i = r_i - mean. This is reinforce_mean, or dr_grpo.
3. RLOO takes the mean of the other rollouts, which makes it unbiased. All three maximise the pass rate p.
4. GRPO divides by the standard deviation, A_i = (r_i - mean) / std: its weight on a prompt is 1 / sqrt(p (1 - p)).
5. MaxRL divides by the mean, A_i = (r_i - mean) / mean: its weight tends to 1 / p, that of the likelihood log p.

So hard prompts count for more from one step to the next, and with MaxRL as much as maximum likelihood says.
"""

import math
import sys

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from maxrl import distributed, sharding
from maxrl.advantages import ADVANTAGES
from maxrl.batches import Plan, prefetched
from maxrl.config import Config
from maxrl.evaluate import evaluation
from maxrl.rollouts import with_verdict
from maxrl.run import banner, cli, setup
from maxrl.run.command_line import read_recipe
from maxrl.run.directory import STOPPED, Run
from maxrl.run.logger import Clock, Logger, step_metrics


def train(cfg: Config, run: Run, task, validation, judge, policy, optimizer):
    """Algorithm 1, from the step after the run's newest checkpoint to the last one.

    cfg         the resolved recipe
    run         the run directory, which this process holds
    task        the training prompts; its rewards() gives the (P_local, N) rewards of rollouts
    validation  the prompts of evaluations, or None
    judge       who makes the rewards, for its statistics; None for a classifier
    policy      makes the rollouts and their gradients
    optimizer   over the policy's parameters

    Ends early after a signal (run.stopped) or at --stop-at-pass. UsageError and RewardError end it with a sentence.
    """
    first_step = run.restore(policy, optimizer)
    logger = Logger.of(run, first_step)
    logger.say(*banner.opening(cfg, run, task, validation, policy))
    plan = Plan(cfg, len(task), distributed.rank(), distributed.world_size())
    batches = prefetched(task, plan, cfg.workers, first_step)
    reached = False
    for step in range(first_step, cfg.steps):                        # Algorithm 1
        clock = Clock()
        examples = next(batches)                                     # P_local prompts of this rank
        clock.lap("data")

        if cfg.estimator == "supervised":
            rollouts = policy.demonstrate(examples)                  # the answers, N = 1
        else:
            rollouts = policy.rollout(examples, cfg.rollouts, step=step, indices=plan.mine)
        clock.lap("rollout")

        # A reward function may have no verdict on a group: it is logged, and the gradient does without it.
        rewards = task.rewards(examples, rollouts)                   # (P_local, N)
        judged, rewards = with_verdict(rollouts, rewards)            # those of P_local with all N rewards
        options = setup.estimator_options(cfg, judged)
        advantages = rewards
        if len(rewards):
            advantages = ADVANTAGES[cfg.estimator](rewards, **options)  # (P_local, N)
        clock.lap("reward")

        stats = update(cfg, policy, optimizer, judged, advantages, step)
        clock.lap("backward")
        run.count_skipped(step, stats["skipped_updates"], judged, rewards, advantages)

        metrics = step_metrics(rewards, rollouts, judge) | stats | clock.metrics(policy.unit, stats)
        logger.warn_of(cfg, metrics)
        if cfg.evaluates(step):
            metrics |= evaluation(cfg, policy, validation)
        if judge:
            metrics |= judge.faults(policy.device)
        logger.log(step, metrics | distributed.peak_memory(policy.device))

        reached = 0 < cfg.stop_at_pass <= metrics.get("eval/pass@1", 0)
        finished = reached or step + 1 == cfg.steps
        if run.due(step, finished):
            run.save(policy, optimizer, step, reached, logger)
        if finished or run.stopped:
            break
    logger.say(*banner.closing(cfg, run, first_step, reached))
    logger.close()
    distributed.barrier()


def update(cfg: Config, policy, optimizer, rollouts, advantages: torch.Tensor, step: int) -> dict[str, float]:
    """One optimizer step from all rollouts of the batch, or several from shares of them.

    rollouts    of this rank's prompts
    advantages  (P_local, N)

    Returns the means of the updates' statistics over all ranks; of tokens or images it is the sum over a pass.
    """
    lr = learning_rate(cfg, step)
    for group in optimizer.param_groups:
        group["lr"] = lr
    # With several updates the importance ratio compares with the policy before the first of them.
    recorded = {}
    if cfg.minibatches * cfg.passes > 1:
        recorded = policy.record(rollouts)
    updates = []
    for groups in minibatches(cfg, len(advantages), step):
        optimizer.zero_grad(set_to_none=True)
        stats = policy.backward(rollouts, advantages, groups)        # Algorithm 1, line 8, over all ranks
        norm = clip_grad_norm_(policy.model.parameters(), cfg.max_grad_norm)
        norm = float(sharding.unsharded(norm))
        # The same on all ranks. Without any verdict weight decay and momentum rest too.
        finite = math.isfinite(norm) and math.isfinite(stats["loss"])
        if finite and stats[policy.unit]:
            optimizer.step()                                         # line 9
        elif not finite:
            policy.restore_buffers()
        updates.append(stats | {"grad_norm": norm, "lr": lr, "skipped_updates": 1.0 - finite})
    result = recorded
    for name in updates[0]:
        count = cfg.passes if name == policy.unit else len(updates)
        result[name] = sum(stats[name] for stats in updates) / count
    return result


def minibatches(cfg: Config, groups: int, step: int):
    """Yield which of this rank's groups each update of the step takes: None, all at once, in the paper's recipes."""
    if cfg.minibatches == cfg.passes == 1:
        yield None
        return
    for i in range(cfg.passes):
        order = np.random.default_rng([cfg.seed, step, distributed.rank(), i, 2]).permutation(groups)
        for part in np.array_split(order, cfg.minibatches):
            yield part.tolist()


def learning_rate(cfg: Config, step: int) -> float:
    """Linear increase over warmup_steps, then constant or, over the last decay_ratio of the steps, a cosine to 0."""
    if step < cfg.warmup_steps:
        return cfg.lr * (step + 1) / cfg.warmup_steps
    start = max(cfg.warmup_steps, round((1 - cfg.decay_ratio) * cfg.steps))
    if cfg.schedule == "constant" or step < start:
        return cfg.lr
    return cfg.lr * 0.5 * (1 + math.cos(math.pi * (step - start) / max(1, cfg.steps - start)))


def main(arguments: list[str]):
    """Build everything that a recipe names, then train it in its run directory."""
    recipe = read_recipe(arguments, __doc__)
    if recipe is None:                                               # --help and --dry-run have said it all
        return
    name, cfg = recipe
    _, world, device = distributed.setup(cfg.device, cfg.deterministic)
    task, validation = setup.load_splits(cfg)
    cfg = setup.check(cfg, task, world, validation)
    with Run(cfg, name, task, validation) as run:
        judge = setup.choose_rewards(cfg, task, validation)
        policy = setup.start_policy(cfg, task, validation, run.resumed, device)
        optimizer = setup.make_optimizer(cfg, policy.model)
        train(cfg, run, task, validation, judge, policy, optimizer)
    if run.stopped:
        cli.leave(STOPPED)


if __name__ == "__main__":
    cli.never_fail()
    less = "lower --micro-batch-tokens, --wave-rows or --kv-memory-gb, or use --gradient-checkpointing true"
    with cli.script("train.py", memory=less):
        main(sys.argv[1:])
