"""A product of options: one run after another, or an array of Slurm jobs.

    python train.py subset_sum_sft                                               what the runs below begin with
    python -m maxrl.grid subset_sum --estimator maxrl,grpo --seed 0,1,2          six runs in runs/subset_sum-grid
    python -m maxrl.grid subset_sum --estimator maxrl,grpo --seed 0,1,2 --slurm  prints the script of an array of six jobs

The options are train.py's. One with commas has several values, and every combination is a run. One that is a list anyway,
such as --clip 0.2,0.3, has one value; of --rollouts 16,8+8+16 the second one is rounds. The grid's own options:

    --out DIR         where the runs are (runs/RECIPE-grid)
    --slurm           print a script for sbatch instead of running anything
    --task-id NUMBER  run this one alone, counted from 0, as the script does

The same command again skips what is finished, resumes what was interrupted and tries again what failed. Next to each run
lies what it has said, RUN.log.
"""

import itertools
import re
import shlex
import signal
import subprocess
import sys
import time
import typing
import zlib
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

from maxrl import checkpoint
from maxrl.config import FIXED, Config, with_overrides
from maxrl.errors import UsageError
from maxrl.io.arguments import parse, split_arguments
from maxrl.recipes import find_recipe
from maxrl.run import cli
from maxrl.run.command_line import default_directory, typed
from maxrl.run.directory import SIGNALS, STOPPED, compare, saved_state
from maxrl.run.setup import check_names

TRAIN = [sys.executable, "-m", "maxrl", "train"]
LONGEST = 240  # a name: a file's may have 255 bytes, and its log's has four more
IN_EVERY_NAME = ("estimator", "rollouts", "prompts")
SLURM = """\
#!/bin/bash
#SBATCH --array=0-{last} --gpus-per-node=1 --time=24:00:00
#SBATCH --signal=USR1@300 --requeue --open-mode=append
srun {command} --task-id "$SLURM_ARRAY_TASK_ID"
code=$?                                      # 75: stopped by the signal and saved
if [ $code = 75 ]; then scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"; fi
exit $code"""


def values_of(key: str, text: str | None) -> list[str | None]:
    """The values that an option has in a grid."""
    name = key.replace("-", "_")
    kind = typing.get_type_hints(Config).get(name)
    if text is None or name in FIXED or typing.get_origin(kind) is tuple:
        return [text]
    values = text.split(",")
    # A comma separates values: rounds have "+".
    return [value.replace("+", ",") for value in values] if name == "rollouts" else values


def product(
    recipe: str, pairs: list[tuple[str, str | None]]
) -> dict[str, tuple[list[str], Config]]:
    """{name: (train.py's words, Config)} of every combination; UsageError for the first option that cannot be."""
    usual = find_recipe(recipe)()
    swept = [key for key, text in pairs if len(values_of(key, text)) > 1]
    runs = {}
    for values in itertools.product(*(values_of(key, text) for key, text in pairs)):
        words = [
            f"--{key}" if value is None else f"--{key}={value}"
            for (key, _), value in zip(pairs, values)
        ]
        cfg = with_overrides(usual, words)
        check_names(cfg)
        name = name_of(recipe, cfg, swept)
        if len(name) > LONGEST or runs.setdefault(name, (words, cfg))[1] != cfg:
            raise UsageError(
                f"a run of {' '.join(words)} cannot be called {name}: sweep fewer "
                "options, or shorter values"
            )
    return runs


def label(recipe: str) -> str:
    """What a recipe is called in the names of directories."""
    return Path(default_directory(recipe, "supervised")).name


def name_of(recipe: str, cfg: Config, named: list[str]) -> str:
    """{model}-{method}-n{N}-bs{P}, and -{option}={value} of the other options that are named."""
    model = Path(cfg.init).name or label(recipe)
    # The method alone must have no "-", so that a name can be read from its end.
    method = escaped(cfg.estimator).replace("-", "%2D")
    rollouts = typed(cfg.rollouts).replace(",", "+")  # rounds have commas
    parts = [escaped(model), method, f"n{rollouts}", f"bs{cfg.prompts}"]
    for key in dict.fromkeys(named):
        name, dot, inner = key.replace("-", "_").partition(".")
        if name not in IN_EVERY_NAME or dot:
            value = getattr(cfg, f"{name}_options")[inner] if dot else getattr(cfg, name)
            parts.append(f"{name}{dot}{inner}={escaped(typed(value))}")
    return "-".join(parts)


def escaped(text: str) -> str:
    """Without slashes and "=", and whatever else a file's name should not have; unquote undoes it.
    What is too long is its checksum."""
    quoted = quote(text, safe=",:+")
    return quoted if len(quoted) <= 40 else f"@{zlib.crc32(quoted.encode()):08x}"


