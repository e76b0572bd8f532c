"""Seconds from random weights to half of the 9x9 mazes, on two cores: `make speedrun`.

Each seed is warmed up until its evaluation says pass@1 .08, as in the demo, trained with MaxRL and
with GRPO from there, and tested on 256 mazes x 64 samples. A run of training counts with its start,
its evaluations and its checkpoint; the data set and the test do not count. What was measured is
added to speedrun.json, with the commit.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch

from maxrl.run.origin import commit

MUON = ["--optimizer", "muon"]
RATE = ["--lr", "3e-4"]
BASE = [*MUON, "--stop-at-pass", ".08", "--eval-every", "20"]
# Each at its best rate of results/muon.
ARMS = {
    "maxrl": "--estimator maxrl_rare --rollouts 8,8,16 --prompts 32 --steps 400",
    "grpo": "--estimator grpo --rollouts 32 --prompts 16 --steps 300 --beta .04 --muon-lr-scale 8",
}
TEST = ["--prompts", "256", "--samples", "64", "--k", "1,8"]
MEASURED = Path(__file__).parent / "speedrun.json"


def timed(words: list[str]) -> tuple[float, float]:
    """Run train.py in two processes; return its seconds by the clock and its CPU seconds."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*launch, "train.py", *words], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, used


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", default="maxrl,grpo")
    parser.add_argument("--note", default="", help="what changed, or what else was running")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    subprocess.run([sys.executable, "-m", "data.maze.prepare", "--size", "9"], check=True)
    for seed in args.seeds.split(","):
        out = f"runs/speedrun/seed{seed}"
        shutil.rmtree(out, ignore_errors=True)
        warm_up = timed(["maze9_laptop_sft", *BASE, "--seed", seed, "--out", f"{out}/base"])
        for arm in args.arms.split(","):
            options = [*ARMS[arm].split(), *MUON, *RATE, "--eval-every", "0"]
            run = ["maze9_laptop", "--init", f"{out}/base", "--out", f"{out}/{arm}"]
            trained = timed([*run, *options, "--seed", seed])
            rows = [f"{out}/base", f"{out}/{arm}"]
            test = ["eval.py", *rows, *TEST, "--json", f"{out}/{arm}.json"]
            subprocess.run([sys.executable, *test], check=True)
            tested = json.loads(Path(f"{out}/{arm}.json").read_text())["pass@k"]
            row = {
                "date": str(date.today()),
                "commit": commit(),
                "note": args.note,
                "arm": arm,
                "options": " ".join([ARMS[arm], *MUON, *RATE]),
                "seed": int(seed),
                "seconds": round(warm_up[0] + trained[0], 1),
                "cpu_seconds": round(warm_up[1] + trained[1], 1),
                "warm_up": round(warm_up[0], 1),
                "pass@1, pass@8": {
                    name: [round(curve["mean"][curve["k"].index(k)], 3) for k in (1, 8)]
                    for name, curve in tested.items()
                },
                "torch": torch.__version__,
            }
            print(json.dumps(row))
            kept = json.loads(MEASURED.read_text()) if MEASURED.exists() else []
            lines = ",\n ".join(json.dumps(one) for one in [*kept, row])
            MEASURED.write_text(f"[{lines}]\n")


if __name__ == "__main__":
    main()
