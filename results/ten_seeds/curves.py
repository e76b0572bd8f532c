"""The figures of the ten seeds: coverage, and Figure 17 beside the paper's."""

from results.lab.figures import (
    banded,
    block_curves,
    figure17_panels,
    guess_curve,
    level,
    panel,
    seeds_said,
)
from results.lab.tables import METHODS
from results.ten_seeds.found import BASES, BLOCK, finished, seeds_of, test_rates

GUESSED = "9x9 mazes of ten seeds"
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


def figure17(base: str, title: str) -> dict:
    """pass@1 and pass@32 over training."""
    found = tested_runs(base, METHODS)
    lines = {k: block_curves(found, key, BLOCK) for k, key in PANELS.items()}
    return {
        "title": title,
        "caption": f"Figure 17. {said(base)}; no maze comes twice in RL. Dashed: the paper's 9,000 "
        "steps, from a base of .012",
        "panels": figure17_panels(lines, GUESSED),
    }


def covered() -> dict:
    """pass@k of the test from both bases."""
    panels = []
    axes = {"xscale": "log", "xticks": [1, 4, 16, 64]}
    for base, stop in BASES.items():
        lines = [guess_curve(GUESSED, KS)]
        for arm in ("base", "grpo", "maxrl"):
            rates = [test_rates(base, seed, "test", tuple(KS))[arm] for seed in seeds_of(base)]
            lines.append(banded(arm, KS, rates))
        title = f"{base} bases: pass@1 {stop} before RL"
        panels.append(panel(title, "k, samples", "pass@k, 9x9 test mazes", lines, **axes))
    return {
        "title": "Without a KL penalty, as in the paper, MaxRL solves more mazes than GRPO at "
        "every k",
        "caption": "Ours (reduced scale: .3M parameters), 1,000 steps of 16 prompts x 32 rollouts, "
        "each method at its best of three learning rates, no KL penalty; 512 test mazes x "
        "64 samples, mean of ten seeds and its 95 % interval. Guessing: one of the 20 shortest "
        "walks, blind to the maze",
        "panels": level(*panels),
    }


FIGURES = {
    "coverage": covered,
    "figure17_weak": lambda: figure17(
        "weak",
        "Ours: MaxRL leads in 32 tries at once, at one try on nine of ten seeds from step 300 on",
    ),
    "figure17_strong": lambda: figure17(
        "strong", "Ours: in training MaxRL leads at one try on every strong seed from step 500 on"
    ),
}
