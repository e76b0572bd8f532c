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
from results.reading import RESULTS, headline, paired, paper, runs, solved
from results.tables import maze17_rl as tables


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
    """RL at the paper's size, in the paper's axes and against what it cost."""
    study = RESULTS / "maze17/rl"
    found = tables.read(study)
    if not found:
        return None
    drawn = {"maxrl_rare": "rounds"} | {name: name for name in METHODS}
    last = max(rows[-1]["step"] for seeds in found.values() for rows in seeds.values())
    panels = []
    for title, theirs_k, key in (
        ("Figure 12", paper(12)["17x17 maze"], "solved"),
        ("Figure 17", paper(17)["pass@1"], "reward"),
    ):
        lines = []
        for method, seeds in found.items():
            for rows in seeds.values():
                means = tables.means(rows, key)
                x = tables.BLOCK * (0.5 + np.arange(len(means)))
                lines.append(line(drawn[method], x, means))
        for name in METHODS:
            x, y = theirs_k[name]
            near = x <= max(last, 1000)
            # Of Figure 17 two points are near, which are no curve.
            lines.append(line(name, x[near], y[near], paper=True, points=key == "reward"))
        label = SOLVED if key == "solved" else "pass@1"
        how = "dashed" if key == "solved" else "circles"
        panels += level(panel(f"{title}: ours, paper's {how}; full size", "step", label, lines))
    for title, cost, label in (
        ("ours: equal rollouts; full size", "rollouts", "rollouts, thousands"),
        ("ours: equal seconds; full size", "seconds", "hours of one core"),
    ):
        scale = 1000 if cost == "rollouts" else 3600
        lines = []
        for method, seeds in found.items():
            for rows in seeds.values():
                means = tables.means(rows, "solved")
                x = np.cumsum(tables.means(rows, cost)) * tables.BLOCK / scale
                lines.append(line(drawn[method], x, means))
        panels += level(panel(title, label, SOLVED, lines))
    return {
        "title": "17x17 mazes: MaxRL gains prompts on two of four runs; GRPO and RLOO lose them",
        "caption": "3.9M parameters, 32 prompts a step, 8, 16 or 32 rollouts (paper: 256 prompts), "
        "rate 1e-4, means of 50 steps, a line a seed, to the step at which the run ended (MaxRL "
        "898 and 260, GRPO 623 and 420, RLOO 579); the paper's Figure 12 is smoothed with decay "
        ".99 a step, its Figure 17 is of held-out mazes and has two points here, ours is of fresh "
        "training mazes",
        "panels": panels,
    }


FIGURES = {"figure3": figure3, "figure18": figure18, "figure17_full_size": rl17}
