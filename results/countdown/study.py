"""Countdown with four numbers: RLOO, and MaxRL and GRPO with and without a penalty."""

import numpy as np

from results.lab.data import by_seed, evaluations, kept, runs
from results.lab.figures import guess_curve, level, panel, penalised, seed_curves, seeds_said
from results.lab.guessing import guessing
from results.lab.intervals import interval, side_by_side
from results.lab.runs import evaluation, product
from results.lab.tables import corrected, label_of, leads, pass_columns, searched, table

SFT = "train.py countdown_laptop_sft --optimizer muon --lr 1e-3 --seed {seed}"
STEPS, EVERY = 1500, 150
RL = (
    "train.py countdown_laptop {method[1]} --optimizer muon --lr {rate} --seed {seed} "
    f"--init runs/countdown/seed{{seed}}/base --steps {STEPS} --eval-every {EVERY} "
    "--eval-prompts 256 --eval-samples 16 --eval-k 1,8"
)
METHODS = {
    "maxrl": "--estimator maxrl",
    "grpo": "--estimator grpo",
    "grpo-k3.04": "--estimator grpo --beta .04",
    "rloo": "--estimator rloo",
    "maxrl-k3.04": "--estimator maxrl --beta .04",
}
PENALISED = "grpo-k3.04"
# It has the best rate of GRPO with the penalty.
UNSEARCHED = ("maxrl-k3.04",)
# pass@1 and pass@64 of these are what was named before.
PRIMARY = [("maxrl", "grpo"), ("maxrl", PENALISED)]
PAIRS = [("maxrl", "base"), *PRIMARY, ("maxrl", "rloo")]
PAIRS += [("grpo", "base"), (PENALISED, "base"), ("rloo", "base"), ("maxrl-k3.04", PENALISED)]
# A ladder, as in results/maze13_end. Of AdamW's part; the matrices have four times it.
RATES = ("1.25e-5", "2.5e-5", "5e-5", "1e-4", "2e-4", "4e-4")
SEARCHED = 202
# None is a seed of another study.
SEEDS = (240, 241, 242)
KS, TESTED = (1, 8), (1, 8, 64)
RISE = 300  # steps, a multiple of EVERY
POWERS = [2**i for i in range(7)]
GUESS = "a sum with one or two minus signs"
KEPT_STEPS = 100


def from_base(seed: int, methods, rates) -> dict:
    """The base of a seed, and methods at rates from there."""
    base = product("seed{seed}/base", SFT, seed=[seed])
    chosen = [(name, METHODS[name]) for name in methods]
    name = "seed{seed}/{method[0]}-lr{rate}"
    return base | product(name, RL, seed=[seed], rate=rates, method=chosen)


# A stage of the search for each method, so that it can be made in parts.
RUNS = {
    f"search-{name}": from_base(SEARCHED, [name], RATES)
    for name in METHODS
    if name not in UNSEARCHED
}
# {method: rate} by pass@1 + pass@8 at the end of the search; a stage a seed once it is known.
BEST = {"maxrl": "5e-5", "grpo": "5e-5", "rloo": "2.5e-5"}
BEST |= {"grpo-k3.04": "5e-5", "maxrl-k3.04": "5e-5"}
TESTS: dict[str, list[str]] = {}
for seed in SEEDS:
    stage: dict = {}
    models = {"base": "base"}
    for name, rate in BEST.items():
        stage |= from_base(seed, [name], [rate])
        models[name] = f"{name}-lr{rate}"
    RUNS[f"seed{seed}"] = stage
    # A file a model, so that they can be made one after the other.
    for name, run in models.items():
        one = {name: f"countdown/seed{seed}/{run}"}
        asked = "--prompts 1024 --samples 64 --k 1,8,64"
        TESTS[f"test-{name}-seed{seed}.json"] = evaluation(asked, one)


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
