"""Figures 2 and 9 on drawn images of 1,000 classes, at one rate and at own rates; and orders 1 to
1,024 of MaxRL from the same rollouts, on 200 classes."""

import numpy as np

from maxrl.analysis.table import over_seeds
from results.lab.data import kept, paper, tested
from results.lab.figures import banded, curve, guess_level, pair, panel, seed_curves, seeds_said
from results.lab.intervals import interval, side_by_side
from results.lab.keep import KS
from results.lab.tables import label_of, leads, summary, table

# All at cross-entropy's best rate on seed 100.
METHODS = (
    "supervised",
    "maxrl-1024",
    "maxrl-128",
    "maxrl-16",
    "grpo-1024",
    "grpo-128",
    "reinforce_mean-1024",
)
SEEDS = (0, 1, 2)
ORDERS = (1, 4, 16, 64, 256, 1024)
PATH = [f"order-{T}" for T in ORDERS]
SCRATCH = ["rloo-1024", *PATH, "maxrl-1024", "supervised"]
BELOW = [f"from-base-{arm}" for arm in (*PATH, "supervised")]
TRIED = {"order-1": ("0.3", "1", "3"), "order-1024": ("0.1", "0.3", "1")}
# Rows of tests, and what they are called: each method at the best of four rates on seed 100; the
# paper's warm-up in images a class at its rate, and a short one.
OWN_SAID = {
    "supervised": "cross-entropy, rate 3",
    "maxrl-16384": "MaxRL 16,384, rate 3",
    "maxrl-4096": "MaxRL 4,096, rate 1",
    "expected-1023": "expected gradient of order 1,023, rate .3",
    "maxrl-1024": "MaxRL 1,024, rate .3",
}
WARMED_SAID = {
    "supervised": "cross-entropy, rate .1, 5,000 of 10,000 steps",
    "supervised-short": "cross-entropy, rate .1, 100 of 10,000 steps",
    "maxrl-1024": "MaxRL 1,024, rate .1, 5,000 of 10,000 steps",
    "maxrl-1024-short": "MaxRL 1,024, rate .1, 100 of 10,000 steps",
}
IMAGENET = "paper: ImageNet, 1,000 classes, ResNet-50"
CLASSES1000 = "ours: 1,000 drawn classes (reduced scale)"


def order_said(arm: str) -> str:
    """The name of a row of the study of orders."""
    method, _, number = arm.removeprefix("from-base-").partition("-")
    if method == "order":
        return f"order {int(number):,} of 1,024 rollouts"
    said = {"maxrl": "Algorithm 1, 1,024 rollouts", "rloo": "RLOO, 1,024 rollouts"}
    return said.get(method) or {"supervised": "cross-entropy", "base": "before"}[method]


def class_means(name: str) -> dict[str, np.ndarray]:
    """{row: pass@1 and pass@k of the test, then top-1, of each seed, (3, seeds)}."""
    k = 25 if name.startswith("order") else 128

    def means_of(row: dict) -> list:
        return [row["pass@k"][0], row["pass@k"][KS.index(k)], row["top1"]]

    found = over_seeds(tested(f"images/{name}.json"), means_of)
    return {row: seeds.T for row, seeds in found.items()}


def class_columns(name: str) -> list[str]:
    return ["pass@1", "pass@25" if name.startswith("order") else "pass@128", "top-1"]


def class_levels(title: str, name: str, said: dict[str, str]):
    """Means over seeds, and each seed's pass@1."""
    found = class_means(name)
    rows = []
    for arm, label in said.items():
        rows.append([label, *map(interval, found[arm]), side_by_side(found[arm][0])])
    table([title, *class_columns(name), "pass@1 of each seed"], rows)


def behind(title: str, name: str, said: dict[str, str], best: str = "supervised"):
    """Cross-entropy minus each, over seeds."""
    found = class_means(name)
    gaps = {label: found[best] - found[arm] for arm, label in said.items() if arm != best}
    summary(f"{title}cross-entropy minus, 95 % over seeds", class_columns(name), gaps, "+")


