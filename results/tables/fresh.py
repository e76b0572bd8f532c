"""Fresh seeds on new mazes: the search of the rates on seed 100, and the tests."""

import statistics
from pathlib import Path

from maxrl.io.files import json_lines
from results.reading import evaluated
from results.tables.cells import coverage, differences, head, levels, line
from results.tables.headline import METHODS, equal_seconds, read

RATES = ["3e-5", "1e-4", "3e-4"]
FIRST = {"weak": 4, "strong": 3}  # the first of each base's seeds


def validation(run: Path) -> str:
    """pass@1, the mean of the last two evaluations."""
    rows = [row for row, _ in json_lines(run / "metrics.jsonl")]
    passed = [row["eval/pass@1"] for row in rows if "eval/pass@1" in row]
    return f"{statistics.mean(passed[-2:]):.3f}"


def main(study: Path):
    for base, first in FIRST.items():
        runs = study / "runs"
        head(f"{base} base, seed 100: pass@1 on validation by learning rate", *RATES)
        for method, name in METHODS.items():
            folders = [runs / f"{base}-seed100-{method}-lr{rate}" for rate in RATES]
            line(name, *map(validation, folders))
        results = evaluated(study / f"{base}-test.json")
        ks = [1, 8, 64, 256, 512]
        found = coverage(results, ks)

        def run(seed: int, name: str, base: str = base) -> Path:
            return next(runs.glob(f"{base}-seed{seed}-{name}*"), runs / "not kept")

        print(
            f"\n## {base} base: {results['prompts']} test mazes x {results['samples']} samples, "
            f"torch {results['torch']}"
        )
        levels(found, ks, run, first)
        differences(found, ks, f"{base} base, fresh seeds: ", first)
        # Seed 100 has three rates, each later seed the chosen one.
        seeds = range(first, first + len(found["maxrl"]))
        equal_seconds(read(runs, base, ".*"), list(seeds))
