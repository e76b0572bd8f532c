"""Many epochs over 128 mazes.

Validation is 128 mazes x 64 samples every five epochs; training pass@1 is the mean reward of the
five epochs before, on the fixed mazes themselves.
"""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import evaluations, paired, paper, runs, tested
from results.lab.figures import guess_level, pair, seed_curves, seeds_said
from results.lab.runs import evaluation, product, seed_models
from results.lab.tables import METHODS, differences, levels, over_blocks, table

KS = (1, 8, 64)
EVERY = 5  # epochs between evaluations
SEEDS = range(3)
SFT = "train.py maze9_laptop_sft --stop-at-pass .08 --seed {seed}"
VALIDATION = "--eval-every 40 --eval-prompts 128 --eval-samples 64"
RL = (
    "train.py maze9_laptop --estimator {method} --lr 1e-4 --schedule constant --seed {seed} "
    f"--init runs/fixed_set/seed{{seed}}/base {VALIDATION}"
)
WARM_UPS = product("seed{seed}/base", SFT, seed=SEEDS)
RUNS = {
    "fixed": WARM_UPS
    | product(
        "seed{seed}/{method}",
        f"{RL} --task.directory runs/fixed_set/mazes --epochs 60",
        seed=SEEDS,
        method=METHODS,
    ),
    "fresh": WARM_UPS
    | product("fresh/seed{seed}/{method}", f"{RL} --steps 480", seed=SEEDS, method=METHODS),
}
PLANNED = {"fresh": "the same on mazes that never repeat: 1.8"}
BASES = seed_models("fixed_set", ["base"])
MODELS = BASES | seed_models("fixed_set", METHODS)
TESTS = {
    "bases.json": evaluation("--split validation --prompts 128 --samples 64", BASES, seed=SEEDS),
    "test.json": evaluation("--prompts 256 --samples 256", MODELS, seed=SEEDS),
}


def kept() -> dict[str, dict[int, list[dict]]]:
    return paired(runs("fixed_set"), METHODS)


def validation(found: dict, k: int) -> dict[str, np.ndarray]:
    """{method: pass@k (seeds, evaluations)}, the first that of the bases."""
    curves = {}
    bases = coverage(tested("fixed_set/bases.json"), [k])["base"].mean(1)  # (seeds, 1)
    for method, seeds in found.items():
        passed = [evaluations(rows, k) for rows in seeds.values()]
        curves[method] = np.concatenate([bases[list(seeds)], passed], 1)
    return curves


def best_epochs(curves: dict):
    """When each run was best at one try, and what it lost since."""
    rows = []
    for seed in SEEDS:
        for method, name in METHODS.items():
            ones = curves[method][seed]
            cells = [f"{ones.max():.3f}", EVERY * ones.argmax(), f"{ones[-1]:.3f}"]
            rows.append([f"seed {seed} {name}", *cells])
    table(["run", "best pass@1, validation", "epoch", "last"], rows)


def tables():
    found = kept()
    held_out = {k: validation(found, k) for k in KS}
    for k, curves in held_out.items():
        epochs = range(0, EVERY * curves["maxrl"].shape[1], EVERY)
        over_blocks(f"epoch, validation pass@{k}", curves, epochs)
    best_epochs(held_out[1])
    ks = [1, 8, 64, 256]
    passed = coverage(tested("fixed_set/test.json"), ks)
    levels(passed, ks, found)
    differences(passed, ks)


def figure4() -> dict:
    """Many epochs over few problems, from the bases on."""
    found = kept()
    panels = []
    for theirs_k, k in (("pass@1", 1), ("pass@128", 8)):
        curves = validation(found, k)
        epochs = EVERY * np.arange(curves["maxrl"].shape[1]) * 1.0
        lines = [seed_curves(name, epochs, values) for name, values in curves.items()]
        left = ("paper: GSM8K, SmolLM2-360M", theirs_k, paper(4)[theirs_k])
        panels += pair(
            left, ("ours: 128 mazes of 9x9 (reduced scale)", f"pass@{k}", lines), "epochs"
        )
        panels[-1]["levels"] = guess_level("9x9 mazes", k)
    return {
        "title": "Within eight tries MaxRL gains over 60 epochs, GRPO and RLOO lose",
        "caption": "Figure 4, held-out problems. Ours: strong base, .3M parameters, 128 validation "
        f"mazes x 64 samples. Solid: ours, {seeds_said(len(found['maxrl']))}; dashed: the paper's",
        "panels": panels,
    }


FIGURES = {"figure4": figure4}
