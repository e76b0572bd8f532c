"""maxrl/minimal.py on twenty seeds.

PYTHONPATH=. python results/minimal/study.py 5 20 --json FILE    seeds 5 to 19, one after another
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from results.lab.data import kept
from results.lab.intervals import ahead, interval, side_by_side
from results.lab.tables import METHODS, label_of, table

RULES = METHODS[::-1]
PRINTED = re.compile(r"step (\d+): pass rate ([\d.]+), (\d+) of 100 sums solved")
# The first seed of each, and the one after its last.
TESTS = {
    "results.json": ["results/minimal/study.py", "0", "5"],
    "more.json": ["results/minimal/study.py", "5", "20"],
}


def minimal(method: str, seed: int) -> list[list]:
    """The rows [step, pass rate, solved] of a run."""
    command = [sys.executable, "-m", "maxrl.minimal", method, "--seed", str(seed)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [[int(step), float(p), int(n)] for step, p, n in PRINTED.findall(text)]


def tables():
    found = kept("minimal", "tests")
    last = {}
    for method in RULES:
        runs = [rows for name in TESTS for rows in found[name][method]]
        last[method] = np.array(runs)[:, -1, 1:].T  # (2, seeds)  pass rate, sums solved
    levels, leads, each = [], [], []
    for method, (rate, solved) in last.items():
        ends = [f"{rate.min():.3f}", f"{rate.max():.3f}"]
        levels.append([label_of(method), interval(rate), *ends, interval(solved / 100)])
        each.append([label_of(method), side_by_side(rate)])
        if method != "maxrl":
            lead = last["maxrl"][0] - rate
            cells = [interval(lead, "+"), ahead(lead), f"{lead.min():+.3f}", f"{lead.max():+.3f}"]
            leads.append([f"MaxRL minus {label_of(method)}", *cells])
    ends = ["lowest", "highest"]
    table(["after 450 steps", "pass rate, 95 %", *ends, "share solved, 95 %"], levels)
    table(["pass rate", "95 %", "ahead on", *ends], leads)
    table(["seed by seed", "pass rate"], each)


if __name__ == "__main__":
    first, end = map(int, sys.argv[1:3])
    made = {"command": "python -m results.lab minimal test"}
    made |= {method: [minimal(method, seed) for seed in range(first, end)] for method in RULES}
    Path(sys.argv[-1]).write_text(json.dumps(made).replace("]], ", "]],\n") + "\n")
