"""Seconds from random weights to half of the 9x9 mazes, on two cores: `make speedrun`.

Each seed is warmed up until its evaluation says pass@1 .08, as in the demo, trained from there with
MaxRL, with GRPO and on demonstrations alone, and tested on 256 mazes x 64 samples. A run of
training counts with its start, its evaluations and its checkpoint; the data set and the test do not
count. What was measured is added to speedrun.json, and printed as rows of the leaderboard in
README.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch

from maxrl.run.origin import commit, processor

MUON = ["--optimizer", "muon"]
BASE = [*MUON, "--stop-at-pass", ".08", "--eval-every", "20"]
# MaxRL and GRPO have their best rates of results/mazes9.
ARMS = {
    "maxrl": "--estimator maxrl_rare --rollouts 8,8,16 --prompts 32 --steps 400",
    "grpo": "--estimator grpo --rollouts 32 --prompts 16 --steps 300 --beta .04 --muon-lr-scale 8",
    "supervised": "--estimator supervised --rollouts 1 --prompts 32 --steps 360",
}
RATES = {"maxrl": "3e-4", "grpo": "3e-4", "supervised": "1e-3"}  # the last is the warm-up's
TEST = ["--prompts", "256", "--samples", "64", "--k", "1,8"]
MEASURED = Path(__file__).parent / "speedrun.json"


# Of an arm on the test: pass@1 and pass@8.
GOAL = (0.5, 0.8)
HEADS = ("date", "commit", "seconds, of each seed", "at the goal", "machine", "who", "arm")
ABOUT = ("machine", "who", "options")


def leaderboard(rows: list[dict]) -> str:
    """A line for the seeds of one day, commit and arm."""
    lines: dict[tuple, list[dict]] = {}
    for row in rows:
        about = (row["date"], row["commit"].rstrip("+"), *(row[key] for key in ABOUT))
        lines.setdefault(about, []).append(row)
    text = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for about, seeds in lines.items():
        seconds = ", ".join(f"{row['seconds']:.0f}" for row in seeds)
        passed = [row["pass@1, pass@8"][row["arm"]] for row in seeds]
        there = sum(one >= GOAL[0] and eight >= GOAL[1] for one, eight in passed)
        cells = (*about[:2], seconds, f"{there} of {len(seeds)}", *about[2:4], f"`{about[4]}`")
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text)


def timed(words: list[str]) -> float:
    """Run train.py in two processes; return its seconds."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    start = time.perf_counter()
    subprocess.run([*launch, "train.py", *words], check=True)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--who", default="", help="your name on the leaderboard")
    parser.add_argument("--note", default="", help="what changed, or what else was running")
    args = parser.parse_args()
    kept = json.loads(MEASURED.read_text())
    before = len(kept)
    os.environ["OMP_NUM_THREADS"] = "1"
    subprocess.run([sys.executable, "-m", "data.maze.prepare", "--size", "9"], check=True)
    for seed in args.seeds.split(","):
        out = f"runs/speedrun/seed{seed}"
        shutil.rmtree(out, ignore_errors=True)
        warm_up = timed(["maze9_laptop_sft", *BASE, "--seed", seed, "--out", f"{out}/base"])
        for arm in args.arms.split(","):
            options = [*ARMS[arm].split(), *MUON, "--lr", RATES[arm]]
            run = ["maze9_laptop", "--init", f"{out}/base", "--out", f"{out}/{arm}"]
            trained = timed([*run, *options, "--eval-every", "0", "--seed", seed])
            rows = [f"{out}/base", f"{out}/{arm}"]
            test = ["eval.py", *rows, *TEST, "--json", f"{out}/{arm}.json"]
            subprocess.run([sys.executable, *test], check=True)
            tested = json.loads(Path(f"{out}/{arm}.json").read_text())["pass@k"]
            row = {
                "date": str(date.today()),
                "commit": commit(),
                "machine": processor(),
                "who": args.who,
                "note": args.note,
                "arm": arm,
                "options": " ".join(options),
                "seed": int(seed),
                "seconds": round(warm_up + trained, 1),
                "warm_up": round(warm_up, 1),
                "pass@1, pass@8": {
                    name: [round(curve["mean"][curve["k"].index(k)], 3) for k in (1, 8)]
                    for name, curve in tested.items()
                },
                "torch": torch.__version__,
            }
            kept.append(row)
            lines = ",\n ".join(json.dumps(one) for one in kept)
            MEASURED.write_text(f"[{lines}]\n")
    print(leaderboard(kept[before:]))


if __name__ == "__main__":
    main()