def options_of(name: str) -> dict[str, str]:
    """The options that a run's name tells, {"rollouts": "16", "lr": "1e-05", ...}, long ones by
    their checksum, "@1b2c3d4e"; and "model", the name of what it began from."""
    head, *others = re.split(r"-(?=[\w.]+=)", name)
    model, method, rollouts, prompts = head.rsplit("-", 3)
    found = {
        "model": model,
        "estimator": method,
        "rollouts": rollouts.removeprefix("n"),
        "prompts": prompts.removeprefix("bs"),
    }
    for part in others:
        key, _, value = part.partition("=")
        found[key] = value
    return {key: unquote(value) for key, value in found.items()}


def finished(run: Path, cfg: Config) -> bool:
    """Whether a run has made all its steps. One that is damaged or of another recipe has not: train.py will say so."""
    try:
        newest = run / (run / "latest").read_text().strip()
        old = checkpoint.recorded(newest)
        known = {"steps": cfg.epochs, "warmup_steps": cfg.warmup_epochs}  # once the data are there
        cfg = replace(cfg, **{name: old[name] for name, passes in known.items() if passes})
        compare(cfg, {"config": old}, run)
        state = saved_state(newest)
    except (OSError, ValueError, UsageError):
        return False
    return old["epochs"] == cfg.epochs and (state["reached"] or state["step"] >= cfg.steps)


def start(words: list[str], log: Path) -> tuple[int, bool]:
    """Runs train.py with these words, which speaks into `log`; its exit code, and whether a signal has come meanwhile, which
    it was handed."""
    heard = []
    with log.open("a") as file:
        child = subprocess.Popen([*TRAIN, *words], stdout=file, stderr=subprocess.STDOUT)
        old = {
            number: signal.signal(number, lambda n, frame: (heard.append(n), child.send_signal(n)))
            for number in SIGNALS
        }
        try:
            return child.wait(), bool(heard)
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").replace("\r", "\n").strip().splitlines()
    return lines[-1].strip() if lines else "it has said nothing"


def run_all(recipe: str, runs: dict, chosen: list[str], folder: Path) -> int:
    """Every chosen run that is not finished; the exit code of the grid."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = {}
    for name in chosen:
        words, cfg = runs[name]
        place = f"{list(runs).index(name)} {name}"
        if finished(folder / name, cfg):
            cli.say(f"{place}: was finished")
            continue
        log = folder / f"{name}.log"
        began = time.monotonic()
        code, stopped = start(
            [recipe, *words, "--out", str(folder / name), "--resume", "auto"], log
        )
        if stopped or code == STOPPED:
            cli.say(f"{place}: stopped by a signal; the same command resumes it")
            return STOPPED
        done = finished(folder / name, cfg)
        ended = "done" if done else f"failed with code {code}"
        cli.say(f"{place}: {ended} after {time.monotonic() - began:.0f} s")
        if not done:
            failed[name] = f"{last_line(log)} ({log})"
    cli.say(f"{len(chosen) - len(failed)} of {len(chosen)} runs in {folder} are finished")
    for name, why in failed.items():
        cli.say(f"failed: {name}: {why}")
    quoted = shlex.quote(str(folder))
    report = f"report: python -m maxrl.report {quoted}/*/ --out {quoted}/report.html"
    cli.say("fix it and give the same command again: it tries these again" if failed else report)
    return int(bool(failed))


def main(arguments: list[str]) -> int:
    """Reads the command; its exit code: 0, 1 where a run failed, 75 where a signal has stopped one."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    recipe, *rest = arguments
    pairs = split_arguments(rest)
    own = {key: text for key, text in pairs if key in ("out", "slurm", "task-id")}
    pairs = [pair for pair in pairs if pair[0] not in own]
    if "resume" in dict(pairs):
        raise UsageError("--resume is not for a grid: it resumes what was interrupted by itself")
    runs = product(recipe, pairs)
    chosen = list(runs)
    if "slurm" in own:
        command = ["python", "-m", "maxrl.grid", *(word for word in arguments if word != "--slurm")]
        print(SLURM.format(last=len(runs) - 1, command=shlex.join(command)))
        return 0
    if "task-id" in own:
        number = parse(int, "task-id", own["task-id"])
        if not 0 <= number < len(runs):
            raise UsageError(
                f"--task-id {number}: the {len(runs)} runs of this grid are 0 to {len(runs) - 1}"
            )
        chosen = [chosen[number]]
    return run_all(recipe, runs, chosen, Path(own.get("out") or f"runs/{label(recipe)}-grid"))


def script(arguments: list[str]):
    """The life of `python -m maxrl.grid`."""
    with cli.script("maxrl.grid", OSError):
        if code := main(arguments):
            cli.leave(code)
