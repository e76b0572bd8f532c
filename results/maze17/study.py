"""17x17 mazes at the paper's size: the warm-up, and RL from there."""

from pathlib import Path

import numpy as np

from maxrl.plots import over_steps, smooth
from maxrl.run.table import coverage, powers
from results.lab.data import means, paper, runs, tested
from results.lab.figures import SOLVED, curve, level, panel, seed_curves
from results.lab.intervals import with_error
from results.lab.runs import evaluation, product
from results.lab.tables import METHODS, pass_columns, table

KS = [1, 32, 128, 256]
BLOCK, KEPT = 50, 5  # steps of a mean, and of a kept row
NAMES = {
    "maxrl_rare": "MaxRL in rounds of 8, 8 and 16",
    "maxrl": "MaxRL, 32 rollouts",
    "grpo": "GRPO, 32 rollouts",
    "rloo": "RLOO, 32 rollouts",
}
SFT = "train.py maze17_sft --seed {seed} --precision bfloat16"
MAZES = "--task.directory data/maze/17x17-rl"
RL = (
    f"train.py maze17 {MAZES} --estimator {{method}} --seed {{seed}} --init results/maze17/base "
    "--steps 1000 --precision bfloat16 --micro-batch-tokens 8192 --eval-every 0 --save-every 0 "
    "--keep 1 --rollouts"
)
RUNS = {
    "bases": product("base/seed{seed}/sft", SFT, seed=range(3)),
    # Seed 2 once more: results/maze17/base.
    "base": product("rl-base", SFT, seed=[2]),
    # Each was ended after two and a half hours of a core, or as the page says.
    "rounds": product("seed{seed}/{method}", f"{RL} 8,8,16", seed=range(2), method=["maxrl_rare"]),
    "at-once": product("seed{seed}/{method}", f"{RL} 32", seed=range(2), method=["grpo", "maxrl"])
    | product("seed{seed}/{method}", f"{RL} 32", seed=[0], method=["rloo"]),
}
HOW = "--prompts 256 --samples 256 --k 1,32,128,256 --precision bfloat16"
TESTED = ("seed0-maxrl", "seed0-rloo", "seed1-grpo", "seed1-maxrl_rare")
TESTS = {
    f"base-test-seed{seed}.json": evaluation(HOW, {"base": f"maze17/base/seed{seed}/sft"})
    for seed in range(3)
}
OURS = f"--task maze --task.size 17 {MAZES} {HOW}"
TESTS["test-base.json"] = ["eval.py", "base=results/maze17/base", *OURS.split()]
for name in TESTED:
    TESTS[f"test-{name}.json"] = evaluation(OURS, {name: f"maze17/{name.replace('-', '/')}"})


def bases():
    published = [paper(17)[f"pass@{k}"]["base"][1][0] for k in KS]
    rows = [["paper (Figure 17)", "1,500", *(f"{value:.3f}" for value in published)]]
    for seed in range(3):
        results = tested(f"maze17/base-test-seed{seed}.json")
        (row,) = results["checkpoints"]
        step = int(Path(row["path"]).name.removeprefix("step-"))
        (values,) = coverage(results, KS).values()
        rows.append([f"seed {seed}", f"{step:,}", *map(with_error, values[0].T)])
    table(["base, standard error over mazes", "stopped at step", *pass_columns(KS)], rows)


def rl_runs() -> dict[str, dict[int, list[dict]]]:
    """{estimator: {seed: rows}} of every run, however far it came."""
    found = runs("maze17", steps=BLOCK)
    return {method: found[method] for method in NAMES}


def trained(found: dict):
    """What every run cost, and its training mazes in its first and last whole blocks; the hours are
    made of medians of five steps."""
    lines = []
    for method, seeds in found.items():
        for seed, rows in seeds.items():
            seconds = np.array([row["seconds"] for row in rows])
            cells = [rows[-1]["step"] + 1, f"{KEPT * seconds.sum() / 3600:.2f}"]
            cells.append(f"{np.median(seconds):.1f}")
            for key, scale in (("rollouts", 1 / 32), ("reward", 1), ("solved", 1)):
                values = means(rows, key, BLOCK) * scale
                cells.append(f"{values[0]:.3g}, {values[-1]:.3g}")
            lines.append([f"seed {seed}: {NAMES[method]}", *cells])
    ends = ("rollouts a prompt", "reward", "prompts with a success")
    ends = [f"{what}, first and last block of 50 steps" for what in ends]
    table(["run", "steps", "hours of a core", "seconds a step, median", *ends], lines)


def model_name(name: str) -> str:
    """How a tested checkpoint is called in the tables."""
    seed, _, method = name.partition("-")
    return f"{seed.replace('seed', 'seed ')}: {NAMES[method]}" if method else name


