"""How the tables of the studies are printed: cells, intervals over seeds, and what all studies of
mazes have in common."""

import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

from maxrl.io.files import json_lines
from maxrl.metrics import mean_and_se
from maxrl.run import table

# The 97.5 % quantile of Student's t with one degree of freedom less than so many values.
T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


def line(*cells):
    print(f"| {' | '.join(map(str, cells))} |")


def head(*cells):
    print()
    line(*cells)
    print("|---" * len(cells) + "|")


def half_width(values: np.ndarray) -> float:
    """Half of the 95 % t interval of the mean of values, one of each seed, (seeds,)."""
    values = np.asarray(values, float)
    return T[len(values)] * values.std(ddof=1) / len(values) ** 0.5


def over_seeds(values, sign: str = "", digits: int = 3) -> str:
    """Mean over seeds and the half-width of its t interval, of values (seeds,); of one seed its
    value."""
    values = np.asarray(values, float)
    mean = f"{values.mean():{sign}.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {half_width(values):.{digits}f}"


def ahead(gaps) -> str:
    """On how many seeds a difference is above 0; where both solve everything it is not."""
    return f"{sum(gap > 1e-6 for gap in gaps)} of {len(gaps)}"


def with_error(values, sign: str = "") -> str:
    """Mean over prompts and its standard error, of values (prompts,)."""
    mean, se = mean_and_se(values)
    return f"{mean:{sign}.3f} ± {se:.3f}"


def clipped(run: Path) -> str:
    """Share of the steps whose gradient was clipped; empty where the run was not kept."""
    rows = [row["clipped"] for row, _ in json_lines(run / "metrics.jsonl")]
    return f"{statistics.mean(rows):.0%}" if rows else ""


def coverage(results: dict, ks: list[int]) -> dict[str, np.ndarray]:
    """{name: pass@k, (seeds, prompts, ks)}; old files do not say that mazes have no classes."""
    return table.coverage({"classes": 0} | results, ks)


def levels(
    found: dict,
    ks: list[int],
    run: Callable[[int, str], Path],
    first: int = 0,
    prompts: str = "mazes",
):
    """The means over seeds, where there are several; then every run with its error over prompts.

    run(seed, name) is where what was kept of a run lies; the seeds count from `first`.
    """
    columns = [f"pass@{k}" for k in ks]
    if all(len(seeds) > 1 for seeds in found.values()):
        head("mean over seeds, 95 %", *columns)
        for name, seeds in found.items():
            line(name, *map(over_seeds, seeds.mean(1).T))
    head(f"run, standard error over {prompts}", *columns, "steps clipped")
    for name, seeds in found.items():
        for i, values in enumerate(seeds, first):
            title = f"seed {i} {name}" if len(seeds) > 1 else name
            line(title, *map(with_error, values.T), clipped(run(i, name)))


def differences(found: dict, ks: list[int], name: str = "", first: int = 0, prompts: str = "mazes"):
    """MaxRL minus each, over seeds, and of each seed paired over prompts; `name` goes before, and
    the seeds count from `first`."""
    others = [other for other in found if other != "maxrl"]
    gaps = {other: found["maxrl"] - found[other] for other in others}  # (seeds, prompts, ks)
    columns = [cell for k in ks for cell in (f"pass@{k}", "ahead on")]
    head(f"{name}MaxRL minus, 95 % over seeds", *columns)
    for other in others:
        means = gaps[other].mean(1).T  # (ks, seeds)
        line(other, *(cell for gap in means for cell in (over_seeds(gap, "+"), ahead(gap))))
    head(f"{name}MaxRL minus, standard error over {prompts}", *(f"pass@{k}" for k in ks))
    for other in others:
        for i, gap in enumerate(gaps[other], first):
            line(f"{other}, seed {i}", *(with_error(column, "+") for column in gap.T))


def minus_others(found: dict, i: int) -> list[str]:
    """Cells of block i: the methods' means over seeds, and MaxRL minus GRPO and RLOO."""
    cells = [over_seeds(values[:, i]) for values in found.values()]
    for name in ("grpo", "rloo"):
        cells.append(over_seeds(found["maxrl"][:, i] - found[name][:, i], "+"))
    return cells
