"""MaxRL minus GRPO on the test prompts of the studies of sequences: the tables of the front page
and of results/README.md."""

import numpy as np

from maxrl.run.table import coverage
from results.lab.data import tested
from results.lab.tables import lead_cells, table
from results.price import study as price
from results.texts import study as texts

KS = [1, 64]
FILES = {
    "weak base, 1,000 steps": ("mazes/weak-test.json", 0),
    "strong base, 1,000 steps": ("mazes/strong-test.json", 0),
    "128 mazes, 60 epochs": ("fixed_set/test.json", 0),
    "weak base, 400 steps": ("mazes/demo-test.json", 0),
    "strong base, 160 steps, own rates": ("mazes/short-test.json", 0),
    "weak base, other mazes": None,
    "weak base, fresh seeds": ("mazes/fresh-weak-test.json", 4),
    "strong base, fresh seeds, own rates": ("mazes/fresh-strong-test.json", 3),
    "word problems": ("texts/words-test.json", 0),
    "subset sums": "subset_sum",
    "reversed texts": "reverse_text",
}
# A row's name here, and the settings whose seeds it has; a seed that two of them have is averaged.
MERGED = {
    "9x9 mazes, weak base, merged by seed": (
        "weak base, 1,000 steps",
        "weak base, other mazes",
        "weak base, fresh seeds",
    ),
    "9x9 mazes, strong base, merged by seed": (
        "strong base, 1,000 steps",
        "strong base, fresh seeds, own rates",
    ),
    "128 mazes, 60 epochs": ("128 mazes, 60 epochs",),
    "word problems": ("word problems",),
    "subset sums": ("subset sums",),
}


def leads(setting: str) -> dict[int, np.ndarray]:
    """{seed: MaxRL minus GRPO, (ks,)}."""
    source = FILES[setting]
    first = 0
    if source is None:
        arms = price.tests(KS)
        ours, grpo = arms["maxrl-16x32"], arms["grpo-16x32"]
        return {seed: ours[seed] - grpo[seed] for seed in ours if seed in grpo}
    if isinstance(source, str):
        found = texts.small_task(source, KS)
    else:
        file, first = source
        found = coverage(tested(file), KS)
    return dict(enumerate((found["maxrl"] - found["grpo"]).mean(1), first))


def merged(settings) -> np.ndarray:
    """The mean of every seed over these settings, (ks, seeds)."""
    seeds: dict[int, list] = {}
    for setting in settings:
        for seed, lead in leads(setting).items():
            seeds.setdefault(seed, []).append(lead)
    return np.array([np.mean(some, 0) for some in seeds.values()]).T


def tables():
    columns = [cell for k in KS for cell in (f"pass@{k}, 95 %", "ahead on")]
    for title, rows in (
        ("MaxRL minus GRPO", MERGED),
        ("MaxRL minus GRPO, test", {setting: (setting,) for setting in FILES}),
    ):
        cells = ([name, *lead_cells(merged(settings))] for name, settings in rows.items())
        table([title, *columns], cells)
