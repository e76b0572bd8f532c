"""AdamW and Muon on 9x9 mazes, for MaxRL, rounds and GRPO, each at its own best rate."""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import RESULTS, evaluations, means, runs, tested
from results.lab.figures import guess_level, panel, seed_curves
from results.lab.intervals import side_by_side, with_error
from results.lab.runs import evaluation, from_bases, product, seed_models
from results.lab.tables import label_of, leads, pass_columns, summary, table

DATA = "--task.directory data/maze/9x9-ten"
BASES = {"strong": ".08", "weak": ".015"}
# None is a seed of another study; rates are chosen on the first.
SEEDS = (301, 302, 303)
METHODS = {
    "maxrl": "--estimator maxrl --prompts 16 --rollouts 32",
    "rounds": "--estimator maxrl_rare --prompts 32 --rollouts 8,8,16",
    "grpo": "--estimator grpo --prompts 16 --rollouts 32 --beta .04",
}
# The rate of AdamW, alone or for what Muon leaves to it, and Muon's as a multiple.
OPTIMIZERS = {
    "adamw-1e-4": "--lr 1e-4",
    "adamw-2e-4": "--lr 2e-4",
    "adamw-3e-4": "--lr 3e-4",
    "adamw-6e-4": "--lr 6e-4",
    "muon-1e-4-x4": "--optimizer muon --lr 1e-4 --muon-lr-scale 4",
    "muon-3e-4-x1": "--optimizer muon --lr 3e-4 --muon-lr-scale 1",
    "muon-3e-4-x2": "--optimizer muon --lr 3e-4 --muon-lr-scale 2",
    "muon-3e-4-x4": "--optimizer muon --lr 3e-4 --muon-lr-scale 4",
    "muon-3e-4-x8": "--optimizer muon --lr 3e-4 --muon-lr-scale 8",
    "muon-1e-4-x12": "--optimizer muon --lr 1e-4 --muon-lr-scale 12",
}
WARM_UP = f"train.py maze9_laptop_sft {DATA} --stop-at-pass {{base[1]}} --seed {{seed}}"
RL = (
    f"train.py maze9_laptop {DATA} {{method[1]}} {{optimizer[1]}} --seed {{seed}} "
    "--init runs/muon/{base[0]}/seed{seed}/base "
    "--steps 350 --eval-every 50 --eval-prompts 256 --eval-samples 16 --eval-k 1,8"
)


# From the strong base of seed 301, by pass@1 + pass@8 at the end.
BEST = {
    "maxrl": ("adamw-3e-4", "muon-3e-4-x4"),
    "rounds": ("adamw-2e-4", "muon-3e-4-x4"),
    "grpo": ("adamw-2e-4", "muon-3e-4-x8"),
}
KS = (1, 8)


def with_optimizers(base: str, seeds, methods: dict, optimizers) -> dict:
    """The bases of these seeds, and methods with optimizers from there."""
    values = {"base": [(base, BASES[base])], "seed": seeds}
    bases = product("{base[0]}/seed{seed}/base", WARM_UP, **values)
    arms = {
        "method": methods.items(),
        "optimizer": [(name, OPTIMIZERS[name]) for name in optimizers],
    }
    return bases | product("{base[0]}/seed{seed}/{method[0]}-{optimizer[0]}", RL, **values, **arms)


RUNS = {
    "strong": with_optimizers("strong", SEEDS[:1], METHODS, list(OPTIMIZERS)[:-1]),
    # Muon's own rate as that of muon-3e-4-x4, AdamW's part as that of muon-1e-4-x4.
    "apart": with_optimizers("strong", SEEDS[:1], {"rounds": METHODS["rounds"]}, ["muon-1e-4-x12"]),
    "weak": with_optimizers(
        "weak", SEEDS[:1], METHODS, ["adamw-1e-4", "adamw-3e-4", "muon-1e-4-x4", "muon-3e-4-x4"]
    ),
}
RUNS["best"] = {}
for method, best in BEST.items():
    RUNS["best"] |= with_optimizers("strong", SEEDS[1:], {method: METHODS[method]}, best)
# Generated word problems, from scratch and with SmolLM2-135M as in `make smollm2`.
TEXTS = {
    "adamw-3e-4": "--lr 3e-4",
    "muon-3e-4-x1": "--optimizer muon --lr 3e-4 --muon-lr-scale 1",
    "muon-1e-4-x4": "--optimizer muon --lr 1e-4 --muon-lr-scale 4",
    "muon-3e-4-x4": "--optimizer muon --lr 3e-4 --muon-lr-scale 4",
}
WORDS = ("train.py gsm8k_laptop_sft", "train.py gsm8k_laptop")
RUNS["texts"] = from_bases("muon/texts", *WORDS, TEXTS, SEEDS[:1])
SMOLLM2 = {
    "adamw-3e-5": "--lr 3e-5",
    "muon-3e-5-x4": "--optimizer muon --lr 3e-5 --muon-lr-scale 4",
}
SMALL = "--task.directory word_problems --eval-every 0"
MODEL = (
    f"train.py gsm8k_smollm2_135m_sft {SMALL} --max-response 48 --steps 8",
    f"train.py gsm8k_smollm2_135m {SMALL} --max-response 40 --prompts 16 --steps 30",
)
RUNS["smollm2"] = from_bases("muon/smollm2", *MODEL, SMOLLM2, SEEDS[:1])
KEPT_STEPS = 20
FOLDER = "muon/strong/seed{seed}"
MODELS = {"base": f"{FOLDER}/base"}
for method, best in BEST.items():
    for optimizer in best:
        MODELS[f"{method}-{optimizer}"] = f"{FOLDER}/{method}-{optimizer}"
