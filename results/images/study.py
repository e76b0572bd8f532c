"""Figures 2, 8 and 9 on drawn images: 200 and 1,000 classes."""

import numpy as np

from maxrl.analysis.table import over_seeds
from results.lab.data import class_means, class_runs, image_rates, paper, read_json
from results.lab.figures import curve, guess_level, pair, panel, seed_curves, seeds_said, theirs
from results.lab.runs import evaluation, product, seed_models, sized
from results.lab.tables import behind, class_levels, lost

METHODS = (
    "supervised",
    "maxrl-1024",
    "maxrl-128",
    "maxrl-16",
    "grpo-1024",
    "grpo-128",
    "reinforce_mean-1024",
)
FEW = [name for name in METHODS if name != "grpo-128"]
SEEDS = range(3)
# Tried on seed 100; the best of cross-entropy is that of all methods.
RATES = {"200": (0.01, 0.03, 0.1, 0.3, 1.0), "1000": (0.1, 0.3, 1.0, 3.0, 10.0)}
BINS = (0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)  # Figure 8's
IMAGENET = "paper: ImageNet, 1,000 classes, ResNet-50"
CLASSES1000 = "ours: 1,000 drawn classes (reduced scale)"
LARGE = "--task.directory glyphs/1000x32 --eval-prompts 2500 --eval-k 1,128"
LONG = f"{LARGE} --steps 2000 --warmup-steps 100 --eval-every 100 --save-every 1000"
LONGER = f"{LARGE} --steps 8000 --warmup-steps 400 --eval-every 400 --lr 3.0"


def glyph_runs(folder: str, methods, more: str, seeds, rates) -> dict:
    """Runs of METHOD-ROLLOUTS at these rates."""
    made = {}
    for method in methods:
        name = f"{folder}/seed{{seed}}/{method}-lr{{rate}}"
        words = f"train.py images_laptop --seed {{seed}} {sized(method)} {more} --lr {{rate}}"
        made |= product(name, words, seed=seeds, rate=rates)
    return made


def one_run(name: str, method: str, more: str = "") -> dict:
    """A run of METHOD-ROLLOUTS on each seed."""
    return product(
        name, f"train.py images_laptop --seed {{seed}} {sized(method)} {more}", seed=SEEDS
    )


RATIO = ("maxrl-205", "maxrl-26", "maxrl-3")
RUNS = {
    "200-rates": glyph_runs("200", FEW, "", [100], RATES["200"]),
    "200": glyph_runs("200", FEW, "", SEEDS, (1.0, 0.1)),
    "200-ratio": {},
    "1000-rates": glyph_runs("1000", ["supervised"], LONG, [100], RATES["1000"]),
    "1000": glyph_runs("1000", METHODS, LONG, SEEDS, [3.0]),
    "1000-lower": glyph_runs("1000", ["maxrl-1024", "maxrl-128"], LONG, [0], [1.0]),
    "longer": one_run("longer/seed{seed}/supervised", "supervised", LONGER)
    | one_run("longer/seed{seed}/maxrl", "maxrl-1024", LONGER),
}
for method in RATIO:
    RUNS["200-ratio"] |= one_run(f"200/seed{{seed}}/{method}", method)
SPLIT = "--split test --against supervised --k"
# With runs of the study of orders.
PAIRED = seed_models("order", ("supervised", "maxrl-1024")) | seed_models("images/200", RATIO)
TESTED = {
    "200-test.json": (seed_models("images/200", FEW, "-lr1.0"), "1,25"),
    "200-test-lr0.1.json": (seed_models("images/200", FEW, "-lr0.1"), "1,25"),
    "200-ratio-test.json": (PAIRED, "1,25"),
    "1000-test.json": (seed_models("images/1000", METHODS, "-lr3.0"), "1,2,8,32,128,512"),
    "longer-test.json": (seed_models("images/longer", ("supervised", "maxrl")), "1,128"),
}
TESTS = {
    file: evaluation(f"{SPLIT} {ks}", models, seed=SEEDS) for file, (models, ks) in TESTED.items()
}
MEANS = {"200-ratio-test.json", "200-test.json", "200-test-lr0.1.json"}
NORMS = {}
for rollouts in ("1024", "128", "16"):
    # An estimator's exact weight belongs to one number of rollouts: a command for each.
    some = [name for name in METHODS if name.endswith(f"-{rollouts}")]
    some += ["supervised"] * (rollouts == "1024")
    how = f"--split validation --rollouts {rollouts} --prompts 1000"
    models = seed_models("images/1000", some, "-lr3.0/step-001000")
    words = evaluation(how, models, seed=SEEDS)
    NORMS[f"norms-001000-{rollouts}.json"] = ["results/gradients/norms.py", *words[1:]]
TESTS |= NORMS


