"""Train a recipe: `python train.py maze9_laptop`.
On several GPUs: `torchrun --nproc-per-node 8 train.py maze17 --estimator grpo`.

The loop in `train` is Algorithm 1 of the paper. Each prompt gets N rollouts, with rewards r_i of 0
or 1. The gradient is the sum of A_i grad log m(z_i) over all rollouts i, divided by the number of
response tokens as in Appendix F, or by another divisor if the recipe names one
(maxrl/learning/losses.py). The methods differ only in the formula for A_i
(maxrl/advantages/formulas.py):

1. reinforce        A_i = r_i. On average this is the gradient of the pass rate p.
2. reinforce_mean   A_i = r_i - mean. The baseline removes noise but adds a factor (N - 1) / N.
3. rloo             A_i = r_i - mean of the others. The same, but without this factor.
4. grpo             A_i = (r_i - mean) / std. A prompt's weight tends to 1 / sqrt(p (1 - p)) as N
                    grows.
5. maxrl            A_i = (r_i - mean) / mean. A prompt's weight is (1 - (1-p)^(N-1)) / p, at most
                    N - 1: the gradient of log p, cut off after its term of order N - 1.
"""

import math
import sys
from contextlib import closing
from typing import Any

from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from maxrl.advantages import ADVANTAGES
from maxrl.advantages.options import estimator_options
from maxrl.learning.config import Config
from maxrl.learning.optimizer import make_optimizer, set_rates
from maxrl.learning.prompt_order import Plan, prefetched
from maxrl.learning.rounds import Responses, sample
from maxrl.learning.updates import learning_rate, means, minibatches
from maxrl.run import banner, build, cli, setup
from maxrl.run.build import Learner
from maxrl.run.command_line import read_recipe
from maxrl.run.directory import STOPPED, Run
from maxrl.run.evaluation import evaluate
from maxrl.run.logger import Logger
from maxrl.sampling.rollouts import with_verdict
from maxrl.system import distributed, sharding
from maxrl.system.totals import Metrics, Totals
from maxrl.tasks.base import Task
from maxrl.tasks.rewards import Judge


def train(
    cfg: Config,
    run: Run,
    task: Task,
    validation: Task | None,
    judge: Judge,
    eval_judge: Judge | None,
    policy: Learner,
    optimizer: Optimizer,
) -> None:
    """Run Algorithm 1, from the step after the run's newest checkpoint to the run's last step.

    cfg         the resolved recipe
    run         the run directory, which this process has locked
    task        the training prompts
    validation  the prompts of evaluations, or None
    judge       judge(examples, rollouts) gives the rewards (P_local, N)
    eval_judge  gives the rewards in evaluations
    policy      makes the rollouts and their gradients
    optimizer   updates the policy's parameters

    Results go to the run directory. Raises UsageError or RewardError with a one-sentence message.
    """
    first_step = run.restore(policy, optimizer)
    logger = Logger(run, first_step)
    policy.watch = logger.watch  # a step may take minutes
    logger.say(*banner.opening(run, policy))
    plan = Plan(cfg, len(task))

    clock = logger.clock
    with closing(prefetched(task, plan, cfg.workers, first_step)) as batches:
        for step in range(first_step, cfg.steps):  # Algorithm 1; lines 8 and 9 are in learn()
            with clock("data"):
                examples = next(batches)  # P_local prompts of this rank
            # N rollouts of each prompt and their rewards. All N of a prompt are on one rank, so
            # advantages need no communication.
            sampled = sample(cfg, policy, judge, examples, step, plan.mine, clock)
            # A reward function may give no verdict on a rollout. From here on P_local counts only
            # the prompts with a verdict. Rounds also change their order.
            rollouts, rewards = with_verdict(sampled.rollouts, sampled.rewards)  # (P_local, N)
            advantages = estimate(cfg, rollouts, rewards)  # (P_local, N)
            with clock("backward"):
                stats = learn(cfg, policy, optimizer, rollouts, advantages, step)

            # Sums over ranks are collectives, so every rank reports and evaluates.
            evaluated: Metrics = {}
            if validation is not None and cfg.evaluates(step):
                evaluated = evaluate(cfg, policy, validation, eval_judge)
            metrics = logger.report(policy, examples, sampled, judge, stats, evaluated)
            # If one rank has received a signal, all ranks save and stop, but only here.
            if run.ends(step, metrics, policy, optimizer, logger):
                break
    logger.say(*banner.closing(run))
    logger.close()


