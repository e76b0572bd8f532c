"""MaxRL minus GRPO on the test prompts of every study of sequences: the table of the front page."""

from pathlib import Path

import numpy as np

from results.reading import evaluated
from results.tables import price, small_tasks
from results.tables.cells import ahead, coverage, head, line, over_seeds

KS = [1, 64]
FILES = {
    "weak base, 1,000 steps": "headline/weak-test.json",
    "strong base, 1,000 steps": "headline/strong-test.json",
    "128 mazes, 60 epochs": "fixed_set/test.json",
    "weak base, 400 steps": "demo/test.json",
    "strong base, 160 steps, own rates": "maze9_laptop/test.json",
}


def lead(file: Path) -> np.ndarray:
    """MaxRL minus GRPO of an eval.py file, (ks, seeds)."""
    values = coverage(evaluated(file), KS)
    return (values["maxrl"] - values["grpo"]).mean(1).T


def gaps(results: Path) -> dict[str, np.ndarray]:
    """{setting: MaxRL minus GRPO, (ks, seeds)}."""
    found = {}
    for setting, file in FILES.items():
        found[setting] = lead(results / file)
    arms = price.tests(KS, results / "price")
    found["weak base, other mazes"] = price.paired(arms["maxrl-16x32"], arms["grpo-16x32"]).T
    for base, rates in (("weak", ""), ("strong", ", own rates")):
        name = f"{base} base, fresh seeds{rates}"
        found[name] = lead(results / f"fresh/{base}-test.json")
    found["word problems"] = lead(results / "word_problems/test.json")
    for task, name in (("subset_sum", "subset sums"), ("reverse_text", "reversed texts")):
        values = small_tasks.coverage(results / "small_tasks" / task)
        i = [small_tasks.KS.index(k) for k in KS]
        found[name] = (values["maxrl"] - values["grpo"]).mean(1).T[i]
    return found


def main(results: Path):
    columns = [cell for k in KS for cell in (f"pass@{k}, 95 %", "ahead on")]
    head("MaxRL minus GRPO, test", *columns)
    for setting, values in gaps(results).items():
        line(setting, *(cell for gap in values for cell in (over_seeds(gap, "+"), ahead(gap))))
