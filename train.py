"""Train a recipe: `python train.py maze9_laptop`, or `torchrun --nproc-per-node 8 train.py maze17 --estimator grpo`.

The loop in `train` is Algorithm 1 of the paper: rollouts, rewards, advantages (maxrl/advantages.py), gradient, step.
"""

import functools
import json
import math
import shlex
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from maxrl import checkpoint, distributed
from maxrl.advantages import ADVANTAGES
from maxrl.config import Config, UsageError, describe, with_overrides
from maxrl.logger import Logger
from maxrl.metrics import group_means, group_sums, pass_at_k_table
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.policy import SequencePolicy, count_successes
from maxrl.recipes import RECIPES
from maxrl.sampler import check_prompts
from maxrl.tasks import load_task
from maxrl.tokenizer import Tokenizer

# On --resume these may differ from the recorded recipe: they change neither what is learned nor from what.
FREE_ON_RESUME = {"steps", "epochs", "out", "resume", "device", "micro_batch_tokens", "wave_rows", "eval_every",
                  "eval_prompts", "eval_samples", "eval_k", "save_every"}


def train(cfg: Config, recipe: str):
    rank, world, device = distributed.setup(cfg.device)
    task = load_task(cfg.task, "train", **cfg.task_options)
    validation = load_task(cfg.task, "validation", **cfg.task_options) if cfg.eval_every else None
    cfg = check(cfg, task, world, validation)
    resumed = find_run(cfg)
    policy = make_policy(cfg, task, resumed, device)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=cfg.lr, betas=cfg.betas, weight_decay=cfg.weight_decay)
    first_step = restore(cfg, policy, optimizer, resumed)
    logger = Logger(start_run(cfg, recipe, resumed), first_step, cfg.steps, f"{recipe} {cfg.estimator}", main=rank == 0)
    order = 2 * cfg.seed + (cfg.estimator == "supervised")  # RL does not start with the prompts that the warm-up saw
    for step in range(first_step, cfg.steps):                                            # Algorithm 1
        clock = [time.perf_counter()]
        mine = range(rank, cfg.prompts, world)                                           # this rank's places in the batch
        indices = batch_indices(len(task), cfg.prompts, step, order)                     # (P,)
        examples = [task[indices[place]] for place in mine]                              # P_local prompts
        if cfg.estimator == "supervised":
            rollouts = policy.demonstrate(examples)                                      # the answers, N = 1
        else:
            rollouts = policy.rollout(examples, cfg.rollouts, step=step, indices=mine)   # N per prompt
        clock.append(time.perf_counter())
        rewards = task.rewards(examples, rollouts)                                       # (P_local, N)
        if cfg.zero_reward_at_limit:
            rewards = rewards * rollouts.finished                                        # (P_local, N)
        advantages = ADVANTAGES[cfg.estimator](rewards, **cfg.estimator_options)         # (P_local, N)
        clock.append(time.perf_counter())

        for group in optimizer.param_groups:
            group["lr"] = learning_rate(cfg, step)
        optimizer.zero_grad(set_to_none=True)
        stats = policy.backward(rollouts, advantages)                                    # gradients of all ranks
        grad_norm = clip_grad_norm_(policy.model.parameters(), cfg.max_grad_norm)
        if not grad_norm.isfinite():  # the same on all ranks; before the step, so that the weights stay what they were
            raise UsageError(f"the gradient of step {step} is not finite: try a lower --lr, or --precision float32")
        optimizer.step()
        clock.append(time.perf_counter())

        metrics = step_metrics(rewards, rollouts, device) | stats | timings(clock, stats["tokens"])
        metrics |= {"grad_norm": float(grad_norm), "lr": learning_rate(cfg, step)}
        if metrics.get("sampling/logprob_abs_diff/mean", 0) > 0.02:
            warnings.warn("sampler and training forward differ by more than .02 in log-probability: the rollouts are not "
                          "quite the policy's own", stacklevel=2)
        if cfg.eval_every and (step + 1) % cfg.eval_every == 0:
            metrics |= evaluate(cfg, policy, validation)
        logger.log(step, metrics)
        reached = 0 < cfg.stop_at_pass <= metrics.get("eval/pass@1", 0)
        finished = reached or step + 1 == cfg.steps
        if finished or cfg.save_every and (step + 1) % cfg.save_every == 0:
            save(cfg, recipe, policy, optimizer, {"step": step + 1, "reached": reached})
        if finished:
            if cfg.stop_at_pass and not reached:
                logger.say(f"pass@1 did not reach --stop-at-pass {cfg.stop_at_pass} within {cfg.steps} steps")
            break
    logger.close()
    distributed.barrier()


