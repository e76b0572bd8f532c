"""A product of options: one run after another, several at a time, or an array of Slurm jobs.

    python train.py subset_sum_sft
    python -m maxrl.grid subset_sum --estimator maxrl,grpo --seed 0,1,2
    python -m maxrl.grid subset_sum --estimator maxrl,grpo --seed 0,1,2 --parallel 2
    python -m maxrl.grid subset_sum --estimator maxrl,grpo --seed 0,1,2 --slurm

The first line makes the model that the runs start from, and the second one makes six runs in
runs/subset_sum-grid. The third one makes them two at a time, and the fourth one prints the script
of an array of six Slurm jobs.

The options are train.py's. An option with commas has several values, and every combination is a
run. An option that is a list anyway, such as --clip 0.2,0.3, has one value; --rollouts 16,8+8+16
has two, of which the second one is three rounds. The grid's own options:

    --out DIR         directory of the runs (runs/RECIPE-grid)
    --parallel N      make N runs at a time: each on a GPU of its own, or without GPUs on its share
                      of the CPU cores
    --slurm           print a script for sbatch instead of running anything
    --task-id NUMBER  make only this run, counted from 0, as the script does

A failed run does not end the others, and Ctrl-C ends all of them. The same command again does
nothing for finished runs, resumes interrupted ones and retries failed ones. What each run prints is
in RUN.log next to it.
"""

import itertools
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import types
import typing
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.io.arguments import dashed, parse, typed
from maxrl.recipes import find_recipe
from maxrl.run import cli
from maxrl.run.command_line import default_directory, option_parser, overridden
from maxrl.run.directory import SIGNALS, STOPPED
from maxrl.run.setup import check_names

TRAIN = [sys.executable, "-m", "maxrl", "train"]
IN_EVERY_NAME = ("estimator", "rollouts", "prompts")
SLURM = """\
#!/bin/bash
#SBATCH --array=0-{last} --gpus-per-node=1 --time=24:00:00
#SBATCH --signal=USR1@300 --requeue --open-mode=append
srun {command} --task-id "$SLURM_ARRAY_TASK_ID"
code=$?              # 75: stopped by a signal and saved; 138 and 143: before the first step
job="${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
case $code in 75 | 138 | 143) scontrol requeue "$job" ;; esac
exit $code"""


def values_of(kind: Any, text: str) -> list:
    """Return the values that an option of type `kind` has in a grid."""
    if typing.get_origin(kind) is tuple:
        return [parse(kind, text)]
    values = text.split(",")
    # A comma separates values, so that the rounds of --rollouts are separated by "+".
    if isinstance(kind, types.UnionType):
        values = [value.replace("+", ",") for value in values]
    return [parse(kind, value) for value in values]


def product(recipe: str, options: dict[str, list]) -> dict[str, list[str]]:
    """Return {name of a run: train.py's words} for every combination of the options' values.

    Raises UsageError for the first combination that cannot be, and if two runs had one name.
    """
    usual = find_recipe(recipe)()
    swept = [key for key, values in options.items() if len(values) > 1]
    runs: dict[str, list[str]] = {}
    for values in itertools.product(*options.values()):
        chosen = dict(zip(options, values))
        cfg = overridden(usual, chosen)
        check_names(cfg)
        words = [f"--{dashed(key)}={typed(value)}" for key, value in chosen.items()]
        name = name_of(recipe, cfg, {key: chosen[key] for key in swept})
        if runs.setdefault(name, words) != words:
            raise UsageError(f"two runs would be called {name}: choose values that differ in names")
    return runs


def name_of(recipe: str, cfg: Config, swept: dict[str, Any]) -> str:
    """Return {model}-{method}-n{N}-bs{P}, and -{option}={value} for the other swept options."""
    model = Path(cfg.init).name or label(recipe)
    parts = [model, cfg.estimator, f"n{typed(cfg.rollouts)}", f"bs{cfg.prompts}"]
    parts += [f"{key}={typed(value)}" for key, value in swept.items() if key not in IN_EVERY_NAME]
    # Rounds have commas; slashes and the like may not be in the name of a file.
    return re.sub(r"[^\w.+=-]", "_", "-".join(parts).replace(",", "+"))


def label(recipe: str) -> str:
    """Return what a recipe is called in the names of directories."""
    return Path(default_directory(recipe, "supervised")).name


class Children:
    """The train.py processes of a grid.

    In a `with` block, a signal that stops a run is passed on to all of them.

    signal   the signal, or None
    stopped  whether a signal has come, to the grid or to one of its runs; then no run should start
    """

    def __init__(self) -> None:
        self.running: list[subprocess.Popen] = []
        self.signal: int | None = None
        self.stopped = False

    def __enter__(self) -> "Children":
        self.old_handlers = {number: signal.signal(number, self.pass_on) for number in SIGNALS}
        return self

    def __exit__(self, *_):
        for number, handler in self.old_handlers.items():
            signal.signal(number, handler)

    def pass_on(self, number: int, frame):
        self.signal = number
        self.stopped = True
        for child in list(self.running):
            child.send_signal(number)

    def run(self, words: list[str], log: Path, variables: dict[str, str]) -> int:
        """Run train.py with these words, which prints into `log`, and return its exit code.

        variables  what its environment has in addition

        The code is STOPPED if a signal ended it.
        """
        with log.open("a") as file:
            child = subprocess.Popen(
                [*TRAIN, *words], stdout=file, stderr=subprocess.STDOUT, env=os.environ | variables
            )
        self.running.append(child)
        if self.signal is not None:
            # It came before the child was listed.
            child.send_signal(self.signal)
        code = child.wait()
        self.running.remove(child)
        # Before train.py handles signals, they have other codes.
        code = STOPPED if code and self.stopped else code
        self.stopped |= code == STOPPED
        return code


