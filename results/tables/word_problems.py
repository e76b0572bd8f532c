"""Generated word problems: test.json is eval.py's, with a majority vote for each problem."""

import json
from pathlib import Path

import numpy as np

from maxrl.plots import called
from results.tables.cells import ahead, coverage, differences, head, levels, line, over_seeds

KS = [1, 8, 64]


def main(study: Path):
    results = json.loads((study / "test.json").read_text())
    found = coverage(results, KS)
    levels(found, KS, lambda i, name: study / "runs" / f"seed{i}-{name}", prompts="problems")
    differences(found, KS, "word problems, ", prompts="problems")
    votes = {}  # {name: right votes, (seeds,)}
    for row in results["checkpoints"]:
        votes.setdefault(row["name"], []).append(np.mean(row["majority"]))
    head(f"majority vote of {results['samples']}, 95 % over seeds", "right", "each seed")
    for name, right in votes.items():
        line(called(name), over_seeds(right), " / ".join(f"{value:.3f}" for value in right))
    gap = np.array(votes["maxrl"]) - votes["grpo"]
    line("MaxRL minus GRPO", over_seeds(gap, "+"), ahead(gap))
