"""Orders 1 to 1,024, from curves.json and test.json."""

import json
import statistics
from pathlib import Path

from maxrl.advantages import weight
from results.images import columns, noise, seeds_table
from results.tables.cells import head, line, over_seeds

ORDERS = (1, 4, 16, 64, 256, 1024)
CLASSES = 200


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


def paths(table: dict):
    orders = [f"order-{T}-of-1024" for T in ORDERS]
    seeds_table(
        table, ["rloo-1024", *orders, "maxrl-1024", "supervised"], 25, "from scratch", title
    )
    seeds_table(
        table,
        ["base", *(f"from-base-{name}" for name in (*orders, "supervised"))],
        25,
        "from a model with pass@1 .31 (.2 on validation)",
        title,
    )


def few(table: dict):
    names = [
        name
        for N in (2, 4, 8)
        for name in (f"maxrl-{N}", f"order-{N - 1}-of-{N}", f"order-{N}-of-{N}")
    ]
    seeds_table(table, ["base", *(f"few-{name}" for name in names)], 25, "few rollouts", title)
    head("Algorithm 1 minus, 95 % over seeds", "pass@1", "pass@25", "top-1")
    for N in (2, 4, 8):
        for order in (N - 1, N):
            gaps = table[f"few-maxrl-{N}"] - table[f"few-order-{order}-of-{N}"]
            line(f"order {order} of {N} rollouts", *(over_seeds(gap, "+") for gap in gaps))


def rates(curves: dict):
    """Of Algorithm 1 with 4 rollouts, on seed 100."""
    found = {run["lr"]: run for name, run in curves.items() if "/maxrl-4-lr" in name}
    head("learning rate, seed 100, validation", *(f"{rate:g}" for rate in sorted(found)))
    line("pass@1", *(f"{found[rate]['pass@1'][-1]:.3f}" for rate in sorted(found)))


def own_rates(folder: Path):
    """Orders 1 and 1,024 from the trained models, three rates each; validation chooses."""
    curves = json.loads((folder / "curves.json").read_text())
    table = columns(folder / "test.json", (1, 25))
    tried = {"1": ("0.3", "1", "3"), "1024": ("0.1", "0.3", "1")}
    validation = {
        name: statistics.mean(curves[f"seed{seed}/{name}"]["pass@1"][-1] for seed in range(3))
        for name in table
    }
    head("from the trained models", "rate", "pass@1, validation", "pass@1, test", "of each seed")
    best = {}
    for T, rates in tried.items():
        names = {rate: f"order-{T}-lr{rate}" for rate in rates}
        best[T] = max(names.values(), key=validation.get)
        for rate, name in names.items():
            seeds = " / ".join(f"{value:.3f}" for value in table[name][0])
            cells = (rate, f"{validation[name]:.3f}", over_seeds(table[name][0]), seeds)
            line(f"order {int(T):,}", *cells)
    head("order 1,024 minus order 1, 95 % over seeds", "pass@1", "pass@25", "top-1")
    for title, names in (
        ("rate .3 for both", ("order-1024-lr0.3", "order-1-lr0.3")),
        ("each its best rate on validation", (best["1024"], best["1"])),
    ):
        line(title, *(over_seeds(gap, "+") for gap in table[names[0]] - table[names[1]]))


def same(curves: dict):
    """How far order 1 is from RLOO, whose formula is another."""
    early, late = [], []
    for seed in range(3):
        one = curves[f"seed{seed}/order-1-of-1024"]["pass@1"]
        other = curves[f"seed{seed}/rloo-1024"]["pass@1"]
        gaps = [abs(a - b) for a, b in zip(one, other)]
        early += gaps[:3]
        late += gaps[3:]
    print(
        f"\nOrder 1 against RLOO, validation pass@1: {max(early):.1g} apart at most up to step 60, "
        f"{max(late):.1g} later."
    )


def noises():
    ps = (0.005, 0.1, 0.3, 0.6, 0.9)
    head("weight / noise", *(f"p = {p:g}" for p in ps))
    rows = [(f"order-{T}-of-1024", "maxrl_order", 1024, {"order": T}) for T in ORDERS]
    rows.append(("maxrl-1024", "maxrl", 1024, {}))
    for N in (2, 4, 8):
        rows.append((f"maxrl-{N}", "maxrl", N, {}))
        rows += [(f"order-{T}-of-{N}", "maxrl_order", N, {"order": T}) for T in (N - 1, N)]
    for run, name, N, options in rows:
        cells = []
        for p in ps:
            size = noise(name, p, N, CLASSES, **options)
            cells.append(f"{weight(name, p, rollouts=N, **options):.3g} / {size:.3g}")
        line(title(run), *cells)


def main(study: Path):
    curves = json.loads((study / "curves.json").read_text())
    table = columns(study / "test.json", (1, 25))
    paths(table)
    same(curves)
    few(table)
    rates(curves)
    own_rates(study / "rates")
    noises()
