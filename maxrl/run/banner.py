"""What a run says to people at its start and at its end. What it says on the way is logger.py's."""

import contextlib
import shlex
from pathlib import Path

from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.io.arguments import dashed
from maxrl.io.files import read_json
from maxrl.parallel import distributed
from maxrl.recipes import is_record
from maxrl.run.cli import started
from maxrl.tasks import TASKS, load_task


def opening(run, task, validation, policy) -> list[str]:
    """What is learned, with what, on what, from what, judged by whom, and where it goes; a repeated run says what differs."""
    cfg = run.cfg
    every = sum(p.numel() for p in policy.model.parameters())
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    origin = f"from {cfg.init}" if cfg.init else "from scratch"
    if trained < every:
        origin += f", of which LoRA trains {trained:,}"
    held_out = (
        f"; validation: {len(validation):,}, every {cfg.eval_every} steps"
        if validation is not None
        else ""
    )
    if cfg.estimator == "supervised":
        judged = "none: learns from the task's own answers"
    elif cfg.reward:
        weights = cfg.reward_weights or [1] * len(cfg.reward)
        judged = " + ".join(f"{weight:g} x {name}" for name, weight in zip(cfg.reward, weights))
    else:
        judged = f"the verdict of task {cfg.task}"
    world = distributed.world_size()
    ranks = f" on {world} ranks" if world > 1 else ""
    rollouts = " + ".join(map(str, cfg.rounds))
    goes_on = "ended" if run.reached else "goes on"
    until = f", or until pass@1 reaches {cfg.stop_at_pass}" if cfg.stop_at_pass else ""
    return [
        f"{run.recipe} {cfg.estimator}: {cfg.steps:,} steps of {cfg.prompts} prompts x {rollouts} rollouts{ranks}{until}",
        f"  model    {every:,} parameters {origin}",
        f"  device   {policy.device}, {precision(cfg, policy)}",
        f"  prompts  {len(task):,} of {cfg.task}{held_out}",
        f"  rewards  {judged}{', 0 where the response is cut' if cfg.zero_reward_at_limit else ''}",
        f"  writes   {run.path}" + (f", {goes_on} after step {run.steps:,}" if run.resumed else ""),
        *(
            [f"  repeats  {run.recipe}: {differences(read_json(run.recipe), run.record)}"]
            if is_record(run.recipe)
            else []
        ),
    ]


def differences(old: dict, new: dict) -> str:
    """What a repeated run has otherwise than the one whose recipe.json it follows."""
    found = []
    for name in ("torch", "python", "ranks", "examples"):
        if old.get(name) != new[name]:
            found.append(f"{name} {new[name]} instead of {old.get(name)}")
    data = old.get("data")
    for split, digest in new["data"].items():
        if isinstance(data, dict) and digest != data.get(split, digest):
            found.append(f"other {split} data of the same name")
    for name, value in new["config"].items():
        if name not in ("out", "resume") and value != old["config"].get(name, value):
            found.append(f"--{dashed(name)} {value} instead of {old['config'][name]}")
    return ", ".join(found) or "nothing differs that is recorded"


def precision(cfg: Config, policy) -> str:
    """In what the forwards run, and why."""
    name = "bfloat16" if policy.autocast else "float32"
    if cfg.precision != "auto":
        return f"{name} (--precision {name})"
    if policy.device.type == "cuda":
        return f"{name}: this GPU {'multiplies' if policy.autocast else 'does not multiply'} in bfloat16"
    return f"{name}: this CPU has {distributed.bfloat16_unit() or 'neither AMX nor AVX512-BF16'}"


def closing(run, first_step: int) -> list[str]:
    """What was written, or why there was nothing to do; and what to type next: commands that work as they are printed."""
    cfg = run.cfg
    missed = cfg.stop_at_pass and first_step < cfg.steps and not (run.stopped or run.reached)
    said = (
        [f"pass@1 did not reach --stop-at-pass {cfg.stop_at_pass} within {cfg.steps} steps"]
        if missed
        else []
    )
    return said + (ending(cfg, run, first_step) if run.main else [])


def ending(cfg: Config, run, first_step: int) -> list[str]:
    if not (run.path / "latest").exists():
        return [f"--steps {cfg.steps}: there was no step to do"]
    newest = run.path / (run.path / "latest").read_text().strip()
    if run.stopped:
        return [f"saved {newest}; the same command with --resume auto goes on"]
    if first_step < cfg.steps:
        said = f"wrote {newest}, metrics in {run.path / 'metrics.jsonl'}"
        if run.reached:
            said = f"pass@1 has reached --stop-at-pass {cfg.stop_at_pass}: {said}"
    elif run.reached:
        said = f"{run.path} had reached --stop-at-pass {cfg.stop_at_pass} already: nothing to do"
    else:
        said = f"{run.path} has {run.steps:,} steps and --steps is {cfg.steps:,}: it is finished, nothing to do"
    return [
        said,
        f"  report   {shlex.join(['python', '-m', 'maxrl.report', str(run.path)])}",
        f"  look     {next_command('sample.py', cfg, run.path)}",
        f"  test     {next_command('eval.py', cfg, run.path)}",
    ]


def next_command(script: str, cfg: Config, path: Path) -> str:
    """eval.py or sample.py on this run. They run code of the user's, a task or rewards, only where the command names it."""
    words = [*started(script), str(path)]
    if ":" in cfg.task:
        words += ["--task", cfg.task]
    if cfg.reward:
        words += ["--reward", ",".join(cfg.reward)]
    if cfg.max_prompt:
        words += ["--max-prompt", str(cfg.max_prompt)]
    splits = ("test", "validation", "train") if script == "eval.py" else ("validation", "train")
    split = there_is(cfg, splits)
    if split != splits[0]:
        words += ["--split", split]
    return shlex.join(words)


def there_is(cfg: Config, splits: tuple[str, ...]) -> str:
    """The first of these splits that the task has. Code of the user's is not run for that: it has
    one that the run has read."""
    if cfg.task not in TASKS:
        return "validation" if cfg.eval_every else "train"
    for split in splits[:-1]:
        with contextlib.suppress(UsageError, ValueError, OSError):
            if len(load_task(cfg.task, split, **cfg.task_options)):
                return split
    return splits[-1]
