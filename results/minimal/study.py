"""maxrl/minimal.py on five seeds.

PYTHONPATH=. python results/minimal/study.py --json FILE    makes the 15 runs, one after another
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from results.lab.data import kept
from results.lab.intervals import interval
from results.lab.tables import METHODS, label_of, table

RULES = METHODS[::-1]
SEEDS = range(5)
PRINTED = re.compile(r"step (\d+): pass rate ([\d.]+), (\d+) of 100 sums solved")
TESTS = {"results.json": ["results/minimal/study.py"]}


def minimal(method: str, seed: int) -> list[list]:
    """The rows [step, pass rate, solved] of a run."""
    command = [sys.executable, "-m", "maxrl.minimal", method, "--seed", str(seed)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [[int(step), float(p), int(n)] for step, p, n in PRINTED.findall(text)]


def tables():
    found = kept("minimal", "tests")["results.json"]
    runs = {method: np.array(found[method]) for method in RULES}  # (seeds, rows, 3)
    rows = []
    for column, what, scale, digits in ((1, "pass rate", 1, 3), (2, "share solved", 100, 2)):
        for method in RULES:
            last = runs[method][:, -1, column] / scale
            cells = [f"{value:.{digits}f}" for value in last]
            rows.append([f"{label_of(method)}, {what}", *cells, interval(last)])
    for other in ("grpo", "rloo"):
        lead = runs["maxrl"][:, -1, 1] - runs[other][:, -1, 1]
        cells = [f"{value:+.3f}" for value in lead]
        rows.append([f"MaxRL minus {label_of(other)}, pass rate", *cells, interval(lead)])
    seeds = [f"seed {seed}" for seed in SEEDS]
    table(["after 450 steps", *seeds, "mean, 95 % interval"], rows)


if __name__ == "__main__":
    made = {"command": "python -m results.lab minimal test"}
    made |= {method: [minimal(method, seed) for seed in SEEDS] for method in RULES}
    Path(sys.argv[-1]).write_text(json.dumps(made).replace("]], ", "]],\n") + "\n")
