"""The tables of README.md, from runs/ (results/keep.py) and, once there, from weak-test.json and strong-test.json (eval.py,
weak-test-later.json: seed 3).

    PYTHONPATH=. python results/headline/summarise.py

A cell with one value is pass@1 or pass@32, the training reward and the share of prompts with a success, mean of a block.
"""

import json
import statistics
import sys
from pathlib import Path

import numpy as np

from maxrl.metrics import samples_to_match, times_fewer
from results.reading import evaluated
from results.summarise import coverage, differences, head, levels, line, over_seeds

METHODS = {"maxrl": "MaxRL", "grpo": "GRPO", "rloo": "RLOO"}
STEPS, BLOCK, KEPT = 1000, 100, 5
PANELS = {
    "pass@1": lambda row: row["reward"],
    "pass@32": lambda row: 1 - row["frac_reward_zero_mean"],
}
WHEN = [f"{i}-{i + BLOCK}" for i in range(0, STEPS, BLOCK)]


def read(folder: Path, base: str, rate: str) -> dict[str, dict[int, list[dict]]]:
    """{method: {seed: rows of metrics.jsonl}} of the runs that are there and complete."""
    runs = {}
    for method in METHODS:
        files = sorted(folder.glob(f"{base}-seed*-{method}-lr{rate}/metrics.jsonl"))
        for file in files:
            rows = [json.loads(row) for row in file.read_text().splitlines()]
            seed = int(file.parent.name.split("-")[1].removeprefix("seed"))
            if rows[-1]["step"] + 1 == STEPS:
                runs.setdefault(method, {})[seed] = rows
    return runs


