"""Figures 2, 8 and 9 on drawn images: 200 and 1,000 classes."""

import statistics
from pathlib import Path

import numpy as np

from maxrl.metrics import exact_pass_at_k
from maxrl.plots import called
from results.lab.data import class_means, class_runs, paper, read_json
from results.lab.figures import curve, pair, panel, seed_curves, seeds_said, theirs
from results.lab.intervals import interval, with_error
from results.lab.runs import evaluation, product
from results.lab.tables import class_levels, lost, pass_columns, table

FEW = ("supervised", "maxrl-1024", "maxrl-128", "maxrl-16", "grpo-1024", "reinforce_mean-1024")
METHODS = (
    "supervised",
    "maxrl-1024",
    "maxrl-128",
    "maxrl-16",
    "grpo-1024",
    "grpo-128",
    "reinforce_mean-1024",
)
SEEDS = range(3)
RATES = (0.1, 0.3, 1.0, 3.0, 10.0)  # of cross-entropy on 1,000 classes
KS = (1, 2, 8, 32, 128, 512)
COLUMNS = ("pass@1", "pass@25", "top-1")
BINS = (0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)  # Figure 8's
IMAGENET = "paper: ImageNet, 1,000 classes, ResNet-50"
CLASSES1000 = "ours: 1,000 drawn classes (reduced scale)"
LARGE = "--task.directory glyphs/1000x32 --eval-prompts 2500 --eval-k 1,128"
LONG = f"{LARGE} --steps 2000 --warmup-steps 100 --eval-every 100 --save-every 1000"
LONGER = f"{LARGE} --steps 8000 --warmup-steps 400 --eval-every 400 --lr 3.0"


def glyph_runs(name: str, methods, more: str, **values) -> dict:
    """Runs of METHOD-ROLLOUTS."""
    made = {}
    for method in methods:
        estimator, _, rollouts = method.partition("-")
        words = f"train.py images_laptop --seed {{seed}} --estimator {estimator}"
        words += f" --rollouts {rollouts or 1} {more}"
        made |= product(name.replace("METHOD", method), words, **values)
    return made


def runs200(seeds, rates) -> dict:
    name = "200/seed{seed}/METHOD-lr{rate}"
    return glyph_runs(name, FEW, "--lr {rate}", seed=seeds, rate=rates)


def runs1000(methods, seeds, rates) -> dict:
    name = "1000/seed{seed}/METHOD-lr{rate}"
    return glyph_runs(name, methods, f"{LONG} --lr {{rate}}", seed=seeds, rate=rates)


RUNS = {
    "200-rates": runs200([100], (0.01, 0.03, 0.1, 0.3, 1.0)),
    "200": runs200(SEEDS, (1.0, 0.1)),
    "200-ratio": glyph_runs(
        "200/seed{seed}/METHOD", ("maxrl-205", "maxrl-26", "maxrl-3"), "", seed=SEEDS
    ),
    "1000-rates": runs1000(["supervised"], [100], RATES),
    "1000": runs1000(METHODS, SEEDS, [3.0]),
    "1000-lower": runs1000(["maxrl-1024", "maxrl-128"], [0], [1.0]),
    "longer": glyph_runs("longer/seed{seed}/supervised", ["supervised"], LONGER, seed=SEEDS)
    | glyph_runs("longer/seed{seed}/maxrl", ["maxrl-1024"], LONGER, seed=SEEDS),
}
SPLIT = "--split test --against supervised --k"


def classes_test(folder: str, methods, after: str, how: str) -> list[str]:
    models = {name: f"{folder}/seed{{seed}}/{name}{after}" for name in methods}
    return evaluation(how, models, seed=SEEDS)


