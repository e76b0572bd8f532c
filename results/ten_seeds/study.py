"""Ten seeds of 9x9 mazes: five methods from two bases, each at a rate of its own."""

from functools import cache

import numpy as np

from maxrl.plots import called
from maxrl.run.table import coverage
from results.lab.data import RESULTS, means, paired, runs, tested
from results.lab.figures import MAZE9, SOLVED, block_curves, level, panel, seed_curves, seeds_said
from results.lab.intervals import interval
from results.lab.runs import evaluation, product
from results.lab.tables import leads, pass_columns, table

DATA = "--task.directory data/maze/9x9-ten"
# Bases by where their warm-up stops: pass@1 on 64 validation mazes.
BASES = {"weak": ".015", "strong": ".08"}
# The name of an arm, and its options.
ARMS = {
    "maxrl": "--estimator maxrl --prompts 16 --rollouts 32",
    "rare": "--estimator maxrl_rare --prompts 16 --rollouts 32",
    "rounds": "--estimator maxrl_rare --prompts 32 --rollouts 8,8,16",
    "grpo": "--estimator grpo --prompts 16 --rollouts 32",
    "rloo": "--estimator rloo --prompts 16 --rollouts 32",
}
RATES = ("3e-5", "1e-4", "3e-4")
# The best of RATES on seed 100: of three arms from results/mazes, of two from the stage `rates`.
OWN = {
    "weak": dict.fromkeys(ARMS, "1e-4"),
    "strong": dict.fromkeys(ARMS, "3e-4") | {"grpo": "1e-4", "rloo": "3e-5"},
}
# What is compared with what.
PAIRS = [
    ("maxrl", "grpo"),
    ("maxrl", "rloo"),
    ("rare", "maxrl"),
    ("rounds", "maxrl"),
    ("rare", "grpo"),
    ("rounds", "grpo"),
]
STEPS, BLOCK = 1000, 100
KS = (1, 8, 64)
# In 64 tries a model that has one walk for every maze solves hardly more than at the first one.
ONE_WALK = 0.01
# None of them is a seed of another study.
SEEDS = range(10, 20)
KEPT_STEPS = 20


def warm_ups(base: str, seeds) -> dict:
    """The warm-up of each seed."""
    words = f"train.py maze9_laptop_sft {DATA} --stop-at-pass {BASES[base]} --seed {{seed}}"
    return product(f"{base}/seed{{seed}}/base", words, seed=seeds)


def rl(base: str, arms, rates, seeds) -> dict:
    """1,000 steps from the base of each seed, with a checkpoint every 100."""
    words = (
        f"train.py maze9_laptop {DATA} --steps 1000 --eval-every 100 --save-every 100 "
        f"--init runs/ten_seeds/{base}/seed{{seed}}/base --seed {{seed}} {{arm[1]}} --lr {{rate}}"
    )
    name = f"{base}/seed{{seed}}/{{arm[0]}}-lr{{rate}}"
    return product(name, words, seed=seeds, arm=arms, rate=rates)


def seed(base: str, number: int) -> dict:
    """All arms of one seed."""
    made = warm_ups(base, [number])
    for arm, rate in OWN[base].items():
        made |= rl(base, [(arm, ARMS[arm])], [rate], [number])
    return made


# 1: the rates of the two further arms, on seed 100.
RUNS = {"rates": {}}
for base in BASES:
    searched = [(arm, ARMS[arm]) for arm in ("rare", "rounds")]
    RUNS["rates"] |= warm_ups(base, [100]) | rl(base, searched, RATES, [100])
# 2: the comparison, a stage a seed and base, so that what is finished is paired.
for number in SEEDS:
    for base in BASES:
        RUNS[f"{base}{number}"] = seed(base, number)
# The seconds of a step, of twenty from these steps of seed 10 on a quiet machine.
TIMED = (0, 300, 600, 900)
RUNS["seconds"] = {}
for base in BASES:
    for arm, rate in OWN[base].items():
        for step in TIMED:
            model = f"{arm}-lr{rate}/step-{step:06d}" if step else "base"
            words = (
                f"train.py maze9_laptop {DATA} --steps 20 --eval-every 0 --lr {rate} "
                f"--init runs/ten_seeds/{base}/seed10/{model} --seed 10 {ARMS[arm]}"
            )
            RUNS["seconds"] |= product(f"{base}/seconds/seed10/{arm}-from{step}", words)
