"""Train a recipe: `python train.py maze9_laptop`, or `torchrun --nproc-per-node 8 train.py maze17 --estimator grpo`.

The loop in `train` is Algorithm 1 of the paper: rollouts, rewards, advantages (maxrl/advantages.py), gradient, step.
"""

import functools
import inspect
import math
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from maxrl import banner, checkpoint, distributed, memory, runs
from maxrl.advantages import ADVANTAGES, RewardError, add_own
from maxrl.config import Config, RunError, UsageError, dashed, describe, imported, with_overrides
from maxrl.logger import Logger, check_trackers, never_fail
from maxrl.metrics import group_means, group_sums
from maxrl.models import from_config
from maxrl.models.lora import add_lora, merge
from maxrl.policy import make_policy
from maxrl.recipes import RECIPES, find_recipe
from maxrl.rewards import Rewards, Verdicts, faults, probe
from maxrl.sampler import PromptError, check_prompts, out_of_memory
from maxrl.tasks import TASKS, load_task
from maxrl.tasks.base import Within, finished_only, prefetched
from maxrl.tokenizer import Tokenizer

# What only a language model or only a classifier has: refused for the other, never ignored.
SEQUENCES_ONLY = ("max_response", "zero_reward_at_limit", "micro_batch_tokens", "wave_rows", "minibatches", "passes", "clip",
                  "beta", "entropy_bonus", "kv_memory_gb", "gradient_checkpointing", "lora_rank", "lora_alpha",
                  "lora_projections", "lora_merge", "shard", "eval_temperature", "eval_top_p", "max_prompt", "reward",
                  "reward_weights")
MOST = 10**8  # examples of a split
CLASSIFIERS_ONLY = ("sync_batch_norm",)


def train(cfg: Config, run: runs.Run, task, validation, device):
    rank, world = distributed.rank(), distributed.world_size()
    judge = choose_rewards(cfg, task, validation)
    policy = start_policy(cfg, task, validation, run.resumed, device)
    optimizer = make_optimizer(cfg, policy.model)
    first_step = run.restore(policy, optimizer)
    logger = Logger(run.start(first_step), first_step, cfg.steps, f"{run.recipe} {cfg.estimator}", main=run.main,
                    track=cfg.track, supervised=cfg.estimator == "supervised", resumed=run.resumed)
    logger.say(*banner.opening(cfg, run, task, validation, policy, device))
    batches = prefetched(task, Plan(cfg, len(task), rank, world), cfg.workers, first_step)
    for step in range(first_step, cfg.steps):                                            # Algorithm 1
        clock = [time.perf_counter()]
        examples = next(batches)                                                         # P_local prompts of this rank
        clock.append(time.perf_counter())
        if cfg.estimator == "supervised":
            rollouts = policy.demonstrate(examples)                                      # the answers, N = 1
        else:
            rollouts = policy.rollout(examples, cfg.rollouts, step=step, indices=range(rank, cfg.prompts, world))
        clock.append(time.perf_counter())
        rewards = task.rewards(examples, rollouts)                                       # (P_local, N)
        judged, rewards = with_verdict(rollouts, rewards)                                # a reward function may have none
        options = estimator_options(cfg, judged)
        advantages = ADVANTAGES[cfg.estimator](rewards, **options) if len(rewards) else rewards  # (P_local, N)
        clock.append(time.perf_counter())
        stats = update(cfg, policy, optimizer, judged, advantages, step)                 # backward, optimizer.step
        clock.append(time.perf_counter())
        run.count_skipped(step, stats["skipped_updates"], judged, rewards, advantages)

        metrics = step_metrics(rewards, rollouts, judge, device) | stats | timings(clock, policy.unit, stats[policy.unit])
        warn_of(cfg, metrics, logger)
        if evaluation_due(cfg, step):
            sampling = {} if task.classes else {"temperature": cfg.eval_temperature, "top_p": cfg.eval_top_p}
            evaluated = policy.evaluate(validation, cfg.eval_prompts, cfg.eval_k, cfg.eval_samples, **sampling)
            metrics |= {f"eval/{name}": value for name, value in evaluated.items()}
        metrics |= distributed.all_reduce({} if cfg.reward else faults(task), device=device)  # of a verifier of processes
        logger.log(step, metrics | distributed.peak_memory(device))
        reached = 0 < cfg.stop_at_pass <= metrics.get("eval/pass@1", 0)
        finished = reached or step + 1 == cfg.steps
        if run.due(step, finished):
            run.save(policy, optimizer, step, reached, logger)
        if finished or run.stopped:
            break
    if cfg.stop_at_pass and first_step < cfg.steps and not (run.stopped or reached):
        logger.say(f"pass@1 did not reach --stop-at-pass {cfg.stop_at_pass} within {cfg.steps} steps")
    if run.main:
        logger.say(*banner.closing(cfg, run, first_step))
    logger.close()
    distributed.barrier()


