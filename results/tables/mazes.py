"""A study of mazes whose files eval.py and results/keep.py wrote: demo and maze9_laptop."""

import json
from pathlib import Path

from results.tables.cells import coverage, differences, levels


def main(study: Path):
    for file in sorted(study.glob("*.json")):
        results = json.loads(file.read_text())
        ks = [k for k in (1, 8, 64, 256) if k <= results["samples"]]
        found = coverage(results, ks)
        print(
            f"\n{file.name}: {results['split']}, {results['prompts']} mazes x "
            f"{results['samples']} samples, torch {results['torch']}"
        )
        levels(found, ks, lambda i, name: study / "runs" / f"seed{i}-{name}")
        if all(len(seeds) > 1 for seeds in found.values()):
            differences(found, ks)
