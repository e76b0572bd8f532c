"""MaxRL minus GRPO on the test prompts of the studies of sequences: tables of results/README.md and
of the front page, which may show some rows of the one with pass@64."""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import by_seed, tested
from results.lab.guessing import guessing
from results.lab.intervals import ahead, interval
from results.lab.tables import leads, table
from results.ten_seeds import found as ten_seeds
from results.ten_seeds.study import gaps

KS = (1, 8, 64)
# Of the table without pass@64.
FEW = KS[:2]
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


def compared_at(ks, settings: dict):
    """A row for each of {name: ((MaxRL, GRPO), test set)}."""
    rows = []
    for name, ((maxrl, grpo), test_set) in settings.items():
        cells = []
        for own, other in list(zip(maxrl, grpo))[: len(ks)]:
            cells.append(f"{other.mean():.2f} → {own.mean():.2f}")
            cells.append(f"{interval(own - other, '+')}, {ahead(own - other)}")
        blind = (f"{value:.2f}" for value in guessing(test_set, ks))
        rows.append([name, *cells, " / ".join(blind)])
    gap = "MaxRL minus GRPO, seeds ahead"
    heads = [cell for k in ks for cell in (f"pass@{k}: GRPO → MaxRL", gap)]
    blind = f"guessing, pass@{' / '.join(map(str, ks))}"
    table(["after equal steps, ± over seeds", *heads, blind], rows)


def tables():
    test, mazes = "maze13/test.json", "13x13 mazes"
    pairs = {
        "GRPO with KL": ("maxrl", "grpo-kl.04"),
        "GRPO without KL": ("maxrl", "grpo"),
        "GRPO with KL, MaxRL in rounds": ("rounds", "grpo-kl.04"),
    }
    mazes13 = {f"{mazes}, {name}": (in_file(test, *pair), mazes) for name, pair in pairs.items()}
    texts = {
        "word problems, from scratch": (in_file("texts/words-test.json"), "word problems"),
        "subset sums": (in_files("texts", "subset_sum-test"), "subset sums"),
        "reversed texts": (in_files("texts", "reverse_text-test"), "reversed texts"),
    }
    compared_at(FEW, mazes13 | texts)
    # The same with pass@64, named by what is compared, and with the penalty for both.
    named = {
        "13x13 mazes, no penalty": ("maxrl", "grpo"),
        "13x13 mazes, GRPO with KL": ("maxrl", "grpo-kl.04"),
        "13x13 mazes, both with KL": ("maxrl-kl.04", "grpo-kl.04"),
        "13x13 mazes, rounds of 32 prompts, GRPO of 16 with KL": ("rounds", "grpo-kl.04"),
    }
    rows = {name: (in_file(test, *pair), mazes) for name, pair in named.items()}
    compared_at(KS, rows | {f"{name}, no penalty": row for name, row in texts.items()})
    at_once = {"MaxRL, equal steps": at_one_try("MaxRL", "steps")}
    for form in FORMS:
        at_once[f"{form}, equal time"] = at_one_try(form, "seconds")
    bases = [f"{base} base, 95 %" for base in ten_seeds.BASES]
    leads("pass@1 minus GRPO's, 9x9 mazes", bases, at_once)