def load(cfg: Config, split: str):
    """A split of the task, without the prompts that are longer than max_prompt; None for a validation that is not asked for."""
    if split == "validation" and not cfg.eval_every:
        return None
    try:
        task = load_task(cfg.task, split, **cfg.task_options)
    except FileNotFoundError as error:
        raise UsageError(str(error)) from None
    if len(task) > MOST:
        raise UsageError(f"the {split} split of task {cfg.task} says that it has {len(task):,} examples: at most {MOST:,} can "
                         "be shuffled")
    if not (cfg.init or cfg.model and (task.classes or task.tokenizer or task.vocabulary)):
        raise UsageError(f"the recipe has no model for task {cfg.task}: name a checkpoint or a hub id with --init")
    if cfg.max_prompt or not (task.classes or task.vocabulary):  # a generated vocabulary: prompts of one length, a million
        try:
            if cfg.init:
                tokenizer = checkpoint.load_tokenizer(cfg.init)
            else:
                tokenizer = Tokenizer.load(task.tokenizer) if task.tokenizer else Tokenizer.from_vocabulary(task.vocabulary)
            task = Within(task, tokenizer, cfg.max_prompt or sys.maxsize)
        except (ValueError, FileNotFoundError) as error:
            raise UsageError(str(error)) from None
        if task.left_out and distributed.rank() == 0:
            print(f"{split}: {task.told}", file=sys.stderr)
    return task


def choose_rewards(cfg: Config, *tasks) -> Rewards | None:
    """Who judges the training split: the user's reward functions, if there are any, in the tasks' place, or the task itself
    (nobody of a classifier's draws); and what becomes of cut responses."""
    judges = []
    own = Rewards(cfg.reward, cfg.reward_weights, cfg.reward_errors, cfg.reward_timeout, cfg.out) if cfg.reward else None
    for task in [task for task in tasks if task is not None and not task.classes]:
        judges.append(own or Verdicts(task, cfg.reward_errors, cfg.out))
        task.rewards = finished_only(judges[-1].judge) if cfg.zero_reward_at_limit else judges[-1].judge
    return judges[0] if judges else None


