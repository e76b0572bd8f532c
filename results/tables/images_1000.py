"""1,000 drawn classes, from the JSON files of images_1000/."""

import json
import statistics
from pathlib import Path

import numpy as np

from maxrl.plots import called
from results import images
from results.images import BINS, RESULTS, columns, seeds_table
from results.tables.cells import head, line, over_seeds

METHODS = (
    "supervised",
    "maxrl-1024",
    "maxrl-128",
    "maxrl-16",
    "grpo-1024",
    "grpo-128",
    "reinforce_mean-1024",
)
KS = (1, 2, 8, 32, 128, 512)


def rates(curves: dict):
    found = {
        run["lr"]: run for name, run in curves.items() if name.startswith("seed100/supervised")
    }
    head("cross-entropy, seed 100, validation, rate", *(f"{rate:g}" for rate in sorted(found)))
    for key in ("pass@1", "pass@128", "top1"):
        line(
            key.replace("top1", "top-1"), *(f"{found[rate][key][-1]:.3f}" for rate in sorted(found))
        )


def paper() -> dict:
    """{method: last pass@1, pass@128 and majority vote of Figures 2 and 9}, in %."""
    found = {}
    for number in ("09", "02"):
        series = json.loads((RESULTS / f"paper/figure{number}.json").read_text())["series"]
        for key, points in series.items():
            panel, method = key.split(" | ")
            found.setdefault(method, {})[panel] = points[-1][1]
    return found


def comparison(test: Path):
    table = columns(test, (1, 128))
    seeds_table(table, METHODS, 128, "1,000 classes, test")
    head("cross-entropy minus, 95 % over seeds", "pass@1", "pass@128", "top-1")
    for name in METHODS[1:]:
        line(called(name), *(over_seeds(gap, "+") for gap in table["supervised"] - table[name]))
    theirs = paper()
    head("share of cross-entropy's pass@1", "ours", "the paper's")
    for name in METHODS[1:]:
        ours = over_seeds(table[name][0] / table["supervised"][0])
        method = "reinforce-1024" if name.startswith("reinforce") else name
        line(called(name), ours, f"{theirs[method]['pass@1'] / theirs['supervised']['pass@1']:.3f}")


def coverage(test: Path):
    """pass@k against k."""
    table = columns(test, KS)
    head("test", *(f"pass@{k}" for k in KS))
    for name in METHODS:
        line(called(name), *map(over_seeds, table[name][:-1]))


def lost(test: Path, methods: tuple):
    """Images that 1,024 rollouts seldom meet, and those that one rollout does."""
    rows = json.loads(test.read_text())["checkpoints"]
    head("share of test images with pass rate", "below .001", ".001 to .5", "above .5")
    for name in methods:
        p = np.array([row["pass_rates"] for row in rows if row["name"] == name])  # (seeds, images)
        parts = [p < 0.001, (p >= 0.001) & (p <= 0.5), p > 0.5]
        line(called(name), *(over_seeds(part.mean(1)) for part in parts))


def longer(test: Path):
    """Cross-entropy and MaxRL with 1,024 rollouts after 8,000 steps."""
    methods = ("supervised", "maxrl")
    table = columns(test, (1, 128))
    seeds_table(table, methods, 128, "8,000 steps, test")
    head("8,000 steps: cross-entropy minus, 95 % over seeds", "pass@1", "pass@128", "top-1")
    gaps = table["supervised"] - table["maxrl"]
    line("MaxRL, 1024", *(over_seeds(gap, "+") for gap in gaps))
    lost(test, methods)


def complete(curves: dict, chosen: float) -> list[int]:
    """The seeds whose methods have all come to the last step."""

    def ended(seed, method):
        run = curves.get(f"seed{seed}/{method}-lr{chosen}")
        return run is not None and run["steps"][-1] == 2000

    return [seed for seed in range(3) if all(ended(seed, method) for method in METHODS)]


def validation(curves: dict, chosen: float):
    """After the last step, the seeds that all methods have."""
    seeds = complete(curves, chosen)
    for key in ("pass@1", "pass@128", "top1"):
        head(f"validation, {key.replace('top1', 'top-1')}", *(f"seed {seed}" for seed in seeds))
        for method in METHODS:
            values = [curves[f"seed{seed}/{method}-lr{chosen}"][key][-1] for seed in seeds]
            line(called(method), *(f"{value:.3f}" for value in values))


def lower(curves: dict):
    """MaxRL with a third of the rate, next to the runs of the same machine."""
    head("seed 0, validation", "rate", "pass@1", "pass@128", "top-1")
    for method in ("maxrl-1024", "maxrl-128"):
        for name, run in sorted(curves.items()):
            if name in (f"seed0/{method}-lr1.0", f"earlier/seed0/{method}-lr3.0"):
                line(
                    called(method),
                    f"{run['lr']:g}",
                    *(f"{run[key][-1]:.3f}" for key in ("pass@1", "pass@128", "top1")),
                )


def seconds(curves: dict, rate: float):
    """Means over seeds."""
    head("seconds of 2,000 steps", *map(called, METHODS))
    means = [
        statistics.mean(
            curves[f"seed{seed}/{name}-lr{rate}"]["seconds"] for seed in complete(curves, rate)
        )
        for name in METHODS
    ]
    line("mean over seeds", *(f"{mean:.0f}" for mean in means))


def norms(study: Path, step: str):
    """Medians of the gradient norms in bins of the pass rate, each model's under its own objective,
    and the paper's."""
    rows = images.norms(study, step)
    series = json.loads((RESULTS / "paper/figure08.json").read_text())["series"]
    theirs = {
        name: np.array(series[f"medians | {name}"]) for name in ("supervised", "maxrl", "grpo")
    }
    head(
        f"step {int(step):,}: pass rate up to",
        *map(called, METHODS),
        *(f"paper: {called(name)}" for name in theirs),
    )
    for low, high in zip(BINS, BINS[1:]):
        cells = []
        for name in METHODS:
            p, norm = rows[name]
            inside = (p > low) & (p <= high)
            cells.append(f"{np.median(norm[inside]):.3g} ({inside.sum()})" if inside.sum() else "")
        for points in theirs.values():
            inside = (points[:, 0] > low) & (points[:, 0] <= high)
            cells.append(f"{points[inside, 1][0]:.3g}" if inside.sum() else "")
        line(f"{high:g}", *cells)


def main(study: Path):
    curves = json.loads((study / "curves.json").read_text())
    chosen = images.best_rate(curves)
    rates(curves)
    validation(curves, chosen)
    if (study / "test.json").exists():
        comparison(study / "test.json")
        coverage(study / "test.json")
        lost(study / "test.json", METHODS)
    longer(study / "longer/test.json")
    lower(curves)
    seconds(curves, chosen)
    if (study / "test200.json").exists():
        few = ("supervised", "maxrl-1024", "maxrl-205", "maxrl-26", "maxrl-3")
        seeds_table(columns(study / "test200.json", (1, 25)), few, 25, "200 classes, test")
    norms(study, "001000")
    norms(study, "002000")
