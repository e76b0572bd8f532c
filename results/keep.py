"""What stays of a run: its recipe, and metrics.jsonl with one line for every five steps, the mean
of the five. The seconds are their median: a step during which the machine slept says nothing of the
method.

    python results/keep.py RUN results/STUDY/runs/NAME
"""

import json
import statistics
import sys
from pathlib import Path

from maxrl.io.files import json_lines

STEPS = 5
KEPT = (
    "reward",
    "frac_reward_zero_mean",
    "frac_reward_one_mean",
    "entropy",
    "completions/mean_length",
    "loss",
    "grad_norm",
    "lr",
    "seconds",
    "rollouts",
)


def thinned(rows: list[dict]) -> list[dict]:
    """Means over STEPS steps, the step that of the last one; `clipped` is the share with a gradient
    norm above 1. What an evaluation found stands where it was."""
    result = []
    for i in range(0, len(rows), STEPS):
        part = rows[i : i + STEPS]
        known = {key: [row[key] for row in part if row.get(key) is not None] for key in KEPT}
        row = {
            key: float(f"{sum(values) / len(values):.6g}")
            for key, values in known.items()
            if values
        }
        if known["seconds"]:
            row["seconds"] = float(f"{statistics.median(known['seconds']):.6g}")
        row["clipped"] = sum(norm > 1 for norm in known["grad_norm"]) / len(part)
        evaluated = {
            key: value for line in part for key, value in line.items() if key.startswith("eval/")
        }
        result.append({"step": part[-1]["step"]} | row | evaluated)
    return result


def main(run: str, folder: str):
    rows = [row for row, _ in json_lines(Path(run) / "metrics.jsonl")]
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in thinned(rows)))
    (folder / "recipe.json").write_text((Path(run) / "recipe.json").read_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
