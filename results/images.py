"""What stays of the runs of an image study, and how its tables read it.

    PYTHONPATH=. python results/images.py runs/order results/order test.json

makes results/order/curves.json of all runs below runs/order, and copies eval.py's JSON files with
fewer digits. Of those that are named last only means over the images stay.
"""

import json
import math
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import torch

from maxrl.advantages import ADVANTAGES, weight
from maxrl.io.files import json_lines
from maxrl.metrics import exact_pass_at_k
from maxrl.plots import called
from results.tables.cells import head, line, over_seeds

RESULTS = Path(__file__).parent
DIFFER = (
    "estimator",
    "estimator_options",
    "rollouts",
    "lr",
    "seed",
    "init",
)  # what the runs of a study differ in
BINS = (
    0,
    0.001,
    0.01,
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
    1,
)  # of pass rates, the paper's Figure 8
KS = (1, 2, 4, 8, 16, 25, 32, 64, 128, 256, 512)
LEARNED = ("pass_rate", "frac_reward_zero_mean", "grad_norm")  # of the training batches


def curve(run: Path) -> dict:
    """A run: what it was, its evaluations, and means over the steps between them. A step's seconds
    are their median: one during which the machine slept says nothing of the method."""
    recipe = json.loads((run / "recipe.json").read_text())
    rows = [row for row, _ in json_lines(run / "metrics.jsonl")]
    places = [i for i, row in enumerate(rows) if "eval/pass@1" in row]
    result = {key: recipe["config"][key] for key in DIFFER}
    result |= {
        "torch": recipe["torch"],
        "seconds": round(len(rows) * statistics.median(row["seconds"] for row in rows), 1),
    }
    result["steps"] = [rows[i]["step"] + 1 for i in places]
    for key in [key for key in rows[-1] if key.startswith("eval/")]:
        result[key.removeprefix("eval/")] = [float(f"{rows[i][key]:.4g}") for i in places]
    for key in LEARNED:
        parts = np.split([row[key] for row in rows], [i + 1 for i in places[:-1]])
        result[f"train/{key}"] = [float(f"{part.mean():.4g}") for part in parts]
    return result


def compared(curves: dict) -> dict:
    """{seedS/method: run} of the comparison, at the rate that cross-entropy had chosen."""
    chosen = best_rate(curves)
    found = {re.fullmatch(rf"(seed[012]/.*)-lr{chosen}", name): run for name, run in curves.items()}
    return {match[1]: run for match, run in found.items() if match}


def best_rate(curves: dict) -> float:
    """The learning rate with the highest pass@1 on seed 100."""
    tried = [run for name, run in curves.items() if name.startswith("seed100/")]
    return max((run["pass@1"][-1], run["lr"]) for run in tried)[1]


