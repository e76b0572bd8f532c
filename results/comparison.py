"""MaxRL minus GRPO on the test prompts of the studies of sequences: tables of results/README.md.

All rows but one are on the front page.
"""

import numpy as np

from maxrl.run.table import coverage
from results.lab.data import by_seed, tested
from results.lab.tables import leads
from results.ten_seeds import found as ten_seeds
from results.ten_seeds.study import gaps

KS = [1, 64]
COLUMNS = [f"pass@{k}, 95 %" for k in KS]
FORMS = ("MaxRL", "MaxRL, rare side", "MaxRL in rounds")


def of_ten_seeds(base: str) -> np.ndarray:
    """MaxRL minus GRPO (ks, seeds) of the seeds that are tested."""
    seeds = [ten_seeds.test_rates(base, i, "test", tuple(KS)) for i in ten_seeds.seeds_of(base)]
    return np.transpose([found["maxrl"] - found["grpo"] for found in seeds])


def in_file(name: str) -> np.ndarray:
    """The same of a test of all seeds."""
    found = coverage(tested(name), KS)
    return (found["maxrl"] - found["grpo"]).mean(1).T


def in_files(study: str, name: str) -> np.ndarray:
    """The same of a file a seed, of the seeds that have both methods."""
    found = by_seed(study, name, KS)
    ours, grpo = found["maxrl"], found["grpo"]
    return np.transpose([(ours[i] - grpo[i]).mean(0) for i in ours if i in grpo])


def at_one_try(form: str, equal: str) -> list[np.ndarray]:
    """A form of MaxRL minus GRPO of the ten seeds, (seeds,) for each base."""
    found = []
    for base in ten_seeds.BASES:
        pairs = gaps(base, ten_seeds.seeds_of(base), equal)
        found.append(pairs[f"{form} minus GRPO"][0])
    return found


def tables():
    rows = {
        "9x9 mazes, weak base": of_ten_seeds("weak"),
        "9x9 mazes, strong base": of_ten_seeds("strong"),
        "128 mazes, 60 epochs": in_file("fixed_set/test.json"),
        "word problems": in_file("texts/words-test.json"),
        "subset sums": in_files("texts", "subset_sum-test"),
        "reversed texts": in_files("texts", "reverse_text-test"),
    }
    leads("MaxRL minus GRPO", COLUMNS, rows)
    at_once = {"MaxRL, equal steps": at_one_try("MaxRL", "steps")}
    for form in FORMS:
        at_once[f"{form}, equal time"] = at_one_try(form, "seconds")
    bases = [f"{base} base, 95 %" for base in ten_seeds.BASES]
    leads("pass@1 minus GRPO's, 9x9 mazes", bases, at_once)
