"""What a run prints at its start and at its end. logger.py prints what happens in between."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from maxrl.learning.config import Config
from maxrl.system import distributed
from maxrl.system.arguments import counted


def opening(run, policy) -> list[str]:
    """What is trained, where, and where the results go."""
    cfg = run.cfg
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    rollouts = " + ".join(map(str, cfg.rollouts))
    world = distributed.world_size()
    ranks = f" on {world} ranks" if world > 1 else ""
    precision = "bfloat16" if policy.autocast else "float32"
    since = f", resumes after step {run.steps:,}" if run.resumed else ""
    judge = ", ".join(cfg.reward) or ("the script's" if cfg.task == "prompts" else "the task's")
    own = not cfg.reward or any(":" in reward for reward in cfg.reward)
    if cfg.task == "prompts" and own and isinstance(run.task[0].prompt, list):
        judge += ", of completions that are lists of messages: c[0]['content'] is the text"
    times = [f"every {counted(cfg.save_every, 'step')}"] if cfg.save_every else []
    if cfg.save_every_minutes:
        times.append(f"every {cfg.save_every_minutes:g} minutes")
    checks = []
    if run.validations and cfg.eval_every:
        count = run.validations if not cfg.eval_samples else min(cfg.eval_prompts, run.validations)
        some = f"the first {count:,} of " if count < run.validations else ""
        every = counted(cfg.eval_every, "step")
        checks = [f"  checks   {some}{run.validations:,} validation prompts every {every}"]
    saves = " and ".join(times) or "at its end alone (--save-every-minutes 30: on the way, too)"
    return [
        f"{run.recipe} {cfg.estimator}: {counted(cfg.steps, 'step')} of "
        f"{counted(cfg.prompts, 'prompt')} x {rollouts} rollouts{ranks}",
        f"  model    {trained:,} trained parameters from {cfg.init or 'scratch'}",
        f"  device   {policy.device} in {precision}",
        f"  prompts  {run.examples:,} of {cfg.task}",
        f"  rewards  {'none: demonstrations' if cfg.supervised else judge}",
        *checks,
        f"  writes   {cfg.out}{since}",
        f"  saves    {saves}",
    ]


def closing(run) -> list[str]:
    """What was written, or why nothing was, and the next commands."""
    cfg = run.cfg
    latest = run.path / "latest"
    if not latest.exists():
        return ["there was no step to do"]
    newest = Path(cfg.out) / latest.read_text().strip()
    if run.stopped:
        return [f"saved {newest}; {run.resume} continues"]
    lines = []
    if cfg.stop_at_pass:
        reached = "reached" if run.reached else "did not reach"
        if not any(map(cfg.evaluates, range(cfg.steps))):
            reached = f"was not measured (--eval-every {cfg.eval_every}) for"
        lines.append(f"pass@1 {reached} --stop-at-pass {cfg.stop_at_pass}")
    lines.append(f"the last checkpoint is {newest}")
    # The task is that of the first row.
    name = Path(cfg.out).name
    # Rows that end alike are called by their whole paths.
    own = cfg.out if name == Path(cfg.init).name else name
    before = [cfg.init, "--against", own] if cfg.init else []
    return lines + next_commands(cfg, cfg.out, before)


def next_commands(cfg: Config, out: str, before: Sequence[str] = ()) -> list[str]:
    """What to type about a run, or the runs of a grid, in the directory `out`.

    before  rows of eval.py that `out` is compared with
    """
    # What a recipe.json names as code is run only if the command names it too.
    code = ["--task", cfg.task] if ":" in cfg.task else []
    for reward in cfg.reward:
        code += ["--reward", reward]
    rows = [out, *before]
    if cfg.eval_every and cfg.eval_samples:
        # More samples may take longer than the run.
        rows += ["--samples", str(cfg.eval_samples)]
    if cfg.task == "images":
        rows += ["--split", "validation"]
    if cfg.task == "prompts" and not cfg.task_options.get("test"):
        rows += ["--split", "validation" if cfg.task_options.get("validation") else "train"]
    commands = {
        "report": ["python", "-m", "maxrl", "report", out],
        "samples": ["python", "-m", "maxrl", "sample", out, *code],
        "compare": ["python", "-m", "maxrl", "eval", *rows, *code],
    }
    if cfg.task == "images":
        del commands["samples"]
    if cfg.task == "prompts" and not (cfg.task_options.get("train") and cfg.reward):
        # The rows of a script are in its memory alone, and demonstrations are not judged.
        commands = {"report": commands["report"]}
    return [f"  {name:8} {shlex.join(words)}" for name, words in commands.items()]
