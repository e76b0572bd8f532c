"""The 17x17 base beside the paper's, from test*.json, and RL from there, from rl/."""

import json
from pathlib import Path

import numpy as np

from results.reading import paper
from results.tables import maze17_rl
from results.tables.cells import coverage, head, line, with_error

KS = [1, 32, 128, 256]


def bases(study: Path):
    head("base, standard error over mazes", "stopped at step", *(f"pass@{k}" for k in KS))
    published = [paper(17)[f"pass@{k}"]["base"][1][0] for k in KS]
    line("paper (Figure 17)", "1,500", *(f"{value:.3f}" for value in published))
    for seed, name in enumerate(("test", "test_seed1", "test_seed2")):
        results = json.loads((study / f"{name}.json").read_text())
        (row,) = results["checkpoints"]
        step = int(Path(row["path"]).name.removeprefix("step-"))
        (values,) = coverage(results, KS).values()
        line(f"seed {seed}", f"{step:,}", *map(with_error, np.moveaxis(values[0], 1, 0)))


def main(study: Path):
    bases(study)
    maze17_rl.main(study / "rl")
