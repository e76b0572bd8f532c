"""What the items of gpu_check.py share: runs of train.py, random batches, seconds and kernels."""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

from maxrl.sampling import sampler
from maxrl.tasks.base import Example
from tests import ROOT
from tests.bench import bench_turns
from tests.bench.bench_text import quarter_right
from tests.bench.bench_turns import sized, timed
from tests.helpers import tiny

WORK = Path(tempfile.gettempdir()) / "maxrl_gpu_check"
SECONDS = 150  # that a command may take
WARM_UP = ("maze17_sft", "maze9_laptop_sft")  # the recipe, and that of --tiny
RL = ("maze17", "maze9_laptop")
STAGES = ("seconds", "tokens_per_second", "memory", "completions/mean_length", "sampling")
ONE_RANK = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]


def run(*words, launcher=()):
    """A command of the project, which must end well."""
    command = [sys.executable, *launcher, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, timeout=SECONDS, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout[-600:], done.stderr[-600:])


def data() -> Path:
    """Mazes for the runs, made once."""
    size = sized(17, 7)
    folder = WORK / f"{size}x{size}"
    if not (folder / "info.json").exists():
        options = f"--size {size} --train {sized(100_000, 100)} --validation 19 --test 19"
        run("-m", "data.maze.prepare", *options.split(), "--out", folder)
    return folder


def warm() -> Path:
    """The warm-up that the other runs begin with; made once."""
    if not (WORK / "warm" / "config.json").exists():
        trained(WARM_UP, "warm", f"--steps {sized(100, 2)}")
    return WORK / "warm"


def trained(recipes: tuple, name: str, options: str, launcher=()) -> list[dict]:
    """A run of train.py; the rows of its metrics.jsonl."""
    out = WORK / name
    if "--resume" not in options:
        shutil.rmtree(out, ignore_errors=True)
    usual = f"--task.size {sized(17, 7)} --eval-every 0 --device {bench_turns.device.type}"
    usual += sized("", " --prompts 4 --max-response 12")
    words = [sized(*recipes), "--task.directory", data(), "--out", out]
    if recipes is WARM_UP:
        usual += " --stop-at-pass 0"
    else:
        # With a bonus for entropy every group is trained on, also where no rollout is right yet.
        usual += " --entropy-bonus 0.001" + sized("", " --rollouts 4")
        words += ["--init", warm()]
    run("train.py", *words, *usual.split(), *options.split(), launcher=launcher)
    return [json.loads(line) for line in (out / "metrics.jsonl").open()]


def stages(rows: list[dict]) -> dict:
    """Medians over the second half of a run: seconds of the stages, memory and lengths."""
    late = rows[len(rows) // 2 :]
    names = [name for name in late[0] if name.startswith(STAGES)]
    return {name: statistics.median(row[name] for row in late) for name in names}


def kernels(function) -> int:
    """How many kernels run in a second call (on a CPU: operations)."""
    from torch.profiler import ProfilerActivity, profile

    kind = getattr(ProfilerActivity, bench_turns.device.type.upper())
    function()
    with profile(activities=[kind]) as found:
        timed(function)
    return sum(event.device_type.name == kind.name for event in found.events())


def slowest_kernels(function) -> dict:
    """{name: ms} of the kernels that took most in a second call (on a CPU: operations)."""
    from torch.profiler import ProfilerActivity, profile

    kind = bench_turns.device.type
    function()
    with profile(activities=[getattr(ProfilerActivity, kind.upper())]) as found:
        timed(function)
    took = f"self_{'cpu' if kind == 'cpu' else 'device'}_time_total"
    events = sorted(found.key_averages(), key=lambda event: -getattr(event, took))[:10]
    return {event.key[:90]: round(getattr(event, took) / 1e3, 2) for event in events}


def asked(words: int) -> Example:
    return Example(" ".join(["WALL"] * words), "")


def random_batch(lengths: tuple[int, ...], N: int, L: int):
    """Random rollouts, all of which are trained on."""
    batch = replace(tiny.rollouts(lengths, N=N, L=L), log_probs=None)
    return batch, quarter_right(len(lengths), N) - 0.25


def median_seconds(function, repeats: int = 3) -> float:
    """Of a call, after one that is not counted."""
    function()
    return statistics.median(timed(function)[0] for _ in range(repeats))


def without_graphs():
    """Context in which sampling launches every kernel from the host."""
    return mock.patch.object(sampler, "CudaGraph", lambda step, *_: lambda shape: step())
