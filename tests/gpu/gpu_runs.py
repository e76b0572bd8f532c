"""What gpu_check.py runs as users do: train.py and torchrun, in processes of their own."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import gpu_items
import tiny
import torch
from gpu_items import policy, quarter_right, sized, text

from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.parallel import distributed
from maxrl.recipes import maze9_laptop, maze17
from maxrl.run import dry_run
from maxrl.tasks.base import Example

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 150  # that a command may take
WORK = Path(tempfile.gettempdir()) / "maxrl_gpu_check"


def run(*words, launcher=()) -> str:
    """A command of the project; its output. RuntimeError, with what it said last, if it fails."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/tests/gpu:{ROOT}/tests/helpers"}
    command = [sys.executable, *launcher, *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, words))}: exit code {done.returncode}: "
            f"{(done.stdout + done.stderr)[-600:]}"
        )
    return done.stdout


def data() -> Path:
    """Mazes for the runs, made once."""
    size = sized(17, 7)
    folder = WORK / f"{size}x{size}"
    if not (folder / "info.json").exists():
        options = {
            "size": size,
            "train": sized(100_000, 100),
            "test": 19,
            "validation": 19,
            "out": folder,
        }
        run("-m", "data.maze.prepare", *(f"--{name}={value}" for name, value in options.items()))
    return folder


def trained(recipe: str, name: str, *options, launcher=()) -> list[dict]:
    """A run of train.py; the rows of its metrics.jsonl."""
    out = WORK / name
    if "--resume" not in options:
        subprocess.run(["rm", "-rf", out], check=True)
    sizes = ["--task.size", sized(17, 7), "--task.directory", data(), "--eval-every", 0]
    sizes += ["--device", gpu_items.device.type]
    # With a bonus for entropy every group is trained on, also where no rollout is right yet.
    sizes += ["--stop-at-pass", 0] if recipe.endswith("_sft") else ["--entropy-bonus", 0.001]
    if gpu_items.small:
        sizes += ["--prompts", 4, "--max-response", 24] + (
            [] if recipe.endswith("_sft") else ["--rollouts", 4]
        )
    run("train.py", recipe, *sizes, "--out", out, *options, launcher=launcher)
    return [json.loads(line) for line in (out / "metrics.jsonl").open()]


def warm() -> Path:
    """The warm-up that the other runs begin with; made once."""
    if not (WORK / "warm" / "config.json").exists():
        trained(sized("maze17_sft", "maze9_laptop_sft"), "warm", "--steps", sized(100, 2))
    return WORK / "warm"


def deterministic() -> dict:
    """The same numbers twice with --deterministic true, in a warm-up and in reinforcement."""
    found, wrong = {}, []
    supervised, reinforced = sized(("maze17_sft", "maze17"), ("maze9_laptop_sft", "maze9_laptop"))
    for recipe, options in ((supervised, []), (reinforced, ["--init", warm()])):
        rows = [
            trained(recipe, f"deterministic{i}", "--steps", 2, "--deterministic", "true", *options)
            for i in range(2)
        ]
        found[recipe] = [[row["loss"], row["grad_norm"]] for row in rows[0]]
        wrong += (
            [recipe]
            if found[recipe] != [[row["loss"], row["grad_norm"]] for row in rows[1]]
            else []
        )
    return found | {"wrong": wrong}


def torchrun() -> dict:
    """DDP by torchrun, over NCCL on a GPU, with one process, and what it costs beside plain
    Python."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", 1, "--master-port", 29431]
    recipe, steps = sized(("maze17", 8), ("maze9_laptop", 2))
    times = {}
    for name, how in (("python", ()), ("torchrun", list(map(str, launcher)))):
        rows = trained(recipe, name, "--steps", steps, "--init", warm(), launcher=how)
        times[name] = statistics.median(row["seconds"] for row in rows[steps // 2 :])
    return times


def sharded() -> dict:
    """fully_shard with one rank gives the gradient of the whole model; in a process group of its
    own."""
    start = f"gpu_items.start({gpu_items.device.type!r}, {gpu_items.small})"
    run("-c", f"import gpu_items, gpu_runs; {start}; gpu_runs.one_rank()")
    return {}


def one_rank():
    """What `sharded` runs."""
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29433",
    }
    sizes = tiny.SIZES | {"initializer_range": 0.02}
    torch.manual_seed(0)
    plain = Transformer(TransformerConfig.from_hf(sizes))
    torch.manual_seed(0)
    divided = Transformer(TransformerConfig.from_hf(sizes))
    batch = replace(tiny.rollouts(), log_probs=None)
    advantages = quarter_right(batch) - 0.25
    exact = tiny.gradient(
        policy(plain.to(gpu_items.device), autocast=False, max_tokens=12), batch, advantages
    )
    distributed.setup(gpu_items.device.type)
    learner = policy(divided, autocast=False, shard=True, max_tokens=12)
    learner.rollout([Example(text(9), "")], 2)
    learner.backward(batch, advantages)
    found = torch.cat([p.grad.full_tensor().flatten() for p in learner.model.parameters()])
    assert tiny.distance(found, exact) < 1e-4, (
        f"the gradients differ by {tiny.distance(found, exact):.2g}"
    )


def resumed() -> dict:
    """A run of six steps and one that is continued after the fourth end with the same loss."""
    recipe = sized("maze17_sft", "maze9_laptop_sft")
    whole = trained(recipe, "whole", "--steps", 6)
    trained(recipe, "part", "--steps", 4)
    part = trained(recipe, "part", "--steps", 6, "--resume", "auto")
    difference = abs(whole[-1]["loss"] - part[-1]["loss"]) / abs(whole[-1]["loss"])
    same = len(part) == 6 and difference < 0.01
    return {
        "relative": difference,
        "wrong": [] if same else [f"{len(part)} steps, {difference:.2g}"],
    }


def options() -> dict:
    """LoRA, the KL term, several updates a step, gradient checkpointing and a budget for keys and
    values."""
    recipe, found = sized("maze17", "maze9_laptop"), {}
    for name, words in {
        "lora": ["--lora-rank", 4],
        "beta": ["--beta", 0.01],
        "updates": ["--minibatches", 2, "--passes", 2],
        "memory": ["--gradient-checkpointing", "true", "--kv-memory-gb", sized(0.2, 0.001)],
    }.items():
        rows = trained(recipe, name, "--steps", 2, "--init", warm(), *words)
        found[name] = [round(row["seconds"], 3) for row in rows]
    return found


def recipes() -> dict:
    """Seconds of the stages and peak memory of the maze recipes, beside what --dry-run has said."""
    found = {}
    for recipe, steps, words in (
        (sized("maze17_sft", "maze9_laptop_sft"), sized(100, 2), []),
        (sized("maze17", "maze9_laptop"), sized(10, 2), ["--init", warm()]),
    ):
        rows = trained(recipe, recipe, "--steps", steps, *words)[steps // 2 :]
        names = [name for name in rows[0] if name.startswith("seconds")] + [
            "tokens_per_second",
            "memory/peak_gb",
        ]
        found[recipe] = {
            name: round(statistics.median(row[name] for row in rows), 5) for name in names
        }
    plan = dry_run.plan(sized(maze17(), maze9_laptop()))
    return found | {"planned_gb": dry_run.peak(plan) / 2**30}
