"""The tables of a maze study, from the files that are kept beside its README.md.

    PYTHONPATH=. python results/summarise.py results/demo

STUDY/test.json (and rates.json) are eval.py's; STUDY/runs/seedS-NAME what keep.py left of each run, where it was kept.
"""

import json
import statistics
import sys
from pathlib import Path

import numpy as np

from maxrl.metrics import mean_and_se
from maxrl.run import table


def line(cells):
    print(f"| {' | '.join(cells)} |")


def head(*cells):
    print()
    line(cells)
    print("|---" * len(cells) + "|")


def clipped(run: Path) -> str:
    """Share of the steps whose gradient was clipped."""
    if not (run / "metrics.jsonl").exists():
        return ""
    return f"{statistics.mean(json.loads(row)['clipped'] for row in (run / 'metrics.jsonl').open()):.0%}"


def over_seeds(values: np.ndarray, sign: str = "") -> str:
    """Mean over seeds and its standard error, of values (seeds,)."""
    return f"{values.mean():{sign}.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


def coverage(results: dict, ks: list[int]) -> dict[str, np.ndarray]:
    """{name: pass@k, (seeds, prompts, ks)}; the oldest files do not say that mazes have no classes."""
    return table.coverage({"classes": 0} | results, ks)


def levels(table: dict, ks: list[int], run):
    """Every run with its standard error over mazes; where there are several seeds, their mean with the error over seeds.
    run(i, name) is where what was kept of a run lies."""
    columns = [f"pass@{k}" for k in ks]
    head("run", *columns, "steps clipped")
    for name, seeds in table.items():
        for i, values in enumerate(seeds):
            cells = ["{:.3f} ± {:.3f}".format(*mean_and_se(column)) for column in values.T]
            line([f"seed {i} {name}" if len(seeds) > 1 else name, *cells, clipped(run(i, name))])
    if all(len(seeds) > 1 for seeds in table.values()):
        head("± over seeds", *columns)
        for name, seeds in table.items():
            line([name, *(over_seeds(column) for column in seeds.mean(1).T)])


def differences(table: dict, ks: list[int]):
    """MaxRL minus each, paired over mazes: per seed; of the mean over seeds; and with the error over seeds."""
    head("MaxRL minus", *(f"pass@{k}" for k in ks))
    for name, seeds in table.items():
        if name == "maxrl":
            continue
        gaps = table["maxrl"] - seeds  # (seeds, prompts, ks)
        for i, gap in enumerate(gaps):
            line(
                [
                    f"{name}, seed {i}",
                    *("{:+.3f} ± {:.3f}".format(*mean_and_se(column)) for column in gap.T),
                ]
            )
        line(
            [
                f"{name}, ± over mazes",
                *("{:+.3f} ± {:.3f}".format(*mean_and_se(column)) for column in gaps.mean(0).T),
            ]
        )
        line([f"{name}, ± over seeds", *(over_seeds(column, "+") for column in gaps.mean(1).T)])


def main(study: Path):
    for file in sorted(study.glob("*.json")):
        results = json.loads(file.read_text())
        ks = [k for k in (1, 8, 64, 256) if k <= results["samples"]]
        table = coverage(results, ks)
        print(
            f"\n{file.name}: {results['split']}, {results['prompts']} mazes x {results['samples']} samples, "
            f"torch {results['torch']}"
        )
        levels(table, ks, lambda i, name: study / "runs" / f"seed{i}-{name}")
        if all(len(seeds) > 1 for seeds in table.values()):
            differences(table, ks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
