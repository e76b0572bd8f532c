"""A run directory: what is in it (checkpoint.py lists the files), who may write there, and how a run goes on from it."""

import json
import shlex
import sys
from pathlib import Path

import torch

from maxrl import checkpoint, distributed
from maxrl.config import Config, UsageError

# On --resume these may differ from the recorded recipe: they change neither what is learned nor from what.
FREE_ON_RESUME = {"steps", "epochs", "out", "resume", "device", "micro_batch_tokens", "wave_rows", "eval_every",
                  "eval_prompts", "eval_samples", "eval_k", "save_every", "workers", "kv_memory_gb", "gradient_checkpointing",
                  "lora_merge", "shard"}


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
    default, new = (json.loads(json.dumps(c.to_dict())) for c in (Config(), cfg))
    old = default | json.loads((run / "recipe.json").read_text())["config"]  # of before a field was there: its default
    free = FREE_ON_RESUME - ({"steps"} if cfg.schedule == "cosine" else set())  # a cosine's shape depends on its length
    for name in new:
        if name not in free and old[name] != new[name]:
            raise UsageError(f"{run} was started with {name} = {old[name]!r}, not {new[name]!r}: "
                             f"resume it as it was, or start another with --out DIR")
    if not (run / "latest").exists():
        return None  # it ended before its first checkpoint
    found = checkpoint.find(run)
    return found / "lora" if (found / "lora").exists() else found  # of a merged model


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


def restore(cfg: Config, policy, optimizer, resumed: Path | None) -> int:
    """The step to go on with; the optimizer gets its state back."""
    if not resumed:
        return 0
    checkpoint.load_optimizer(resumed, policy.model, optimizer)
    state = json.loads((resumed / "state.json").read_text())
    return cfg.steps if state.get("reached") else state["step"]


def save(cfg: Config, recipe: str, policy, optimizer, state: dict):
    whole = policy.gathered_state(optimizer) if cfg.shard else {"optimizer": optimizer}  # by all ranks together
    if distributed.rank() == 0:
        name = f"step-{state['step']:06d}"
        if not (Path(cfg.out) / name).exists():  # else whole, by a run that was killed before it set `latest`
            policy.save(Path(cfg.out) / name, recipe=described(cfg, recipe), state=state, merge=cfg.lora_merge, **whole)
        checkpoint.set_latest(cfg.out, name)
    distributed.barrier()