def on_test():
    """pass@k on the test mazes, every run minus the base, and MaxRL in rounds minus each other run
    of its seed."""
    found: dict[str, np.ndarray] = {}  # {name: (1, prompts, ks)}
    for name in ("base", *TESTED):
        found |= coverage(tested(f"maze17/test-{name}.json"), KS)
    gaps = {name: values - found["base"] for name, values in found.items() if name != "base"}
    pairs = {}
    for name in gaps:
        rounds = f"{name.partition('-')[0]}-maxrl_rare"
        if rounds in found and rounds != name:
            pairs[name] = found[rounds] - found[name]
    for title, values, sign in (
        ("test, standard error over mazes", found, ""),
        ("run minus base, paired over mazes", gaps, "+"),
        ("MaxRL in rounds minus, paired over mazes", pairs, "+"),
    ):
        rows = []
        for name, one in values.items():
            rows.append([model_name(name), *(with_error(column, sign) for column in one[0].T)])
        table([title, *pass_columns(KS)], rows)


def tables():
    bases()
    trained(rl_runs())
    on_test()


def figure17_base() -> dict:
    """The bases beside the paper's, and the warm-ups that led there."""
    seeds = []
    for seed in range(3):
        results = tested(f"maze17/base-test-seed{seed}.json")
        ks = powers(results)
        seeds += [values.mean(1)[0] for values in coverage(results, ks).values()]
    known = {k: paper(17)[f"pass@{k}"]["base"][1][0] for k in (1, 32, 128, 256)}
    lines = [
        seed_curves("base", ks, seeds),
        curve("base", list(known), list(known.values()), paper=True, points=True, unnamed=True),
    ]
    axes = {"xscale": "log", "ylim": (0, 1)}
    panels = [panel("ours, points: the paper's; full size", "k", "pass@k", lines, **axes)]
    warm_ups = runs("maze17", "base/", steps=1000)["sft"]
    for key, label, limits, levels, said in (
        ("loss", "loss per token", (0, 0.5), {".294": "blind walk"}, "right"),
        ("eval/pass@1", "pass@1, validation", (0, 0.016), {".012": "the paper's base"}, "left"),
    ):
        lines = []
        for seed, rows in warm_ups.items():
            steps, values = over_steps([rows], key)
            values = smooth(values, 9) if key == "loss" else values
            lines.append(curve(f"seed {seed}", steps, values[0]))
        axes = {"ylim": limits, "levels": levels, "said": said}
        title = "ours: full size, a line a seed"
        panels.append(panel(title, "step of the warm-up", label, lines, **axes))
    return {
        "title": "The warm-up reaches the paper's base at one try, not quite in 256 tries",
        "caption": "17x17 mazes, 3.9M parameters, 3 seeds. Left: 256 test mazes x 256 samples, "
        "mean and each seed. Middle: means of 45 steps; .294 is the loss of the best walk that "
        "does not see walls. Right: a run stops at .012",
        "columns": 3,
        "panels": panels,
    }


def figure17_rl() -> dict:
    """RL at the paper's size, in the paper's axes and against what it cost."""
    found = {"rounds" if name == "maxrl_rare" else name: seeds for name, seeds in rl_runs().items()}
    every = [(name, rows) for name, seeds in found.items() for rows in seeds.values()]
    last = max(rows[-1]["step"] for _, rows in every)
    panels = []
    for title, curves, key in (
        ("Figure 12", paper(12)["17x17 maze"], "solved"),
        ("Figure 17", paper(17)["pass@1"], "reward"),
    ):
        lines = []
        for name, rows in every:
            values = means(rows, key, BLOCK)
            lines.append(curve(name, BLOCK * (0.5 + np.arange(len(values))), values))
        for name in METHODS:
            x, y = curves[name]
            near = x <= max(last, 1000)
            # Of Figure 17 two points are near, which are no curve.
            lines.append(curve(name, x[near], y[near], paper=True, points=key == "reward"))
        label = SOLVED if key == "solved" else "pass@1"
        how = "dashed" if key == "solved" else "circles"
        panels += level(panel(f"{title}: ours, paper's {how}; full size", "step", label, lines))
    for cost, label, scale in (
        ("rollouts", "rollouts, thousands", 1000),
        ("seconds", "hours of one core", 3600),
    ):
        lines = []
        for name, rows in every:
            x = np.cumsum(means(rows, cost, BLOCK)) * BLOCK / scale
            lines.append(curve(name, x, means(rows, "solved", BLOCK)))
        panels += level(panel(f"ours: equal {cost}; full size", label, SOLVED, lines))
    return {
        "title": "17x17 mazes: MaxRL gains prompts on two of four runs; GRPO and RLOO lose them",
        "caption": "3.9M parameters, 32 prompts a step, 8, 16 or 32 rollouts (paper: 256 prompts), "
        "rate 1e-4, means of 50 steps, a line a seed, to the step at which the run ended (MaxRL "
        "898 and 260, GRPO 623 and 420, RLOO 579); the paper's Figure 12 is smoothed with decay "
        ".99 a step, its Figure 17 is of held-out mazes and has two points here, ours is of fresh "
        "training mazes",
        "panels": panels,
    }


FIGURES = {"figure17_full_size": figure17_rl, "figure17_full_size_base": figure17_base}
