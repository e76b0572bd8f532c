"""Figure 2 on 1,000 drawn classes: every method at a rate of its own, and the paper's warm-up."""

from results.images.study import CLASSES1000, IMAGENET
from results.lab.data import class_means, class_runs, image_rates, paper
from results.lab.figures import banded, guess_level, pair, panel, seed_curves, seeds_said
from results.lab.runs import evaluation, product, seed_models
from results.lab.tables import behind, class_levels, leads, lost, summary

# MaxRL's expected gradient of the order of 1,024 draws.
EXPECTED = "results/figure2/expected.py images_laptop --estimator supervised --rollouts 1"
IMAGES = "train.py images_laptop --rollouts"
METHODS = {f"maxrl-{draws}": f"{IMAGES} {draws}" for draws in (1024, 4096, 16384)}
METHODS |= {"supervised": f"{IMAGES} 1 --estimator supervised", "expected-1023": EXPECTED}
LENGTH = "--steps {steps} --warmup-steps {warm_up} --eval-every 100"
HOW = "--task.directory glyphs/1000x32 --eval-prompts 2500 --eval-k 1,128"
NAME = "seed{seed}/{method[0]}-lr{rate}"
RATES = (0.1, 0.3, 1.0, 3.0)
SEEDS = (0, 1, 2)
# The best rate of seed 100: pass@1 of the validation images after the last step.
OWN = {
    "supervised": 3.0,
    "maxrl-1024": 0.3,
    "maxrl-4096": 1.0,
    "maxrl-16384": 3.0,
    "expected-1023": 0.3,
}


def glyphs(methods, rates, seeds, steps: int = 2000, warm_up: int = 100) -> dict:
    """The runs of a product; a warm-up or length other than usual is in their names."""
    usual = (steps, warm_up) == (2000, 100)
    name = NAME if usual else f"{NAME}-{warm_up}of{steps}"
    words = f"{{method[1]}} {LENGTH} --lr {{rate}} --seed {{seed}} {HOW}"
    some = [(method, METHODS[method]) for method in methods]
    values = {"seed": seeds, "method": some, "rate": rates, "steps": [steps], "warm_up": [warm_up]}
    return product(name, words, **values)


RUNS = {
    # 1: seed 100, on validation images.
    "rates": glyphs(METHODS, RATES, [100]),
    # 2: the comparison; then all methods at the rate that was cross-entropy's in images.
    "own": {},
    "same": glyphs(["supervised", "maxrl-1024", "expected-1023"], [3.0], SEEDS),
    # 3: the paper's warm-up in images a class at its rate, and a tenth of it.
    "paper": glyphs(["supervised", "maxrl-1024"], [0.1], SEEDS, steps=10000, warm_up=5000),
    "tenth": glyphs(["maxrl-1024"], [0.3, 3.0], SEEDS, steps=2500, warm_up=500),
    # As many steps at the same rates, after the usual warm-up.
    "as-long": glyphs(["maxrl-1024"], [0.3], SEEDS, steps=2500)
    | glyphs(["supervised", "maxrl-1024"], [0.1], SEEDS, steps=10000),
}
for method, rate in OWN.items():
    RUNS["own"] |= glyphs([method], [rate], SEEDS)

# Longer warm-ups, or more steps after the usual one: a run without its seed, and its name.
WARMED = {
    "supervised": ("supervised-lr0.1-5000of10000", "cross-entropy, rate .1, 5,000 of 10,000 steps"),
    "maxrl-1024": ("maxrl-1024-lr0.1-5000of10000", "MaxRL 1,024, rate .1, 5,000 of 10,000 steps"),
    "as-long-0.1": ("maxrl-1024-lr0.1-100of10000", "MaxRL 1,024, rate .1, 100 of 10,000 steps"),
    "tenth-0.3": ("maxrl-1024-lr0.3-500of2500", "MaxRL 1,024, rate .3, 500 of 2,500 steps"),
    "as-long-0.3": ("maxrl-1024-lr0.3-100of2500", "MaxRL 1,024, rate .3, 100 of 2,500 steps"),
    "tenth-3": ("maxrl-1024-lr3.0-500of2500", "MaxRL 1,024, rate 3, 500 of 2,500 steps"),
}
WARM_NAMES = {name: said for name, (_, said) in WARMED.items()}
HOW_TESTED = "--split test --k 1,128"
TESTED = {name: f"figure2/seed{{seed}}/{name}-lr{rate}" for name, rate in OWN.items()}
# Run and tested after the others.
MANY = {"maxrl-16384": TESTED.pop("maxrl-16384")}
# Cross-entropy has this rate of its own.
EQUAL = seed_models("figure2", ("maxrl-1024", "expected-1023"), "-lr3.0")
WARM = {name: f"figure2/seed{{seed}}/{run}" for name, (run, _) in WARMED.items()}
# Cross-entropy of the control, tested after those.
SHORT = {"as-long": "figure2/seed{seed}/supervised-lr0.1-100of10000"}
TESTS = {
    "own-test.json": evaluation(HOW_TESTED, TESTED, seed=SEEDS),
    "many-test.json": evaluation(HOW_TESTED, MANY, seed=SEEDS),
    "same-test.json": evaluation(HOW_TESTED, EQUAL, seed=SEEDS),
    "warm-up-test.json": evaluation(HOW_TESTED, WARM, seed=SEEDS),
    "short-test.json": evaluation(HOW_TESTED, SHORT, seed=SEEDS),
}
NAMES = {
    "supervised": "cross-entropy, rate 3",
    "maxrl-16384": "MaxRL 16,384, rate 3",
    "maxrl-4096": "MaxRL 4,096, rate 1",
    "expected-1023": "expected gradient of order 1,023, rate .3",
    "maxrl-1024": "MaxRL 1,024, rate .3",
}
OTHERS = list(NAMES)[1:]