def slots_of(parallel: int, on_cpu: bool) -> list[dict[str, str]]:
    """Return the environment variables of each of the runs that go on at the same time.

    on_cpu  whether the runs leave the GPUs alone

    Raises UsageError if there are fewer GPUs than runs.
    """
    if parallel < 1:
        raise UsageError(f"--parallel {parallel}: at least one run at a time")
    if parallel == 1:
        return [{}]
    gpus = 0 if on_cpu else torch.cuda.device_count()
    if not gpus:
        # Processes that use all cores each would wait for one another.
        threads = max(1, (os.cpu_count() or 1) // parallel)
        return [{"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}] * parallel
    if parallel > gpus:
        raise UsageError(
            f"--parallel {parallel}: {gpus} GPUs are visible, and every run needs one of its own"
        )
    # The names of the GPUs that this process may use, if somebody has chosen them.
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else map(str, range(gpus))
    return [{"CUDA_VISIBLE_DEVICES": name.strip()} for name in names][:parallel]


def run_all(
    recipe: str, runs: dict[str, list[str]], folder: Path, slots: list[dict[str, str]]
) -> int:
    """Make these runs in `folder`, list those that failed, and return the exit code of the grid.

    slots  as slots_of() returns them

    train.py itself recognises what is finished, and refuses a run of another recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free: queue.SimpleQueue = queue.SimpleQueue()
    for slot in slots:
        free.put(slot)
    children = Children()
    codes: dict[str, int] = {}

    def make(name: str) -> int | None:
        """Make a run in a free slot; None if a signal came before it could start."""
        if children.stopped:
            return None
        slot = free.get()
        words = [recipe, *runs[name], "--out", str(folder / name), "--resume", "auto"]
        try:
            return children.run(words, folder / f"{name}.log", slot)
        finally:
            free.put(slot)

    with children, ThreadPoolExecutor(len(slots)) as pool:
        started = {pool.submit(make, name): name for name in runs}
        for ended in as_completed(started):
            name, code = started[ended], ended.result()
            if code is not None:
                codes[name] = code
                cli.say(f"{name}: {outcome(code)}")
    if len(codes) < len(runs) or STOPPED in codes.values():
        return STOPPED
    failed = [name for name in runs if codes[name]]
    lines = [f"failed: {name}: {last_line(folder / f'{name}.log')}" for name in failed]
    cli.say("\n".join([f"{len(runs) - len(failed)} of {len(runs)} runs are done", *lines]))
    if not failed:
        quoted = shlex.quote(str(folder))
        cli.say(f"report: python -m maxrl.report {quoted}/*/ --out {quoted}/report.html")
    return int(bool(failed))


def outcome(code: int) -> str:
    """Say what the exit code of a run means."""
    if code == STOPPED:
        return "stopped by a signal; the same command resumes it"
    return f"failed with code {code}" if code else "done"


def last_line(log: Path) -> str:
    """Return the last line of a log, and where it stands."""
    text = log.read_text(errors="replace").replace("\r", "\n").strip()
    last = text.rpartition("\n")[2]
    return f"{last} ({log})"


def main(arguments: list[str]) -> int:
    """Make the grid that a command names.

    Returns the exit code: 0, 1 if a run failed, 75 if a signal has stopped one.
    """
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    parser = option_parser(Config(), "maxrl.grid", read=values_of)
    parser.add_argument("recipe")
    parser.add_argument("--parallel", type=int)
    parser.add_argument("--slurm", action="store_true")
    parser.add_argument("--task-id", type=int)
    options = vars(parser.parse_options(arguments))
    recipe, slurm = options.pop("recipe"), options.pop("slurm", False)
    parallel, number = options.pop("parallel", None), options.pop("task_id", None)
    if options.pop("resume", None):
        raise UsageError("--resume is not for a grid, which resumes interrupted runs by itself")
    if parallel is not None and (slurm or number is not None):
        raise UsageError("--parallel is for the runs of one machine: a job of Slurm makes one run")
    slots = slots_of(1 if parallel is None else parallel, options.get("device") == ["cpu"])
    folder = Path(",".join(options.pop("out", [])) or f"runs/{label(recipe)}-grid")
    if "reward" in options:
        # Functions that are named one by one are one value.
        options["reward"] = [sum(options["reward"], ())]
    runs = product(recipe, options)
    if slurm:
        words = [word for word in arguments if word != "--slurm"]
        command = shlex.join(["python", "-m", "maxrl.grid", *words])
        print(SLURM.format(last=len(runs) - 1, command=command))
        return 0
    if number is not None:
        if not 0 <= number < len(runs):
            raise UsageError(f"--task-id {number}: the runs of this grid are 0 to {len(runs) - 1}")
        runs = dict([list(runs.items())[number]])
    return run_all(recipe, runs, folder, slots)


def script(arguments: list[str]):
    """The life of `python -m maxrl.grid`."""
    with cli.script("maxrl.grid", OSError):
        if code := main(arguments):
            cli.leave(code)
