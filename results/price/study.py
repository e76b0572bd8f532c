"""The price of a hard prompt: equal steps, rollouts and seconds."""

import numpy as np

from maxrl.run.table import coverage
from results.lab.data import by_seed, means, runs, tested
from results.lab.figures import level, panel, seed_curves
from results.lab.intervals import ahead, interval
from results.lab.runs import evaluation, product
from results.lab.tables import lead_cells, lead_columns, pass_columns, table

STEPS, KEPT, BLOCK = 1000, 5, 100
ROWS = BLOCK // KEPT
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
IMAGES = ("supervised-1", "maxrl-1024", "maxrl_rare-1024", "maxrl_rare-64,64,128,256,512")
KS = [1, 8, 64, 512]
OWN = "--task.directory data/maze/9x9-price --seed {seed}"


def mazes(seeds, arms) -> dict:
    """Bases, and runs of ESTIMATOR-PROMPTSxROLLOUTS from them."""
    made = product("seed{seed}/base", f"train.py maze9_laptop_sft {OWN}", seed=seeds)
    for arm in arms:
        estimator, _, size = arm.partition("-")
        prompts, rollouts = size.split("x")
        words = f"train.py maze9_laptop {OWN} --steps 1000 --eval-every 100 --keep 1"
        words += f" --estimator {estimator} --prompts {prompts} --rollouts {rollouts}"
        words += " --init runs/price/seed{seed}/base"
        made |= product(f"seed{{seed}}/{arm}", words, seed=seeds)
    return made


def image_runs(classes: int, steps: int, rate: float, k: int) -> dict:
    made = {}
    for arm in IMAGES:
        estimator, _, rollouts = arm.partition("-")
        words = f"train.py images_laptop --task.directory glyphs/{classes}x32 --steps {steps}"
        words += f" --estimator {estimator} --rollouts {rollouts} --lr {rate} --seed {{seed}}"
        words += f" --warmup-steps {steps // 20} --eval-every {steps // 20} --eval-k 1,{k} --keep 1"
        made |= product(f"images{classes}/seed{{seed}}/{arm}", words, seed=range(4, 7))
    return made


RUNS = {
    "mazes": mazes([4], ARMS) | mazes([5, 6], SOME),
    "images200": image_runs(200, 400, 1.0, 25),
    "images1000": image_runs(1000, 2000, 3.0, 128),
    "more": mazes([5, 6, 7], ARMS),
}
PLANNED = {"more": "three arms of seeds 5 and 6, all of seed 7: 1.5"}
TESTS = {}
for seed, arms in ((4, ARMS), (5, SOME), (6, SOME)):
    models = {arm: f"price/seed{seed}/{arm}" for arm in ("base", *arms)}
    TESTS[f"test-seed{seed}.json"] = evaluation("--prompts 256 --samples 512", models)
for classes, k, last in ((200, 25, 7), (1000, 128, 6)):
    models = {arm: f"price/images{classes}/seed{{seed}}/{arm}" for arm in IMAGES}
    words = evaluation(f"--split test --k 1,{k}", models, seed=range(4, last))
    TESTS[f"test{classes}.json"] = words


def arm_runs() -> dict[str, dict[int, list[dict]]]:
    """{arm: {seed: rows}} of the complete runs."""
    found = runs("price", steps=STEPS)
    return {arm: found[arm] for arm in ARMS}


def tests(ks: list[int]) -> dict[str, dict[int, np.ndarray]]:
    """{arm: {seed: pass@k on the test mazes, (ks,)}}, the base's first."""
    found = by_seed("price", "test", ks)
    return {
        name: {seed: values.mean(0) for seed, values in found[name].items()}
        for name in ("base", *ARMS)
    }


def paired_by_seed(ours: dict, others: dict) -> np.ndarray:
    """Ours minus the others, (seeds, ...), of the seeds that both have."""
    return np.array([ours[seed] - others[seed] for seed in ours if seed in others])


