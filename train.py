"""Train a recipe: `python train.py maze9_laptop`.
On several GPUs: `torchrun --nproc-per-node 8 train.py maze17 --estimator grpo`.

The loop in `train` is Algorithm 1 of the paper. Each prompt gets N rollouts with rewards r_i of
0 or 1, and the gradient is the mean of A_i times the score of rollout i, grad log m(z_i). From
REINFORCE to MaxRL every step changes one line of maxrl/advantages.py, the advantage A_i:

1. reinforce        A_i = r_i. On average this is the gradient of the pass rate p.
2. reinforce_mean   A_i = r_i - mean. The baseline removes noise and leaves the direction.
3. rloo             A_i = r_i - mean of the others. The same without the factor (N - 1) / N.
4. grpo             A_i = (r_i - mean) / std. A prompt now weighs 1 / sqrt(p (1 - p)).
5. maxrl            A_i = (r_i - mean) / mean. A prompt weighs nearly 1 / p: this is the gradient
                    of log p, the likelihood, up to an order that grows with N.
"""

import math
import sys

import numpy as np
from torch.nn.utils import clip_grad_norm_

from maxrl.advantages import ADVANTAGES
from maxrl.config import Config
from maxrl.evaluation import evaluation
from maxrl.parallel import distributed, sharding
from maxrl.prompt_order import Plan, prefetched
from maxrl.rollouts import with_verdict
from maxrl.rounds import demonstrated, in_rounds
from maxrl.run import banner, cli, setup
from maxrl.run.command_line import read_recipe
from maxrl.run.directory import STOPPED, Run
from maxrl.run.logger import Clock, Logger, step_metrics
from maxrl.run.profile import profiled


def train(cfg: Config, run: Run, task, validation, judge, policy, optimizer):
    """Algorithm 1, from the step after the run's newest checkpoint to the last one.

    cfg         the resolved recipe
    run         the run directory, which this process holds
    task        training prompts; its rewards() gives the (P_local, N) rewards of rollouts
    validation  the prompts of evaluations, or None
    judge       who makes the rewards, for its statistics; None for a classifier
    policy      makes the rollouts and their gradients
    optimizer   over the policy's parameters

    The result is in the run directory. Raises UsageError or RewardError, each with one sentence.
    """
    first_step = run.restore(policy, optimizer)
    logger = Logger(run, first_step)
    logger.say(*banner.opening(run, task, validation, policy))
    plan = Plan(cfg, len(task), distributed.rank(), distributed.world_size())
    batches = prefetched(task, plan, cfg.workers, first_step)
    for step in profiled(range(first_step, cfg.steps), run):  # Algorithm 1
        clock = Clock()
        examples = next(batches)  # P_local prompts of this rank
        clock.lap("data")
        # All N rollouts of a prompt are on one rank: advantages need no communication.
        if cfg.estimator == "supervised":
            sampled = demonstrated(policy, task, examples, clock)  # the answers, N = 1
        else:
            sampled = in_rounds(policy, task, examples, cfg.rounds, step, plan.mine, clock)
        logger.show(examples, sampled)  # if samples are due
        # A reward function may have no verdict on a group, which then has no gradient.
        judged, rewards = with_verdict(sampled.rollouts, sampled.rewards)  # (P_local, N)
        options = setup.estimator_options(cfg, judged)
        advantages = rewards
        if len(rewards):
            advantages = ADVANTAGES[cfg.estimator](rewards, **options)  # (P_local, N)
        clock.lap("reward")
        # The importance ratio of several updates compares with the policy before the first.
        stats = {}
        if cfg.minibatches * cfg.passes > 1:
            stats = policy.record(judged)
        updates = []
        for groups in minibatches(cfg, len(advantages), step):
            result = policy.backward(judged, advantages, groups)  # line 8, over all ranks
            updates.append(result | update(cfg, policy, optimizer, result, step))  # line 9
        stats |= means(cfg, policy.unit, updates)
        clock.lap("backward")
        run.count_skipped(step, stats, judged, rewards, advantages)
        evaluated = evaluation(cfg, step, policy, validation)  # if it is due after this step
        # Every rank must come by here: the sums over ranks are collectives.
        metrics = step_metrics(sampled, judge) | stats
        metrics |= clock.metrics(policy, stats) | evaluated
        logger.log(step, metrics)
        # due() asks all ranks: a signal to one of them saves and stops all, here and not before.
        if run.due(step, metrics):
            run.save(policy, optimizer, step, logger)
        if run.reached or run.stopped:
            break
    logger.say(*banner.closing(run))
    logger.close()