TESTS = {
    "200-rates.json": evaluation(
        "--split validation --k 1,25",
        {name: f"images/200/seed100/{name}-lr{{rate}}" for name in FEW},
        rate=(0.01, 0.03, 0.1, 0.3, 1.0),
    ),
    "200-test.json": classes_test("images/200", FEW, "-lr1.0", f"{SPLIT} 1,25"),
    "200-test-lr0.1.json": classes_test("images/200", FEW, "-lr0.1", f"{SPLIT} 1,25"),
    "1000-test.json": classes_test("images/1000", METHODS, "-lr3.0", f"{SPLIT} 1,2,8,32,128,512"),
    "longer-test.json": classes_test(
        "images/longer", ("supervised", "maxrl"), "", f"{SPLIT} 1,128"
    ),
}
# With runs of the study of orders.
RATIO = {name: f"order/seed{{seed}}/{name}" for name in ("supervised", "maxrl-1024")}
RATIO |= {name: f"images/200/seed{{seed}}/{name}" for name in ("maxrl-205", "maxrl-26", "maxrl-3")}
TESTS["200-ratio-test.json"] = evaluation(f"{SPLIT} 1,25", RATIO, seed=SEEDS)
MEANS = {"200-ratio-test.json"}
for step in ("001000", "002000"):
    for rollouts in ("1024", "128", "16"):
        # An estimator's exact weight belongs to one number of rollouts: a command for each.
        some = [name for name in METHODS if name.endswith(f"-{rollouts}")]
        some += ["supervised"] * (rollouts == "1024")
        how = f"--split validation --rollouts {rollouts} --prompts 1000"
        words = classes_test("images/1000", some, f"-lr3.0/step-{step}", how)
        TESTS[f"norms-{step}-{rollouts}.json"] = ["results/gradients/norms.py", *words[1:]]


def last(run: dict) -> list[str]:
    return [f"{run[key][-1]:.3f}" for key in ("pass@1", "pass@128", "top1")]


def chosen_rate(found: dict) -> float:
    """The learning rate with the highest pass@1 on seed 100."""
    tried = [run for name, run in found.items() if name.startswith("seed100/")]
    return max((run["pass@1"][-1], run["lr"]) for run in tried)[1]


def on_validation(found: dict, chosen: float):
    """The rates of cross-entropy, and every method after the last step."""
    tried = {run["lr"]: run for name, run in found.items() if name.startswith("seed100/supervised")}
    rates = sorted(tried)
    names = ("pass@1", "pass@128", "top-1")
    columns = zip(*(last(tried[rate]) for rate in rates))
    title = "cross-entropy, seed 100, validation, rate"
    table([title, *(f"{rate:g}" for rate in rates)], ([n, *c] for n, c in zip(names, columns)))
    for i, name in enumerate(names):
        rows = []
        for method in METHODS:
            runs = [found[f"seed{seed}/{method}-lr{chosen}"] for seed in SEEDS]
            rows.append([called(method), *(last(run)[i] for run in runs)])
        table([f"validation, {name}", *(f"seed {seed}" for seed in SEEDS)], rows)


def comparison():
    found = class_means("images/1000-test.json", (1, 128))
    class_levels(found, METHODS, 128, "1,000 classes, test")
    rows = []
    for name in METHODS[1:]:
        gaps = found["supervised"] - found[name]
        rows.append([called(name), *(interval(gap, "+") for gap in gaps)])
    table(["cross-entropy minus, 95 % over seeds", "pass@1", "pass@128", "top-1"], rows)
    published = {name: y[-1] for name, (_, y) in both("pass@1").items()}
    rows = []
    for name in METHODS[1:]:
        ours = interval(found[name][0] / found["supervised"][0])
        method = "reinforce-1024" if name.startswith("reinforce") else name
        rows.append([called(name), ours, f"{published[method] / published['supervised']:.3f}"])
    table(["share of cross-entropy's pass@1", "ours", "the paper's"], rows)
    wide = class_means("images/1000-test.json", KS)
    rows = ([called(name), *map(interval, wide[name][:-1])] for name in METHODS)
    table(["test", *pass_columns(KS)], rows)


def longer():
    """Cross-entropy and MaxRL with 1,024 rollouts after 8,000 steps."""
    methods = ("supervised", "maxrl")
    found = class_means("images/longer-test.json", (1, 128))
    class_levels(found, methods, 128, "8,000 steps, test")
    gaps = found["supervised"] - found["maxrl"]
    columns = ["8,000 steps: cross-entropy minus, 95 % over seeds", "pass@1", "pass@128", "top-1"]
    table(columns, [["MaxRL, 1024", *(interval(gap, "+") for gap in gaps)]])
    lost("images/longer-test.json", methods)


