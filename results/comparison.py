"""MaxRL minus GRPO on the test prompts of the studies of sequences: the tables of results/README.md
and of the front page."""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import by_seed, paired, tested
from results.lab.guessing import best_guess
from results.lab.intervals import ahead, interval
from results.lab.tables import leads, pass_columns, table
from results.maze13_end.study import PENALISED
from results.mazes9.study import BASES, gaps

KS = (1, 8, 64)
# Of the front page: without a penalty, with it for GRPO, with the paper's number of rollouts, and
# the task of texts that others use.
FRONT = (
    "13x13 mazes, 1,500 steps, no KL",
    "13x13 mazes, 1,500 steps, GRPO with KL",
    "13x13 mazes, 1,500 steps, both with KL",
    "Countdown, 1,500 steps, no KL",
)
FORMS = ("MaxRL", "MaxRL, rare side", "MaxRL in rounds")


def in_file(name: str, maxrl: str = "maxrl", grpo: str = "grpo") -> list[np.ndarray]:
    """pass@k of MaxRL, of GRPO and before RL, (ks, seeds), from a test of all seeds."""
    found = coverage(tested(name), KS)
    return [found[arm].mean(1).T for arm in (maxrl, grpo, "base")]


def in_files(study: str, name: str, maxrl: str = "maxrl", grpo: str = "grpo") -> list[np.ndarray]:
    """The same of tests of one seed, or of one model of a seed, of the seeds that have all."""
    found = paired(by_seed(study, name, KS), (maxrl, grpo, "base"))
    return [np.transpose([each.mean(0) for each in seeds.values()]) for seeds in found.values()]


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
    test, mazes = "maze13/test.json", "13x13 mazes"
    # Named by what is compared.
    rows = {}
    named = {
        "no KL": ("maxrl", "grpo"),
        "GRPO with KL": ("maxrl", PENALISED),
        "both with KL": ("maxrl-k3.04", PENALISED),
        "rounds of 32 prompts, GRPO of 32 x 16 with KL": ("rounds32", "grpo32x16-k3.04"),
    }
    for name, pair in named.items():
        found = in_files("maze13_end", "test-.+", *pair)
        rows[f"13x13 mazes, 1,500 steps, {name}"] = found, f"2,048 {mazes}"
    found = in_files("maze13_end", "test-.+", "maxrl-n128", "grpo-n128")
    rows["13x13 mazes, 900 steps, 128 rollouts, no KL"] = found, f"2,048 {mazes}"
    named = {
        "no KL": ("maxrl", "grpo"),
        "GRPO with KL": ("maxrl", "grpo-kl.04"),
        "both with KL": ("maxrl-kl.04", "grpo-kl.04"),
        "rounds of 32 prompts, GRPO of 16 with KL": ("rounds", "grpo-kl.04"),
    }
    for name, pair in named.items():
        rows[f"13x13 mazes, 350 steps, {name}"] = in_file(test, *pair), mazes
    named = {
        "no KL": ("maxrl", "grpo"),
        "GRPO with KL": ("maxrl", PENALISED),
        "both with KL": ("maxrl-k3.04", PENALISED),
    }
    for name, pair in named.items():
        found = in_files("countdown", "test-.+", *pair)
        rows[f"Countdown, 1,500 steps, {name}"] = found, "Countdown"
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