def lost(name: str, said: dict[str, str]):
    """Images that 1,024 rollouts seldom meet, and those that one rollout does; then, where an image
    is not lost, how far a model is behind cross-entropy on the same image."""
    rates = over_seeds(tested(f"images/{name}.json"), lambda row: row["pass_rates"])
    rows, met = {}, {}
    for arm, label in said.items():
        p = rates[arm]  # (seeds, images)
        parts = [p < 0.001, (p >= 0.001) & (p <= 0.5), p > 0.5]
        rows[label] = [part.mean(1) for part in parts]
        if arm != "supervised":
            pairs = zip(p, rates["supervised"])
            met[label] = [[(ours - theirs)[ours >= 0.001].mean() for ours, theirs in pairs]]
    summary("share of test images with pass rate", ("below .001", ".001 to .5", "above .5"), rows)
    title = "pass@1 minus cross-entropy's on the images above .001"
    summary(title, ["mean, 95 % over seeds"], met, "+")


def own_orders():
    """Orders 1 and 1,024 from the trained models, three rates each; validation chooses."""
    ended = kept("images", "runs")
    found = class_means("order-own")
    rows, best = [], {}
    for arm, rates in TRIED.items():
        validated = {}
        for rate in rates:
            trained = [ended[f"order/own/seed{seed}/{arm}-lr{rate}"] for seed in SEEDS]
            validated[rate] = np.mean([run["pass@1"][-1] for run in trained])
            ones = found[f"{arm}-lr{rate}"][0]
            cells = [f"{validated[rate]:.3f}", interval(ones), side_by_side(ones)]
            rows.append([order_said(arm).partition(" of")[0], rate, *cells])
        best[arm] = max(rates, key=validated.get)
    heads = ("rate", "pass@1, validation", "pass@1, test", "of each seed")
    table(["from the trained models", *heads], rows)
    many, one = (found[f"{arm}-lr{best[arm]}"] for arm in ("order-1024", "order-1"))
    gaps = {
        "rate .3 for both": found["order-1024-lr0.3"] - found["order-1-lr0.3"],
        "each its best rate on validation": many - one,
    }
    summary("order 1,024 minus order 1, 95 % over seeds", class_columns("order"), gaps, "+")


def tables():
    labels = {arm: label_of(arm) for arm in METHODS}
    class_levels("1,000 classes, test", "1000", labels)
    behind("", "1000", labels)
    lost("1000", labels)
    class_levels("1,000 classes, own rates, test", "own", OWN_SAID)
    behind("own rates: ", "own", OWN_SAID)
    lost("own", OWN_SAID)
    class_levels("1,000 classes, steps of warm-up, test", "warm-up", WARMED_SAID)
    for arm in ("maxrl-1024", "maxrl-1024-short"):
        best = arm.replace("maxrl-1024", "supervised")
        behind("as long a warm-up: ", "warm-up", {arm: WARMED_SAID[arm]}, best)
    found = class_means("warm-up")
    pairs = {"MaxRL 1,024, rate .1": "maxrl-1024", "cross-entropy, rate .1": "supervised"}
    gaps = {said: found[arm] - found[f"{arm}-short"] for said, arm in pairs.items()}
    leads("long warm-up minus 100 steps", class_columns("warm-up"), gaps)
    lost("warm-up", WARMED_SAID)
    class_levels("200 classes, from scratch", "order", {arm: order_said(arm) for arm in SCRATCH})
    below = {arm: order_said(arm) for arm in ("base", *BELOW)}
    class_levels("200 classes, from a model with pass@1 .31", "order", below)
    own_orders()


def beside_imagenet(names: dict[str, str], **words) -> dict:
    """pass@1 and pass@128 over training {method: a run's name with {seed}}, beside ImageNet."""
    ended = kept("images", "runs")
    panels = []
    for k in (1, 128):
        lines = []
        for method, name in names.items():
            seeds = [ended[name.format(seed=seed)] for seed in SEEDS]
            method = method.replace("reinforce_mean", "reinforce")
            lines.append(
                seed_curves(method, seeds[0]["steps"], [run[f"pass@{k}"] for run in seeds])
            )
        drawn = {line["name"] for line in lines}
        curves = paper(9)[f"pass@{k}"] | paper(2).get(f"pass@{k}", {})
        curves = {name: xy for name, xy in curves.items() if name in drawn}
        left, right = (IMAGENET, f"pass@{k}", curves), (CLASSES1000, f"pass@{k}", lines)
        panels += pair(left, right, "step", guess_level("1,000 classes", k))
    return {"panels": panels, **words}


