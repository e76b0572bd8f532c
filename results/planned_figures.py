"""Figures of studies with a protocol and without all of their runs; None until they are there."""

import numpy as np

from maxrl.plots import over_steps, smooth
from results.panels import (
    MAZE9,
    MAZE17,
    METHODS,
    SOLVED,
    level,
    line,
    over_seeds,
    pair,
    panel,
    seeds_said,
    theirs,
)
from results.reading import RESULTS, averaged, headline, paired, paper, runs, solved


def figure3() -> dict | None:
    """-log pass@k against the rollouts of training, which 32 of are the headline's runs."""
    steps = 500
    counts = [4, 8, 16, 32, 64]
    found = {}
    for method in METHODS:
        for n in counts:
            folder = "headline" if n == 32 else "planned"
            name = f"(?P<method>{method})"
            pattern = rf"seed(?P<seed>[01])-{name}-{n}"
            if n == 32:
                pattern = rf"weak-seed(?P<seed>[01])-{name}-lr1e-4"
            found[method, n] = runs(RESULTS / folder / "runs", pattern, steps).get(method)
    if None in found.values():
        return None
    axes = {"xscale": "log", "yscale": "log", "ylim": (0.01, 6), "xticks": [4, 8, 16, 32, 64, 128]}
    label = "rollouts of a prompt in training"
    panels = []
    for theirs_k, ours_k in (("k=1", "pass@1"), ("k=128", "pass@64")):
        of_paper = theirs(paper(3)[theirs_k])
        panels.append(panel(MAZE17, label, f"-log pass@{theirs_k[2:]}", of_paper, **axes))
        lines = []
        for method in METHODS:
            values = []
            for n in counts:
                for rows in found[method, n].values():
                    last = {row["step"]: row for row in rows}[steps - 1]
                    values.append(last[f"eval/{ours_k}"])
            logs = -np.log(np.array(values).reshape(len(counts), -1).T)
            lines.append(over_seeds(method, counts, logs))
        panels.append(panel(MAZE9, label, f"-log {ours_k}", lines, **axes))
    return {
        "title": "What more rollouts in training bring",
        "caption": "Figure 3, the paper's after 9,000 steps (dashed). Ours: weak base, 500 steps, "
        f"64 validation mazes x 64 samples, {seeds_said(2)}",
        "panels": panels,
    }


def figure18() -> dict | None:
    """Other baselines: the planned runs, and the headline's."""
    names = {"pkpo": "pkpo", "smoothing": "differential_smoothing", "entropy": "grpo-entropy bonus"}
    pattern = r"seed(?P<seed>\d+)-(?P<method>pkpo|smoothing|entropy)"
    found = runs(RESULTS / "planned/runs", pattern, 1000)
    found = {names[name]: seeds for name, seeds in found.items()} | headline("weak")
    ours = paired(found, (*METHODS, *names.values()))
    if not ours:
        return None
    panels = []
    for theirs_k, ours_k, key in (
        ("pass@1", "pass@1", "reward"),
        ("pass@128", "pass@32", "solved"),
    ):
        lines = []
        for name, seeds in ours.items():
            steps, values = over_steps([solved(rows) for rows in seeds], key)
            lines.append(line(name, steps, smooth(values, 9).mean(0)))
        left = (f"{MAZE17}, 32 x 128", f"{theirs_k}, held-out mazes", paper(18)[theirs_k])
        panels += pair(left, (MAZE9, f"{ours_k}, training mazes", lines), "step")
    return {
        "title": "MaxRL beside other baselines",
        "caption": "Figure 18. Ours: weak base, 16 prompts x 32 rollouts a step, PKPO k = 8, gamma "
        f".05, entropy bonus .01, means of 45 steps and of {len(ours['maxrl'])} seeds; dashed: the "
        "paper's",
        "panels": panels,
    }


def rl17() -> dict | None:
    """The first steps at full size, in the paper's axes."""
    found = runs(RESULTS / "maze17/runs", r"seed(?P<seed>\d+)-(?P<method>[a-z_]+)", 1)
    if not found:
        return None
    left, right = [], []
    for name, seeds in found.items():
        rows = [solved(rows) for rows in seeds.values()]
        steps, values = over_steps(rows, "solved")
        left.append(line(name, steps, values.mean(0), pale=True))
        left.append(line(name, steps, averaged(values, int(steps[1] - steps[0])).mean(0)))
        steps, values = over_steps(rows, "reward")
        right.append(line(name, steps, smooth(values, 9).mean(0)))
    last = max(one["x"][-1] for one in left)
    for name in METHODS:
        x, y = paper(12)["17x17 maze"][name]
        left.append(line(name, x[x <= last], y[x <= last], paper=True))
        x, y = paper(17)["pass@1"][name]
        right.append(line(name, x[x <= max(last, 1000)], y[x <= max(last, 1000)], paper=True))
    title = "ours: fresh mazes, paper: held-out; full size"
    return {
        "title": "The first steps of RL at the paper's size",
        "caption": "Figures 12 and 17. A step of ours has an eighth of the paper's prompts; mean "
        "of the seeds; left: smoothed with decay .99 a step, pale: not smoothed, right: mean of 45 "
        "steps; dashed: the paper's",
        "panels": [
            *level(panel("ours 32 x 32, paper 256 x about 32; full size", "step", SOLVED, left)),
            *level(panel(title, "step", "pass@1", right)),
        ],
    }


FIGURES = {"figure3": figure3, "figure18": figure18, "figure17_full_size": rl17}