def against(rows: list[dict], what: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps, rollouts or seconds after each block of steps, and the mean reward of the block."""
    ends = np.arange(BLOCK, STEPS + 1, BLOCK)
    if what != "steps":
        each = np.array([row[what] for row in rows])
        if what == "seconds":  # of a block's median step: the machine had other work in some
            each = np.median(each.reshape(-1, ROWS), axis=1).repeat(ROWS)
        ends = KEPT * each.cumsum()[ROWS - 1 :: ROWS]
    return ends, means(rows, "reward", BLOCK)


def of_timed(seeds: dict) -> list:
    return [rows for seed, rows in seeds.items() if seed in TIMED]


def at_end(rows: list[dict], key: str) -> float:
    """A metric's mean over the last block."""
    return np.mean([row[key] for row in rows[-ROWS:]])


def cost(found: dict):
    """What a step costs by method, and where a run stands after all its steps."""
    lines = []
    for arm, seeds in found.items():
        rollouts = np.array([[row["rollouts"] for row in rows] for rows in seeds.values()]).mean(0)
        timed = of_timed(seeds)
        seconds = np.median([[row["seconds"] for row in rows] for rows in timed])
        minutes = np.mean([against(rows, "seconds")[0][-1] for rows in timed]) / 60
        solved = np.mean([[row["solved"] for row in rows[-ROWS:]] for rows in seeds.values()])
        cells = [f"{rollouts[:ROWS].mean():.0f}, {rollouts[-ROWS:].mean():.0f}", f"{seconds:.2f}"]
        cells += [f"{minutes:.1f}", interval([at_end(rows, "reward") for rows in seeds.values()])]
        lines.append([ARMS[arm], len(seeds), *cells, f"{solved:.3f}"])
    seconds = f"seconds a step, median of seeds {', '.join(map(str, TIMED))}"
    columns = ["arm", "seeds", "rollouts a step: first, last 100", seconds, "minutes in all"]
    table([*columns, "pass@1 of the last 100 steps", "with a success"], lines)


def ends_by_seed(found: dict):
    """pass@1 / share with a success, and tokens of a response, of the last 100 steps of every
    run."""
    everyone = found["maxrl-16x32"]
    lines = []
    for arm, seeds in found.items():
        cells = []
        for seed in everyone:
            cell = "not run"
            if rows := seeds.get(seed):
                keys = ("reward", "frac_reward_zero_mean", "completions/mean_length")
                one, zero, tokens = (at_end(rows, key) for key in keys)
                cell = f"{one:.3f} / {1 - zero:.2f}, {tokens:.0f}"
            cells.append(cell)
        lines.append([ARMS[arm], *cells])
    title = "last 100 steps: pass@1 / with a success, tokens"
    table([title, *(f"seed {seed}" for seed in everyone)], lines)


def equal(found: dict):
    """pass@1 of training after equal steps, rollouts and seconds: as much as every arm has used,
    rollouts of all seeds, seconds of the timed ones."""
    every = [rows for seeds in found.values() for rows in seeds.values()]
    timed = [rows for seeds in found.values() for rows in of_timed(seeds)]
    rollouts = min(against(rows, "rollouts")[0][-1] for rows in every)
    seconds = min(against(rows, "seconds")[0][-1] for rows in timed)
    lines = []
    for arm, seeds in found.items():
        # Between two blocks by a straight line.
        late = [np.interp(seconds, *against(rows, "seconds")) for rows in of_timed(seeds)]
        drawn = [np.interp(rollouts, *against(rows, "rollouts")) for rows in seeds.values()]
        last = interval([against(rows, "steps")[1][-1] for rows in seeds.values()])
        lines.append([ARMS[arm], last, interval(drawn), " / ".join(f"{v:.3f}" for v in late)])
    table(
        [
            "pass@1 of training",
            f"after {STEPS} steps",
            f"after {rollouts / 1000:.0f},000 rollouts",
            f"after {seconds:.0f} s (seeds {', '.join(map(str, TIMED))})",
        ],
        lines,
    )


def on_mazes(found: dict):
    """pass@k on the test mazes, and differences paired by seed."""
    lines = []
    for name, seeds in found.items():
        cells = map(interval, np.array(list(seeds.values())).T)
        lines.append([ARMS.get(name, "before RL"), ", ".join(map(str, seeds)), *cells])
    table(["test", "seeds", *pass_columns(KS)], lines)
    lines = []
    for ours, other in PAIRS:
        gaps = paired_by_seed(found[ours], found[other])
        lines.append([f"{ARMS[ours]} minus {ARMS[other]}", *lead_cells(gaps.T)])
    table(["test, paired by seed", *lead_columns(KS)], lines)


def on_images(classes: int, k: int):
    """Exact pass@1 and pass@k of drawn images, every arm with the same seeds."""
    found = coverage(tested(f"price/test{classes}.json"), [1, k])
    curves = {name: values.mean(1).T for name, values in found.items()}  # (2, seeds) each
    lines = []
    for name, values in curves.items():
        gaps = values[0] - curves["maxrl-1024"][0]
        lines.append([name, *map(interval, values), interval(gaps, "+"), ahead(gaps)])
    title = f"{classes} classes, {len(curves['maxrl-1024'][0])} seeds"
    table([title, *pass_columns((1, k)), "pass@1 minus MaxRL's", "ahead on"], lines)


def tables():
    found = arm_runs()
    cost(found)
    ends_by_seed(found)
    equal(found)
    on_mazes(tests(KS))
    on_images(200, 25)
    on_images(1000, 128)


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
            seeds = of_timed(found[arm]) if what == "seconds" else found[arm].values()
            curves = [against(rows, what) for rows in seeds]
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
