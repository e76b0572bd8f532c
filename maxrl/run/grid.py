"""A product of options: one run after another, or several at a time.

    python train.py maze9_laptop_sft
    python -m maxrl grid maze9_laptop --estimator maxrl,grpo --seed 0,1,2
    python -m maxrl grid maze9_laptop --estimator maxrl,grpo --seed 0,1,2 --parallel 2

The first line makes the model that the runs start from, and the second one makes six runs in
runs/maze9_laptop-grid. The third one makes them two at a time.

The options are train.py's. An option with commas has several values, and every combination is a
run. An option that is a list anyway, such as --clip 0.2,0.3, has one value; --reward a --reward b
has two. --rollouts 8,16 is two runs, so that runs in rounds are started by train.py alone. The
grid's own options:

    --out DIR       directory of the runs (runs/RECIPE-grid)
    --parallel N    make N runs at a time, each on one of the GPUs and its share of the CPU cores

A failed run does not end the others, and Ctrl-C ends all of them. The same command again does
nothing for finished runs, resumes interrupted ones and retries failed ones. What each run prints is
in RUN.log next to it.
"""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path

import torch

from maxrl.advantages.options import check_estimation
from maxrl.learning.config import Config
from maxrl.run import banner, cli
from maxrl.run.command_line import (
    check_effect,
    default_directory,
    option_parser,
    override,
    without_effect,
)
from maxrl.run.directory import SIGNALS, STOPPED
from maxrl.run.recipes import find_recipe
from maxrl.system import distributed
from maxrl.system.arguments import check_least, dashed, parse, typed
from maxrl.system.errors import UsageError

TRAIN = [sys.executable, "-m", "maxrl", "train"]
PAUSE = 0.1  # seconds between two looks at the runs
# What the exit codes of a run mean, if it has not failed.
OUTCOMES = {0: "done", STOPPED: "stopped by a signal; the same command resumes it"}


def values_of(kind: type, text: str) -> list:
    """Return the values that an option of type `kind` has in a grid."""
    if typing.get_origin(kind) is tuple:
        return [parse(kind, text)]
    return [parse(kind, value) for value in text.split(",")]


def product(recipe: str, options: dict[str, list]) -> dict[str, list[str]]:
    """Return {name of a run: train.py's words} for every combination of the options' values.

    A run is given the options that have an effect in it, as --betas has none with --optimizer sgd.
    A name has OPTION=VALUE of those that have several values; it is "run" if there are none.
    Raises UsageError for the first combination that cannot be, if two runs had one name, and for an
    option without an effect in any run.
    """
    usual, _ = find_recipe(recipe)
    swept = [key for key, values in options.items() if len(values) > 1]
    runs: dict[str, list[str]] = {}
    idle = set(options)
    for values in itertools.product(*options.values()):
        chosen = dict(zip(options, values))
        cfg = override(usual, chosen)
        check_estimation(cfg)
        useless = without_effect(cfg, chosen)
        idle &= set(useless)
        given = {key: value for key, value in chosen.items() if key not in useless}
        words = [f"--{dashed(key)}={typed(value)}" for key, value in given.items()]
        parts = [f"{key}={typed(given[key])}" for key in swept if key in given]
        # Slashes and the like may not be in the name of a file.
        name = re.sub(r"[^\w.+=-]", "_", "-".join(parts)) or "run"
        if runs.setdefault(name, words) != words:
            raise UsageError(f"two runs would be called {name}: choose values that differ in names")
    if idle:
        check_effect(cfg, chosen)
    return runs


def slots_of(parallel: int) -> list[dict[str, str]]:
    """Return the environment variables of each of the runs that go on at the same time.

    Several runs share the CPU cores and, if there are GPUs, have one each.
    """
    check_least("parallel", parallel, 1)
    if parallel == 1:
        return [{}]
    # Processes that use all cores each would wait for one another.
    threads = max(1, distributed.cores() // parallel)
    slot = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    gpus = torch.cuda.device_count()
    if not gpus:
        return [slot] * parallel
    # The names of the GPUs that this process may use, if somebody has chosen them.
    given = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    names = given.split(",")
    return [slot | {"CUDA_VISIBLE_DEVICES": names[i % len(names)].strip()} for i in range(parallel)]


def start(command: list[str], log: Path, variables: dict[str, str]) -> subprocess.Popen:
    """Start a command with these environment variables; it prints into `log`."""
    with log.open("a") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | variables
        )


def run_all(
    command: list[str], runs: dict[str, list[str]], folder: Path, slots: list[dict[str, str]]
) -> int:
    """Make these runs in `folder`, and return the exit code of the grid.

    command  what starts every run, before its own words
    slots    as slots_of() returns them

    train.py itself recognises what is finished, and refuses a run of another recipe. A signal is
    passed on to all runs, and no further one starts; nor after one that a signal has stopped.
    """
    waiting = list(runs)
    free = list(slots)
    running: dict[str, tuple[subprocess.Popen, dict]] = {}
    codes: dict[str, int] = {}
    heard: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: heard.append(number))
    stopped = False
    while running or waiting and not stopped:
        while waiting and free and not stopped:
            name = waiting.pop(0)
            slot = free.pop(0)
            words = [*command, *runs[name], "--out", str(folder / name), "--resume", "auto"]
            log = folder / f"{name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            running[name] = start(words, log, slot), slot
        time.sleep(PAUSE)
        while heard:
            stopped = True
            caught = heard.pop()
            for child, _ in running.values():
                child.send_signal(caught)
        for name, (child, slot) in list(running.items()):
            code = child.poll()
            if code is None:
                continue
            # Before train.py handles signals, they have other codes.
            if code and stopped:
                code = STOPPED
            codes[name] = code
            stopped = stopped or code == STOPPED
            del running[name]
            free.append(slot)
            outcome = OUTCOMES.get(code)
            if not outcome:
                log = folder / f"{name}.log"
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                outcome = f"failed with code {code}: {''.join(last)!r:.300} ({log})"
            cli.say(f"{name}: {outcome}")
    done = list(codes.values()).count(0)
    cli.say(f"{done} of {len(runs)} runs are done")
    if waiting or STOPPED in codes.values():
        return STOPPED
    return int(done < len(runs))


def main(arguments: list[str]) -> int:
    """Make the grid that a command names.

    Returns the exit code: 0, 1 if a run failed, 75 if a signal has stopped one.
    """
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__ or "")
        return 0
    parser = option_parser(Config(), "maxrl grid", read=values_of)
    parser.add_argument("recipe")
    parser.add_argument("--parallel", type=int, default=1)
    options = vars(parser.parse_options(arguments))
    recipe = options.pop("recipe")
    # Several numbers of rollouts are several runs here, and no rounds.
    if "rollouts" in options:
        options["rollouts"] = [(N,) for N in options["rollouts"][0]]
    slots = slots_of(options.pop("parallel"))
    usual = f"{default_directory(recipe, 'supervised')}-grid"
    folder = Path(",".join(options.pop("out", [])) or usual)
    code = run_all([*TRAIN, recipe], product(recipe, options), folder, slots)
    if code == 0:
        first = override(
            find_recipe(recipe)[0], {key: values[0] for key, values in options.items()}
        )
        # sample.py looks at one run.
        lines = banner.next_commands(first, str(folder))
        cli.say("\n".join(line for line in lines if "maxrl sample" not in line))
    return code


def script(arguments: list[str]):
    """Entry point of `python -m maxrl grid`."""
    with cli.script("maxrl grid", OSError):
        if code := main(arguments):
            cli.leave(code)


if __name__ == "__main__":
    script(sys.argv[1:])
