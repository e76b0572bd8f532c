"""Subset sums and reversed texts.

TASK/test-seedS.json is eval.py's; TASK/runs/seedS-NAME is what results/keep.py left of each run.
"""

import json
from pathlib import Path

import numpy as np

from maxrl.plots import called
from maxrl.run import table
from results.reading import runs
from results.tables.cells import ahead, head, line, over_seeds, with_error

TASKS = ("subset_sum", "reverse_text")
KS = [1, 8, 64, 256]


def coverage(folder: Path) -> dict[str, np.ndarray]:
    """{name: pass@k, (seeds, prompts, ks)}."""
    found: dict[str, list] = {}
    for file in sorted(folder.glob("test-seed*.json")):
        for name, values in table.coverage(json.loads(file.read_text()), KS).items():
            found.setdefault(name, []).append(values[0])
    return {name: np.stack(seeds) for name, seeds in found.items()}


def main(study: Path):
    tables = {task: coverage(study / task) for task in TASKS}
    head("task", "model, 95 % over seeds", *(f"pass@{k}" for k in KS), "steps clipped")
    for task, found in tables.items():
        kept = runs(study / task / "runs", r"seed(?P<seed>\d+)-(?P<method>\w+)", 1)
        for name, seeds in found.items():
            clipped = [row["clipped"] for rows in kept[name].values() for row in rows]
            means = [over_seeds(values) for values in seeds.mean(1).T]
            line(f"`{task}`", called(name), *means, f"{np.mean(clipped):.0%}")
    columns = [cell for k in KS for cell in (f"pass@{k}", "ahead on")]
    head("MaxRL minus GRPO, 95 % over seeds", *columns)
    for task, found in tables.items():
        gaps = (found["maxrl"] - found["grpo"]).mean(1).T  # (ks, seeds)
        line(f"`{task}`", *(cell for gap in gaps for cell in (over_seeds(gap, "+"), ahead(gap))))
    head("MaxRL minus GRPO, standard error over prompts", *(f"pass@{k}" for k in KS))
    for task, found in tables.items():
        # Paired over prompts.
        gaps = found["maxrl"] - found["grpo"]  # (seeds, prompts, ks)
        for seed, gap in enumerate(gaps):
            line(f"`{task}`, seed {seed}", *(with_error(values, "+") for values in gap.T))
