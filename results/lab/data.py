"""What tables and figures read: kept runs, tests, and the paper's curves."""

import json
import re
from operator import itemgetter
from pathlib import Path

import numpy as np

from maxrl.analysis import table
from maxrl.analysis.metrics import pass_at_k

RESULTS = Path(__file__).parents[1]
# The k of a test of classifiers whose means are kept.
KS = (1, 2, 4, 8, 16, 25, 32, 64, 128, 256, 512)


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


def rows_of(run: dict) -> list[dict]:
    """The rows of a kept run's metrics, with `solved`: the share of prompts with a success."""
    columns = run["metrics"]
    rows = []
    for values in zip(*columns.values()):
        row = {key: value for key, value in zip(columns, values) if value is not None}
        unsolved = row.get("frac_unsolved", row.get("frac_reward_zero_mean"))
        if unsolved is not None:
            row["solved"] = 1 - unsolved
        rows.append(row)
    return rows


def evaluations(rows: list[dict], k: int) -> list[float]:
    """pass@k of a run, each time that it was evaluated."""
    return [row[f"eval/pass@{k}"] for row in rows if f"eval/pass@{k}" in row]


def runs(study: str, before: str = "", after: str = "", steps: int = 1) -> dict:
    """{method: {seed: rows}} of the kept runs of `steps` steps or more, the seeds in order.

    Their names are seedSEED/METHOD with `before` in front and `after` behind, which are patterns.
    """
    pattern = rf"{before}seed(?P<seed>\d+)/(?P<method>.+?){after}"
    found: dict[str, dict] = {}
    for name, run in read_json(f"{study}/runs.json")["runs"].items():
        match = re.fullmatch(pattern, name)
        if match and run["metrics"]["step"][-1] + 1 >= steps:
            found.setdefault(match["method"], {})[int(match["seed"])] = rows_of(run)
    return {method: dict(sorted(seeds.items())) for method, seeds in found.items()}


def paired(found: dict, methods) -> dict[str, dict[int, list]]:
    """The methods, in their order, with the seeds that all of them have."""
    seeds = sorted(set.intersection(*(set(found.get(method, ())) for method in methods)))
    return {method: {seed: found[method][seed] for seed in seeds} for method in methods}


def tested(name: str) -> dict:
    """What eval.py wrote to a file below results/, with the checkpoints of FILE-later.json if there
    is one: seeds that were tested later."""
    results = {"classes": 0} | read_json(name)
    later = name.replace(".json", "-later.json")
    if (RESULTS / later).exists():
        results["checkpoints"] += read_json(later)["checkpoints"]
    return results


def by_seed(study: str, name: str, ks, measure=table.coverage) -> dict[str, dict[int, np.ndarray]]:
    """{row: {seed: pass@k, or another measure, (prompts, ks)}} of STUDY/NAME-seedSEED.json."""
    found: dict[str, dict] = {}
    for file in sorted((RESULTS / study).glob(f"{name}-seed*.json")):
        seed = int(file.stem.rpartition("seed")[2])
        for row, values in measure(tested(f"{study}/{file.name}"), ks).items():
            found.setdefault(row, {})[seed] = values[0]
    return found


def read_lines(name: str) -> list[dict]:
    """A file below results/ of a JSON object a line, such as the samples of verdicts.py."""
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def passed(lines: list[dict], samples: int, ks, verdict: str = "boxed") -> np.ndarray:
    """pass@k (ks, problems) of what verdicts.py wrote about so many samples a problem."""
    counts = np.array([line[verdict] for line in lines])
    return np.array([pass_at_k(samples, counts, k) for k in ks])


def in_blocks(rows: list[dict], key: str, size: int = 100) -> np.ndarray:
    """The values of a run in whole blocks of `size` steps, (blocks, rows of a block)."""
    length = size // (rows[0]["step"] + 1)
    values = np.array([row[key] for row in rows])
    return values[: len(values) // length * length].reshape(-1, length)


def means(rows: list[dict], key: str, size: int = 100) -> np.ndarray:
    """Means over whole blocks of `size` steps of a run, (blocks,)."""
    return in_blocks(rows, key, size).mean(1)


def class_runs(study: str, before: str = "") -> dict[str, dict]:
    """{name: kept run} of a study of classifiers, of those that begin with `before`, without it."""
    kept = read_json(f"{study}/runs.json")["runs"]
    return {name.removeprefix(before): run for name, run in kept.items() if name.startswith(before)}


def image_rates(name: str) -> dict[str, np.ndarray]:
    """{row: pass rates (seeds, images)} of a test of classifiers."""
    return table.over_seeds(read_json(name), itemgetter("pass_rates"))


def class_means(name: str, ks) -> dict[str, np.ndarray]:
    """{row: pass@k for each of ks, then top-1, of each seed, (len(ks) + 1, seeds)} of a test of
    classifiers."""

    def means_of(row: dict) -> list:
        return [*(row["pass@k"][KS.index(k)] for k in ks), row["top1"]]

    return {name: seeds.T for name, seeds in table.over_seeds(read_json(name), means_of).items()}
