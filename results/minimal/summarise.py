"""The tables of minimal.py's five seeds, from results.json beside it.

PYTHONPATH=. python results/minimal/summarise.py --read DIR    makes it from METHOD-SEED.txt
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

from results.tables.cells import head, line, over_seeds

METHODS = {"rloo": "RLOO", "grpo": "GRPO", "maxrl": "MaxRL"}
SEEDS = range(5)
PRINTED = re.compile(r"step (\d+): pass rate ([\d.]+), (\d+) of 100 sums solved")


def read(folder: Path) -> dict[str, list]:
    """{method: for each seed its rows [step, pass rate, solved]} of what minimal.py printed."""
    found: dict[str, list] = {}
    for method in METHODS:
        found[method] = []
        for seed in SEEDS:
            text = (folder / f"{method}-{seed}.txt").read_text()
            rows = [[int(s), float(p), int(n)] for s, p, n in PRINTED.findall(text)]
            found[method].append(rows)
    return found


def main(folder: Path):
    kept = json.loads((folder / "results.json").read_text())
    runs = {method: np.array(kept[method]) for method in METHODS}  # (seeds, rows, 3)
    last = {method: rows[:, -1] for method, rows in runs.items()}  # (seeds, 3)
    head("after 450 steps", *(f"seed {seed}" for seed in SEEDS), "mean, 95 % interval")
    for method, name in METHODS.items():
        rates = last[method][:, 1]
        line(f"{name}, pass rate", *(f"{p:.3f}" for p in rates), over_seeds(rates))
    for method, name in METHODS.items():
        shares = last[method][:, 2] / 100
        line(f"{name}, share solved", *(f"{share:.2f}" for share in shares), over_seeds(shares))
    for other in ("grpo", "rloo"):
        lead = last["maxrl"][:, 1] - last[other][:, 1]
        cells = [f"{value:+.3f}" for value in lead]
        line(f"MaxRL minus {METHODS[other]}, pass rate", *cells, over_seeds(lead))
    steps = runs["maxrl"][0, :, 0].astype(int)
    head("mean pass rate", *(f"step {step}" for step in steps))
    for method, name in METHODS.items():
        line(name, *(f"{p:.3f}" for p in runs[method][:, :, 1].mean(axis=0)))
    processors = json.loads((folder / "processors.json").read_text())
    head("pass rate of MaxRL, GRPO", *(f"seed {seed}" for seed in SEEDS))
    for processor, found in processors.items():
        if processor != "command":
            cells = [
                f"{found['maxrl'][seed][0]:.3f}, {found['grpo'][seed][0]:.3f}"
                if seed in found["grpo"]
                else "–"
                for seed in map(str, SEEDS)
            ]
            line(processor, *cells)


if __name__ == "__main__":
    if sys.argv[1:2] != ["--read"]:
        sys.exit("python results/summarise.py minimal prints the tables")
    kept = {"command": "bash results/minimal/protocol.sh"} | read(Path(sys.argv[2]))
    text = json.dumps(kept).replace("]], ", "]],\n")
    Path(__file__).with_name("results.json").write_text(text + "\n")