HOW = {
    "texts": "--prompts 256 --samples 64",
    "smollm2": "--prompts 48 --samples 16 --zero-reward-at-limit true",
}
TESTS = {"mazes-test.json": evaluation("--prompts 256 --samples 64", MODELS, seed=SEEDS)}
for task, kinds in (("texts", TEXTS), ("smollm2", SMOLLM2)):
    models = seed_models(f"muon/{task}", ["base", *kinds])
    TESTS[f"{task}-test.json"] = evaluation(HOW[task], models, seed=SEEDS[:1])
# Of a step on a quiet core of the EPYC, medians of 20 from the base of seed 301, twice; optimizers
# differ by less than the two turns.
SECONDS = {"maxrl": 0.414, "rounds": 0.340, "grpo": 0.627}
MEASURED = {
    "solved": "prompts with a success",
    "entropy": "entropy",
    "completions/mean_length": "length",
}


def arm_rows(found: dict, names):
    """A row for each arm: the last evaluation, and means over the last 50 steps."""
    lines = []
    for arm in names:
        ends = [[evaluations(rows, k)[-1] for rows in found[arm].values()] for k in KS]
        last = [[means(rows, key, 50)[-1] for rows in found[arm].values()] for key in MEASURED]
        lines.append([arm, *map(side_by_side, ends + last)])
    return lines


def tables():
    """Every arm on the first seed; then both optimizers at their best on three, tested once."""
    if not (RESULTS / "muon/runs.json").exists():
        return
    heads = [*pass_columns(KS), *MEASURED.values()]
    for base in BASES:
        found = runs("muon", f"{base}/", steps=350)
        if not found:
            continue
        first = {arm: {SEEDS[0]: seeds[SEEDS[0]]} for arm, seeds in found.items()}
        table([f"{base} base, seed {SEEDS[0]}, validation", *heads], arm_rows(first, sorted(first)))
        compared = [arm for arm in MODELS if len(found.get(arm, ())) > 1]
        if compared:
            table([f"{base} base, seeds {SEEDS}, validation", *heads], arm_rows(found, compared))
    passed = {
        name: seeds.mean(1).T
        for name, seeds in coverage(tested("muon/mazes-test.json"), KS).items()
    }
    summary("test, 95 % over seeds", pass_columns(KS), passed)
    gaps = {}
    for method, (adamw, muon) in BEST.items():
        gaps[f"{label_of(method)}: Muon minus AdamW"] = (
            passed[f"{method}-{muon}"] - passed[f"{method}-{adamw}"]
        )
    for place, name in enumerate(("AdamW", "Muon")):
        grpo = passed[f"grpo-{BEST['grpo'][place]}"]
        for method in ("maxrl", "rounds"):
            own = passed[f"{method}-{BEST[method][place]}"]
            gaps[f"{name}: {label_of(method)} minus GRPO"] = own - grpo
    leads("test, paired by seed", pass_columns(KS), gaps)
    for task, ks in (("texts", KS), ("smollm2", (*KS, 16))):
        if (RESULTS / f"muon/{task}-test.json").exists():
            found = coverage(tested(f"muon/{task}-test.json"), ks)
            rows = {name: seeds[0].T for name, seeds in found.items()}
            title = f"{task}, seed {SEEDS[0]}, test, standard error over problems"
            summary(title, pass_columns(ks), rows, cell=with_error)


def optimizers() -> dict:
    """Quality of both optimizers at their best against steps and seconds, on three seeds."""
    found = runs("muon", "strong/", steps=350)
    panels = []
    for k in KS:
        for cost, label in (("step", "step"), ("seconds", "steps x seconds of one from the base")):
            lines = []
            for method, best in BEST.items():
                for optimizer in best:
                    seeds = found[f"{method}-{optimizer}"].values()
                    values = [evaluations(rows, k) for rows in seeds]
                    x = 50 * np.arange(1, 8)
                    if cost == "seconds":
                        x = x * SECONDS[method]
                    line = seed_curves(method, x, values)
                    old = optimizer.startswith("adamw")
                    lines.append(line | {"dashed": old, "unnamed": old})
            panels.append(panel(f"pass@{k}", label, f"pass@{k}, validation", lines))
            panels[-1]["levels"] = guess_level("9x9 mazes", k)
    return {
        "title": "At one sample all methods end higher with Muon after the same steps",
        "caption": "9x9 mazes, .3M parameters (reduced scale), strong bases, 256 validation mazes. "
        "Solid: Muon; dashed: AdamW, each at its best rate on one seed; means of three seeds and "
        "each of them (thin). GRPO has a KL penalty of .04",
        "panels": panels,
    }


FIGURES = {"optimizers": optimizers}
