"""Countdown with four numbers: RLOO, and MaxRL and GRPO with and without a penalty."""

import numpy as np

from maxrl.analysis.table import coverage, over_seeds
from results.lab.data import all_seeds, evaluations, runs
from results.lab.figures import guess_curve, level, panel, penalised, seed_curves, seeds_said
from results.lab.guessing import best_guess
from results.lab.intervals import interval, side_by_side
from results.lab.tables import (
    corrected,
    differences,
    label_of,
    leads,
    pass_columns,
    searched,
    summary,
    table,
)

STEPS, EVERY = 1500, 150
PENALISED = "grpo-k3.04"
KEPT_STEPS = 100
# pass@1 and pass@64 of these are what was named before.
PRIMARY = [("maxrl", "grpo"), ("maxrl", PENALISED)]
PAIRS = [("maxrl", "base"), *PRIMARY, ("maxrl", "rloo")]
PAIRS += [("grpo", "base"), (PENALISED, "base"), ("rloo", "base"), ("maxrl-k3.04", PENALISED)]
SEARCHED = 202
# None is a seed of another study.
SEEDS = (240, 241, 242)
KS, TESTED = (1, 8), (1, 8, 64)
RISE = 300  # steps, a multiple of EVERY
POWERS = [2**i for i in range(7)]


def with_distinct(results: dict, ks) -> dict[str, np.ndarray]:
    """coverage(), and how many different right answers a problem has, as a further column."""
    distinct = over_seeds(results, lambda row: row["distinct"])
    return {
        row: np.dstack([passed, distinct[row]]) for row, passed in coverage(results, ks).items()
    }


def tables():
    """The search, then levels, differences and the rise at the end."""
    searched("countdown", SEARCHED, KS, STEPS)
    found = all_seeds("countdown", "test-.+", TESTED, with_distinct)
    rows = [[label_of(name), *map(interval, values)] for name, values in found.items()]
    rows.append(["guessing", *(f"{value:.3f}" for value in best_guess("Countdown", TESTED)), ""])
    columns = [*pass_columns(TESTED), "different right answers of 64"]
    table([f"test, {len(SEEDS)} seeds, 95 %", *columns], rows)
    primary = {}
    for name, (at_one, _, at_all, _) in differences(found, PRIMARY).items():
        primary |= {f"{name}, pass@1": at_one, f"{name}, pass@64": at_all}
    corrected("test, primary", primary)
    leads("test, paired by seed, 95 %", columns, differences(found, PAIRS))
    each = {label_of(name): values for name, values in found.items()}
    summary("seed by seed", columns, each, cell=side_by_side)
    rises = []
    for arm, seeds in sorted(runs("countdown", steps=STEPS).items()):
        if curves := [evaluations(rows, 1) for seed, rows in seeds.items() if seed in SEEDS]:
            steps = RISE // EVERY
            rises.append([arm, interval([curve[-1] - curve[-1 - steps] for curve in curves], "+")])
    table([f"pass@1 on validation, rise over the last {RISE} steps", "95 %"], rises)


def drawn() -> dict:
    """pass@k on the test against k."""
    lines = []
    for name, values in all_seeds("countdown", "test-.+", POWERS).items():
        line = seed_curves(name, POWERS, values.T)
        method, penalty, _ = name.partition("-k3")
        if penalty:
            line = penalised(line, method) | {"name": f"{label_of(method)}, KL"}
        lines.append(line)
    lines.append(guess_curve("Countdown", POWERS))
    title = "ours (reduced scale): test"
    return {
        "title": "Countdown without KL: GRPO is ahead at one sample, MaxRL from four on",
        "caption": "Four numbers and a target, a transformer of .61M parameters from scratch: "
        f"{STEPS:,} steps, each at its best rate, MaxRL with KL at that of GRPO with it. KL: a "
        f"penalty of .04 (k3). 1,024 test problems x 64 samples, {seeds_said(len(SEEDS))}. "
        "Guessing: expressions that solve the most of 3,000 other problems",
        "panels": level(panel(title, "k", "pass@k", lines, xscale="log")),
    }


FIGURES = {"tested": drawn}
