"""MaxRL minus GRPO on the test prompts of the studies of sequences: the tables of results/README.md
and of the front page."""

import numpy as np

from results.lab.data import by_seed, paired
from results.lab.guessing import best_guess
from results.lab.intervals import ahead, interval
from results.lab.tables import leads, pass_columns, table
from results.maze13_end.study import PENALISED
from results.mazes9.study import BASES, gaps

KS = (1, 8, 64)
# Of the front page: without a penalty, with it for GRPO, with it for both, and the task of texts
# that others use.
FRONT = (
    "13x13 mazes, 1,500 steps, no KL",
    "13x13 mazes, 1,500 steps, GRPO with KL",
    "13x13 mazes, 1,500 steps, both with KL",
    "Countdown, 1,500 steps, no KL",
)
FORMS = ("MaxRL", "MaxRL, rare side", "MaxRL in rounds")
PENALTIES = {
    "no KL": ("maxrl", "grpo"),
    "GRPO with KL": ("maxrl", PENALISED),
    "both with KL": ("maxrl-k3.04", PENALISED),
}
ROUNDS = "rounds of 32 prompts, GRPO of"
# What is compared in a test of a study: {its name: (study, test, test set, {arms})}.
COMPARED = {
    "13x13 mazes, 1,500 steps": (
        "maze13_end",
        "test-.+",
        "2,048 13x13 mazes",
        PENALTIES | {f"{ROUNDS} 32 x 16 with KL": ("rounds32", "grpo32x16-k3.04")},
    ),
    "13x13 mazes, 900 steps": (
        "maze13_end",
        "test-.+",
        "2,048 13x13 mazes",
        {"128 rollouts, no KL": ("maxrl-n128", "grpo-n128")},
    ),
    "13x13 mazes, 350 steps": (
        "maze13",
        "test",
        "13x13 mazes",
        {
            "no KL": ("maxrl", "grpo"),
            "GRPO with KL": ("maxrl", "grpo-kl.04"),
            "both with KL": ("maxrl-kl.04", "grpo-kl.04"),
            f"{ROUNDS} 16 with KL": ("rounds", "grpo-kl.04"),
        },
    ),
    "Countdown, 1,500 steps": ("countdown", "test-.+", "Countdown", PENALTIES),
}


def all_levels() -> dict[str, tuple]:
    """{name: (pass@k of MaxRL, of GRPO and before RL, (ks, seeds) each; test set)}, on the seeds
    that have all three."""
    rows = {}
    for task, (study, test, test_set, pairs) in COMPARED.items():
        found = by_seed(study, test, KS)
        for name, arms in pairs.items():
            three = paired(found, (*arms, "base")).values()
            levels = [np.transpose([*seeds.values()]) for seeds in three]
            rows[f"{task}, {name}"] = levels, test_set
    return rows


def at_one_try(form: str, equal: str) -> list[np.ndarray]:
    """A form of MaxRL minus GRPO of the ten seeds, (seeds,) for each base."""
    return [gaps(base, equal)[f"{form} minus GRPO"][0] for base in BASES]


def compared(settings: dict, names, form) -> list[list]:
    """A row for each of the names in {name: ((MaxRL, GRPO, base), test set)}: at each k what `form`
    makes of the levels, the difference and the seeds ahead; then what the base and guesses have."""
    rows = []
    for name in names:
        (maxrl, grpo, base), test_set = settings[name]
        cells = [len(base[0])]
        for own, other in zip(maxrl, grpo):
            levels = f"{other.mean():.3f} → {own.mean():.3f}"
            cells += form(levels, interval(own - other, "+"), ahead(own - other))
        for each in (base.mean(1), best_guess(test_set, KS)):
            cells.append(" / ".join(f"{value:.2f}" for value in each))
        rows.append([name, *cells])
    return rows


def tables():
    rows = all_levels()
    gap = "MaxRL minus GRPO, seeds ahead"
    heads = [cell for k in KS for cell in (f"pass@{k}: GRPO → MaxRL", gap)]
    beside = [f"{what}, pass@{' / '.join(map(str, KS))}" for what in ("before RL", "guessing")]
    whole = compared(rows, rows, lambda levels, gap, seeds: [levels, f"{gap}, {seeds}"])
    table(["after equal steps, ± over seeds", "seeds", *heads, *beside], whole)
    front = compared(rows, FRONT, lambda levels, gap, seeds: [f"{levels} ({gap})"])
    table(["GRPO → MaxRL (difference)", "seeds", *pass_columns(KS), *beside], front)
    at_once = {"MaxRL, equal steps": at_one_try("MaxRL", "steps")}
    for form in FORMS:
        at_once[f"{form}, equal time"] = at_one_try(form, "seconds")
    bases = [f"{base} base, 95 %" for base in BASES]
    leads("pass@1 minus GRPO's, 9x9 mazes", bases, at_once)
