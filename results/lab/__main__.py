"""Make the runs of a study: `python -m results.lab figure2 rates`.

A study is a folder of results/ with a study.py, whose RUNS names its stages:

    RUNS = {stage: {run: [script, word, ...]}}

A stage's runs are made one after another, or `--jobs N` at a time, each on one core, in
runs/STUDY/RUN; what a run prints is in RUN.log beside it. The same command again resumes what was
interrupted and leaves what is finished. `--only TEXT` makes the runs whose names contain the text,
and `--dry-run` prints the commands.
"""

import argparse
import importlib
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def make(name: str, words: list[str], folder: Path) -> int:
    """Make or resume one run, and return its exit code."""
    log = folder / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    one_core = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": "."}
    with log.open("a") as file:
        made = subprocess.run([sys.executable, *words], stdout=file, stderr=file, env=one_core)
    print(f"{name}: {made.returncode or 'done'}", flush=True)
    return made.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="results.lab", description=__doc__)
    parser.add_argument("study")
    parser.add_argument("stage")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    stages = importlib.import_module(f"results.{args.study}.study").RUNS
    folder = Path("runs", args.study)
    runs = {
        name: [*words, "--out", str(folder / name), "--resume", "auto"]
        for name, words in stages[args.stage].items()
        if args.only in name
    }
    if args.dry_run:
        for words in runs.values():
            print("python", shlex.join(words))
        return 0
    with ThreadPoolExecutor(args.jobs) as pool:
        codes = list(pool.map(lambda name: make(name, runs[name], folder), runs))
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
