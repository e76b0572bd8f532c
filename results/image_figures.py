"""The figures of the image studies: 1,000 classes and orders."""

import numpy as np

from results import images
from results.panels import line, over_seeds, pair, panel, seeds_said, theirs
from results.reading import RESULTS, paper, read_json

IMAGENET = "paper: ImageNet, 1,000 classes, ResNet-50"
CLASSES1000 = "ours: 1,000 drawn classes (reduced scale)"


def without_mean(name: str) -> str:
    return name.replace("reinforce_mean", "reinforce")


def figure2() -> dict:
    """Images at the paper's rollouts per class: pass@k and top-1 over training, and at the end."""
    curves = read_json("images_1000/curves.json")
    panels = []
    for key, ours_key in (
        ("pass@1", "pass@1"),
        ("pass@128", "pass@128"),
        ("majority voting", "top1"),
    ):
        found: dict[str, list] = {}
        for name, run in images.compared(curves).items():
            found.setdefault(without_mean(name.partition("/")[2]), []).append(run)
        lines = []
        for name, seeds in found.items():
            values = np.array([run[ours_key] for run in seeds])
            lines.append(over_seeds(name, seeds[0]["steps"], values))
        of_paper = paper(9)[key] | paper(2).get(key, {})
        panels += pair((IMAGENET, key, of_paper), (CLASSES1000, key, lines), "step")
    ks = 2 ** np.arange(9)
    table = images.columns(RESULTS / "images_1000/test.json", ks)
    lines = [over_seeds(without_mean(name), ks, values[:-1].T) for name, values in table.items()]
    panels += pair(
        ("paper: after training", "pass@k", paper(9)["pass@k vs k"]),
        ("ours: after training (reduced scale)", "pass@k", lines),
        "k",
        xscale="log",
    )
    return {
        "caption": "Figures 2 and 9 at the paper's rollouts per class. Ours: 2,000 steps, one rate "
        "for all, chosen by cross-entropy, .14M parameters; validation images, below test images",
        "told": f"solid: ours, {seeds_said(3)}; dashed: the paper's",
        "panels": panels,
    }


def figure8() -> dict:
    """Medians of gradient norms, each under the objective of its own model."""
    rows = images.norms(RESULTS / "images_1000", "001000")
    ours = [line(without_mean(name), *images.medians(*found)) for name, found in rows.items()]
    labels = ("pass rate of the image", "gradient norm of an image")
    scales = {"xscale": "log", "yscale": "log", "xlim": (1e-5, 1.5), "ylim": (3e-4, 400)}
    of_paper = theirs(paper(8)["medians"])
    return {
        "caption": "Figure 8: gradient norm of an image under the objective of its own model, "
        "medians of bins of the pass rate. Ours: half of training, three seeds, the exact weight "
        "of so many rollouts, bins of 3 images or more",
        "told": "solid: ours, 1,000 validation images a seed; dashed: the paper's, 131,072 "
        "rollouts an image",
        "panels": [
            panel("paper: ImageNet, ResNet-50", *labels, of_paper, **scales),
            panel(CLASSES1000, *labels, ours, **scales),
        ],
    }


def order() -> dict:
    """From RLOO to maximum likelihood: what 1,024 rollouts learn with each order."""
    table = images.columns(RESULTS / "order/test.json", (1, 25))
    orders = (1, 4, 16, 64, 256, 1024)
    panels = []
    for start, where, bottom in (
        ("", "from scratch", 0),
        ("from-base-", "from pass@1 .3 (axis from .7)", 0.7),
    ):
        ends = {"supervised": f"{start}supervised"}
        if not start:
            ends |= {"rloo": "rloo-1024", "maxrl": "maxrl-1024"}
        for row, key in enumerate(("pass@1", "pass@25")):
            lines = []
            for name, run in ends.items():
                level = np.repeat(table[run][row][:, None], 2, 1)
                lines.append(over_seeds(name, orders[::5], level))
            path = np.stack([table[f"{start}order-{T}-of-1024"][row] for T in orders], 1)
            lines.append(over_seeds("maxrl_order", orders, path))
            limits = {"xscale": "log", "ylim": (bottom, 1.02)}
            panels.append(panel(where, "order T", key, lines, **limits))
    return {
        "caption": "1,024 rollouts, orders 1 to 1,024: 200 drawn classes, 400 steps (reduced "
        "scale), test images. Horizontal: RLOO (order 1), MaxRL (Algorithm 1, order 1,023), "
        "cross-entropy",
        "told": seeds_said(3),
        "panels": panels,
    }


def order_few() -> dict:
    """Algorithm 1 against the exact orders N - 1 and N with few rollouts, and their noise."""
    table = images.columns(RESULTS / "order/test.json", (1, 25))
    Ns = (2, 4, 8)
    ps = np.linspace(0.02, 0.96, 48)
    kinds = {
        "maxrl": ([f"maxrl-{N}" for N in Ns], "maxrl", {}),
        "exact order N - 1": ([f"order-{N - 1}-of-{N}" for N in Ns], "maxrl_order", {"order": 3}),
        "exact order N": ([f"order-{N}-of-{N}" for N in Ns], "maxrl_order", {"order": 4}),
    }
    learned, noises = [], []
    for name, (names, estimator, options) in kinds.items():
        values = np.stack([table[f"few-{run}"][0] for run in names], 1)
        learned.append(over_seeds(name, Ns, values))
        noises.append(line(name, ps, [images.noise(estimator, p, 4, 200, **options) for p in ps]))
    left = ("400 steps from pass@1 .3 (axis from .7)", "rollouts N", "pass@1, test", learned)
    title = "4 rollouts, exact: deviation / length of the mean"
    right = (title, "pass rate p", "noise of a gradient", noises)
    return {
        "caption": "MaxRL (Algorithm 1) has order N - 1. The exact orders N - 1 and N with as many "
        "rollouts: 200 drawn classes (reduced scale)",
        "told": f"left: {seeds_said(3)}",
        "panels": [panel(*left, ylim=(0.7, 0.9)), panel(*right, ylim=(0, 5))],
    }
