"""Many epochs over 128 mazes.

Validation is 128 mazes x 64 samples every five epochs; training pass@1 is the mean reward of the
five epochs before, on the fixed mazes themselves.
"""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import evaluations, paired, runs, tested
from results.lab.figures import few_problems, seeds_said
from results.lab.intervals import interval
from results.lab.tables import METHODS, differences, levels, table

KS = (1, 8, 64)
EVERY = 5  # epochs between evaluations
SEEDS = range(3)


def compared_runs() -> dict[str, dict[int, list[dict]]]:
    return paired(runs("fixed_set"), METHODS)


def validation(found: dict, k: int) -> dict[str, np.ndarray]:
    """{method: pass@k (seeds, evaluations)}, the first that of the bases."""
    curves = {}
    bases = coverage(tested("fixed_set/bases.json"), [k])["base"].mean(1)  # (seeds, 1)
    for method, seeds in found.items():
        passed = [evaluations(rows, k) for rows in seeds.values()]
        curves[method] = np.concatenate([bases[list(seeds)], passed], 1)
    return curves


def over_epochs(k: int, curves: dict[str, np.ndarray]):
    """Every evaluation as the mean over seeds, and MaxRL minus each."""
    rows = []
    for i in range(curves["maxrl"].shape[1]):
        cells = [interval(values[:, i]) for values in curves.values()]
        for other in ("grpo", "rloo"):
            cells.append(interval(curves["maxrl"][:, i] - curves[other][:, i], "+"))
        rows.append([EVERY * i, *cells])
    heads = [*METHODS.values(), "MaxRL minus GRPO", "MaxRL minus RLOO"]
    table([f"epoch, validation pass@{k}", *heads], rows)


def best_epochs(curves: dict):
    """When each run was best at one try, and what it lost since."""
    rows = []
    for seed in SEEDS:
        for method, name in METHODS.items():
            ones = curves[method][seed]
            cells = [f"{ones.max():.3f}", EVERY * ones.argmax(), f"{ones[-1]:.3f}"]
            rows.append([f"seed {seed} {name}", *cells])
    table(["run", "best pass@1, validation", "epoch", "last"], rows)


def tables():
    found = compared_runs()
    held_out = {k: validation(found, k) for k in KS}
    for k, curves in held_out.items():
        over_epochs(k, curves)
    best_epochs(held_out[1])
    ks = [1, 8, 64, 256]
    passed = coverage(tested("fixed_set/test.json"), ks)
    levels(passed, ks, found)
    differences(passed, ks)


def figure4() -> dict:
    """Many epochs over few problems, from the bases on."""
    found = compared_runs()
    curves = {}
    for k in (1, 8):
        held_out = validation(found, k)
        epochs = EVERY * np.arange(held_out["maxrl"].shape[1]) * 1.0
        curves[k] = {name: (epochs, values) for name, values in held_out.items()}
    return few_problems(
        "Within eight tries MaxRL gains over 60 epochs, GRPO and RLOO lose",
        "Ours: strong base, .3M parameters, 128 validation mazes x 64 samples. Solid: ours, "
        f"{seeds_said(len(found['maxrl']))}; dashed: the paper's",
        "paper: GSM8K, SmolLM2-360M",
        "ours: 128 mazes of 9x9 (reduced scale)",
        curves,
        "9x9 mazes",
    )


FIGURES = {"figure4": figure4}
