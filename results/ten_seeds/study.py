"""Ten seeds of 9x9 mazes: five methods from two bases, each at a rate of its own."""

import numpy as np

from results.lab.data import evaluations, means, runs
from results.lab.intervals import interval
from results.lab.runs import evaluation, product
from results.lab.tables import label_of, leads, pass_columns, table
from results.ten_seeds.curves import FIGURES
from results.ten_seeds.found import (
    ARMS,
    BASES,
    BLOCK,
    EQUAL,
    KS,
    ONE_ANSWER,
    OWN,
    PAIRS,
    RATES,
    SEEDS,
    STEPS,
    TIMED,
    at,
    finished,
    same,
    seeds_of,
    test_rates,
)

__all__ = ["FIGURES"]
DATA = "--task.directory data/maze/9x9-ten"
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
# The seconds of a step, of twenty on a quiet machine.
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
CHANGED = (
    f"train.py maze9_laptop {DATA} --steps 300 --schedule constant --eval-every 100 "
    f"--init runs/ten_seeds/weak/seed{{seed}}/base --seed {{seed}} {ARMS['grpo']} {{change[1]}}"
)
CHANGED_SEEDS = (10, 13)
RUNS["why"] = warm_ups("weak", CHANGED_SEEDS) | product(
    "weak/why/seed{seed}/{change[0]}", CHANGED, seed=CHANGED_SEEDS, change=CHANGES.items()
)
SLOW = [(arm, ARMS[arm]) for arm in ("grpo", "maxrl")]
SLOWED = (
    f"train.py maze9_laptop {DATA} --steps 1000 --eval-every 100 --lr 3e-5 "
    "--init runs/ten_seeds/weak/seed{seed}/base --seed {seed} {arm[1]}"
)
RUNS["slow"] = warm_ups("weak", CHANGED_SEEDS) | product(
    "weak/slow/seed{seed}/{arm[0]}", SLOWED, seed=CHANGED_SEEDS, arm=SLOW
)


def tested_models(base: str, number: int, how: str) -> list[str]:
    """The base and the last checkpoint of each arm."""
    models = {"base": f"ten_seeds/{base}/seed{{seed}}/base"}
    for arm, rate in OWN[base].items():
        models[arm] = f"ten_seeds/{base}/seed{{seed}}/{arm}-lr{rate}"
    return evaluation(how, models, seed=[number])


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
        one = f"{sum(each[-1] - each[0] < ONE_ANSWER for each in found)} of {len(found)}"
        lines.append([label_of(arm), *cells, count, one, last, longest])
    ends = ["collapsed", "one answer a maze", "tokens, last 100 steps", "in the longest 100"]
    table([f"{base} base, {len(seeds)} seeds", *pass_columns([*KS, 512]), *ends], lines)


def gaps(base: str, seeds: list[int], what: str) -> dict[str, np.ndarray]:
    """{pair: differences (ks, seeds)} at equal steps, rollouts or seconds."""
    found = {}
    for pair in PAIRS:
        values = []
        for seed in seeds:
            ours, other = (at(base, seed, *model, KS) for model in same(base, pair, seed, what))
            values.append(ours - other)
        found[" minus ".join(map(label_of, pair))] = np.transpose(values)
    return found


def losses(title: str, found: dict):
    """What GRPO loses: {row: {seed: rows}}, means of 40 steps, and validation at the end."""
    lines = []
    for name, seeds in found.items():
        columns = []
        for key in ("solved", "entropy"):
            blocks = [means(rows, key, 2 * KEPT_STEPS) for rows in seeds.values()]
            columns.append([f"{each[0]:.2f} → {each[-1]:.2f}" for each in blocks])
        for k in (1, 64):
            ends = [evaluations(rows, k)[-1] for rows in seeds.values()]
            columns.append([f"{end:.2f}" for end in ends])
        lines.append([name, ", ".join(map(str, seeds)), *map(", ".join, columns)])
    kinds = ("prompts with a success", "entropy", "pass@1", "pass@64")
    table([title, "seeds", *kinds], lines)


def of_grpo():
    """Is it the batch? And what else, by one change at a time."""
    own = runs("ten_seeds", "weak/", "-lr1e-4", STEPS)
    rows = {}
    for arm in ("grpo", "maxrl"):
        large = own.get(f"{arm}-64", {})
        rows[f"{label_of(arm)}, 16 prompts"] = {seed: own[arm][seed] for seed in large}
        rows[f"{label_of(arm)}, 64 prompts"] = large
    rows = {name: seeds for name, seeds in rows.items() if seeds}
    if rows:
        losses("weak base, first → last 40 of 1,000 steps", rows)
    changed = runs("ten_seeds", "weak/why/")
    if changed:
        before = 300 // KEPT_STEPS
        usual = {seed: own["grpo"][seed][:before] for seed in CHANGED_SEEDS}
        losses("GRPO with one change, first → last 40 of 300 steps", {"none": usual} | changed)
    slow = runs("ten_seeds", "weak/slow/", "", STEPS)
    if slow:
        rows = {label_of(arm): seeds for arm, seeds in slow.items()}
        losses("rate 3e-5, first → last 40 of 1,000 steps", rows)


def tables():
    for base in BASES:
        if seeds := seeds_of(base):
            arm_levels(base, seeds)
            for what in ("steps", *EQUAL):
                if all(test_rates(base, seed, "equal", KS) for seed in seeds) or what == "steps":
                    title = f"{base} base, equal {what}, paired by seed"
                    leads(title, pass_columns(KS), gaps(base, seeds, what))
    of_grpo()
