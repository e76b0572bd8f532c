"""MaxRL minus GRPO on the test prompts of the studies of sequences: the tables of the front page
and of results/README.md."""

import numpy as np

from maxrl.run.table import coverage
from results.lab.data import by_seed, tested
from results.lab.tables import leads
from results.ten_seeds import found as ten_seeds

KS = [1, 64]
COLUMNS = [f"pass@{k}, 95 %" for k in KS]
# A row's name, and the settings whose seeds it has; a seed that two of them have is averaged.
MERGED = {
    "9x9 mazes, weak base": ("weak base",),
    "9x9 mazes, strong base, merged by seed": (
        "strong base",
        "strong base, fresh seeds, own rates",
    ),
    "128 mazes, 60 epochs": ("128 mazes, 60 epochs",),
    "word problems": ("word problems",),
    "subset sums": ("subset sums",),
}


def in_file(name: str, first: int = 0) -> dict[int, np.ndarray]:
    """{seed: MaxRL minus GRPO, (ks,)} of a test of all seeds, which count from `first`."""
    found = coverage(tested(name), KS)
    return dict(enumerate((found["maxrl"] - found["grpo"]).mean(1), first))


def in_files(study: str, name: str) -> dict[int, np.ndarray]:
    """The same of a file a seed, of the seeds that have both methods."""
    found = by_seed(study, name, KS)
    ours, grpo = found["maxrl"], found["grpo"]
    return {seed: (ours[seed] - grpo[seed]).mean(0) for seed in ours if seed in grpo}


def new_lead(seed: int) -> np.ndarray:
    """The same of a seed of ten_seeds."""
    found = ten_seeds.test_rates("weak", seed, "test", tuple(KS))
    return found["maxrl"] - found["grpo"]


def settings() -> dict[str, dict[int, np.ndarray]]:
    """The difference of every seed in every setting."""
    return {
        "weak base": {seed: new_lead(seed) for seed in ten_seeds.seeds_of("weak")},
        "strong base": in_file("mazes/strong-test.json"),
        "strong base, fresh seeds, own rates": in_file("mazes/fresh-strong-test.json", 3),
        "strong base, 160 steps, own rates": in_file("mazes/short-test.json"),
        "128 mazes, 60 epochs": in_file("fixed_set/test.json"),
        "word problems": in_file("texts/words-test.json"),
        "subset sums": in_files("texts", "subset_sum-test"),
        "reversed texts": in_files("texts", "reverse_text-test"),
    }


def merged(some: list[dict[int, np.ndarray]]) -> np.ndarray:
    """The mean of every seed over these settings, (ks, seeds)."""
    seeds: dict[int, list] = {}
    for setting in some:
        for seed, lead in setting.items():
            seeds.setdefault(seed, []).append(lead)
    return np.array([np.mean(each, 0) for each in seeds.values()]).T


def tables():
    found = settings()
    rows = {row: merged([found[name] for name in names]) for row, names in MERGED.items()}
    leads("MaxRL minus GRPO", COLUMNS, rows)
    rows = {name: merged([setting]) for name, setting in found.items()}
    leads("MaxRL minus GRPO, test", COLUMNS, rows, numbered=True)
