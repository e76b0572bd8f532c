"""The figures of the image studies: 1,000 classes and orders."""

import json
import re

import numpy as np

from results import images
from results.panels import level, line, over_seeds, seeds_said, theirs
from results.reading import RESULTS, paper

CLASSES1000 = "ours: 1,000 drawn classes (reduced scale)"


def figure2():
    """Images at the paper's rollouts per class: pass@k over training, top-1, and pass@k against k at the end."""
    study = RESULTS / "images_1000"
    if not (study / "test.json").exists():
        return None
    found = over_training(json.loads((study / "curves.json").read_text()))
    panels = []
    for panel, key in (("pass@1", "pass@1"), ("pass@128", "pass@128"), ("majority voting", "top1")):
        curves = paper(9)[panel] | paper(2).get(panel, {})
        left = theirs(
            curves, title="paper: ImageNet, 1,000 classes, ResNet-50", xlabel="step", ylabel=panel
        )
        lines = [over_seeds(name, run["steps"], run[key]) for name, run in found.items()]
        right = {"lines": lines, "title": CLASSES1000, "xlabel": "step", "ylabel": panel}
        level(left, right)
        panels += [left, right]
    ks = 2 ** np.arange(9)
    curves = paper(9)["pass@k vs k"]
    left = theirs(curves, title="paper: after training", xlabel="k", ylabel="pass@k", xscale="log")
    table = images.columns(study / "test.json", ks)
    lines = [over_seeds(without_mean(name), ks, values[:-1].T) for name, values in table.items()]
    right = {
        "lines": lines,
        "title": "ours: after training (reduced scale)",
        "xlabel": "k",
        "ylabel": "pass@k",
        "xscale": "log",
    }
    level(left, right)
    return {
        "caption": "Figures 2 and 9 at the paper's rollouts per class. Ours: 2,000 steps, one rate for all, chosen by "
        "cross-entropy, .14M parameters; validation images, below test images",
        "told": f"solid: ours, {seeds_said(3)}; dashed: the paper's",
        "panels": [*panels, left, right],
    }


def without_mean(name: str) -> str:
    return name.replace("reinforce_mean", "reinforce")


def over_training(curves: dict) -> dict:
    """{method: steps, and each metric (seeds, points)} of the runs of the comparison."""
    chosen = max(
        (run["pass@1"][-1], run["lr"])
        for name, run in curves.items()
        if name.startswith("seed100/")
    )[1]
    found = {}
    for name, run in curves.items():
        match = re.fullmatch(rf"seed[012]/(.*)-lr{chosen}", name)
        if match:
            found.setdefault(without_mean(match[1]), []).append(run)
    metrics = ("pass@1", "pass@128", "top1")
    return {
        name: {"steps": seeds[0]["steps"]}
        | {key: np.array([run[key] for run in seeds]) for key in metrics}
        for name, seeds in found.items()
    }


def figure8():
    """Gradient norms, each under the objective of its own model: medians in bins of the pass rate."""
    study = RESULTS / "images_1000"
    if not (study / "norms-001000-1024.json").exists():
        return None
    ours = [
        line(without_mean(name), *images.medians(*rows))
        for name, rows in images.norms(study, "001000").items()
    ]
    axes = {
        "xlabel": "pass rate of the image",
        "ylabel": "gradient norm of an image",
        "xscale": "log",
        "yscale": "log",
        "xlim": (1e-5, 1.5),
        "ylim": (3e-4, 400),
    }
    left = theirs(paper(8)["medians"], title="paper: ImageNet, ResNet-50", **axes)
    right = {"lines": ours, "title": "ours: 1,000 drawn classes (reduced scale)", **axes}
    return {
        "caption": "Figure 8: gradient norm of an image under the objective of its own model, medians of bins of the pass "
        "rate. Ours: half of training, three seeds, the exact weight of so many rollouts, bins of 3 images or more",
        "told": "solid: ours, 1,000 validation images a seed; dashed: the paper's, 131,072 rollouts an image",
        "panels": [left, right],
    }


def order():
    """From RLOO to maximum likelihood: what 1,024 rollouts learn with each order."""
    file = RESULTS / "order/test.json"
    if not file.exists():
        return None
    table = images.columns(file, (1, 25))
    orders = (1, 4, 16, 64, 256, 1024)
    panels = []
    for start, where, bottom in (
        ("", "from scratch", 0),
        ("from-base-", "from pass@1 .3 (axis from .7)", 0.7),
    ):
        for row, key in enumerate(("pass@1", "pass@25")):
            path = np.stack([table[f"{start}order-{T}-of-1024"][row] for T in orders], 1)
            ends = {"supervised": f"{start}supervised"}
            if not start:
                ends |= {"rloo": "rloo-1024", "maxrl": "maxrl-1024"}
            lines = [
                over_seeds(name, orders[::5], np.repeat(table[run][row][:, None], 2, 1))
                for name, run in ends.items()
            ]
            panels.append(
                {
                    "lines": [*lines, over_seeds("maxrl_order", orders, path)],
                    "xlabel": "order T",
                    "ylabel": key,
                    "title": where,
                    "xscale": "log",
                    "ylim": (bottom, 1.02),
                }
            )
    return {
        "caption": "1,024 rollouts, orders 1 to 1,024: 200 drawn classes, 400 steps (reduced scale), test images. "
        "Horizontal: RLOO (order 1), MaxRL (Algorithm 1, order 1,023), cross-entropy",
        "told": seeds_said(3),
        "panels": panels,
    }


def order_few():
    """Algorithm 1 against the exact orders N - 1 and N with few rollouts: what is learned, and the noise of a gradient."""
    file = RESULTS / "order/test.json"
    if not file.exists():
        return None
    table = images.columns(file, (1, 25))
    Ns = (2, 4, 8)
    ps = np.linspace(0.02, 0.96, 48)
    kinds = {
        "maxrl": lambda N: (f"maxrl-{N}", "maxrl", {}),
        "exact order N - 1": lambda N: (f"order-{N - 1}-of-{N}", "maxrl_order", {"order": N - 1}),
        "exact order N": lambda N: (f"order-{N}-of-{N}", "maxrl_order", {"order": N}),
    }
    learned, noises = [], []
    for name, kind in kinds.items():
        values = np.stack([table[f"few-{kind(N)[0]}"][0] for N in Ns], 1)
        learned.append(over_seeds(name, Ns, values))
        _, estimator, options = kind(4)
        noises.append(line(name, ps, [images.noise(estimator, p, 4, 200, **options) for p in ps]))
    left = {
        "lines": learned,
        "xlabel": "rollouts N",
        "ylabel": "pass@1, test",
        "title": "400 steps from pass@1 .3 (axis from .7)",
        "ylim": (0.7, 0.9),
    }
    right = {
        "lines": noises,
        "xlabel": "pass rate p",
        "ylabel": "noise of a gradient",
        "title": "4 rollouts, exact: deviation / length of the mean",
        "ylim": (0, 5),
    }
    return {
        "caption": "MaxRL (Algorithm 1) has order N - 1. The exact orders N - 1 and N with as many rollouts: 200 drawn "
        "classes (reduced scale)",
        "told": f"left: {seeds_said(3)}",
        "panels": [left, right],
    }