def check(cfg: Config, task, world: int, validation=None) -> Config:
    """Refuse before any work what could not run; turns epochs into steps."""
    if len(task) == 0:
        raise UsageError(f"the training split of task {cfg.task} is empty")
    if validation is not None and len(validation) == 0:
        raise UsageError(f"the validation split of task {cfg.task} is empty: evaluate never, with --eval-every 0")
    if cfg.prompts % world:
        nearest = [n for n in (cfg.prompts // world * world, -(-cfg.prompts // world) * world) if n]
        raise UsageError(f"--prompts {cfg.prompts} must divide by the {world} ranks; use {' or '.join(map(str, nearest))}")
    if cfg.prompts // world % cfg.minibatches:
        raise UsageError(f"--minibatches {cfg.minibatches} must divide the {cfg.prompts // world} prompts of a rank")
    if cfg.estimator == "supervised" and cfg.rollouts != 1:
        raise UsageError(f"--estimator supervised has one answer per prompt, not --rollouts {cfg.rollouts}; use --rollouts 1")
    try:
        ADVANTAGES[cfg.estimator](torch.zeros(1, cfg.rollouts), **estimator_options(cfg))
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(f"--estimator {cfg.estimator}: {error.args[0]}") from None
    kind, others = ("a language model", CLASSIFIERS_ONLY) if not task.classes else ("a classifier", SEQUENCES_ONLY)
    for name in others:
        if getattr(cfg, name) != getattr(Config(), name):
            raise UsageError(f"--{dashed(name)} {getattr(cfg, name)} means nothing to {kind}: leave it out")
    if cfg.eval_every and bool(task.classes) != (cfg.eval_samples == 0):
        raise UsageError(f"--eval-samples {cfg.eval_samples} does not fit {kind}: " +
                         ("its pass@k is exact, use 0" if task.classes else "use at least the largest --eval-k"))
    if cfg.sync_batch_norm and (world == 1 or cfg.device == "cpu" or not torch.cuda.is_available()):
        raise UsageError("--sync-batch-norm true needs several ranks on CUDA")
    check_trackers(cfg.track)
    if not (cfg.reward or task.classes or cfg.estimator == "supervised"):
        probe(task, cfg.reward_errors)  # a package or reward functions that are missing are named before any work
    if cfg.shard and world == 1:
        raise UsageError("--shard true divides a model over ranks and here is one: start more by torchrun, or leave it out")
    per_epoch = len(task) / cfg.prompts
    if cfg.epochs:
        cfg = replace(cfg, steps=math.ceil(cfg.epochs * per_epoch))
    if cfg.warmup_epochs:
        cfg = replace(cfg, warmup_steps=round(cfg.warmup_epochs * per_epoch))
    return cfg


def start_policy(cfg: Config, task, validation, resumed: Path | None, device):
    """The policy from the checkpoint to resume from, from --init, or new."""
    torch.manual_seed(cfg.seed)
    try:
        if resumed or cfg.init:
            checkpoint.check_whole(resumed or cfg.init)
            model, tokenizer, stop = checkpoint.load_model(resumed or cfg.init)
            if not cfg.lora_rank:
                merge(model)  # where --init is an adapter
            elif not resumed:
                add_lora(model, cfg.lora_rank, cfg.lora_alpha, cfg.lora_projections, checkpoint.base_name(cfg.init))
        elif task.classes:
            model, tokenizer, stop = from_config(cfg.model | {"num_labels": len(task.classes)}), None, []
        elif task.tokenizer:
            model, tokenizer = from_config(cfg.model), Tokenizer.load(task.tokenizer)
            stop = [tokenizer.id(tokenizer.special("eos_token"))]
        else:
            model, tokenizer, stop = from_config(cfg.model), Tokenizer.from_vocabulary(task.vocabulary), []
        if cfg.sync_batch_norm:
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        own = {} if task.classes else {"aggregation": cfg.aggregation, "micro_batch_tokens": cfg.micro_batch_tokens,
                                       "wave_rows": cfg.wave_rows, "max_tokens": cfg.max_response, "clip": cfg.clip,
                                       "entropy_bonus": cfg.entropy_bonus, "beta": cfg.beta, "kv_memory_gb": cfg.kv_memory_gb,
                                       "gradient_checkpointing": cfg.gradient_checkpointing, "shard": cfg.shard}
        if cfg.beta:
            own["reference"] = checkpoint.load_model(cfg.init)[0].to(device)
        policy = make_policy(model, tokenizer, stop, task, device, seed=cfg.seed, workers=cfg.workers,
                             autocast=distributed.use_bfloat16(cfg.precision, device), **own)
        for prompts in [prompts for prompts in (task, validation) if prompts is not None and not task.classes]:
            longest = getattr(prompts, "longest", 0) or len(tokenizer.encode_prompt(prompts[0].prompt))
            check_prompts(model, [range(longest)], cfg.max_response)
        return policy
    except FileNotFoundError as error:
        name = Path(cfg.init).name
        mend = f", or make this one: python train.py {name}" if name in RECIPES else ""
        raise UsageError(f"{error}: name another with --init{mend}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def make_optimizer(cfg: Config, model) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    if cfg.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=cfg.lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay)
    return torch.optim.AdamW(trained, lr=cfg.lr, betas=cfg.betas, weight_decay=cfg.weight_decay)


class Plan:
    """Which prompts this rank gets at each step, and what is random in them: (indices, seeds); see `prefetched`."""

    def __init__(self, cfg: Config, size: int, rank: int, world: int):
        self.cfg, self.size, self.mine = cfg, size, range(rank, cfg.prompts, world)  # the rank's places in the batch
        first = cfg.estimator == "supervised" or not cfg.init  # from scratch all estimators have one order
        self.order = 2 * cfg.seed + first  # RL after a warm-up does not start with the prompts that this saw

    def __len__(self) -> int:
        return self.cfg.steps

    def __getitem__(self, step: int):
        indices = batch_indices(self.size, self.cfg.prompts, step, self.order)                     # (P,)
        return [int(indices[place]) for place in self.mine], [[self.cfg.seed, step, place, 1] for place in self.mine]


def batch_indices(size: int, prompts: int, step: int, seed: int) -> np.ndarray:
    """The prompts of a step, (P,): every epoch is a shuffle of its own, none is left out; a function of its arguments."""
    places = range(step * prompts, (step + 1) * prompts)
    return np.array([shuffle(size, place // size, seed)[place % size] for place in places])


@functools.lru_cache(maxsize=2)
def shuffle(size: int, epoch: int, seed: int) -> np.ndarray:
    # The 3 is this stream's tag: numpy fills seeds up with zeros, so that [seed, epoch] would be the noise of a first prompt.
    return np.random.default_rng([seed, epoch, 0, 3]).permutation(size)


def with_verdict(rollouts, rewards: torch.Tensor):
    """Rollouts and rewards (P_local, N) of the groups that have all their rewards; reward functions may leave some out."""
    kept = rewards.isfinite().all(1)                                                           # (P_local,)
    return (rollouts, rewards) if kept.all() else (rollouts.select(kept), rewards[kept])


def estimator_options(cfg: Config, rollouts=None) -> dict:
    """The recipe's options, and what else the estimator takes: of one group of zeros where there are no rollouts yet."""
    options, known = dict(cfg.estimator_options), ADVANTAGES[cfg.estimator].known
    if "mean_log_probs" in known:
        options["mean_log_probs"] = rollouts.mean_log_probs() if rollouts is not None else torch.zeros(1, cfg.rollouts)
    if cfg.allow_fractional and "allow_fractional" in known:
        options["allow_fractional"] = True
    return options


def update(cfg: Config, policy, optimizer, rollouts, advantages: torch.Tensor, step: int) -> dict[str, float]:
    """One update from all of the rollouts, or several from shares of them; the mean of their statistics, and of tokens or
    images the sum over a pass."""
    lr, updates = learning_rate(cfg, step), []
    recorded = policy.record(rollouts) if cfg.minibatches * cfg.passes > 1 else {}  # what the importance ratio compares with
    for group in optimizer.param_groups:
        group["lr"] = lr
    for chosen in minibatches(cfg, len(advantages), step):
        optimizer.zero_grad(set_to_none=True)
        stats = policy.backward(rollouts, advantages, chosen)                            # gradients of all ranks
        grad_norm = distributed.full(clip_grad_norm_(policy.model.parameters(), cfg.max_grad_norm))
        finite = math.isfinite(grad_norm) and math.isfinite(stats["loss"])  # the same on all ranks
        if finite and stats[policy.unit]:  # no group of any rank may have a verdict: then weight decay and momentum rest too
            optimizer.step()
        elif not finite:
            policy.take_back()  # all stays what it was
        updates.append(stats | {"grad_norm": float(grad_norm), "lr": lr, "skipped_updates": 1.0 - finite})
    sums = {name: sum(update[name] for update in updates) for name in updates[0]}
    return recorded | {name: value / (cfg.passes if name == policy.unit else len(updates)) for name, value in sums.items()}


def minibatches(cfg: Config, groups: int, step: int):
    """Which of this rank's groups each update of the step takes: all of them at once in the paper's recipes (None)."""
    if cfg.minibatches == cfg.passes == 1:
        yield None
        return
    for i in range(cfg.passes):
        order = np.random.default_rng([cfg.seed, step, distributed.rank(), i, 2]).permutation(groups)
        yield from (part.tolist() for part in np.array_split(order, cfg.minibatches))


def learning_rate(cfg: Config, step: int) -> float:
    """Linear increase over warmup_steps, then constant or, over the last decay_ratio of the steps, a cosine to 0."""
    if step < cfg.warmup_steps:
        return cfg.lr * (step + 1) / cfg.warmup_steps
    start = max(cfg.warmup_steps, round((1 - cfg.decay_ratio) * cfg.steps))
    if cfg.schedule == "constant" or step < start:
        return cfg.lr
    return cfg.lr * 0.5 * (1 + math.cos(math.pi * (step - start) / max(1, cfg.steps - start)))


def step_metrics(rewards, rollouts, judge: Rewards | None, device) -> dict[str, float]:
    """Metrics of all ranks' rollouts, zero-advantage groups included; README.md defines them."""
    means = group_means(distributed.all_reduce(group_sums(rewards), device=device))
    return means | (judge.over_ranks(device) if judge else {}) | rollouts.statistics()


def warn_of(cfg: Config, metrics: dict[str, float], logger: Logger):
    """What spoils a run without an error."""
    if metrics.get("sampling/logprob_abs_diff/mean", 0) > 0.02:
        warnings.warn("sampler and training forward differ by more than .02 in log-probability: the rollouts are not "
                      "quite the policy's own", stacklevel=2)
    if metrics.get("completions/clipped_ratio", 0) > 0.5:
        logger.say(f"warning: most responses are cut at --max-response {cfg.max_response}, before the model has ended them: "
                   "raise it", once=True)


def evaluation_due(cfg: Config, step: int) -> bool:
    return cfg.eval_every > 0 and step + 1 >= cfg.eval_from and (step + 1) % cfg.eval_every == 0


def timings(clock: list[float], unit: str, count: float) -> dict[str, float]:
    parts = dict(zip(("data", "rollout", "reward", "backward"), (b - a for a, b in zip(clock, clock[1:]))))
    total = clock[-1] - clock[0]
    return {"seconds": total, f"{unit}_per_second": count / total} | {f"seconds/{name}": s for name, s in parts.items()}


def help_of(cfg: Config) -> str:
    """What --help prints: without the options that mean nothing to the recipe's kind of model."""
    task = inspect.signature(TASKS[cfg.task]).parameters if cfg.task in TASKS else {}
    task = {name: cfg.task_options.get(name, p.default) for name, p in task.items() if name != "split"}
    known = ADVANTAGES[cfg.estimator].known if cfg.estimator in ADVANTAGES else {}
    known = {name: cfg.estimator_options.get(name) for name in known if name not in ("allow_fractional", "mean_log_probs")}
    hidden = SEQUENCES_ONLY if cfg.task == "images" else CLASSIFIERS_ONLY
    lists = {"task": sorted(TASKS), "estimator": list(ADVANTAGES), "schedule": ["constant", "cosine"]}
    return describe(cfg, lists, hidden, {"task": task, "estimator": known})


def add_estimator(name: str):
    """An estimator of the user's own, FILE.py:NAME."""
    try:
        add_own(name, imported(name, "--estimator"))
    except (TypeError, ValueError) as error:
        raise UsageError(f"--estimator {name}: {error}") from None


def main(arguments: list[str]):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{__doc__}\nRecipes:")
        for name, recipe in RECIPES.items():
            print(f"  {name:24} {recipe.__doc__.splitlines()[0]}")
        return
    dry, arguments = "--dry-run" in arguments, [a for a in arguments if a != "--dry-run"]
    name, rest = (arguments or [""])[0], arguments[1:]
    recipe = find_recipe(name)
    if "--help" in rest or "-h" in rest:
        print(f"{inspect.getdoc(recipe) or name}\n\n{help_of(recipe())}")
        return
    if dry:
        print(memory.dry_run(name, recipe(), rest))
        return
    cfg = with_overrides(recipe(), rest)
    if ":" in cfg.estimator:
        add_estimator(cfg.estimator)
    names = [text.rpartition(":")[2] for text in (name, cfg.estimator)]  # of FILE.py:NAME the NAME
    cfg = replace(cfg, out=cfg.out or f"runs/{names[0] if cfg.estimator == 'supervised' else '-'.join(names)}")
    _, world, device = distributed.setup(cfg.device, cfg.deterministic)
    task, validation = (load(cfg, split) for split in ("train", "validation"))
    cfg = check(cfg, task, world, validation)
    data = {split: part.digest for split, part in (("train", task), ("validation", validation)) if part is not None}
    with runs.Run(cfg, name, len(task), data) as run:
        train(cfg, run, task, validation, device)
    if run.stopped:
        distributed.leave(runs.STOPPED)


if __name__ == "__main__":
    never_fail()
    try:
        main(sys.argv[1:])
    except UsageError as error:
        distributed.refuse("train.py", error)
    except (RewardError, PromptError) as error:
        distributed.refuse("train.py", RunError(str(error).replace("allow_fractional=True", "--allow-fractional true")))
    except KeyboardInterrupt:  # before the loop, which finishes its step
        distributed.leave(130)
    except Exception as error:
        if isinstance(error, RuntimeError) and out_of_memory(error):
            distributed.refuse("train.py", RunError(f"out of memory ({str(error).split('.')[0]}): lower --micro-batch-tokens, "
                                                    "--wave-rows or --kv-memory-gb, or use --gradient-checkpointing true"))
        distributed.crashed("train.py")
    distributed.cleanup()
