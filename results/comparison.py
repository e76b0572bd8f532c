"""MaxRL minus GRPO on the test prompts of the studies of sequences: the table of results/README.md,
whose rows but one are on the front page."""

import numpy as np

from maxrl.run.table import coverage
from results.lab.data import by_seed, tested
from results.lab.tables import leads
from results.ten_seeds import found as ten_seeds

KS = [1, 64]
COLUMNS = [f"pass@{k}, 95 %" for k in KS]


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
