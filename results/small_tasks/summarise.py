"""The tables of README.md, from the files that are kept here.

    PYTHONPATH=. python results/small_tasks/summarise.py

TASK/test-seedS.json is eval.py's; TASK/runs/seedS-NAME is what results/keep.py left of each run.
"""

import json
from pathlib import Path

import numpy as np

from maxrl.metrics import mean_and_se, pass_at_k
from maxrl.plots import called

HERE = Path(__file__).resolve().parent
TASKS = ("subset_sum", "reverse_text")
KS = (1, 8, 64, 256)


def line(*cells):
    print(f"| {' | '.join(cells)} |")


def head(*cells):
    print()
    line(*cells)
    print("|---" * len(cells) + "|")


def over_seeds(values: np.ndarray, sign: str = "") -> str:
    """Mean of (seeds,) and its standard error."""
    return f"{values.mean():{sign}.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


def coverage(task: str) -> dict[str, np.ndarray]:
    """{name: pass@k, (seeds, prompts, ks)}."""
    found = {}
    for file in sorted((HERE / task).glob("test-seed*.json")):
        results = json.loads(file.read_text())
        for row in results["checkpoints"]:
            values = [pass_at_k(results["samples"], row["counts"], k) for k in KS]
            found.setdefault(row["name"], []).append(np.stack(values, 1))
    return {name: np.stack(seeds) for name, seeds in found.items()}


def steps_clipped(task: str, name: str) -> str:
    """The share of all seeds' steps whose gradient was scaled down."""
    rows = []
    for file in sorted((HERE / task / "runs").glob(f"seed*-{name}/metrics.jsonl")):
        rows += [json.loads(row)["clipped"] for row in file.open()]
    return f"{np.mean(rows):.0%}"


def main():
    tables = {task: coverage(task) for task in TASKS}
    head("task", "model", *(f"pass@{k}" for k in KS), "steps clipped")
    for task, table in tables.items():
        for name, seeds in table.items():
            line(
                f"`{task}`",
                called(name),
                *(over_seeds(values) for values in seeds.mean(1).T),
                steps_clipped(task, name),
            )
    head("MaxRL minus GRPO", *(f"pass@{k}" for k in KS))
    for task, table in tables.items():
        gaps = table["maxrl"] - table["grpo"]  # (seeds, prompts, ks), paired over prompts
        for seed, gap in enumerate(gaps):
            line(
                f"`{task}`, seed {seed}",
                *("{:+.3f} ± {:.3f}".format(*mean_and_se(values)) for values in gap.T),
            )
        line(f"`{task}`, ± over seeds", *(over_seeds(values, "+") for values in gaps.mean(1).T))


if __name__ == "__main__":
    main()