def lower_and_seconds(found: dict, chosen: float):
    """MaxRL with a third of the rate, next to the runs of the same machine; seconds of all."""
    rows = []
    for method in ("maxrl-1024", "maxrl-128"):
        for name in (f"earlier/seed0/{method}-lr3.0", f"seed0/{method}-lr1.0"):
            rows.append([called(method), f"{found[name]['lr']:g}", *last(found[name])])
    table(["seed 0, validation", "rate", "pass@1", "pass@128", "top-1"], rows)
    cells = []
    for name in METHODS:
        times = [found[f"seed{seed}/{name}-lr{chosen}"]["seconds"] for seed in SEEDS]
        cells.append(f"{statistics.mean(times):.0f}")
    table(["seconds of 2,000 steps", *map(called, METHODS)], [["mean over seeds", *cells]])


def norms(step: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{method: pass rates and gradient norms (images of all seeds,)} after a step."""
    rows: dict[str, list] = {}
    for rollouts in (1024, 128, 16):
        for row in read_json(f"images/norms-{step}-{rollouts}.json")["checkpoints"]:
            rows.setdefault(row["name"], []).append(row)
    return {
        name: tuple(np.concatenate([row[key] for row in seeds]) for key in ("pass_rates", "norms"))
        for name, seeds in rows.items()
    }


def norm_table(step: str):
    """Medians of the gradient norms in bins of the pass rate, each model's under its own objective,
    and the paper's."""
    ours = norms(step)
    published = {name: paper(8)["medians"][name] for name in ("supervised", "maxrl", "grpo")}
    rows = []
    for low, high in zip(BINS, BINS[1:]):
        cells = []
        for name in METHODS:
            p, norm = ours[name]
            inside = (p > low) & (p <= high)
            cells.append(f"{np.median(norm[inside]):.3g} ({inside.sum()})" if inside.sum() else "")
        for x, y in published.values():
            inside = (x > low) & (x <= high)
            cells.append(f"{y[inside][0]:.3g}" if inside.sum() else "")
        rows.append([f"{high:g}", *cells])
    names = [*map(called, METHODS), *(f"paper: {called(name)}" for name in published)]
    table([f"step {int(step):,}: pass rate up to", *names], rows)


def of_image(row: dict) -> np.ndarray:
    """The COLUMNS of every image, (3, images)."""
    p = row["pass_rates"]
    return np.array([p, exact_pass_at_k(p, 25), [int(one) for one in row["top1"]]])


def rates200():
    """Every learning rate that was tried on seed 100."""
    found: dict[str, dict] = {}
    for row in read_json("images/200-rates.json")["checkpoints"]:
        method, _, rate = Path(row["path"]).parts[-2].rpartition("-lr")
        found.setdefault(method, {})[float(rate)] = list(map(statistics.mean, of_image(row)))
    rows = []
    for method, tried in found.items():
        cells = [" / ".join(f"{mean:.3f}" for mean in tried[rate]) for rate in sorted(tried)]
        best = max(tried, key=lambda rate: tried[rate][0])
        rows.append([called(method), *cells, f"{best:g}"])
    rates = [f"{rate:g}" for rate in sorted(found["supervised"])]
    table(["pass@1 / pass@25 / top-1, seed 100, validation", *rates, "best"], rows)


def test200(file: str, rate: str):
    seeds: dict[str, list] = {}
    for row in read_json(f"images/{file}")["checkpoints"]:
        seeds.setdefault(row["name"], []).append(of_image(row))
    means = ([called(name), *map(interval, np.mean(one, 2).T)] for name, one in seeds.items())
    table([f"{rate}, 3 seeds, 95 %", *COLUMNS], means)
    each, gaps = [], []
    for name, found in seeds.items():
        for seed, columns in enumerate(found):
            each.append([called(name), seed, *map(with_error, columns)])
            if name != "supervised":
                gap = seeds["supervised"][seed] - columns
                gaps.append([called(name), seed, *(with_error(column, "+") for column in gap)])
    table([f"{rate}, standard error over images", "seed", *COLUMNS], each)
    table([f"{rate}, cross-entropy minus", "seed", *COLUMNS], gaps)


def tables():
    found = class_runs("images", "1000/")
    chosen = chosen_rate(found)
    on_validation(found, chosen)
    comparison()
    lost("images/1000-test.json", METHODS)
    longer()
    lower_and_seconds(found, chosen)
    few = ("supervised", "maxrl-1024", "maxrl-205", "maxrl-26", "maxrl-3")
    class_levels(class_means("images/200-ratio-test.json", (1, 25)), few, 25, "200 classes, test")
    norm_table("001000")
    norm_table("002000")
    rates200()
    test200("200-test.json", "rate 1.0")
    test200("200-test-lr0.1.json", "rate 0.1")


def over_training(found: dict, keys, ours: str, published) -> list[dict]:
    """pass@k of the runs {method: a run a seed} over training, the paper's panel beside each."""
    panels = []
    for theirs_k, ours_k in keys:
        lines = []
        for name, seeds in found.items():
            method = name.replace("reinforce_mean", "reinforce")
            lines.append(seed_curves(method, seeds[0]["steps"], [run[ours_k] for run in seeds]))
        panels += pair((IMAGENET, theirs_k, published(theirs_k)), (ours, ours_k, lines), "step")
    return panels


def both(key: str) -> dict:
    return paper(9)[key] | paper(2).get(key, {})


def of_seeds(before: str, names: dict) -> dict[str, list]:
    """{method: its run of each seed}, of names with a field for the seed."""
    found = class_runs("images", before)
    return {method: [found[name.format(seed)] for seed in SEEDS] for method, name in names.items()}


def figure2_small(rate: str, title: str) -> dict:
    """Images: pass@1 and pass@k over training, 200 drawn classes beside ImageNet."""
    found = of_seeds("200/", {name: f"seed{{}}/{name}-lr{rate}" for name in FEW})
    keys = (("pass@1", "pass@1"), ("pass@128", "pass@25"))
    return {
        "title": title,
        "caption": "Figures 2 and 9, validation images; numbers are rollouts of an image (GRPO, "
        f"128: the paper alone). Ours: .09M parameters, rate {rate} for all; 1,024 rollouts are 5 "
        "a class (paper: 1), pass@25 of 200 classes as pass@128 of 1,000. Solid: ours, "
        f"{seeds_said(3)}; dashed: the paper's",
        "panels": over_training(found, keys, "ours: 200 drawn classes (reduced scale)", both),
    }


def figure2() -> dict:
    """Images at the paper's rollouts per class: pass@k over training."""
    rate = chosen_rate(class_runs("images", "1000/"))
    names = {name: f"seed{{}}/{name}-lr{rate}" for name in sorted(METHODS)}
    keys = [(key, key) for key in ("pass@1", "pass@128")]
    return {
        "title": "With one rollout a class MaxRL is not at cross-entropy after 2,000 steps",
        "caption": "Figures 2 and 9, validation images; numbers are rollouts of an image. Ours: "
        ".14M parameters, rate 3 for all, chosen by cross-entropy; MaxRL 16, GRPO 128 and "
        f"REINFORCE lie together at the bottom. Solid: ours, {seeds_said(3)}; dashed: the paper's",
        "panels": over_training(of_seeds("1000/", names), keys, CLASSES1000, both),
    }


def figure2_longer() -> dict:
    """Cross-entropy and MaxRL on the same images for four times the steps."""
    names = {"supervised": "seed{}/supervised", "maxrl-1024": "seed{}/maxrl"}
    keys = [(key, key) for key in ("pass@1", "pass@128")]
    return {
        "title": "After 8,000 steps too MaxRL with one rollout a class is not at cross-entropy",
        "caption": "Figures 2 and 9, validation images; numbers are rollouts of an image. Ours: "
        f".14M parameters, rate 3 for both, 8,000 steps. Solid: ours, {seeds_said(3)}; dashed: "
        "the paper's",
        "panels": over_training(of_seeds("longer/", names), keys, CLASSES1000, both),
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
    found = norms("001000")
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
    "figure2_200_classes": lambda: figure2_small(
        "1.0", "With five rollouts a class MaxRL ends where cross-entropy does (200 classes)"
    ),
    "figure2_200_classes_lr0.1": lambda: figure2_small(
        "0.1", "At the paper's rate, .1, MaxRL nearly reaches cross-entropy, and GRPO hardly starts"
    ),
    "figure2_1000_classes": figure2,
    "figure2_8000_steps": figure2_longer,
    "figure8": figure8,
}