def norms(study: Path, step: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{method: pass rates and gradient norms (images of all seeds,)} after a step."""
    rows = {}
    for rollouts in (1024, 128, 16):
        for row in json.loads((study / f"norms-{step}-{rollouts}.json").read_text())["checkpoints"]:
            rows.setdefault(row["name"], []).append(row)
    return {
        name: tuple(np.concatenate([row[key] for row in seeds]) for key in ("pass_rates", "norms"))
        for name, seeds in rows.items()
    }


def digits(values, count: int) -> list[float]:
    return [float(f"{value:.{count}g}") for value in values]


def thinned(results: dict, means: bool) -> dict:
    """eval.py's JSON with four digits of each number, top-1 as text, and only the estimator that a
    model was trained with.

    means  leaves means over the images: of pass@k, and of top-1
    """
    rows = []
    for row in results["checkpoints"]:
        kept = {"name": row["name"], "path": row["path"]}
        if means:
            kept["pass@k"] = digits([exact_pass_at_k(row["pass_rates"], k).mean() for k in KS], 6)
            kept["top1"] = statistics.mean(row["top1"])
        else:
            kept["pass_rates"] = digits(row["pass_rates"], 4)
            if "top1" in row:
                kept["top1"] = "".join(map(str, row["top1"]))
        if "norms" in row:
            kept["norms"] = digits(row["norms"][row["name"].partition("-")[0]], 4)
        rows.append(kept)
    asked = ("command", "torch", "precision", "task_options", "split", "prompts", "rollouts")
    kept = {key: results[key] for key in (*asked, "classes") if key in results}
    return kept | {"checkpoints": rows}


def keep(runs: Path, study: Path, means: list[str]):
    """means: the JSON files of which only means over images stay."""
    found = sorted(
        file.parent for file in runs.glob("**/recipe.json") if "step-" not in file.parent.name
    )
    curves = {str(run.relative_to(runs)): curve(run) for run in found}
    command = " ".join(["python results/images.py", str(runs), str(study), *means])
    named = {"command": command} | curves
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in named.items()]
    (study / "curves.json").write_text("{" + ",\n".join(lines) + "}\n")
    for file in sorted(runs.glob("*.json")):
        results = thinned(json.loads(file.read_text()), file.name in means)
        (study / file.name).write_text(json.dumps(results, separators=(",", ":")) + "\n")


def columns(file: Path, ks) -> dict:
    """{name: pass@k for each of ks, then top-1, of each seed, (len(ks) + 1, seeds)} of an eval.py
    file."""
    found = {}
    for row in json.loads(file.read_text())["checkpoints"]:
        if "pass@k" in row:
            values = [row["pass@k"][KS.index(k)] for k in ks]
            top1 = row["top1"]
        else:
            values = [exact_pass_at_k(row["pass_rates"], k).mean() for k in ks]
            top1 = statistics.mean(map(int, row["top1"]))
        found.setdefault(row["name"], []).append([*values, top1])
    return {name: np.array(seeds).T for name, seeds in found.items()}


def seeds_table(table: dict, names, k: int, title: str, naming=called):
    """Means over seeds, and each seed's pass@1."""
    head(title, "pass@1", f"pass@{k}", "top-1", "pass@1 of each seed")
    for name in names:
        each = " / ".join(f"{value:.3f}" for value in table[name][0])
        line(naming(name), *map(over_seeds, table[name]), each)


def medians(pass_rates, norms) -> tuple[list, list]:
    """Medians of pass rates and gradient norms in BINS of the pass rate, None where there are fewer
    than three images."""
    pass_rates, norms = np.array(pass_rates), np.array(norms)
    place = np.searchsorted(BINS, pass_rates)  # bin i is above BINS[i - 1], up to BINS[i]
    found = [place == i for i in range(1, len(BINS))]
    enough = [inside.sum() >= 3 for inside in found]
    return tuple(
        [np.median(values[inside]) if some else None for inside, some in zip(found, enough)]
        for values in (pass_rates, norms)
    )


def noise(name: str, p: float, rollouts: int, classes: int, **options) -> float:
    """Standard deviation of a prompt's gradient by its logits, over the length of its mean.

    The model gives the right class p, and each of the others the same. The sum over K, the number
    of successes, is exact.
    """
    N = rollouts
    q = (1 - p) / (classes - 1)
    rewards = torch.ones(N + 1, N, dtype=torch.float64).tril(
        -1
    )  # row K has K successes, then failures
    advantages = ADVANTAGES[name](rewards, **options).numpy()
    K = np.arange(N + 1)
    F = N - K
    success = advantages[:, 0]  # of no meaning at K = 0, where it counts 0 times
    failure = advantages[:, -1]  # the same at K = N
    log_choose = np.array(
        [math.lgamma(N + 1) - math.lgamma(k + 1) - math.lgamma(N - k + 1) for k in K]
    )
    chance = np.exp(log_choose + K * math.log(p) + F * math.log1p(-p))
    # The score of class c is e_c - pi. A wrong class is drawn m times of F.
    m = F / (classes - 1)
    m2 = m * (1 - 1 / (classes - 1)) + m**2  # the mean of m^2
    total = K * success + F * failure
    right = (K * success - total * p) / N
    wrong = (failure**2 * m2 - 2 * failure * total * q * m + (total * q) ** 2) / N**2
    second = (chance * (right**2 + (classes - 1) * wrong)).sum()  # E |g|^2
    mean = weight(name, p, rollouts=N, **options) * p * math.hypot(1 - p, (classes - 1) ** 0.5 * q)
    return math.sqrt(max(second - mean**2, 0)) / mean


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