# 3: is it the batch? Four times the prompts, from the weak bases of four seeds.
LARGE = [(f"{arm}-64", ARMS[arm].replace("16", "64", 1)) for arm in ("maxrl", "grpo")]
RUNS["batch"] = warm_ups("weak", range(10, 14)) | rl("weak", LARGE, ["1e-4"], range(10, 14))
# 4: one change at a time of GRPO, 300 steps at a constant rate.
CHANGES = {
    "lr3e-5": "--lr 3e-5",
    "not-clipped": "--lr 1e-4 --max-grad-norm 1e9",
    "clipped": "--lr 1e-4 --max-grad-norm .1",
    "sequence": "--lr 1e-4 --aggregation sequence",
    "betas": "--lr 1e-4 --betas .9,.95",
    "entropy": "--lr 1e-4 --entropy-bonus .003",
}
WORDS = (
    f"train.py maze9_laptop {DATA} --steps 300 --schedule constant --eval-every 100 "
    f"--init runs/ten_seeds/weak/seed{{seed}}/base --seed {{seed}} {ARMS['grpo']} {{change[1]}}"
)
RUNS["why"] = warm_ups("weak", (10, 13)) | product(
    "weak/why/seed{seed}/{change[0]}", WORDS, seed=(10, 13), change=CHANGES.items()
)


def tested_models(base: str, number: int, how: str) -> list[str]:
    """The base and the last checkpoint of each arm."""
    models = {"base": f"ten_seeds/{base}/seed{{seed}}/base"}
    for arm, rate in OWN[base].items():
        models[arm] = f"ten_seeds/{base}/seed{{seed}}/{arm}-lr{rate}"
    return evaluation(how, models, seed=[number])


@cache
def finished(base: str) -> dict[str, dict[int, list[dict]]]:
    """{arm: {seed: rows}} of the seeds with all of their arms."""
    if not (RESULTS / "ten_seeds/runs.json").exists():
        return {arm: {} for arm in OWN[base]}
    return paired(runs("ten_seeds", f"{base}/", "-lr.*", STEPS), OWN[base])


def spent(base: str, arm: str, rows: list[dict], what: str) -> np.ndarray:
    """Steps, rollouts or seconds after each block of steps of a run."""
    ends = np.arange(BLOCK, STEPS + 1, BLOCK)
    if what == "rollouts":
        return BLOCK * means(rows, what, BLOCK).cumsum()
    if what == "seconds":
        timed = runs("ten_seeds", f"{base}/seconds/")
        seconds = [timed[f"{arm}-from{step}"][10][0]["seconds"] for step in TIMED]
        return BLOCK * np.interp(ends - BLOCK / 2, TIMED, seconds).cumsum()
    return ends


def same(base: str, pair: tuple[str, str], seed: int, what: str) -> list[tuple[str, int]]:
    """(arm, step) of the checkpoints of a pair that are equal in steps, rollouts or seconds.

    They are the last one of the arm that has used less, and of the other one the last of which this
    is still so.
    """
    found = finished(base)
    used = [spent(base, arm, found[arm][seed], what) for arm in pair]
    most = min(each[-1] for each in used)
    return [(arm, BLOCK * int((each <= most).sum())) for arm, each in zip(pair, used)]


EQUAL = ("rollouts", "seconds")


def earlier_models(base: str, number: int) -> dict[str, str]:
    """{ARM@STEP: model} of the checkpoints before the last that a comparison needs."""
    models = {}
    for what in EQUAL:
        for pair in PAIRS:
            for arm, step in same(base, pair, number, what):
                if step < STEPS:
                    folder = f"ten_seeds/{base}/seed{number}/{arm}-lr{OWN[base][arm]}"
                    models[f"{arm}@{step}"] = f"{folder}/step-{step:06d}"
    return models


TESTS = {}
for base in BASES:
    for number in SEEDS:
        name = f"{base}{number}"
        TESTS[f"{name}-test.json"] = tested_models(base, number, "--prompts 512 --samples 64")
        TESTS[f"{name}-512.json"] = tested_models(base, number, "--prompts 128 --samples 512")
    for number in finished(base)["maxrl"]:
        words = evaluation("--prompts 512 --samples 64", earlier_models(base, number))
        TESTS[f"{base}{number}-equal.json"] = words


@cache
def test_rates(base: str, seed: int, kind: str, ks: tuple) -> dict[str, np.ndarray]:
    """{row: pass@k (ks,)} of a test file, nothing if it is not there."""
    name = f"ten_seeds/{base}{seed}-{kind}.json"
    if not (RESULTS / name).exists():
        return {}
    return {row: found[0].mean(0) for row, found in coverage(tested(name), ks).items()}


