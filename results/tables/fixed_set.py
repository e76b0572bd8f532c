"""Many epochs over 128 mazes, from runs/ (results/keep.py), bases.json and test.json (eval.py).

Validation is 128 mazes x 64 samples every five epochs; training pass@1 is the mean reward of the
five epochs before, on the fixed mazes themselves.
"""

import json
import statistics
from pathlib import Path

import numpy as np

from maxrl.metrics import pass_at_k
from results.reading import runs
from results.tables.cells import coverage, differences, head, levels, line, minus_others, over_seeds

METHODS = {"maxrl": "MaxRL", "grpo": "GRPO", "rloo": "RLOO"}
KS = (1, 8, 64)
# Epochs between evaluations.
EVERY = 5


def read(study: Path) -> dict[str, list[dict]]:
    """{method: the curves of every seed}, of the seeds that have all methods.

    A curve of pass@k begins with the base, where training pass@1 has no value.
    """
    bases = json.loads((study / "bases.json").read_text())
    found = runs(study / "runs", r"seed(?P<seed>\d+)-(?P<method>[a-z]+)", 1)
    seeds = sorted(set.intersection(*(set(found[method]) for method in METHODS)))
    curves: dict[str, list[dict]] = {method: [] for method in METHODS}
    for method in METHODS:
        for seed in seeds:
            rows = found[method][seed]
            counts = bases["checkpoints"][seed]["counts"]
            curve = {}
            for k in KS:
                base = pass_at_k(bases["samples"], counts, k).mean()
                curve[k] = [
                    base,
                    *(row[f"eval/pass@{k}"] for row in rows if f"eval/pass@{k}" in row),
                ]
            rewards = np.array([row["reward"] for row in rows])
            curve["training"] = rewards.reshape(len(curve[1]) - 1, -1).mean(1)
            curve["clipped"] = statistics.mean(row["clipped"] for row in rows)
            curves[method].append(curve)
    return curves


def stacked(curves: dict, key) -> dict[str, np.ndarray]:
    """{method: (seeds, evaluations)}."""
    return {method: np.array([curve[key] for curve in curves[method]]) for method in METHODS}


def over_epochs(curves: dict):
    """Validation pass@k, mean over seeds and its interval."""
    for k in KS:
        names = (*METHODS.values(), "MaxRL minus GRPO", "MaxRL minus RLOO")
        head(f"epoch, validation pass@{k}", *names)
        table = stacked(curves, k)
        for i in range(table["maxrl"].shape[1]):
            line(EVERY * i, *minus_others(table, i))


def memory(curves: dict):
    """Training pass@1 on the fixed mazes, and how far above validation it is."""
    names = [f"{name}: training pass@1" for name in METHODS.values()]
    head("epochs", *names, *(f"{name}: minus validation" for name in METHODS.values()))
    training = stacked(curves, "training")
    held_out = stacked(curves, 1)
    for i in range(training["maxrl"].shape[1]):
        cells = [over_seeds(training[method][:, i]) for method in METHODS]
        for method in METHODS:
            # Validation at both ends of the same epochs.
            gap = training[method][:, i] - held_out[method][:, i : i + 2].mean(1)
            cells.append(over_seeds(gap, "+"))
        line(f"{EVERY * i}-{EVERY * (i + 1)}", *cells)


def best_and_last(curves: dict):
    one_k = ("best pass@1", "epoch", "last", "lost since")
    head("run", *one_k, "pass@64: base", "best", "epoch", "last", "steps clipped")
    for seed in range(len(curves["maxrl"])):
        for method, name in METHODS.items():
            curve = curves[method][seed]
            one, many = np.array(curve[1]), np.array(curve[64])
            best = EVERY * one.argmax()
            cells = [f"{one.max():.3f}", best, f"{one[-1]:.3f}", f"{one.max() - one[-1]:.3f}"]
            cells += [f"{many[0]:.3f}", f"{many.max():.3f}", EVERY * many.argmax()]
            line(f"seed {seed} {name}", *cells, f"{many[-1]:.3f}", f"{curve['clipped']:.0%}")


def fresh(called: str, curves: dict, folder: Path):
    """The headline's runs from the same bases at the same steps: mazes that never repeat."""
    names = [f"{name}: steps 400-480 on fresh mazes" for name in METHODS.values()]
    head(called, *names, *(f"{name}: validation here, epochs 50-60" for name in METHODS.values()))
    found = runs(folder, r"strong-seed(?P<seed>\d+)-(?P<method>[a-z]+)-lr1e-4", 480)
    there, here = [], []
    for seed in range(len(curves["maxrl"])):
        rewards = []
        for method in METHODS:
            rows = [row for row in found[method][seed] if 400 <= row["step"] < 480]
            rewards.append(statistics.mean(row["reward"] for row in rows))
        there.append(rewards)
        here.append([statistics.mean(curves[method][seed][1][-3:]) for method in METHODS])
        line(seed, *(f"{value:.3f}" for value in there[-1] + here[-1]))
    if len(there) > 1:
        head("mean over seeds, 95 %", *METHODS.values(), "GRPO minus MaxRL", "GRPO minus RLOO")
        means = np.array(there)  # (seeds, methods)
        for what, table in (("fresh mazes", means), ("fresh minus here", means - here)):
            maxrl, grpo, rloo = table.T
            gaps = [over_seeds(gap, "+") for gap in (grpo - maxrl, grpo - rloo)]
            line(what, *map(over_seeds, table.T), *gaps)


def main(study: Path):
    curves = read(study)
    over_epochs(curves)
    best_and_last(curves)
    memory(curves)
    headline = study.parent / "headline"
    fresh("seed", curves, headline / "runs")
    fresh("earlier run, seed", read(study / "earlier"), headline / "earlier")
    ks = [1, 8, 64, 256]
    table = coverage(json.loads((study / "test.json").read_text()), ks)
    levels(table, ks, lambda i, name: study / "runs" / f"seed{i}-{name}")
    differences(table, ks)
