"""The tables of a maze study, from the files that are kept beside its README.md.

    PYTHONPATH=. python results/summarise.py results/demo

STUDY/test.json (and rates.json) are eval.py's; STUDY/runs/seedS-NAME is what keep.py left of a
run. The summarise.py of other studies print their tables with these functions.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from maxrl.io.files import json_lines
from maxrl.metrics import mean_and_se
from maxrl.run import table


def line(*cells):
    print(f"| {' | '.join(map(str, cells))} |")


def head(*cells):
    print()
    line(*cells)
    print("|---" * len(cells) + "|")


def clipped(run: Path) -> str:
    """Share of the steps whose gradient was clipped; empty where the run was not kept."""
    rows = [row["clipped"] for row, _ in json_lines(run / "metrics.jsonl")]
    return f"{statistics.mean(rows):.0%}" if rows else ""


def over_seeds(values: np.ndarray, sign: str = "") -> str:
    """Mean over seeds and its standard error, of values (seeds,); of one seed its value."""
    if len(values) == 1:
        return f"{values[0]:{sign}.3f}"
    return f"{values.mean():{sign}.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


def with_error(values, sign: str = "") -> str:
    """Mean over prompts and its standard error, of values (prompts,)."""
    mean, se = mean_and_se(values)
    return f"{mean:{sign}.3f} ± {se:.3f}"


def coverage(results: dict, ks: list[int]) -> dict[str, np.ndarray]:
    """{name: pass@k, (seeds, prompts, ks)}; old files do not say that mazes have no classes."""
    return table.coverage({"classes": 0} | results, ks)


def levels(found: dict, ks: list[int], run: Callable[[int, str], Path]):
    """Every run with its error over mazes; then the means over seeds, where there are several.

    run(i, name) is where what was kept of a run lies.
    """
    columns = [f"pass@{k}" for k in ks]
    head("run", *columns, "steps clipped")
    for name, seeds in found.items():
        for i, values in enumerate(seeds):
            title = f"seed {i} {name}" if len(seeds) > 1 else name
            line(title, *map(with_error, values.T), clipped(run(i, name)))
    if all(len(seeds) > 1 for seeds in found.values()):
        head("± over seeds", *columns)
        for name, seeds in found.items():
            line(name, *map(over_seeds, seeds.mean(1).T))


def differences(found: dict, ks: list[int]):
    """MaxRL minus each, paired over mazes: of each seed, and of the mean over seeds."""
    head("MaxRL minus", *(f"pass@{k}" for k in ks))
    for name, seeds in found.items():
        if name == "maxrl":
            continue
        gaps = found["maxrl"] - seeds  # (seeds, prompts, ks)
        for i, gap in enumerate(gaps):
            line(f"{name}, seed {i}", *(with_error(column, "+") for column in gap.T))
        line(f"{name}, ± over mazes", *(with_error(column, "+") for column in gaps.mean(0).T))
        line(f"{name}, ± over seeds", *(over_seeds(column, "+") for column in gaps.mean(1).T))


def minus_others(found: dict, i: int) -> list[str]:
    """Cells of block i: the methods' means over seeds, and MaxRL minus GRPO and RLOO."""
    cells = [over_seeds(values[:, i]) for values in found.values()]
    for name in ("grpo", "rloo"):
        cells.append(over_seeds(found["maxrl"][:, i] - found[name][:, i], "+"))
    return cells


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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
