"""What stays of the runs of an image study, and how its tables read it.

    PYTHONPATH=. python results/images.py runs/order results/order

makes results/order/curves.json of all runs below runs/order, and copies eval.py's JSON files with fewer digits.
"""

import json
import statistics
import sys
from pathlib import Path

import numpy as np

from maxrl.io.files import json_lines
from maxrl.metrics import exact_pass_at_k
from maxrl.study.plots import called
from results.summarise import head, line, over_seeds

RESULTS = Path(__file__).parent
DIFFER = ("estimator", "estimator_options", "rollouts", "lr", "seed", "init")  # what the runs of a study differ in
LEARNED = ("pass_rate", "frac_reward_zero_mean", "grad_norm")  # of the training batches


def curve(run: Path) -> dict:
    """A run: what it was, its evaluations, and means over the steps between them. A step's seconds are their median: one during
    which the machine slept says nothing of the method."""
    recipe = json.loads((run / "recipe.json").read_text())
    rows = [row for row, _ in json_lines(run / "metrics.jsonl")]
    places = [i for i, row in enumerate(rows) if "eval/pass@1" in row]
    result = {key: recipe["config"][key] for key in DIFFER}
    result |= {"torch": recipe["torch"], "seconds": round(len(rows) * statistics.median(row["seconds"] for row in rows), 1)}
    result["steps"] = [rows[i]["step"] + 1 for i in places]
    for key in [key for key in rows[-1] if key.startswith("eval/")]:
        result[key.removeprefix("eval/")] = [float(f"{rows[i][key]:.4g}") for i in places]
    for key in LEARNED:
        parts = np.split([row[key] for row in rows], [i + 1 for i in places[:-1]])
        result[f"train/{key}"] = [float(f"{part.mean():.4g}") for part in parts]
    return result


def digits(values, count: int) -> list[float]:
    return [float(f"{value:.{count}g}") for value in values]


def thinned(results: dict) -> dict:
    """eval.py's JSON with four digits of each number, top-1 as text, and only the estimator that a model was trained with."""
    rows = []
    for row in results["checkpoints"]:
        kept = {"name": row["name"], "path": row["path"], "pass_rates": digits(row["pass_rates"], 4)}
        if "top1" in row:
            kept["top1"] = "".join(map(str, row["top1"]))
        if "norms" in row:
            kept["norms"] = digits(row["norms"][row["name"].partition("-")[0]], 4)
        rows.append(kept)
    asked = ("command", "torch", "precision", "task_options", "split", "prompts", "rollouts", "classes")
    return {key: results[key] for key in asked} | {"checkpoints": rows}


def keep(runs: Path, study: Path):
    found = sorted(file.parent for file in runs.glob("**/recipe.json") if "step-" not in file.parent.name)
    curves = {str(run.relative_to(runs)): curve(run) for run in found}
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in curves.items()]
    (study / "curves.json").write_text("{" + ",\n".join(lines) + "}\n")
    for file in sorted(runs.glob("*.json")):
        results = thinned(json.loads(file.read_text()))
        (study / file.name).write_text(json.dumps(results, separators=(",", ":")) + "\n")


def load(file: Path) -> tuple[dict, dict]:
    """{name: pass rates (seeds, images)} and {name: whether the likeliest class is right, (seeds, images)}."""
    rates, right = {}, {}
    for row in json.loads(file.read_text())["checkpoints"]:
        rates.setdefault(row["name"], []).append(row["pass_rates"])
        right.setdefault(row["name"], []).append([int(letter) for letter in row["top1"]])
    return {name: np.array(v) for name, v in rates.items()}, {name: np.array(v) for name, v in right.items()}


def columns(file: Path, k: int) -> dict:
    """{name: pass@1, pass@k and top-1 of each seed, (3, seeds)} of an eval.py file."""
    rates, right = load(file)
    return {name: np.stack([p.mean(1), exact_pass_at_k(p, k).mean(1), right[name].mean(1)]) for name, p in rates.items()}


def seeds_table(table: dict, names, k: int, title: str, naming=called):
    """Means over seeds, and each seed's pass@1."""
    head(title, "pass@1", f"pass@{k}", "top-1", "pass@1 of each seed")
    for name in names:
        each = " / ".join(f"{value:.3f}" for value in table[name][0])
        line([naming(name), *map(over_seeds, table[name]), each])


if __name__ == "__main__":
    keep(*map(Path, sys.argv[1:]))
