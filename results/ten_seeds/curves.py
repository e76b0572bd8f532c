"""The figures of the ten seeds: Figures 5, 12 and 17 beside the paper's, and all arms."""

import numpy as np

from maxrl.run.table import coverage
from results.lab.data import paper, tested
from results.lab.fewer import figure5
from results.lab.figures import (
    MAZE9,
    MAZE17,
    SOLVED,
    block_curves,
    figure17_panels,
    level,
    pair,
    panel,
    seed_curves,
    seeds_said,
)
from results.lab.tables import METHODS
from results.ten_seeds.found import BASES, BLOCK, OWN, finished, seeds_of, test_rates

PANELS = {"pass@1": "reward", "pass@32": "solved"}
KS = [1, 2, 4, 8, 16, 32, 64]


def tested_runs(base: str, arms) -> dict[str, dict[int, list[dict]]]:
    """{arm: {seed: rows}} of the seeds that are tested."""
    seeds = seeds_of(base)
    return {arm: {seed: finished(base)[arm][seed] for seed in seeds} for arm in arms}


def said(base: str) -> str:
    """What the captions share."""
    return (
        f"Ours: {base} bases, whose warm-up stopped at pass@1 {BASES[base]}; 16 prompts x 32 "
        f"rollouts a step, rate falling to 0 from step 500 on, means of {BLOCK} steps, "
        f"{seeds_said(len(seeds_of(base)))}"
    )


def figure12(base: str, title: str) -> dict:
    """Prompts that are solved at least once."""
    left = (f"{MAZE17}, 256 prompts", SOLVED, paper(12)["17x17 maze"])
    lines = block_curves(tested_runs(base, METHODS), "solved", BLOCK)
    return {
        "title": title,
        "caption": f"Figure 12: training prompts with at least one success. {said(base)}. Dashed: "
        "the paper's, smoothed with decay .99 a step",
        "panels": pair(left, (MAZE9, SOLVED, lines), "step"),
    }


def figure17(base: str, title: str) -> dict:
    """pass@1 and pass@32 over training."""
    found = tested_runs(base, METHODS)
    lines = {k: block_curves(found, key, BLOCK) for k, key in PANELS.items()}
    before = np.mean([test_rates(base, seed, "test", (32,))["base"] for seed in seeds_of(base)])
    return {
        "title": title,
        "caption": f"Figure 17. {said(base)}; no maze comes twice in RL. Dashed: the paper's 9,000 "
        "steps, from a base of .012",
        "panels": figure17_panels(lines, f"{before:.3f}"),
    }


def covered(base: str, title: str, together: str = "") -> dict:
    """Figure 5 of the test."""
    files = [tested(f"ten_seeds/{base}{seed}-test.json") for seed in seeds_of(base)]
    each = [coverage(results, KS) for results in files]
    curves = {arm: np.concatenate([found[arm] for found in each]) for arm in ("base", *METHODS)}
    what = f"1,000 steps from {base} bases, 512 test mazes x 64 samples"
    return figure5(curves, KS, what, title, together)


def all_arms(base: str, title: str) -> dict:
    """Prompts with a success in training, and the test, of all arms."""
    training = block_curves(tested_runs(base, OWN[base]), "solved", BLOCK)
    lines = []
    for arm in ("base", *OWN[base]):
        rates = [test_rates(base, seed, "test", tuple(KS))[arm] for seed in seeds_of(base)]
        lines.append(seed_curves(arm, KS, rates))
    axes = {"xscale": "log", "xticks": [1, 4, 16, 64]}
    count = seeds_said(len(seeds_of(base))).capitalize()
    return {
        "title": title,
        "caption": f"9x9 mazes from {base} bases (pass@1 {BASES[base]}), 1,000 steps, every arm at "
        "its own rate. Left: as Figure 12, blocks of 100 steps; in rounds, a success in any round "
        f"counts. Right: as Figure 5, 512 test mazes x 64 samples. {count}",
        "panels": level(
            panel(MAZE9, "step", SOLVED, training),
            panel(MAZE9, "k", "pass@k, test mazes", lines, **axes),
        ),
    }


FIGURES = {
    "weak": lambda: all_arms(
        "weak",
        "On eight of ten seeds GRPO solves hardly more within 64 tries than at the first",
    ),
    "strong": lambda: all_arms(
        "strong",
        "On each strong seed GRPO solves less than its base within 64 tries, MaxRL more",
    ),
    "figure5_weak": lambda: covered(
        "weak",
        "On each of ten seeds one sample of MaxRL solves more than 64 samples of GRPO",
        " Lines that lie together: seeds of GRPO and RLOO, at .06 to .12.",
    ),
    "figure5_strong": lambda: covered(
        "strong",
        "On seven of ten strong seeds one sample of MaxRL solves more than 64 samples of GRPO",
    ),
    "figure12_weak": lambda: figure12(
        "weak", "MaxRL solves ever more prompts; our GRPO loses them early, the paper's does not"
    ),
    "figure12_strong": lambda: figure12(
        "strong",
        "From strong bases MaxRL solves more and more prompts, GRPO and RLOO lose some early",
    ),
    "figure17_weak": lambda: figure17(
        "weak",
        "Ours: MaxRL leads in 32 tries at once, at one try on nine of ten seeds from step 300 on",
    ),
    "figure17_strong": lambda: figure17(
        "strong", "Ours: in training MaxRL leads at one try on every strong seed from step 500 on"
    ),
}