def blocks(rows: list[dict], value) -> np.ndarray:
    """Means of blocks of BLOCK steps."""
    values = np.array([value(row) for row in rows])
    return values.reshape(-1, BLOCK // KEPT).mean(1)


def over_blocks(runs: dict, value) -> dict[str, np.ndarray]:
    """{method: (seeds, blocks)} of the seeds that all methods have."""
    seeds = set.intersection(*(set(runs[method]) for method in METHODS))
    return {
        method: np.stack([blocks(runs[method][seed], value) for seed in sorted(seeds)])
        for method in METHODS
    }


def mean_curves(table: dict, name: str):
    """Every block as mean over seeds with its standard error, and MaxRL minus each, paired over seeds."""
    seeds = len(table["maxrl"])
    head(f"{name}, {seeds} seeds", *METHODS.values(), "MaxRL minus GRPO", "MaxRL minus RLOO")
    for i, when in enumerate(WHEN):
        cells = [over_seeds(table[method][:, i]) for method in METHODS]
        gaps = [
            over_seeds(table["maxrl"][:, i] - table[method][:, i], "+")
            for method in ("grpo", "rloo")
        ]
        line([when, *cells, *gaps])


def seed_curves(tables: dict, seeds: list[int]):
    """Every seed: pass@1 / pass@32 of the methods."""
    head(
        "pass@1 / pass@32", *(f"seed {seed}: {name}" for seed in seeds for name in METHODS.values())
    )
    for i, when in enumerate(WHEN):
        cells = []
        for place in range(len(seeds)):
            for method in METHODS:
                one, many = (table[method][place, i] for table in tables.values())
                cells.append(f"{one:.3f} / {many:.2f}")
        line([when, *cells])


def ahead_from(ours: np.ndarray, theirs: np.ndarray) -> str:
    """The step from which on every block of ours is above theirs."""
    behind = np.flatnonzero(ours <= theirs)
    first = behind[-1] + 1 if len(behind) else 0
    return str(first * BLOCK) if first < len(ours) else "never"


def crossings(tables: dict, seeds: list[int]):
    columns = [f"{METHODS[method]}, {name}" for name in tables for method in ("grpo", "rloo")]
    head("MaxRL ahead from step ... on, of", *columns)
    for place, seed in enumerate(seeds):
        line(
            [
                f"seed {seed}",
                *(
                    ahead_from(table["maxrl"][place], table[method][place])
                    for table in tables.values()
                    for method in ("grpo", "rloo")
                ),
            ]
        )
    line(
        [
            "mean over seeds",
            *(
                ahead_from(table["maxrl"].mean(0), table[method].mean(0))
                for table in tables.values()
                for method in ("grpo", "rloo")
            ),
        ]
    )


def per_run(runs: dict, seeds: list[int], base: str):
    """Of every run: clipped steps, seconds, and entropy and response length in the last block."""
    head(
        f"{base} base",
        "steps clipped",
        "seconds per step, median",
        "lower decile",
        "entropy at the end",
        "tokens at the end",
    )
    for seed in seeds:
        for method, name in METHODS.items():
            rows = runs[method][seed]
            last = rows[-BLOCK // KEPT :]
            seconds = [row["seconds"] for row in rows]
            line(
                [
                    f"seed {seed} {name}",
                    f"{statistics.mean(row['clipped'] for row in rows):.0%}",
                    f"{statistics.median(seconds):.2f}",
                    f"{np.quantile(seconds, 0.1):.2f}",
                    f"{statistics.mean(row['entropy'] for row in last):.3f}",
                    f"{statistics.mean(row['completions/mean_length'] for row in last):.1f}",
                ]
            )


def decile(rows: list[dict]) -> np.ndarray:
    """Seconds after each line, at the lower decile of each block's steps: the machine had other work, more in some runs."""
    seconds = np.array([row["seconds"] for row in rows]).reshape(-1, BLOCK // KEPT)
    return KEPT * np.cumsum(np.repeat(np.quantile(seconds, 0.1, axis=1), BLOCK // KEPT))


def everything(rows: list[dict]) -> np.ndarray:
    """Seconds after each line, of all steps."""
    return KEPT * np.cumsum([row["seconds"] for row in rows])


def equal_seconds(runs: dict, seeds: list[int]):
    """MaxRL when as many seconds have passed as the other took for all of its steps, by two clocks."""
    ours = ("MaxRL's steps", "MaxRL's pass@1 / pass@32")
    head(
        "in the seconds of",
        "minutes",
        "its pass@1 / pass@32",
        *ours,
        *(f"by all seconds: {name}" for name in ours),
    )
    for seed in seeds:
        for method in ("grpo", "rloo"):
            theirs, ours = runs[method][seed], runs["maxrl"][seed]
            cells = [
                f"seed {seed} {METHODS[method]}",
                f"{decile(theirs)[-1] / 60:.1f}",
                at_the_end(theirs),
            ]
            for clock in (decile, everything):
                done = int((clock(ours) <= clock(theirs)[-1]).sum())
                cells += [str(KEPT * done), at_the_end(ours[:done])]
            line(cells)


def at_the_end(rows: list[dict]) -> str:
    """pass@1 / pass@32, means of the last block of steps."""
    last = rows[-BLOCK // KEPT :]
    return " / ".join(f"{statistics.mean(map(value, last)):.3f}" for value in PANELS.values())


def clipping(clipped: dict, unclipped: dict):
    """One seed of the weak base with and without clipping at norm 1: pass@1 / pass@32."""
    (seed,) = unclipped["maxrl"]
    head(
        f"weak base, seed {seed}",
        *(f"{METHODS[method]}{how}" for method in unclipped for how in ("", ", not clipped")),
    )
    columns = [
        rows for method in unclipped for rows in (clipped[method][seed], unclipped[method][seed])
    ]
    values = [[blocks(rows, value) for value in PANELS.values()] for rows in columns]
    for i, when in enumerate(WHEN):
        line([when, *(f"{one[i]:.3f} / {many[i]:.2f}" for one, many in values)])


def tested(results: dict, runs: Path, base: str, seeds: list[int]):
    """pass@k on the test mazes, and the samples that one method needs for the pass@k of another (Figure 5)."""
    ks = [1, 8, 64, 256, 512]
    table = coverage(results, ks)
    levels(
        table,
        ks,
        lambda i, name: runs / f"{base}-seed{seeds[i]}-{name}{'' if name == 'base' else '-lr1e-4'}",
    )
    differences(table, ks)
    powers = [2**i for i in range(10)]  # straight lines between them
    curves = coverage(results, powers)
    shown = [3, 6, 8, 9]  # 8, 64, 256 and 512 samples
    head("times fewer samples MaxRL needs for the pass@k of", *(f"k = {powers[i]}" for i in shown))
    for name in ("base", "rloo", "grpo"):
        times, low, high = times_fewer(powers, curves[name], curves["maxrl"])
        cells = [[fewer(values[i], powers[i]) for values in (times, low, high)] for i in shown]
        line([name, *(f"{found} [{least}, {most}]" for found, least, most in cells)])
    shown = [0, 1, 3, 6]
    head("samples needed for MaxRL's pass@k, by", *(f"k = {powers[i]}" for i in shown))
    for name in ("base", "rloo", "grpo"):
        need = samples_to_match(powers, curves["maxrl"].mean((0, 1)), curves[name].mean((0, 1)))
        line([name, *(f"{need[i]:.0f}" if need[i] < np.inf else "over 512" for i in shown)])


def fewer(times: float, k: int) -> str:
    """k times fewer is one sample, and it may take less; 0 is never within the samples taken."""
    return "< 1" if times == 0 else f"≥ {k}" if times == k else f"{times:.1f}"


def main(study: Path):
    for base in ("weak", "strong"):
        runs = read(study / "runs", base, "1e-4")
        if len(runs) < len(METHODS):
            continue
        seeds = sorted(set.intersection(*(set(runs[method]) for method in METHODS)))
        print(f"\n## {base} base, seeds {', '.join(map(str, seeds))}")
        tables = {name: over_blocks(runs, value) for name, value in PANELS.items()}
        for name, table in tables.items():
            if len(seeds) > 1:
                mean_curves(table, name)
        seed_curves(tables, seeds)
        crossings(tables, seeds)
        per_run(runs, seeds, base)
        equal_seconds(runs, seeds)
        results = evaluated(study / f"{base}-test.json")
        if results is not None:
            tested(results, study / "runs", base, seeds)
    unclipped = read(study / "runs", "weak", "1e-4-unclipped")
    if unclipped:
        print("\n## Clipping")
        clipping(read(study / "runs", "weak", "1e-4"), unclipped)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
