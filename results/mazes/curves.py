"""The figures of the study: its runs over their steps, beside the paper's, and Figure 5."""

from maxrl.run.table import coverage, powers
from results.lab.data import paired, runs, tested
from results.lab.fewer import figure5
from results.lab.figures import figure17_panels, seeds_said, smoothed
from results.lab.tables import METHODS

STEPS = 1000
FRESH_SEEDS = range(3, 7)
PANELS = {"pass@1": "reward", "pass@32": "solved"}


def long_runs() -> dict[str, dict[int, list[dict]]]:
    """{method: {seed: rows}} of the seeds that have all methods, 1,000 steps each."""
    return paired(runs("mazes", "strong/", "-lr1e-4", STEPS), METHODS)


def fresh_runs() -> dict[str, dict[int, list[dict]]]:
    """The same of the seeds that no other study uses, without seed 100, which chose the rates."""
    found = runs("mazes", "fresh/strong/", "-lr.*", STEPS)
    return {name: {seed: found[name][seed] for seed in FRESH_SEEDS} for name in METHODS}


def strong_training() -> dict:
    """pass@1 and pass@32 over training."""
    ours = long_runs()
    lines = {k: smoothed(ours, key) for k, key in PANELS.items()}
    return {
        "title": "From the strong base MaxRL leads in 32 tries; at one try no lead shows",
        "caption": "Figure 17. Ours: strong base, a warm-up stopped at pass@1 .08; 16 "
        "prompts x 32 rollouts a step; no maze comes twice in RL, 4 to 14 % were seen in the "
        f"warm-up; means of 45 steps, in blocks of 100 the title; {seeds_said(len(ours['maxrl']))}"
        ". Dashed: the paper's 9,000 steps, from a base of .012",
        "panels": figure17_panels(lines, ".700"),
    }


def figure5_strong() -> dict:
    results = tested("mazes/strong-test.json")
    ks = powers(results)
    what = "1,000 steps from the strong base, 256 test mazes x 512 samples"
    title = "From the strong base seeds disagree at one try; within 8 tries MaxRL leads both"
    return figure5(coverage(results, ks), ks, what, title, "GRPO and RLOO at the bottom right")


FIGURES = {"figure5_strong": figure5_strong, "figure17_strong": strong_training}
