"""Orders 1 to 1,024 of MaxRL from the same rollouts, on 200 drawn classes."""

import statistics

import numpy as np

from results.lab.data import class_means, class_runs
from results.lab.figures import curve, panel, seed_curves, seeds_said
from results.lab.intervals import interval, side_by_side
from results.lab.runs import evaluation, product, seed_models, sized
from results.lab.tables import class_levels, summary, table

ORDERS = (1, 4, 16, 64, 256, 1024)
FEW = (2, 4, 8)
COLUMNS = ("pass@1", "pass@25", "top-1")
SEEDS = range(3)
TRIED = {"1": ("0.3", "1", "3"), "1024": ("0.1", "0.3", "1")}
TRAIN = "train.py images_laptop --seed {seed}"
FROM = f"{TRAIN} --init runs/order/seed{{seed}}/base --lr"


def options_of(arm: str) -> str:
    """The options of METHOD-ROLLOUTS or order-ORDER-of-ROLLOUTS."""
    method, *rest = arm.split("-")
    if method != "order":
        return sized(arm)
    order, _, rollouts = rest
    return f"--estimator maxrl_order --estimator.order {order} --rollouts {rollouts}"


def of_seeds(names, before: str, words: str) -> dict:
    """A run of each of these names and seeds; `before` goes before the name."""
    made = {}
    for name in names:
        made |= product(f"seed{{seed}}/{before}{name}", f"{words} {options_of(name)}", seed=SEEDS)
    return made


PATH = [f"order-{T}-of-1024" for T in ORDERS]
SCRATCH = ["rloo-1024", *PATH, "maxrl-1024", "supervised"]
SOME = [name for N in FEW for name in (f"maxrl-{N}", f"order-{N - 1}-of-{N}", f"order-{N}-of-{N}")]
BASE = f"{TRAIN} --estimator supervised --rollouts 1 --stop-at-pass .2"
BELOW = [*PATH, "supervised"]
RUNS = {
    "scratch": of_seeds(SCRATCH, "", TRAIN),
    "bases": product("seed{seed}/base", BASE, seed=(*SEEDS, 100)),
    "rates": product(
        "seed{seed}/maxrl-4-lr{rate}",
        f"{FROM} {{rate}} {sized('maxrl-4')}",
        seed=[100],
        rate=(0.03, 0.1, 0.3, 1.0),
    ),
    "few": of_seeds(SOME, "few-", f"{FROM} 0.3"),
    "base-path": of_seeds(BELOW, "from-base-", f"{FROM} 0.3"),
    "own": {},
}
for T, rates in TRIED.items():
    words = f"{FROM} {{rate}} {options_of(f'order-{T}-of-1024')}"
    name = f"own/seed{{seed}}/order-{T}-lr{{rate}}"
    RUNS["own"] |= product(name, words, seed=SEEDS, rate=rates)
TESTED = [*SCRATCH, "base", *(f"few-{name}" for name in SOME)]
TESTED += [f"from-base-{name}" for name in BELOW]
OWN = [f"order-{T}-lr{rate}" for T, rates in TRIED.items() for rate in rates]
HOW = "--split test --k 1,25"
TESTS = {
    "test.json": evaluation(
        f"{HOW} --against supervised", seed_models("order", TESTED), seed=SEEDS
    ),
    "own-test.json": evaluation(HOW, seed_models("order/own", OWN), seed=SEEDS),
}
MEANS = set(TESTS)


def title(name: str) -> str:
    """A run's name for people."""
    name = name.removeprefix("from-base-").removeprefix("few-")
    if name.startswith("order-"):
        _, order, _, rollouts = name.split("-")
        return f"order {int(order):,} of {int(rollouts):,} rollouts"
    method, _, rollouts = name.partition("-")
    if method == "maxrl":
        return f"Algorithm 1, {int(rollouts):,} rollouts"
    return {"rloo": "RLOO, 1,024 rollouts", "supervised": "cross-entropy", "base": "before"}[method]


def starts(found: dict):
    """pass@1, pass@25 and top-1 of every start and order."""
    below = ["base", *(f"from-base-{name}" for name in BELOW)]
    few = ["base", *(f"few-{name}" for name in SOME)]
    class_levels("from scratch", found, SCRATCH, 25, title)
    class_levels("from a model with pass@1 .31 (.2 on validation)", found, below, 25, title)
    class_levels("few rollouts", found, few, 25, title)
    gaps = {}
    for N in FEW:
        for order in (N - 1, N):
            gap = found[f"few-maxrl-{N}"] - found[f"few-order-{order}-of-{N}"]
            gaps[f"order {order} of {N} rollouts"] = gap
    summary("Algorithm 1 minus, 95 % over seeds", COLUMNS, gaps, "+")


def own_rates():
    """Orders 1 and 1,024 from the trained models, three rates each; validation chooses."""
    kept = class_runs("order")
    found = class_means("order/own-test.json", (1, 25))
    rows, best = [], {}
    for T, rates in TRIED.items():
        validation = {}
        for rate in rates:
            name = f"order-{T}-lr{rate}"
            last = [kept[f"own/seed{seed}/{name}"]["pass@1"][-1] for seed in SEEDS]
            validation[name] = statistics.mean(last)
            ones = found[name][0]
            cells = [f"{validation[name]:.3f}", interval(ones), side_by_side(ones)]
            rows.append([f"order {int(T):,}", rate, *cells])
        best[T] = max(validation, key=validation.get)
    columns = ("rate", "pass@1, validation", "pass@1, test", "of each seed")
    table(["from the trained models", *columns], rows)
    gaps = {
        "rate .3 for both": found["order-1024-lr0.3"] - found["order-1-lr0.3"],
        "each its best rate on validation": found[best["1024"]] - found[best["1"]],
    }
    summary("order 1,024 minus order 1, 95 % over seeds", COLUMNS, gaps, "+")


def tables():
    starts(class_means("order/test.json", (1, 25)))
    own_rates()


def figure_order() -> dict:
    """From RLOO to maximum likelihood: what 1,024 rollouts learn with each order."""
    found = class_means("order/test.json", (1, 25))
    panels = []
    for start, where, bottom in (
        ("", "ours: from scratch, rate 1.0 (reduced scale)", 0),
        ("from-base-", "ours: from pass@1 .3, rate .3 (reduced scale; axis from .7)", 0.7),
    ):
        path = np.stack([found[f"{start}{name}"][0] for name in PATH], 1)
        lines = [seed_curves("maxrl_order", ORDERS, path)]
        if not start:
            for name, T in (("maxrl", 1023), ("rloo", 1)):
                y = found[f"{name}-1024"][0].mean(keepdims=True)
                lines.append(curve(name, [T], y, points="s"))
        level = str(round(found[f"{start}supervised"][0].mean(), 3))
        axes = {"levels": {level: "cross-entropy"}, "said": "left"}
        axes |= {"xscale": "log", "ylim": (bottom, 1)}
        panels.append(panel(where, "order T", "pass@1, test images", lines, **axes))
    return {
        "title": "From scratch a higher order learns more; from a trained model little beyond "
        "order 16",
        "caption": "1,024 rollouts, orders 1 to 1,024: 200 drawn classes, 400 steps, "
        f"{seeds_said(3)}. Squares: RLOO (order 1) and MaxRL (Algorithm 1, order 1,023). On the "
        "right the rate was chosen for 4 rollouts; at 1, the best of three for both and not drawn, "
        "order 1 comes nearer to order 1,024",
        "panels": panels,
    }


FIGURES = {"order": figure_order}
