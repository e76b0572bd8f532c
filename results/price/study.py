"""The price of a hard prompt: equal steps, rollouts and seconds."""

import numpy as np

from results.lab.data import by_seed, in_blocks, means, runs
from results.lab.figures import level, panel, seed_curves
from results.lab.intervals import interval
from results.lab.runs import evaluation, from_bases, seed_models, sized
from results.lab.tables import leads, pass_columns, table

STEPS, BLOCK = 1000, 100
ARMS = {  # as people read them
    "maxrl-16x32": "MaxRL 16 x 32",
    "maxrl_rare-16x32": "rare side 16 x 32",
    "maxrl_rare-16x8,8,16": "in rounds 16 x (8, 8, 16)",
    "maxrl-32x16": "MaxRL 32 x 16",
    "maxrl_rare-32x16": "rare side 32 x 16",
    "maxrl_rare-32x8,8,16": "in rounds 32 x (8, 8, 16)",
    "grpo-16x32": "GRPO 16 x 32",
    "grpo-32x16": "GRPO 32 x 16",
    "rloo-16x32": "RLOO 16 x 32",
}
PAIRS = [  # what is compared with what
    ("maxrl_rare-16x32", "maxrl-16x32"),
    ("maxrl_rare-16x8,8,16", "maxrl-16x32"),
    ("maxrl_rare-32x16", "maxrl-32x16"),
    ("maxrl_rare-32x8,8,16", "maxrl-32x16"),
    ("maxrl_rare-32x8,8,16", "maxrl-16x32"),
    ("maxrl_rare-32x8,8,16", "grpo-32x16"),
    ("maxrl-16x32", "grpo-16x32"),
    ("maxrl-32x16", "grpo-32x16"),
    ("maxrl-16x32", "rloo-16x32"),
]
TIMED = (4, 5)  # the seeds whose runs had a core for themselves
SOME = [arm for arm in ARMS if arm not in ("maxrl_rare-32x16", "grpo-32x16", "rloo-16x32")]
KS = [1, 8, 64, 512]
OWN = "--task.directory data/maze/9x9-price"
RL = f"train.py maze9_laptop {OWN} --steps 1000 --eval-every 100 --keep 1"


def mazes(seeds, arms) -> dict:
    """Bases, and runs of ESTIMATOR-PROMPTSxROLLOUTS from them."""
    options = {}
    for arm in arms:
        estimator, _, size = arm.partition("-")
        prompts, rollouts = size.split("x")
        options[arm] = f"{sized(f'{estimator}-{rollouts}')} --prompts {prompts}"
    return from_bases("price", f"train.py maze9_laptop_sft {OWN}", RL, options, seeds)


RUNS = {
    "mazes": mazes([4], ARMS) | mazes([5, 6], SOME),
    "more": mazes([5, 6, 7], ARMS),
}
PLANNED = {"more": "three arms of seeds 5 and 6, all of seed 7: 1.5"}
TESTS = {}
for seed, arms in ((4, ARMS), (5, SOME), (6, SOME)):
    models = seed_models("price", ["base", *arms])
    words = evaluation("--prompts 256 --samples 512", models, seed=[seed])
    TESTS[f"test-seed{seed}.json"] = words


def arm_runs() -> dict[str, dict[int, list[dict]]]:
    """{arm: {seed: rows}} of the complete runs."""
    found = runs("price", steps=STEPS)
    return {arm: found[arm] for arm in ARMS}


def tests(ks: list[int]) -> dict[str, dict[int, np.ndarray]]:
    """{arm: {seed: pass@k on the test mazes, (ks,)}}, the base's first."""
    found = by_seed("price", "test", ks)
    means = {}
    for name in ("base", *ARMS):
        means[name] = {seed: values.mean(0) for seed, values in found[name].items()}
    return means