def update(cfg: Config, policy, optimizer, stats: dict, step: int) -> dict:
    """One optimizer step with the gradients of policy.backward, unless they are not finite.

    stats  what policy.backward returned
    step   which step of the run it is: the learning rate depends on it

    Returns the statistics of this update, the same on all ranks.
    """
    lr = learning_rate(cfg, step)
    for group in optimizer.param_groups:
        group["lr"] = lr
    norm = clip_grad_norm_(policy.model.parameters(), cfg.max_grad_norm)
    norm = float(sharding.unsharded(norm))

    # Norm and loss are the same on all ranks, so all of them skip or none does.
    finite = math.isfinite(norm) and math.isfinite(stats["loss"])
    if not finite:
        policy.restore_buffers()
    # Without any verdict weight decay and momentum must not move the weights either.
    elif stats[policy.unit]:
        optimizer.step()
    # Gradients that lie in DDP's buckets stay there: new ones would be held beside them.
    optimizer.zero_grad(set_to_none=not distributed.in_buckets(policy.module))
    return {"grad_norm": norm, "lr": lr, "skipped_updates": 1.0 - finite}


def means(cfg: Config, unit: str, updates: list[dict]) -> dict:
    """Return the mean statistics of a step's updates; tokens or images are summed over a pass."""
    result = {}
    for name in updates[0]:
        count = cfg.passes if name == unit else len(updates)
        result[name] = sum(stats[name] for stats in updates) / count
    return result


def minibatches(cfg: Config, groups: int, step: int):
    """Yield, for each update of a step, which of this rank's `groups` prompts it takes.

    None stands for all of them at once, as in the paper's recipes.
    """
    if cfg.minibatches == cfg.passes == 1:
        yield None
        return
    # The 2 keeps this stream of random numbers apart from those of rollouts and prompts.
    for i in range(cfg.passes):
        rng = np.random.default_rng([cfg.seed, step, distributed.rank(), i, 2])
        order = rng.permutation(groups)
        for part in np.array_split(order, cfg.minibatches):
            yield part.tolist()


def learning_rate(cfg: Config, step: int) -> float:
    """Linear increase over warmup_steps, then constant or a cosine to 0 over the last decay_ratio
    of the steps."""
    if step < cfg.warmup_steps:
        return cfg.lr * (step + 1) / cfg.warmup_steps
    start = round((1 - cfg.decay_ratio) * cfg.steps)
    start = max(cfg.warmup_steps, start)
    if cfg.schedule == "constant" or step < start:
        return cfg.lr
    progress = (step - start) / max(1, cfg.steps - start)
    cosine = math.cos(math.pi * progress)
    return cfg.lr * 0.5 * (1 + cosine)


def main(arguments: list[str]):
    """Build everything that a recipe names, then train it in its run directory."""
    recipe = read_recipe(arguments, __doc__)
    # --help and --dry-run have printed their answer.
    if recipe is None:
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
        distributed.barrier()
    # The exit code tells a scheduler that there is more to do.
    if run.stopped:
        cli.leave(STOPPED)


if __name__ == "__main__":
    cli.never_fail()
    with cli.script("train.py", memory=cli.LESS_MEMORY):
        main(sys.argv[1:])