def seeds_of(base: str) -> list[int]:
    """The seeds that are finished and tested."""
    return [seed for seed in finished(base)["maxrl"] if test_rates(base, seed, "test", (1,))]


def at(base: str, seed: int, arm: str, step: int, ks: tuple) -> np.ndarray:
    """pass@k (ks,) of an arm at a checkpoint."""
    if step == STEPS:
        return test_rates(base, seed, "test", ks)[arm]
    return test_rates(base, seed, "equal", ks)[f"{arm}@{step}"]


def collapsed(rows: list[dict]) -> bool:
    """Whether fewer than half as many prompts have a success in the end as in the beginning."""
    share = means(rows, "solved", BLOCK)
    return share[-1] < share[0] / 2


def arm_levels(base: str, seeds: list[int]):
    """What each arm reaches, how many of its runs collapse, and how long its walks are."""
    lines = []
    for arm in ("base", *OWN[base]):
        found = [test_rates(base, seed, "test", KS)[arm] for seed in seeds]
        many = [test_rates(base, seed, "512", (512,))[arm] for seed in seeds]
        cells = [interval(values) for values in np.transpose([*np.hstack([found, many])])]
        some = [finished(base)[arm][seed] for seed in seeds] if arm != "base" else []
        lengths = [means(rows, "completions/mean_length", BLOCK) for rows in some]
        last = interval([each[-1] for each in lengths], digits=1) if some else ""
        longest = f"{np.max(lengths):.0f}" if some else ""
        count = f"{sum(map(collapsed, some))} of {len(some)}" if some else ""
        one = f"{sum(each[-1] - each[0] < ONE_WALK for each in found)} of {len(found)}"
        lines.append([called(arm), *cells, count, one, last, longest])
    ends = ["collapsed", "one walk", "tokens, last 100 steps", "in the longest 100"]
    table([f"{base} base, {len(seeds)} seeds", *pass_columns([*KS, 512]), *ends], lines)


def gaps(base: str, seeds: list[int], what: str) -> dict[str, np.ndarray]:
    """{pair: differences (ks, seeds)} at equal steps, rollouts or seconds."""
    found = {}
    for pair in PAIRS:
        values = []
        for seed in seeds:
            ours, other = (at(base, seed, *model, KS) for model in same(base, pair, seed, what))
            values.append(ours - other)
        found[" minus ".join(map(called, pair))] = np.transpose(values)
    return found


def tables():
    for base in BASES:
        if seeds := seeds_of(base):
            arm_levels(base, seeds)
            for what in ("steps", *EQUAL):
                if all(test_rates(base, seed, "equal", KS) for seed in seeds) or what == "steps":
                    title = f"{base} base, equal {what}, paired by seed"
                    leads(title, pass_columns(KS), gaps(base, seeds, what))


def test_curves(base: str, seeds: list[int]) -> list[dict]:
    """pass@k of the test against k."""
    ks = tuple(2**i for i in range(7))
    lines = []
    for arm in ("base", *OWN[base]):
        lines.append(
            seed_curves(arm, ks, [test_rates(base, seed, "test", ks)[arm] for seed in seeds])
        )
    return lines


def of_base(base: str, title: str) -> dict:
    """Figures 12 and 5: prompts with a success in training, and the test."""
    seeds = seeds_of(base)
    found = {arm: {seed: rows[seed] for seed in seeds} for arm, rows in finished(base).items()}
    training = panel(MAZE9, "step", SOLVED, block_curves(found, "solved", BLOCK))
    axes = {"xscale": "log", "xticks": [1, 4, 16, 64]}
    tested_panel = panel(MAZE9, "k", "pass@k, test mazes", test_curves(base, seeds), **axes)
    return {
        "title": title,
        "caption": f"9x9 mazes from {base} bases (pass@1 {BASES[base]}), 1,000 steps, every arm at "
        "its own rate. Left: Figure 12, blocks of 100 steps, of rounds in any of them. Right: "
        f"Figure 5, 512 test mazes x 64 samples. {seeds_said(len(seeds)).capitalize()}",
        "panels": level(training, tested_panel),
    }


def weak() -> dict:
    return of_base("weak", "From weak bases GRPO loses its prompts, MaxRL does not")


FIGURES = {"weak": weak}
