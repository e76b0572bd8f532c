"""What the figures read: the paper's curves, and the runs that results/keep.py left."""

import json
import re
from pathlib import Path

import numpy as np

from maxrl.io.files import json_lines

RESULTS = Path(__file__).parent


def read_json(name: str):
    """A JSON file below results/."""
    return json.loads((RESULTS / name).read_text())


def paper(number: int) -> dict:
    """{panel: {method: (x, y)}} of a figure of the paper; percent become fractions."""
    figure = read_json(f"paper/figure{number:02}.json")
    scale = 0.01 if figure["units"] == "percent" else 1
    panels = {}
    for key, points in figure["series"].items():
        panel, method = key.split(" | ")
        x, y = np.array(points).T
        panels.setdefault(panel, {})[method] = x, y * scale
    return panels


def runs(folder: Path, pattern: str, steps: int) -> dict:
    """{method: {seed: rows of metrics.jsonl}} of the runs of `steps` steps or more.

    pattern   of a run's directory, with the groups `seed` and `method`
    """
    found = {}
    for file in sorted(folder.glob("*/metrics.jsonl")):
        match = re.fullmatch(pattern, file.parent.name)
        if not match:
            continue
        rows = [row for row, _ in json_lines(file)]
        if rows[-1]["step"] + 1 >= steps:
            found.setdefault(match["method"], {})[int(match["seed"] or 0)] = rows
    return found


def evaluated(path: Path) -> dict | None:
    """What eval.py wrote to a file, with the names of methods alone; None where there is none.

    With the checkpoints of FILE-later.json, if there is one: seeds that were tested later, in a
    command of their own.
    """
    if not path.exists():
        return None
    results = {"classes": 0} | json.loads(path.read_text())
    later = path.with_name(f"{path.stem}-later.json")
    if later.exists():
        results["checkpoints"] += json.loads(later.read_text())["checkpoints"]
    for row in results["checkpoints"]:
        row["name"] = row["name"].removesuffix("-lr1e-4")
    return results


def headline(base: str) -> dict:
    """{method: {seed: rows}} of the study of 1,000 steps at one learning rate."""
    return runs(
        RESULTS / "headline/runs", rf"{base}-seed(?P<seed>\d+)-(?P<method>[a-z]+)-lr1e-4", 1000
    )


def paired(found: dict, methods) -> dict:
    """{method: rows of each seed} for the seeds that all of the methods have; empty without such a
    seed."""
    if not set(methods) <= set(found):
        return {}
    seeds = sorted(set.intersection(*(set(found[method]) for method in methods)))
    return {method: [found[method][seed] for seed in seeds] for method in methods if seeds}


def solved(rows: list[dict]) -> list[dict]:
    """The rows with `solved`, the share of a step's prompts that have a success."""
    return [row | {"solved": 1 - row["frac_reward_zero_mean"]} for row in rows]


def blocks(steps: np.ndarray, values: np.ndarray, size: int = 100) -> np.ndarray:
    """Means over blocks of `size` steps, (seeds, blocks), of values (seeds, points) at steps that
    count from 1."""
    block = (steps - 1) // size  # (points,)
    return np.stack([values[:, block == i].mean(1) for i in range(block.max() + 1)], 1)


def crossing(lead: np.ndarray, size: int = 100) -> int | None:
    """The step from which on every block's lead (blocks,) is above 0; None if the last one is
    not."""
    behind = np.flatnonzero(lead <= 0)
    first = behind[-1] + 1 if behind.size else 0
    return int(first * size) if first < len(lead) else None