def norms() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{method: pass rates and gradient norms (images of all seeds,)} after 1,000 steps."""
    found = {}
    for file in NORMS:
        results = read_json(f"images/{file}")
        both = over_seeds(results, lambda row: [row["pass_rates"], row["norms"]])
        for name, values in both.items():  # (seeds, 2, images)
            found[name] = tuple(np.concatenate(values, 1))
    return found


def tables():
    minus = "cross-entropy minus, 95 % over seeds"
    found = class_means("images/1000-test.json", (1, 128))
    class_levels("1,000 classes, test", found, METHODS, 128)
    behind(minus, found, METHODS[1:], 128)
    lost(image_rates("images/1000-test.json"), METHODS)
    longer = class_means("images/longer-test.json", (1, 128))
    class_levels("8,000 steps, test", longer, longer, 128)
    behind(f"8,000 steps: {minus}", longer, ["maxrl"], 128)
    lost(image_rates("images/longer-test.json"), longer)
    for title, file in (
        ("200 classes, test", "200-ratio-test.json"),
        ("200 classes, rate 1.0, test", "200-test.json"),
        ("200 classes, rate 0.1, test", "200-test-lr0.1.json"),
    ):
        few = class_means(f"images/{file}", (1, 25))
        class_levels(title, few, few, 25)


def both(key: str) -> dict:
    return paper(9)[key] | paper(2).get(key, {})


def over_training(
    folder: str, names: dict[str, str], title: str, about: str, wide: int = 128
) -> dict:
    """pass@1 and pass@k over training, drawn classes beside ImageNet.

    names  {method: a run's name after FOLDER/seedSEED/}
    about  what the caption says of our runs
    wide   our k for the paper's pass@128
    """
    runs = class_runs("images", f"{folder}/")
    classes = "200" if folder == "200" else "1,000"
    ours = f"ours: {classes} drawn classes (reduced scale)"
    panels = []
    for theirs_k, ours_k in (("pass@1", "pass@1"), ("pass@128", f"pass@{wide}")):
        lines = []
        for method, name in names.items():
            seeds = [runs[f"seed{seed}/{name}"] for seed in SEEDS]
            values = [run[ours_k] for run in seeds]
            method = method.replace("reinforce_mean", "reinforce")
            lines.append(seed_curves(method, seeds[0]["steps"], values))
        panels += pair((IMAGENET, theirs_k, both(theirs_k)), (ours, ours_k, lines), "step")
        panels[-1]["levels"] = guess_level(f"{classes} classes", int(ours_k.partition("@")[2]))
    return {
        "title": title,
        "caption": f"Figures 2 and 9, validation images; numbers are rollouts of an image{about}. "
        f"Solid: ours, {seeds_said(3)}; dashed: the paper's",
        "panels": panels,
    }


def medians(pass_rates, norms) -> tuple[list, list]:
    """Medians of pass rates and gradient norms in BINS of the pass rate, None where there are fewer
    than three images."""
    place = np.searchsorted(BINS, pass_rates)  # bin i is above BINS[i - 1], up to BINS[i]
    found = [place == i for i in range(1, len(BINS))]
    return tuple(
        [np.median(values[inside]) if inside.sum() >= 3 else None for inside in found]
        for values in (pass_rates, norms)
    )


def broken(x, y) -> tuple[list, list]:
    """The points, with an interruption of the line wherever a decade lies between two of them."""
    known = [point for point in zip(x, y) if point[0] is not None]
    found = known[:1]
    for before, point in zip(known, known[1:]):
        if point[0] > 10 * before[0]:
            found.append((None, None))
        found.append(point)
    return tuple(map(list, zip(*found)))


def figure8() -> dict:
    """Medians of gradient norms, each under the objective of its own model."""
    found = norms()
    shown = ("supervised", "maxrl-1024", "maxrl-128", "grpo-1024")
    ours = [curve(name, *broken(*medians(*found[name]))) for name in shown]
    labels = ("pass rate of the image", "gradient norm of an image")
    scales = {"xscale": "log", "yscale": "log", "xlim": (1e-8, 2), "ylim": (1e-7, 1000)}
    scales["xticks"] = (1e-8, 1e-6, 1e-4, 1e-2, 1)
    of_paper = theirs({name: broken(*points) for name, points in paper(8)["medians"].items()})
    return {
        "title": "MaxRL weighs images as cross-entropy does from a pass rate of .001 on, not below",
        "caption": "Figure 8: gradient norm of an image under the objective of its own model, "
        "medians of bins of the pass rate; a dot alone at the left is the bin below .001, of "
        "classes that are lost. Ours: "
        ".14M parameters, after 1,000 steps, bins of 3 images or more of three seeds together; "
        "numbers are rollouts. Solid: ours; dashed: the paper's, 131,072 rollouts an image",
        "panels": [
            panel("paper: ImageNet, ResNet-50", *labels, of_paper, **scales),
            panel(CLASSES1000, *labels, ours, **scales),
        ],
    }


FIGURES = {
    "figure2_200_classes": lambda: over_training(
        "200",
        {name: f"{name}-lr1.0" for name in FEW},
        "With five rollouts a class MaxRL ends where cross-entropy does (200 classes)",
        " (GRPO, 128: the paper alone). Ours: .09M parameters, rate 1.0 for all; 1,024 rollouts "
        "are 5 a class (paper: 1), pass@25 of 200 classes as pass@128 of 1,000",
        25,
    ),
    "figure2_1000_classes": lambda: over_training(
        "1000",
        {name: f"{name}-lr3.0" for name in sorted(METHODS)},
        "With one rollout a class MaxRL is not at cross-entropy after 2,000 steps",
        ". Ours: .14M parameters, rate 3 for all, chosen by cross-entropy; MaxRL 16, GRPO 128 and "
        "REINFORCE lie together at the bottom",
    ),
    "figure8": figure8,
}
