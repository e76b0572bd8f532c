"""MaxRL minus GRPO on the test prompts of the studies of sequences: the tables of results/README.md
and of the front page."""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import by_seed, tested
from results.lab.guessing import guessing
from results.lab.intervals import ahead, interval
from results.lab.tables import leads, pass_columns, table
from results.mazes9.study import BASES, gaps

KS = (1, 8, 64)
# Of the front page: without a penalty, with it for GRPO and for both, and a task of texts.
FRONT = (
    "13x13 mazes, no penalty",
    "13x13 mazes, GRPO with KL",
    "13x13 mazes, both with KL",
    "word problems, no penalty",
)
FORMS = ("MaxRL", "MaxRL, rare side", "MaxRL in rounds")


def in_file(name: str, maxrl: str = "maxrl", grpo: str = "grpo") -> tuple[np.ndarray, np.ndarray]:
    """pass@k of MaxRL and of GRPO, (ks, seeds), from two rows of a test of all seeds."""
    found = coverage(tested(name), KS)
    return found[maxrl].mean(1).T, found[grpo].mean(1).T


def in_files(study: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The same of a file a seed, of the seeds that have both methods."""
    found = by_seed(study, name, KS)
    seeds = [seed for seed in found["maxrl"] if seed in found["grpo"]]
    means = [[found[arm][seed].mean(0) for seed in seeds] for arm in ("maxrl", "grpo")]
    return tuple(map(np.transpose, means))


def at_one_try(form: str, equal: str) -> list[np.ndarray]:
    """A form of MaxRL minus GRPO of the ten seeds, (seeds,) for each base."""
    return [gaps(base, equal)[f"{form} minus GRPO"][0] for base in BASES]


def compared(settings: dict, names, form) -> list[list[str]]:
    """A row for each of the names in {name: ((MaxRL, GRPO), test set)}: at each k what `form` makes
    of the levels, the difference and the seeds ahead; then what guesses have."""
    rows = []
    for name in names:
        pair, test_set = settings[name]
        cells = []
        for own, other in zip(*pair):
            levels = f"{other.mean():.2f} → {own.mean():.2f}"
            cells += form(levels, interval(own - other, "+"), ahead(own - other))
        blind = (f"{value:.2f}" for value in guessing(test_set, KS))
        rows.append([name, *cells, " / ".join(blind)])
    return rows


def tables():
    test, mazes = "maze13/test.json", "13x13 mazes"
    # Named by what is compared.
    named = {
        "13x13 mazes, no penalty": ("maxrl", "grpo"),
        "13x13 mazes, GRPO with KL": ("maxrl", "grpo-kl.04"),
        "13x13 mazes, both with KL": ("maxrl-kl.04", "grpo-kl.04"),
        "13x13 mazes, rounds of 32 prompts, GRPO of 16 with KL": ("rounds", "grpo-kl.04"),
    }
    rows = {name: (in_file(test, *pair), mazes) for name, pair in named.items()}
    rows |= {
        "word problems, no penalty": (in_file("texts/words-test.json"), "word problems"),
        "subset sums, no penalty": (in_files("texts", "subset_sum-test"), "subset sums"),
        "reversed texts, no penalty": (in_files("texts", "reverse_text-test"), "reversed texts"),
    }
    gap = "MaxRL minus GRPO, seeds ahead"
    heads = [cell for k in KS for cell in (f"pass@{k}: GRPO → MaxRL", gap)]
    blind = f"guessing, pass@{' / '.join(map(str, KS))}"
    whole = compared(rows, rows, lambda levels, gap, seeds: [levels, f"{gap}, {seeds}"])
    table(["after equal steps, ± over seeds", *heads, blind], whole)
    front = compared(rows, FRONT, lambda levels, gap, seeds: [f"{levels} ({gap})"])
    table(["GRPO → MaxRL (difference)", *pass_columns(KS), "guessing has"], front)
    at_once = {"MaxRL, equal steps": at_one_try("MaxRL", "steps")}
    for form in FORMS:
        at_once[f"{form}, equal time"] = at_one_try(form, "seconds")
    bases = [f"{base} base, 95 %" for base in BASES]
    leads("pass@1 minus GRPO's, 9x9 mazes", bases, at_once)