def where_met(p: dict, names: dict[str, str]):
    """Where an image is not lost, is the model as good as cross-entropy on the same image?"""
    rows = {}
    for name, said in names.items():
        seeds = zip(p[name], p["supervised"])
        rows[said] = [[(ours - theirs)[ours >= 0.001].mean() for ours, theirs in seeds]]
    title = "pass@1 minus cross-entropy's on the images above .001"
    summary(title, ["mean, 95 % over seeds"], rows, "+")


def tables():
    file, many = "figure2/own-test.json", "figure2/many-test.json"
    found = class_means(file, (1, 128)) | class_means(many, (1, 128))
    class_levels("1,000 classes, own rates, test", found, NAMES, 128, NAMES.get)
    behind("cross-entropy minus, 95 % over seeds", found, OTHERS, 128, NAMES.get)
    rates = image_rates(file) | image_rates(many)
    lost(rates, NAMES, NAMES.get)
    where_met(rates, {name: NAMES[name] for name in OTHERS})
    at_three = {"supervised": found["supervised"]}
    same = class_means("figure2/same-test.json", (1, 128)) | at_three
    title = "cross-entropy minus, all at rate 3, 95 % over seeds"
    behind(title, same, EQUAL, 128, lambda name: NAMES[name].partition(", rate")[0])
    file = "figure2/warm-up-test.json"
    warm = class_means(file, (1, 128)) | class_means("figure2/short-test.json", (1, 128))
    both = {"supervised": WARM_NAMES["supervised"]}
    both |= {"as-long": "cross-entropy, rate .1, 100 of 10,000 steps"}
    names = both | WARM_NAMES
    class_levels("1,000 classes, steps of warm-up, test", warm, names, 128, names.get)
    others = list(WARM_NAMES)[1:]
    title = "cross-entropy, rate .1, 5,000 of 10,000 steps, minus, 95 % over seeds"
    behind(title, warm, others[:2], 128, WARM_NAMES.get)
    title = "cross-entropy, rate .1, 100 of 10,000 steps, minus, 95 % over seeds"
    behind(title, warm | {"supervised": warm["as-long"]}, ["as-long-0.1"], 128, WARM_NAMES.get)
    title = "cross-entropy, rate 3, 100 of 2,000 steps, minus, 95 % over seeds"
    behind(title, warm | at_three, others[2:], 128, WARM_NAMES.get)
    pairs = {
        "MaxRL 1,024, rate .1": ("maxrl-1024", "as-long-0.1"),
        "MaxRL 1,024, rate .3": ("tenth-0.3", "as-long-0.3"),
        "cross-entropy, rate .1": ("supervised", "as-long"),
    }
    gaps = {said: warm[slow] - warm[fast] for said, (slow, fast) in pairs.items()}
    leads("long warm-up minus 100 steps", ("pass@1", "pass@128", "top-1"), gaps)
    rates = image_rates(file)
    lost(rates, WARM_NAMES, WARM_NAMES.get)
    where_met(rates, {name: WARM_NAMES[name] for name in others[:2]})


def validation_curves(names: dict[str, str], key: str) -> list[dict]:
    """Validation over training of {method: run without its seed}."""
    kept = class_runs("figure2")
    found = []
    for method, run in names.items():
        seeds = [kept[f"seed{seed}/{run}"] for seed in SEEDS]
        found.append(seed_curves(method, seeds[0]["steps"], [one[key] for one in seeds]))
    return found


def own_rates_figure() -> dict:
    """How far each method is behind cross-entropy on the test images, each at its rate."""
    found = class_means("figure2/own-test.json", (1,)) | class_means("figure2/many-test.json", (1,))
    names = ("maxrl-16384", "maxrl-4096", "expected-1023", "maxrl-1024")
    lines = []
    for place, name in enumerate(names):
        gaps = (found["supervised"] - found[name])[0]  # (seeds,)
        lines.append(banded(name, [place], gaps[:, None], points=True, unnamed=True))
    said = ["16 draws\na class", "4 draws\na class", "1 draw,\nno noise", "1 draw\na class"]
    axes = {"xticks": [*range(len(said))], "xticklabels": said, "xlim": (-0.5, 3.5)}
    ylabel = "pass@1 behind cross-entropy, test"
    return {
        "title": "At own rates one draw a class ends .10 behind cross-entropy, sixteen .004",
        "caption": "2,000 steps, each method at the best of four rates on another seed; .14M "
        "parameters; mean of three seeds and its 95 % interval",
        "columns": 1,
        "panels": [panel(CLASSES1000, "", ylabel, lines, **axes)],
    }


def warm_up_figure() -> dict:
    """The paper's rate, reached after as many images of a class as the paper's."""
    names = {name: WARMED[name][0] for name in ("supervised", "maxrl-1024")}
    panels = []
    for key in ("pass@1", "pass@128"):
        theirs = {name: paper(2)[key][name] for name in names}
        panels += pair(
            (IMAGENET, key, theirs), (CLASSES1000, key, validation_curves(names, key)), "step"
        )
        panels[-1]["levels"] = guess_level("1,000 classes", int(key.partition("@")[2]))
    return {
        "title": "At the paper's rate and warm-up one draw a class ends .01 behind cross-entropy",
        "caption": "Figure 2, validation images; 1,024 draws an image. Both have rate .1, which is "
        "reached when 1,280 images of a class have been shown, at step 5,000 of 100,000 (the "
        "paper's) and of 10,000 (ours); ours .14M parameters. Solid: ours, "
        f"{seeds_said(3)}; dashed: the paper's",
        "panels": panels,
    }


FIGURES = {"own_rates": own_rates_figure, "warm_up": warm_up_figure}
