"""A product of options: one run after another, or an array of Slurm jobs.

    python train.py subset_sum_sft
    python -m maxrl.grid subset_sum --estimator maxrl,grpo --seed 0,1,2
    python -m maxrl.grid subset_sum --estimator maxrl,grpo --seed 0,1,2 --slurm

The first line makes the model that the runs start from, the second one makes six runs in
runs/subset_sum-grid, and the third one prints the script of an array of six Slurm jobs.

The options are train.py's. An option with commas has several values, and every combination is a
run. An option that is a list anyway, such as --clip 0.2,0.3, has one value; --rollouts 16,8+8+16
has two, of which the second one is three rounds. The grid's own options:

    --out DIR         directory of the runs (runs/RECIPE-grid)
    --slurm           print a script for sbatch instead of running anything
    --task-id NUMBER  make only this run, counted from 0, as the script does

The same command again does nothing for finished runs, resumes interrupted ones and retries failed
ones. What each run prints is in RUN.log next to it.
"""

import itertools
import re
import shlex
import signal
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any

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
code=$?                                      # 75: stopped by the signal and saved
if [ $code = 75 ]; then scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"; fi
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


def start(words: list[str], log: Path) -> int:
    """Run train.py with these words, which prints into `log`, and return its exit code.

    Signals that stop a run are passed on to it; the code is STOPPED if there was one.
    """
    stopped = []
    with log.open("a") as file:
        child = subprocess.Popen([*TRAIN, *words], stdout=file, stderr=subprocess.STDOUT)

        def pass_on(number, frame):
            stopped.append(number)
            child.send_signal(number)

        old = {number: signal.signal(number, pass_on) for number in SIGNALS}
        try:
            code = child.wait()
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
    return STOPPED if stopped else code


def run_all(recipe: str, runs: dict[str, list[str]], folder: Path) -> int:
    """Make these runs in `folder`, list those that failed, and return the exit code of the grid.

    train.py itself recognises what is finished, and refuses a run of another recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, words in runs.items():
        run, log = folder / name, folder / f"{name}.log"
        code = start([recipe, *words, "--out", str(run), "--resume", "auto"], log)
        if code == STOPPED:
            cli.say(f"{name}: stopped by a signal; the same command resumes it")
            return STOPPED
        cli.say(f"{name}: {f'failed with code {code}' if code else 'done'}")
        if code:
            last = log.read_text(errors="replace").replace("\r", "\n").strip().rpartition("\n")[2]
            failed.append(f"failed: {name}: {last} ({log})")
    cli.say("\n".join([f"{len(runs) - len(failed)} of {len(runs)} runs are done", *failed]))
    if not failed:
        quoted = shlex.quote(str(folder))
        cli.say(f"report: python -m maxrl.report {quoted}/*/ --out {quoted}/report.html")
    return int(bool(failed))


def main(arguments: list[str]) -> int:
    """Make the grid that a command names.

    Returns the exit code: 0, 1 if a run failed, 75 if a signal has stopped one.
    """
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    parser = option_parser(Config(), "maxrl.grid", read=values_of)
    parser.add_argument("recipe")
    parser.add_argument("--slurm", action="store_true")
    parser.add_argument("--task-id", type=int)
    options = vars(parser.parse_options(arguments))
    recipe, slurm = options.pop("recipe"), options.pop("slurm", False)
    number = options.pop("task_id", None)
    if options.pop("resume", None):
        raise UsageError("--resume is not for a grid, which resumes interrupted runs by itself")
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
    return run_all(recipe, runs, folder)


def script(arguments: list[str]):
    """The life of `python -m maxrl.grid`."""
    with cli.script("maxrl.grid", OSError):
        if code := main(arguments):
            cli.leave(code)
