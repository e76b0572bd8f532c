"""200 drawn classes, from rates.json, test.json and test_lr0.1.json."""

import json
import statistics
from pathlib import Path

import numpy as np

from maxrl.metrics import exact_pass_at_k
from maxrl.plots import called
from results.tables.cells import head, line, over_seeds, with_error

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


def main(study: Path):
    rates(study / "rates.json")
    for file, rate in (("test.json", "rate 1.0"), ("test_lr0.1.json", "rate 0.1")):
        tested(study / file, rate)


def tested(file: Path, rate: str):
    seeds: dict[str, list] = {}
    for row in json.loads(file.read_text())["checkpoints"]:
        seeds.setdefault(row["name"], []).append(values(row))
    head(f"{rate}, 3 seeds, 95 %", *COLUMNS)
    for method, found in seeds.items():
        line(called(method), *map(over_seeds, np.mean(found, 2).T))
    head(f"{rate}, standard error over images", "seed", *COLUMNS)
    for method, found in seeds.items():
        for i, columns in enumerate(found):
            line(called(method), i, *map(with_error, columns))
    head(f"{rate}, cross-entropy minus", "seed", *COLUMNS)
    for method, found in seeds.items():
        for i, columns in enumerate(found):
            if method != "supervised":
                gaps = seeds["supervised"][i] - columns
                line(called(method), i, *(with_error(gap, "+") for gap in gaps))