def check(cfg: Config, task, world: int, validation=None) -> Config:
    """Refuse before any work what could not run; turns epochs into steps."""
    if len(task) == 0:
        raise UsageError(f"the training split of task {cfg.task} is empty")
    if validation is not None and len(validation) == 0:
        raise UsageError(f"the validation split of task {cfg.task} is empty: evaluate never, with --eval-every 0")
    if cfg.prompts % world:
        nearest = [n for n in (cfg.prompts // world * world, -(-cfg.prompts // world) * world) if n]
        raise UsageError(f"--prompts {cfg.prompts} must divide by the {world} ranks; use {' or '.join(map(str, nearest))}")
    if cfg.estimator == "supervised" and cfg.rollouts != 1:
        raise UsageError(f"--estimator supervised has one answer per prompt, not --rollouts {cfg.rollouts}; use --rollouts 1")
    try:
        ADVANTAGES[cfg.estimator](torch.zeros(1, cfg.rollouts), **cfg.estimator_options)
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(f"--estimator {cfg.estimator}: {error.args[0]}") from None
    if cfg.epochs:
        cfg = replace(cfg, steps=math.ceil(cfg.epochs * len(task) / cfg.prompts))
    return cfg


def find_run(cfg: Config) -> Path | None:
    """The checkpoint to resume from, or None for a new run; refuses a directory in use and a recipe that differs."""
    run = Path(cfg.out)
    if run.is_file():
        raise UsageError(f"--out {run} is a file, not a directory")
    if cfg.resume == "no" and any((run / name).exists() for name in ("recipe.json", "metrics.jsonl", "latest")):
        raise UsageError(f"{run} already holds a run: --resume auto goes on with it, --out DIR starts another")
    if cfg.resume == "yes" and not (run / "latest").exists():
        raise UsageError(f"{run} holds no checkpoint to resume from: --resume auto starts one, --out DIR names another")
    if not (run / "recipe.json").exists():
        if (run / "latest").exists():
            raise UsageError(f"{run} holds checkpoints but no recipe.json to resume from: --out DIR starts another")
        return None
    old, new = json.loads((run / "recipe.json").read_text())["config"], json.loads(json.dumps(cfg.to_dict()))
    free = FREE_ON_RESUME - ({"steps"} if cfg.schedule == "cosine" else set())  # a cosine's shape depends on its length
    for name in new:
        if name not in free and old.get(name, getattr(Config(), name)) != new[name]:
            raise UsageError(f"{run} was started with {name} = {old.get(name)!r}, not {new[name]!r}: "
                             f"resume it as it was, or start another with --out DIR")
    if not (run / "latest").exists():
        return None  # it ended before its first checkpoint
    return checkpoint.find(run)


def start_run(cfg: Config, recipe: str, resumed: Path | None) -> Path:
    """The run directory; a new one gets its recipe.json."""
    run = Path(cfg.out)
    distributed.barrier()  # every rank has looked into it before the first one writes
    if distributed.rank() == 0 and not resumed:
        run.mkdir(parents=True, exist_ok=True)
        checkpoint.write_json(run / "recipe.json", described(cfg, recipe))
    return run


def described(cfg: Config, recipe: str) -> dict:
    """What recipe.json records: the resolved recipe, the exact command and the versions."""
    command = ["python" if distributed.world_size() == 1 else f"torchrun --nproc-per-node {distributed.world_size()}"]
    return {"recipe": recipe, "command": " ".join([*command, shlex.join(sys.argv)]), "config": cfg.to_dict(),
            "ranks": distributed.world_size(), "torch": torch.__version__, "python": sys.version.split()[0]}


def make_policy(cfg: Config, task, resumed: Path | None, device) -> SequencePolicy:
    """Model, tokenizer and stop tokens from the checkpoint to resume, from --init, or new."""
    torch.manual_seed(cfg.seed)
    try:
        if resumed or cfg.init:
            model, tokenizer, stop = checkpoint.load_model(resumed or cfg.init)
        else:
            model, stop = Transformer(TransformerConfig.from_hf(cfg.model)), []
            tokenizer = Tokenizer.from_vocabulary(task.vocabulary)
        stop = [tokenizer.id(token) for token in task.stop_tokens] or stop
        if tokenizer.size > model.config.vocab_size:
            raise ValueError(f"the tokenizer has {tokenizer.size} tokens, the model's vocab_size is {model.config.vocab_size}")
        check_prompts(model, [tokenizer.encode(task[0].prompt)], cfg.max_response)
    except FileNotFoundError as error:
        name = Path(cfg.init).name
        mend = f", or make this one: python train.py {name}" if name in RECIPES else ""
        raise UsageError(f"{error}: name another with --init{mend}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    return SequencePolicy(model.to(device), tokenizer, stop, max_tokens=cfg.max_response, seed=cfg.seed,
                          aggregation=cfg.aggregation, micro_batch_tokens=cfg.micro_batch_tokens, wave_rows=cfg.wave_rows,
                          autocast=distributed.use_bfloat16(cfg.precision, device))


def restore(cfg: Config, policy: SequencePolicy, optimizer, resumed: Path | None) -> int:
    """The step to go on with; the optimizer gets its state back."""
    if not resumed:
        return 0
    checkpoint.load_optimizer(resumed, policy.model, optimizer)
    state = json.loads((resumed / "state.json").read_text())
    return cfg.steps if state.get("reached") else state["step"]


def batch_indices(size: int, prompts: int, step: int, seed: int) -> np.ndarray:
    """The prompts of a step, (P,): every epoch is a shuffle of its own, none is left out; a function of its arguments."""
    places = range(step * prompts, (step + 1) * prompts)
    return np.array([shuffle(size, place // size, seed)[place % size] for place in places])


@functools.lru_cache(maxsize=2)
def shuffle(size: int, epoch: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)


def learning_rate(cfg: Config, step: int) -> float:
    """Linear increase over warmup_steps, then constant or a cosine to 0."""
    if step < cfg.warmup_steps:
        return cfg.lr * (step + 1) / cfg.warmup_steps
    if cfg.schedule == "constant":
        return cfg.lr
    return cfg.lr * 0.5 * (1 + math.cos(math.pi * (step - cfg.warmup_steps) / max(1, cfg.steps - cfg.warmup_steps)))


def step_metrics(rewards, rollouts, device) -> dict[str, float]:
    """Metrics of all ranks' rollouts, zero-advantage groups included; README.md defines them."""
    lengths, count = rollouts.lengths.double(), rollouts.lengths.numel()
    sums = group_sums(rewards) | {"rollouts": count, "length": float(lengths.sum()),
                                  "clipped": count - float(rollouts.finished.sum())}
    if rollouts.entropies is not None:
        sums["entropy"] = float(rollouts.entropies.double().sum())
    sums = distributed.all_reduce(sums, device=device)
    longest = distributed.all_reduce({"max": float(lengths.max()), "minus_min": -float(lengths.min())}, "max", device)
    rollout_count, length, clipped = sums.pop("rollouts"), sums.pop("length"), sums.pop("clipped")
    entropy = {"entropy": sums.pop("entropy") / length} if rollouts.entropies is not None else {}
    return group_means(sums) | entropy | {
        "completions/mean_length": length / rollout_count, "completions/max_length": longest["max"],
        "completions/min_length": -longest["minus_min"], "completions/clipped_ratio": clipped / rollout_count}


def timings(clock: list[float], tokens: float) -> dict[str, float]:
    rollout, reward, backward = (b - a for a, b in zip(clock, clock[1:]))
    total = clock[-1] - clock[0]
    return {"seconds": total, "seconds/rollout": rollout, "seconds/reward": reward, "seconds/backward": backward,
            "tokens_per_second": tokens / total}


def evaluate(cfg: Config, policy: SequencePolicy, validation) -> dict[str, float]:
    """pass@k on the first eval_prompts of the validation split, the same noise every time."""
    prompts = range(min(cfg.eval_prompts, len(validation)))
    counts = count_successes(policy, validation, prompts, cfg.eval_samples)
    table = pass_at_k_table(counts, cfg.eval_samples, cfg.eval_k)
    return {f"eval/pass@{k}": mean for k, (mean, _) in table.items()}


def save(cfg: Config, recipe: str, policy: SequencePolicy, optimizer, state: dict):
    if distributed.rank() == 0:
        name = f"step-{state['step']:06d}"
        if not (Path(cfg.out) / name).exists():  # else whole, by a run that was killed before it set `latest`
            checkpoint.save(Path(cfg.out) / name, policy.model, policy.tokenizer, policy.stop_tokens,
                            recipe=described(cfg, recipe), optimizer=optimizer, state=state)
        checkpoint.set_latest(cfg.out, name)
    distributed.barrier()


def main(arguments: list[str]):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{__doc__}\nRecipes:")
        for name, recipe in RECIPES.items():
            print(f"  {name:20} {recipe.__doc__.splitlines()[0]}")
        return
    name, rest = arguments[0], arguments[1:]
    if name not in RECIPES:
        raise UsageError(f"no recipe is called {name!r}; there are {', '.join(RECIPES)}")
    if "--help" in rest or "-h" in rest:
        print(f"{RECIPES[name].__doc__}\n\n{describe(RECIPES[name]())}")
        return
    cfg = with_overrides(RECIPES[name](), rest)
    default = f"runs/{name}" if cfg.estimator == "supervised" else f"runs/{name}-{cfg.estimator}"
    train(replace(cfg, out=cfg.out or default), name)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UsageError, FileNotFoundError) as error:
        distributed.refuse("train.py", error)
    distributed.cleanup()  # not after a crash: the other ranks would be waited for before its traceback is printed
