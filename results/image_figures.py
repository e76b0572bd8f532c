"""The figures of the image studies: 1,000 classes and orders."""

import numpy as np

from results import images
from results.panels import line, over_seeds, pair, panel, seeds_said, theirs
from results.reading import RESULTS, paper, read_json

IMAGENET = "paper: ImageNet, 1,000 classes, ResNet-50"
CLASSES1000 = "ours: 1,000 drawn classes (reduced scale)"


def without_mean(name: str) -> str:
    return name.replace("reinforce_mean", "reinforce")


def over_training(found: dict[str, list]) -> list[dict]:
    """pass@1 and pass@128 of each method's runs {method: a run a seed}, beside the paper's."""
    panels = []
    for key in ("pass@1", "pass@128"):
        lines = []
        for name, seeds in found.items():
            values = np.array([run[key] for run in seeds])
            lines.append(over_seeds(name, seeds[0]["steps"], values))
        of_paper = paper(9)[key] | paper(2).get(key, {})
        panels += pair((IMAGENET, key, of_paper), (CLASSES1000, key, lines), "step")
    return panels


def figure2() -> dict:
    """Images at the paper's rollouts per class: pass@k over training."""
    curves = read_json("images_1000/curves.json")
    found: dict[str, list] = {}
    for name, run in images.compared(curves).items():
        found.setdefault(without_mean(name.partition("/")[2]), []).append(run)
    return {
        "title": "With one rollout a class MaxRL is not at cross-entropy after 2,000 steps",
        "caption": "Figures 2 and 9, validation images; numbers are rollouts of an image. Ours: "
        ".14M parameters, rate 3 for all, chosen by cross-entropy; MaxRL 16, GRPO 128 and "
        f"REINFORCE lie together at the bottom. Solid: ours, {seeds_said(3)}; dashed: the paper's",
        "panels": over_training(found),
    }


def figure2_longer() -> dict:
    """Cross-entropy and MaxRL on the same images for four times the steps."""
    curves = read_json("images_1000/longer/curves.json")
    found = {
        name: [curves[f"seed{seed}/{name.partition('-')[0]}"] for seed in range(3)]
        for name in ("supervised", "maxrl-1024")
    }
    return {
        "title": "After 8,000 steps too MaxRL with one rollout a class is not at cross-entropy",
        "caption": "Figures 2 and 9, validation images; numbers are rollouts of an image. Ours: "
        f".14M parameters, rate 3 for both, 8,000 steps. Solid: ours, {seeds_said(3)}; dashed: "
        "the paper's",
        "panels": over_training(found),
    }


def broken(x, y) -> tuple[list, list]:
    """The points, with an interruption of the line wherever a decade lies between two of them."""
    known = [point for point in zip(x, y) if point[0] is not None]
    found = known[:1]
    for last, point in zip(known, known[1:]):
        if point[0] > 10 * last[0]:
            found.append((None, None))
        found.append(point)
    return tuple(map(list, zip(*found)))


def figure8() -> dict:
    """Medians of gradient norms, each under the objective of its own model."""
    rows = images.norms(RESULTS / "images_1000", "001000")
    shown = ("supervised", "maxrl-1024", "maxrl-128", "grpo-1024")
    ours = [line(name, *broken(*images.medians(*rows[name]))) for name in shown]
    labels = ("pass rate of the image", "gradient norm of an image")
    scales = {"xscale": "log", "yscale": "log", "xlim": (1e-8, 2), "ylim": (1e-7, 1000)}
    scales["xticks"] = (1e-8, 1e-6, 1e-4, 1e-2, 1)
    of_paper = theirs({name: broken(*curve) for name, curve in paper(8)["medians"].items()})
    return {
        "title": "MaxRL weighs images as cross-entropy does from a pass rate of .001 on, not below",
        "caption": "Figure 8: gradient norm of an image under the objective of its own model, "
        "medians of bins of the pass rate; a dot alone at the left is the bin below .001. Ours: "
        ".14M parameters, after 1,000 steps, bins of 3 images or more of three seeds together; "
        "numbers are rollouts. Solid: ours; dashed: the paper's, 131,072 rollouts an image",
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
        ("", "ours: from scratch, rate 1.0 (reduced scale)", 0),
        ("from-base-", "ours: from pass@1 .3, rate .3 (reduced scale; axis from .7)", 0.7),
    ):
        path = np.stack([table[f"{start}order-{T}-of-1024"][0] for T in orders], 1)
        lines = [over_seeds("maxrl_order", orders, path)]
        levels = {"cross-entropy": table[f"{start}supervised"][0].mean()}
        if not start:
            lines.append(line("maxrl", [1023], table["maxrl-1024"][0].mean(keepdims=True)))
            lines.append(line("rloo", [1], table["rloo-1024"][0].mean(keepdims=True)))
            lines = [one | {"points": "s"} if len(one["x"]) == 1 else one for one in lines]
        limits = {"xscale": "log", "ylim": (bottom, 1)}
        said = {str(round(value, 3)): name for name, value in levels.items()}
        panels.append(
            panel(
                where, "order T", "pass@1, test images", lines, levels=said, said="left", **limits
            )
        )
    return {
        "title": "From scratch a higher order learns more; from a trained model little beyond "
        "order 16",
        "caption": "1,024 rollouts, orders 1 to 1,024: 200 drawn classes, 400 steps, "
        f"{seeds_said(3)}. Squares: RLOO (order 1) and MaxRL (Algorithm 1, order 1,023). On the "
        "right the rate was chosen for 4 rollouts; at 1, the best of three for both and not drawn, "
        "order 1 comes nearer to order 1,024",
        "panels": panels,
    }


def order_few() -> dict:
    """Algorithm 1 against the exact orders N - 1 and N with few rollouts, and their noise."""
    table = images.columns(RESULTS / "order/test.json", (1, 25))
    Ns = np.array((2, 4, 8))
    ps = np.linspace(0.02, 0.96, 48)
    kinds = {
        "maxrl": ([f"maxrl-{N}" for N in Ns], "maxrl", {}),
        "exact order N - 1": ([f"order-{N - 1}-of-{N}" for N in Ns], "maxrl_order", {"order": 3}),
        "exact order N": ([f"order-{N}-of-{N}" for N in Ns], "maxrl_order", {"order": 4}),
    }
    learned, noises = [], []
    for place, (name, (names, estimator, options)) in enumerate(kinds.items()):
        values = np.stack([table[f"few-{run}"][0] for run in names], 1)
        beside = Ns + 0.25 * (place - 1)  # three estimators at one N would cover each other
        learned.append(over_seeds(name, beside, values) | {"points": "os^"[place]})
        noise = [images.noise(estimator, p, 4, 200, **options) for p in ps]
        noises.append(line(name, ps, noise))
    left = ("ours: 400 steps from pass@1 .3 (reduced scale; axis from .7)", "rollouts N")
    right = ("4 rollouts, exact: deviation / length of the mean", "pass rate p")
    return {
        "title": "With few rollouts Algorithm 1 learns what order N - 1 learns, with more noise",
        "caption": "MaxRL is Algorithm 1 (left: circles; order N - 1: squares; order N: "
        "triangles). 200 drawn classes; left: mean of 3 seeds (large) and each of them",
        "panels": [
            panel(*left, "pass@1, test images", learned, ylim=(0.7, 0.9), xticks=Ns),
            panel(*right, "noise of a gradient", noises, ylim=(0, 5)),
        ],
    }
