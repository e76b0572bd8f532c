"""What a run prints at its start and at its end. logger.py prints what happens in between."""

import shlex
from pathlib import Path

from maxrl.parallel import distributed
from maxrl.run.cli import module


def opening(run, policy) -> list[str]:
    """What is trained, where, and where the results go."""
    cfg = run.cfg
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    rollouts = " + ".join(map(str, cfg.rounds))
    world = distributed.world_size()
    ranks = f" on {world} ranks" if world > 1 else ""
    precision = "bfloat16" if policy.autocast else "float32"
    since = f", resumes after step {run.steps:,}" if run.resumed else ""
    return [
        f"{run.recipe} {cfg.estimator}: {cfg.steps:,} steps of {cfg.prompts} prompts x {rollouts} "
        f"rollouts{ranks}",
        f"  model    {trained:,} trained parameters from {cfg.init or 'scratch'}",
        f"  device   {policy.device} in {precision}",
        f"  writes   {cfg.out}{since}",
    ]


def closing(run) -> list[str]:
    """What was written, or why nothing was, and the next command."""
    latest = run.path / "latest"
    if not latest.exists():
        return ["there was no step to do"]
    newest = Path(run.cfg.out) / latest.read_text().strip()
    if run.stopped:
        return [
            f"saved {newest}; the same command with --resume auto continues, a script with "
            "train(resume_from_checkpoint=True)"
        ]
    lines = []
    if run.cfg.stop_at_pass:
        reached = "reached" if run.reached else "did not reach"
        lines.append(f"pass@1 {reached} --stop-at-pass {run.cfg.stop_at_pass}")
    report = shlex.join([*module("report"), run.cfg.out])
    return [*lines, f"the last checkpoint is {newest}", f"  report   {report}"]
