"""RL at the paper's size, from runs/ (results/keep.py) and test/ (eval.py)."""

import json
from pathlib import Path

import numpy as np

from results.reading import blocks, runs, solved
from results.tables.cells import coverage, head, line, with_error

KS = [1, 32, 128, 256]
BLOCK, KEPT = 50, 5  # steps of a mean, and of a line of metrics.jsonl
NAMES = {
    "maxrl_rare": "MaxRL in rounds of 8, 8 and 16",
    "maxrl": "MaxRL, 32 rollouts",
    "grpo": "GRPO, 32 rollouts",
    "rloo": "RLOO, 32 rollouts",
}


def read(study: Path) -> dict[str, dict[int, list[dict]]]:
    """{estimator: {seed: rows}} of every run that is there, however far it came."""
    found = runs(study / "runs", r"seed(?P<seed>\d+)-(?P<method>[a-z_]+)", BLOCK)
    return {
        method: {seed: solved(rows) for seed, rows in found[method].items()}
        for method in NAMES
        if method in found
    }


def means(rows: list[dict], key: str) -> np.ndarray:
    """Means of blocks of BLOCK steps; a last block that is not full is left out."""
    whole = rows[: len(rows) // (BLOCK // KEPT) * (BLOCK // KEPT)]
    steps = np.array([row["step"] + 1 for row in whole])
    return blocks(steps, np.array([[row[key] for row in whole]]), BLOCK)[0]


def trained(found: dict):
    """What every run cost, and its training mazes in its first and last whole blocks; the hours are
    made of medians of five steps."""
    head(
        "run",
        "steps",
        "hours of a core",
        "seconds a step, median",
        "rollouts a prompt, first and last 50 steps",
        "reward, first and last 50 steps",
        "prompts with a success, first and last 50 steps",
    )
    for method, seeds in found.items():
        for seed, rows in seeds.items():
            seconds = np.array([row["seconds"] for row in rows])
            cells = []
            for key, scale in (("rollouts", 1 / 32), ("reward", 1), ("solved", 1)):
                values = means(rows, key) * scale
                cells.append(f"{values[0]:.3g}, {values[-1]:.3g}")
            steps = rows[-1]["step"] + 1
            hours = KEPT * seconds.sum() / 3600
            run = f"seed {seed}: {NAMES[method]}"
            line(run, steps, f"{hours:.2f}", f"{np.median(seconds):.1f}", *cells)


def named(name: str) -> str:
    """How a checkpoint of test/ is called in the tables."""
    seed, _, method = name.partition("-")
    return f"{seed.replace('seed', 'seed ')}: {NAMES[method]}" if method else name


def tested(study: Path):
    """pass@k on the test mazes, every run minus the base, and MaxRL in rounds minus each other run
    of its seed."""
    found: dict[str, np.ndarray] = {}  # {name: (1, prompts, ks)}
    for file in sorted((study / "test").glob("*.json")):
        found |= coverage(json.loads(file.read_text()), KS)
    columns = [f"pass@{k}" for k in KS]
    head("test, standard error over mazes", *columns)
    for name, values in found.items():
        line(named(name), *map(with_error, values[0].T))
    base = found.pop("base")
    head("run minus base, paired over mazes", *columns)
    for name, values in found.items():
        line(named(name), *(with_error(gap, "+") for gap in (values - base)[0].T))
    pairs = []
    for name, values in found.items():
        rounds = found.get(f"{name.partition('-')[0]}-maxrl_rare")
        if rounds is not None and rounds is not values:
            pairs.append((name, rounds - values))
    if pairs:
        head("MaxRL in rounds minus, paired over mazes", *columns)
    for name, gaps in pairs:
        line(named(name), *(with_error(gap, "+") for gap in gaps[0].T))


def main(study: Path):
    if found := read(study):
        trained(found)
    if (study / "test").exists():
        tested(study)