def own_rates() -> dict:
    """How far each method is behind cross-entropy on the test images, each at its rate."""
    found = class_means("own")
    lines = []
    for place, name in enumerate(list(OWN_SAID)[1:]):
        gaps = (found["supervised"] - found[name])[0]  # (seeds,)
        lines.append(banded(name, [place], gaps[:, None], points=True))
    said = ["16 draws\na class", "4 draws\na class", "1 draw,\nno noise", "1 draw\na class"]
    axes = {"xticks": [*range(len(said))], "xticklabels": said, "xlim": (-0.5, 3.5)}
    ylabel = "pass@1 behind cross-entropy, test"
    return {
        "title": "At own rates one draw a class ends .10 behind cross-entropy, sixteen .004",
        "caption": "2,000 steps, each method at the best of four rates on another seed; .14M "
        "parameters; mean of three seeds and its 95 % interval",
        "panels": [panel(CLASSES1000, "", ylabel, lines, **axes)],
    }


def order() -> dict:
    """From RLOO to maximum likelihood: what 1,024 rollouts learn with each order."""
    found = class_means("order")
    panels = []
    for start, where, bottom in (
        ("", "ours: from scratch, rate 1.0 (reduced scale)", 0),
        ("from-base-", "ours: from pass@1 .3, rate .3 (reduced scale; axis from .7)", 0.7),
    ):
        path = np.stack([found[f"{start}{name}"][0] for name in PATH], 1)
        lines = [seed_curves("maxrl_order", ORDERS, path)]
        for name, T in (("maxrl", 1023), ("rloo", 1)) if not start else ():
            y = found[f"{name}-1024"][0].mean(keepdims=True)
            lines.append(curve(name, [T], y, points=True))
        level = str(round(found[f"{start}supervised"][0].mean(), 3))
        axes = {"levels": {level: "cross-entropy"}, "xscale": "log", "ylim": (bottom, 1)}
        panels.append(panel(where, "order T", "pass@1, test images", lines, **axes))
    return {
        "title": "From scratch a higher order learns more; from a trained model little beyond "
        "order 16",
        "caption": "1,024 rollouts, orders 1 to 1,024: 200 drawn classes, 400 steps, "
        f"{seeds_said(3)}. Points: RLOO (order 1) and MaxRL (Algorithm 1, order 1,023). On the "
        "right the rate was chosen for 4 rollouts; at 1, the best of three for both and not drawn, "
        "order 1 comes nearer to order 1,024",
        "panels": panels,
    }


FIGURES = {
    "figure2": lambda: beside_imagenet(
        {name: f"1000/seed{{seed}}/{name}-lr3.0" for name in sorted(METHODS)},
        title="With one rollout a class MaxRL is not at cross-entropy after 2,000 steps",
        caption="Figures 2 and 9, validation images; numbers are rollouts of an image. Ours: .14M "
        "parameters, rate 3 for all, chosen by cross-entropy; MaxRL 16, GRPO 128 and REINFORCE lie "
        f"together at the bottom. Solid: ours, {seeds_said(3)}; dashed: the paper's",
    ),
    "warm_up": lambda: beside_imagenet(
        {
            name: f"own/seed{{seed}}/{name}-lr0.1-5000of10000"
            for name in ("supervised", "maxrl-1024")
        },
        title="At the paper's rate and warm-up one draw a class ends .01 behind cross-entropy",
        caption="Figure 2, validation images; 1,024 draws an image. Both have rate .1, which is "
        "reached when 1,280 images of a class have been shown, at step 5,000 of 100,000 (the "
        "paper's) and of 10,000 (ours); ours .14M parameters. Solid: ours, "
        f"{seeds_said(3)}; dashed: the paper's",
    ),
    "own_rates": own_rates,
    "order": order,
}
