"""The tables of README.md, from runs/ (results/keep.py), bases.json and test.json (eval.py).

    PYTHONPATH=. python results/fixed_set/summarise.py

Validation is 128 mazes x 64 samples every five epochs; training pass@1 is the mean reward of the five epochs before, on the
fixed mazes themselves.
"""

import json
import statistics
import sys
from pathlib import Path

import numpy as np

from maxrl.metrics import pass_at_k
from results import summarise
from results.summarise import head, line

METHODS = {"maxrl": "MaxRL", "grpo": "GRPO", "rloo": "RLOO"}
KS = (1, 8, 64)
EPOCH, EVERY = 8, 5  # steps, epochs


def over_seeds(values: np.ndarray, sign: str = "") -> str:
    """Mean and standard error over seeds; of one seed its value alone."""
    return summarise.over_seeds(values, sign) if len(values) > 1 else f"{values[0]:{sign}.3f}"


def seeds(study: Path) -> list[int]:
    """Those that have all methods."""
    return [
        seed
        for seed in range(3)
        if all((study / f"runs/seed{seed}-{method}").exists() for method in METHODS)
    ]


def read(study: Path) -> dict[str, list[dict]]:
    """{method: of every seed its curves}; a curve begins with the base, and training pass@1 has no value there."""
    bases = json.loads((study / "bases.json").read_text())
    curves = {}
    for method in METHODS:
        for seed in seeds(study):
            rows = [
                json.loads(row)
                for row in (study / f"runs/seed{seed}-{method}/metrics.jsonl")
                .read_text()
                .splitlines()
            ]
            counts = bases["checkpoints"][seed]["counts"]
            curve = {k: [pass_at_k(bases["samples"], counts, k).mean()] for k in KS}
            for k in KS:
                curve[k] += [row[f"eval/pass@{k}"] for row in rows if f"eval/pass@{k}" in row]
            rewards = np.array([row["reward"] for row in rows])
            curve["training"] = rewards.reshape(len(curve[1]) - 1, -1).mean(1)
            curve["clipped"] = statistics.mean(row["clipped"] for row in rows)
            curves.setdefault(method, []).append(curve)
    return curves


def over_epochs(curves: dict):
    """Validation pass@k, mean over seeds and its standard error."""
    for k in KS:
        head(
            f"epoch, validation pass@{k}", *METHODS.values(), "MaxRL minus GRPO", "MaxRL minus RLOO"
        )
        table = {
            method: np.array([curve[k] for curve in curves[method]]) for method in METHODS
        }  # (seeds, evaluations)
        for i in range(table["maxrl"].shape[1]):
            cells = [over_seeds(table[method][:, i]) for method in METHODS]
            gaps = [
                over_seeds(table["maxrl"][:, i] - table[method][:, i], "+")
                for method in ("grpo", "rloo")
            ]
            line([str(EVERY * i), *cells, *gaps])


def memory(curves: dict):
    """Training pass@1 on the fixed mazes, and how far above validation it is."""
    head(
        "epochs",
        *(f"{name}: training pass@1" for name in METHODS.values()),
        *(f"{name}: minus validation" for name in METHODS.values()),
    )
    training = {
        method: np.array([curve["training"] for curve in curves[method]]) for method in METHODS
    }
    held_out = {method: np.array([curve[1] for curve in curves[method]]) for method in METHODS}
    for i in range(training["maxrl"].shape[1]):
        gaps = [
            training[method][:, i] - held_out[method][:, i : i + 2].mean(1) for method in METHODS
        ]  # of the same epochs
        line(
            [
                f"{EVERY * i}-{EVERY * (i + 1)}",
                *(over_seeds(training[method][:, i]) for method in METHODS),
                *(over_seeds(gap, "+") for gap in gaps),
            ]
        )


def best_and_last(curves: dict):
    head(
        "run",
        "best pass@1",
        "epoch",
        "last",
        "lost since",
        "pass@64: base",
        "best",
        "epoch",
        "last",
        "steps clipped",
    )
    for seed in range(len(curves["maxrl"])):
        for method, name in METHODS.items():
            curve = curves[method][seed]
            one, many = np.array(curve[1]), np.array(curve[64])
            line(
                [
                    f"seed {seed} {name}",
                    f"{one.max():.3f}",
                    str(EVERY * one.argmax()),
                    f"{one[-1]:.3f}",
                    f"{one.max() - one[-1]:.3f}",
                    f"{many[0]:.3f}",
                    f"{many.max():.3f}",
                    str(EVERY * many.argmax()),
                    f"{many[-1]:.3f}",
                    f"{curve['clipped']:.0%}",
                ]
            )


def fresh(called: str, curves: dict, runs: Path):
    """The headline's runs from the same bases at the same steps and rate: mazes that never repeat."""
    head(
        called,
        *(f"{name}: steps 400-480 on fresh mazes" for name in METHODS.values()),
        *(f"{name}: validation here, epochs 50-60" for name in METHODS.values()),
    )
    there, here = [], []  # pass@1 of each seed and method
    for seed in range(len(curves["maxrl"])):
        files = [runs / f"strong-seed{seed}-{method}-lr1e-4/metrics.jsonl" for method in METHODS]
        rewards = []
        for file in files:
            rows = [json.loads(row) for row in file.read_text().splitlines()]
            rewards.append(
                statistics.mean(row["reward"] for row in rows if 400 <= row["step"] < 480)
            )
        there.append(rewards)
        here.append([statistics.mean(curves[method][seed][1][-3:]) for method in METHODS])
        line([str(seed), *(f"{value:.3f}" for value in there[-1] + here[-1])])
    if len(there) > 1:
        head("± over seeds", *METHODS.values(), "GRPO minus MaxRL", "GRPO minus RLOO")
        there = np.array(there)  # (seeds, methods)
        for what, table in (("fresh mazes", there), ("fresh minus here", there - here)):
            maxrl, grpo, rloo = table.T
            line(
                [
                    what,
                    *map(over_seeds, table.T),
                    *(over_seeds(gap, "+") for gap in (grpo - maxrl, grpo - rloo)),
                ]
            )


def main(study: Path):
    curves = read(study)
    over_epochs(curves)
    best_and_last(curves)
    memory(curves)
    headline = study.parent / "headline"
    fresh("seed", curves, headline / "runs")
    fresh("earlier run, seed", read(study / "earlier"), headline / "earlier")
    if (study / "test.json").exists():
        results = json.loads((study / "test.json").read_text())
        ks = [1, 8, 64, 256]
        table = summarise.coverage(results, ks)
        summarise.levels(table, ks, lambda i, name: study / "runs" / f"seed{i}-{name}")
        summarise.differences(table, ks)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