def against(rows: list[dict], what: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps, rollouts or seconds after each block of steps, and the mean reward of the block."""
    ends = np.arange(BLOCK, STEPS + 1, BLOCK)
    if what == "rollouts":
        ends = BLOCK * means(rows, what, BLOCK).cumsum()
    elif what == "seconds":  # of a block's median step: the machine had other work in some
        ends = BLOCK * np.median(in_blocks(rows, what, BLOCK), 1).cumsum()
    return ends, means(rows, "reward", BLOCK)


def of_timed(seeds: dict) -> list:
    return [rows for seed, rows in seeds.items() if seed in TIMED]


def curves_against(seeds: dict, what: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """against() of every run; seconds of the timed ones alone."""
    some = of_timed(seeds) if what == "seconds" else seeds.values()
    return [against(rows, what) for rows in some]


def cost(found: dict):
    """What a step costs by method."""
    lines = []
    for arm, seeds in found.items():
        timed = of_timed(seeds)
        rollouts = np.mean([means(rows, "rollouts", BLOCK) for rows in seeds.values()], 0)
        seconds = np.median([[row["seconds"] for row in rows] for rows in timed])
        minutes = np.mean([against(rows, "seconds")[0][-1] for rows in timed]) / 60
        cells = [f"{rollouts[0]:.0f}, {rollouts[-1]:.0f}", f"{seconds:.2f}", f"{minutes:.1f}"]
        lines.append([ARMS[arm], len(seeds), *cells])
    seconds = f"seconds a step, median of seeds {', '.join(map(str, TIMED))}"
    rollouts = "rollouts a step: first, last 100"
    table(["arm", "seeds", rollouts, seconds, "minutes in all"], lines)


def on_mazes(found: dict):
    """pass@k on the test mazes, and differences paired by seed."""
    lines, pairs = [], {}
    for name, seeds in found.items():
        cells = map(interval, np.array(list(seeds.values())).T)
        lines.append([ARMS.get(name, "before RL"), ", ".join(map(str, seeds)), *cells])
    table(["test", "seeds", *pass_columns(KS)], lines)
    for ours, other in PAIRS:
        gaps = [
            values - found[other][seed]
            for seed, values in found[ours].items()
            if seed in found[other]
        ]
        pairs[f"{ARMS[ours]} minus {ARMS[other]}"] = np.transpose(gaps)
    leads("test, paired by seed", pass_columns(KS), pairs)


def tables():
    cost(arm_runs())
    on_mazes(tests(KS))


def price() -> dict:
    """Equal steps, equal rollouts, equal seconds, and the test."""
    found = arm_runs()
    ks = [2**i for i in range(10)]
    passed = tests(ks)
    count = max(map(len, found.values()))
    shown = {}
    for arm, seeds in found.items():
        if len(seeds) == count:
            rounds = arm.startswith("maxrl_rare") and "8,8,16" in arm
            shown[arm] = arm.replace("maxrl_rare", "rounds") if rounds else arm
    panels = []
    for what, label in (
        ("steps", "step"),
        ("rollouts", "rollouts"),
        ("seconds", "seconds of rollouts and updates, one core"),
    ):
        lines = []
        for arm, name in shown.items():
            curves = curves_against(found[arm], what)
            # As far as all seeds go.
            first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
            x = np.linspace(first, last, 10)
            lines.append(seed_curves(name, x, [np.interp(x, *curve) for curve in curves]))
        title = f"ours: equal {what} (reduced scale)"
        panels.append(panel(title, label, "pass@1, training mazes", lines))
    lines = [seed_curves(name, ks, list(passed[arm].values())) for arm, name in shown.items()]
    labels = ("ours: after 1,000 steps (reduced scale)", "k", "pass@k, test mazes")
    return {
        "title": "On average rounds with 32 prompts lead at equal steps, with 16 at equal rollouts",
        "caption": "9x9 mazes from weak bases, .3M parameters. Prompts x rollouts; 16x8,8,16 are "
        "rounds of 8, 8 and 16 rollouts until one has a success; with 32 prompts they begin with "
        f"764 rollouts a step, where the others have 512. Means of {count} seeds, of "
        f"{len(TIMED)} for seconds, and each (thin), as far as all of them go; blocks "
        "of 100 steps",
        "panels": [*level(*panels), panel(*labels, lines, xscale="log", ylim=(0, 1))],
    }


FIGURES = {"price": price}
