"""The tables of README.md: PYTHONPATH=. python results/images_laptop/summarise.py [test_lr0.1.json]

They are made from rates.json and test.json, or another file with the protocol's test.
"""

import json
import statistics
import sys
from pathlib import Path

import numpy as np

from maxrl.metrics import exact_pass_at_k
from maxrl.plots import called
from results.summarise import head, line, over_seeds, with_error

COLUMNS = ("pass@1", "pass@25", "top-1")


def values(row: dict) -> np.ndarray:
    """The COLUMNS of every image, (3, images)."""
    return np.array([row["pass_rates"], exact_pass_at_k(row["pass_rates"], 25), row["top1"]])


def rates(file: Path):
    """Every learning rate that was tried on seed 100."""
    table: dict[str, dict] = {}
    for row in json.loads(file.read_text())["checkpoints"]:
        method, _, rate = Path(row["path"]).parts[-2].rpartition("-lr")
        table.setdefault(method, {})[float(rate)] = list(map(statistics.mean, values(row)))
    tried = sorted(table["supervised"])
    title = "pass@1 / pass@25 / top-1, seed 100, validation"
    head(title, *(f"{rate:g}" for rate in tried), "best")
    for method, found in table.items():
        cells = [" / ".join(f"{mean:.3f}" for mean in found[rate]) for rate in sorted(found)]
        line(called(method), *cells, f"{max(found, key=lambda rate: found[rate][0]):g}")


def main(study: Path = Path(__file__).parent, test: str = "test.json"):
    rates(study / "rates.json")
    seeds: dict[str, list] = {}
    for row in json.loads((study / test).read_text())["checkpoints"]:
        seeds.setdefault(row["name"], []).append(values(row))
    head("method", "seed", *COLUMNS)
    for method, found in seeds.items():
        for i, columns in enumerate(found):
            line(called(method), i, *map(with_error, columns))
    head("3 seeds, ± over seeds", *COLUMNS)
    for method, found in seeds.items():
        line(called(method), *map(over_seeds, np.mean(found, 2).T))
    head("cross-entropy minus", "seed", *COLUMNS)
    for method, found in seeds.items():
        for i, columns in enumerate(found):
            if method != "supervised":
                gaps = seeds["supervised"][i] - columns
                line(called(method), i, *(with_error(gap, "+") for gap in gaps))


if __name__ == "__main__":
    main(Path(__file__).parent, *sys.argv[1:])
