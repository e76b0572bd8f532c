"""17x17 mazes at the paper's size: the warm-up, and RL from there."""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import means, paper, runs, tested
from results.lab.figures import SOLVED, curve, level, panel
from results.lab.intervals import with_error
from results.lab.runs import evaluation, product
from results.lab.tables import METHODS, pass_columns, summary, table

KS = [1, 32, 128, 256]
BLOCK = 50  # steps of a mean
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
    "muon": product(
        "muon/seed{seed}/{method}-{rate[0]}",
        f"{RL} 8,8,16 --optimizer muon {{rate[1]}}",
        seed=[0],
        method=["maxrl_rare"],
        rate=[
            ("1e-4-x4", "--lr 1e-4 --muon-lr-scale 4"),
            ("3e-4-x4", "--lr 3e-4"),
            ("1e-4-x12", "--lr 1e-4 --muon-lr-scale 12"),
        ],
    ),
}
HOW = "--prompts 256 --samples 256 --k 1,32,128,256 --precision bfloat16"
TESTED = {
    "base": "base",
    "seed0-maxrl": "seed 0: MaxRL, 32 rollouts",
    "seed0-rloo": "seed 0: RLOO, 32 rollouts",
    "seed1-grpo": "seed 1: GRPO, 32 rollouts",
    "seed1-maxrl_rare": "seed 1: MaxRL in rounds of 8, 8 and 16",
    "seed0-muon": "seed 0: the same with Muon",
}
TESTS = {}
for seed in range(3):
    model = {"base": f"maze17/base/seed{seed}/sft"}
    TESTS[f"base-test-seed{seed}.json"] = evaluation(HOW, model)
for name in TESTED:
    folder = "muon/seed0/maxrl_rare-1e-4-x4" if name == "seed0-muon" else name.replace("-", "/")
    model = {name: f"maze17/{folder}"}
    TESTS[f"test-{name}.json"] = evaluation(f"--task maze --task.size 17 {MAZES} {HOW}", model)
TESTS["test-base.json"][1] = "base=results/maze17/base"
BASES = [f"maze17/base-test-seed{seed}.json" for seed in range(3)]


def paper_base() -> dict[int, float]:
    """pass@k of the paper's base."""
    return {k: paper(17)[f"pass@{k}"]["base"][1][0] for k in KS}


def of_model(results: dict) -> np.ndarray:
    """pass@k (ks, prompts) of the one model that was tested."""
    (values,) = coverage(results, KS).values()
    return values[0].T


def bases():
    rows = [["paper (Figure 17)", "1,500", *(f"{value:.3f}" for value in paper_base().values())]]
    for seed, file in enumerate(BASES):
        results = tested(file)
        step = int(results["checkpoints"][0]["path"].rpartition("step-")[2])
        rows.append([f"seed {seed}", f"{step:,}", *map(with_error, of_model(results))])
    table(["base, standard error over mazes", "stopped at step", *pass_columns(KS)], rows)


def on_test():
    """pass@k on the test mazes, and every run minus the base."""
    found = {title: of_model(tested(f"maze17/test-{name}.json")) for name, title in TESTED.items()}
    columns = pass_columns(KS)
    summary("test, standard error over mazes", columns, found, cell=with_error)
    gaps = {title: values - found["base"] for title, values in found.items() if title != "base"}
    summary("run minus base, paired over mazes", columns, gaps, "+", with_error)


def tables():
    bases()
    on_test()


def figure17_rl() -> dict:
    """RL at the paper's size, in the paper's axes and against what it cost."""
    kept = runs("maze17", steps=BLOCK)
    found = {"rounds": kept["maxrl_rare"]} | {name: kept[name] for name in METHODS}
    found["muon"] = runs("maze17", "muon/", "-1e-4-x4", BLOCK)["maxrl_rare"]
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
        "title": "Our GRPO loses 17x17 mazes, the paper's does not; MaxRL gains on three of five",
        "caption": "3.9M parameters, 32 prompts a step, 8, 16 or 32 rollouts (paper: 256 prompts), "
        "rate 1e-4, means of 50 steps, a line a seed, to the step at which the run ended (MaxRL "
        "898 and 260, GRPO 623 and 420, RLOO 579, Muon 743); the paper's Figure 12 is smoothed "
        "with decay .99 a step, its Figure 17 is of held-out mazes and has two points here, ours "
        "is of fresh training mazes. A guess solves .007 of them within 32 tries",
        "panels": panels,
    }


FIGURES = {"figure17_full_size": figure17_rl}
