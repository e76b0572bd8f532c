"""MaxRL minus GRPO on the test prompts of the studies of sequences: the tables of results/README.md
and of the front page."""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import by_seed, tested
from results.lab.guessing import guessing
from results.lab.intervals import ahead, interval
from results.lab.tables import leads, pass_columns, table
from results.ten_seeds import found as ten_seeds
from results.ten_seeds.study import gaps

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
    found = []
    for base in ten_seeds.BASES:
        pairs = gaps(base, ten_seeds.seeds_of(base), equal)
        found.append(pairs[f"{form} minus GRPO"][0])
    return found


def levels_and_leads(settings: dict):
    """A row for each of {name: ((MaxRL, GRPO), test set)}."""
    rows = []
    for name, ((maxrl, grpo), test_set) in settings.items():
        cells = []
        for own, other in zip(maxrl, grpo):
            cells.append(f"{other.mean():.2f} → {own.mean():.2f}")
            cells.append(f"{interval(own - other, '+')}, {ahead(own - other)}")
        blind = (f"{value:.2f}" for value in guessing(test_set, KS))
        rows.append([name, *cells, " / ".join(blind)])
    gap = "MaxRL minus GRPO, seeds ahead"
    heads = [cell for k in KS for cell in (f"pass@{k}: GRPO → MaxRL", gap)]
    blind = f"guessing, pass@{' / '.join(map(str, KS))}"
    table(["after equal steps, ± over seeds", *heads, blind], rows)


def front(settings: dict):
    """Levels and leads of some of these rows, for the front page."""
    rows = []
    for name in FRONT:
        (maxrl, grpo), test_set = settings[name]
        cells = []
        for own, other in zip(maxrl, grpo):
            gap = interval(own - other, "+")
            cells.append(f"{other.mean():.2f} → {own.mean():.2f} ({gap})")
        blind = (f"{value:.2f}" for value in guessing(test_set, KS))
        rows.append([name, *cells, " / ".join(blind)])
    table(["GRPO → MaxRL (difference)", *pass_columns(KS), "guessing has"], rows)


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
    levels_and_leads(rows)
    front(rows)
    at_once = {"MaxRL, equal steps": at_one_try("MaxRL", "steps")}
    for form in FORMS:
        at_once[f"{form}, equal time"] = at_one_try(form, "seconds")
    bases = [f"{base} base, 95 %" for base in ten_seeds.BASES]
    leads("pass@1 minus GRPO's, 9x9 mazes", bases, at_once)
