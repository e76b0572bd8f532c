"""Countdown with four numbers: RLOO, and MaxRL and GRPO with and without a penalty."""

import numpy as np

from results.lab.data import by_seed, evaluations, kept, runs
from results.lab.figures import guess_curve, level, panel, penalised, seed_curves, seeds_said
from results.lab.guessing import guessing
from results.lab.intervals import interval, side_by_side
from results.lab.tables import corrected, label_of, leads, pass_columns, searched, table

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
GUESS = "a sum with one or two minus signs"


def distinct() -> dict[str, list[float]]:
    """{row: the mean number of different right answers to a problem, of each seed}."""
    found: dict[str, list[float]] = {}
    for _, results in sorted(kept("countdown", "tests").items()):
        for row in results["checkpoints"]:
            found.setdefault(row["name"], []).append(float(np.mean(row["distinct"])))
    return found


def tables():
    """Guesses and the search, then levels, differences and the rise at the end."""
    guesses = [f"{value:.3f}" for value in guessing("Countdown", TESTED)]
    table(["blind to the target, 1,024 test problems", *pass_columns(TESTED)], [[GUESS, *guesses]])
    searched("countdown", SEARCHED, KS, STEPS)
    found = by_seed("countdown", "test-.+", TESTED)
    passed = {
        name: np.array([values.mean(0) for values in seeds.values()]).T  # (ks, seeds)
        for name, seeds in found.items()
    }
    others = distinct()
    rows = []
    for name, values in passed.items():
        rows.append([label_of(name), *map(interval, values), interval(others[name])])
    rows.append(["guessing", *guesses, ""])
    columns = [*pass_columns(TESTED), "different right answers of 64"]
    table([f"test, {len(found['base'])} seeds, 95 %", *columns], rows)
    gaps, primary = {}, {}
    for own, other in PAIRS:
        name, gap = f"{label_of(own)} minus {label_of(other)}", passed[own] - passed[other]
        more = np.subtract(others[own], others[other])[None]
        gaps[name] = np.concatenate([gap, more])
        if (own, other) in PRIMARY:
            primary |= {f"{name}, pass@{k}": gap[TESTED.index(k)] for k in (1, 64)}
    corrected("test, primary", primary)
    leads("test, paired by seed, 95 %", columns, gaps)
    each = [[label_of(name), *map(side_by_side, values)] for name, values in passed.items()]
    table(["seed by seed", *pass_columns(TESTED)], each)
    rises = []
    for arm, seeds in sorted(runs("countdown", steps=STEPS).items()):
        if curves := [evaluations(rows, 1) for seed, rows in seeds.items() if seed in SEEDS]:
            steps = RISE // EVERY
            rises.append([arm, interval([curve[-1] - curve[-1 - steps] for curve in curves], "+")])
    table([f"pass@1 on validation, rise over the last {RISE} steps", "95 %"], rises)


def drawn() -> dict:
    """pass@k on the test against k."""
    lines = []
    found = by_seed("countdown", "test-.+", POWERS)
    for name, seeds in found.items():
        line = seed_curves(name, POWERS, [values.mean(0) for values in seeds.values()])
        method, penalty, _ = name.partition("-k3")
        if penalty:
            line = penalised(line, method) | {"name": f"{label_of(method)}, KL"}
        lines.append(line)
    lines.append(guess_curve("Countdown", POWERS))
    title = "ours (reduced scale): test"
    return {
        "title": "Countdown: GRPO is ahead at one sample, MaxRL from four on",
        "caption": "Four numbers and a target, a transformer of .61M parameters from scratch: "
        f"{STEPS:,} steps, each at its best rate, MaxRL with KL at that of GRPO with it. KL: a "
        f"penalty of .04 (k3). 1,024 test problems x 64 samples, {seeds_said(len(SEEDS))}",
        "panels": level(panel(title, "k", "pass@k", lines, xscale="log")),
    }


FIGURES = {"tested": drawn}