def learn(
    cfg: Config,
    policy: Learner,
    optimizer: Optimizer,
    rollouts: Any,
    advantages: Tensor,
    step: int,
) -> Metrics:
    """Learn from a step's rollouts, in one update or several; return their mean statistics.

    rollouts    of the P_local prompts of this rank that have a verdict
    advantages  (P_local, N)
    step        of the run: the learning rate and the minibatches depend on it
    """
    # With several updates, the importance ratio is taken against the policy before the first.
    several = cfg.minibatches * cfg.passes > 1
    stats = policy.record(rollouts) if several else {}
    updates = []
    for group_ids in minibatches(cfg, len(advantages), step):
        totals = policy.backward(rollouts, advantages, group_ids)  # line 8, over all ranks
        # Is any advantage on any rank not 0? group_ids is None for one update of all rollouts: as
        # an index that takes them all, without the copy to the device that a list would be.
        totals.highest("signal", advantages[group_ids].any())
        updates.append(update(cfg, policy, optimizer, totals, step))  # line 9
    return stats | means(cfg, policy.items, updates)


def estimate(cfg: Config, rollouts: Responses, rewards: Tensor) -> Tensor:
    """Return the advantages (P_local, N) of rewards (P_local, N)."""
    # A rank without any verdict still joins the update, with 0 groups.
    if len(rewards) == 0:
        return rewards
    return ADVANTAGES[cfg.estimator](rewards, **estimator_options(cfg, rollouts))


def update(
    cfg: Config,
    policy: Learner,
    optimizer: Optimizer,
    totals: Totals,
    step: int,
) -> Metrics:
    """Take one optimizer step with the gradients of policy.backward, unless they are not finite.

    totals  what policy.backward returned, plus "signal": whether a rollout's advantage is not 0
    step    the step of the run, on which the learning rate depends

    Returns the statistics of this update, the same on all ranks.
    """
    # MaxRL's advantages can be as large as N - 1, but the steps of Adam and Muon hardly depend on
    # the gradient's size. Clipping does not change the relative weights of an update's prompts.
    norm = clip_grad_norm_(policy.model.parameters(), cfg.max_grad_norm)
    totals.highest("grad_norm", sharding.unsharded(norm))
    # The one wait for the device. The statistics are the same on all ranks, so either all of them
    # skip the update or none does.
    stats = totals.metrics()
    lr = learning_rate(cfg, step)
    set_rates(optimizer, lr, stats.pop("signal"))
    finite = math.isfinite(stats["grad_norm"] + stats["loss"])
    if not finite:
        policy.restore_buffers()
    elif moves(cfg, policy, stats):
        optimizer.step()
    # DDP's gradients are views into its buckets, so they are set to zero instead of freed.
    optimizer.zero_grad(set_to_none=not distributed.in_buckets(policy.module))
    return stats | {"lr": lr, "skipped_updates": float(not finite)}


def moves(cfg: Config, policy: Learner, stats: Metrics) -> bool:
    """Return whether an update with a finite gradient moves the weights."""
    # This count is 0 if no rank has a verdict. Weight decay and momentum would then move the
    # weights although no verdict has said anything about them.
    judged = stats[policy.items] > 0
    # Muon takes no step without a gradient, see `set_rates`.
    at_rest = cfg.optimizer == "muon" and stats["grad_norm"] == 0
    return judged and not at_rest


def main(arguments: list[str]) -> None:
    """Build everything that a recipe names, then train it in its run directory."""
    recipe = read_recipe(arguments, __doc__)
    # --help and --dry-run have printed their answer.
    if recipe is None:
        return
    name, cfg = recipe
    device = distributed.setup(cfg.device, cfg.deterministic)
    task, validation = setup.load_splits(cfg)
    cfg = setup.resolved(cfg, task, distributed.world_size())
    with Run(cfg, name, task, validation) as run:
        judge, eval_judge = setup.choose_judges(cfg, task, validation)
        policy = build.policy_from(cfg, task, validation, run.resumed, device)
        optimizer = make_optimizer(cfg, policy.model)
        train(cfg, run, task, validation, judge, eval_judge, policy, optimizer)
        distributed.barrier()
    # The exit code tells a scheduler that there is more to do.
    if run.stopped:
        cli.leave(STOPPED)


if __name__ == "__main__":
    cli.never_fail("stdout")
    with cli.script("train.py", memory=cli.LESS_MEMORY):
        main(sys.argv[1:])
