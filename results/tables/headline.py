"""1,000 steps of 9x9 mazes, from runs/ (results/keep.py) and weak-test.json, strong-test.json
(eval.py; weak-test-later.json is seed 3).

pass@1 and pass@32 of a block are means over its steps of the training reward and of the share of
prompts with a success.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

from maxrl.metrics import samples_to_match
from results.fewer import times_fewer
from results.reading import crossing, evaluated, runs, solved
from results.tables.cells import coverage, differences, head, levels, line, minus_others

METHODS = {"maxrl": "MaxRL", "grpo": "GRPO", "rloo": "RLOO"}
OTHERS = ("grpo", "rloo")
STEPS, BLOCK, KEPT = 1000, 100, 5
PANELS = {"pass@1": "reward", "pass@32": "solved"}
WHEN = [f"{i}-{i + BLOCK}" for i in range(0, STEPS, BLOCK)]
Clock = Callable[[list[dict]], np.ndarray]


def read(folder: Path, base: str, rate: str = "1e-4") -> dict[str, dict[int, list[dict]]]:
    """{method: {seed: rows of metrics.jsonl}} of the runs that are there and complete."""
    pattern = rf"{base}-seed(?P<seed>\d+)-(?P<method>[a-z]+)-lr{rate}"
    found = runs(folder, pattern, STEPS)
    return {
        method: {seed: solved(rows) for seed, rows in sorted(found[method].items())}
        for method in METHODS
        if method in found
    }


def blocks(rows: list[dict], key: str) -> np.ndarray:
    """Means of blocks of BLOCK steps."""
    return np.array([row[key] for row in rows]).reshape(-1, BLOCK // KEPT).mean(1)


def mean_curves(table: dict[str, np.ndarray], name: str):
    """Every block as the mean over seeds, and MaxRL minus each, paired over seeds."""
    title = f"{name}, {len(table['maxrl'])} seeds"
    head(title, *METHODS.values(), "MaxRL minus GRPO", "MaxRL minus RLOO")
    for i, when in enumerate(WHEN):
        line(when, *minus_others(table, i))


def seed_curves(tables: dict, seeds: list[int]):
    """pass@1 / pass@32 of every seed and method."""
    names = [f"seed {seed}: {name}" for seed in seeds for name in METHODS.values()]
    head("pass@1 / pass@32", *names)
    one, many = tables.values()
    for i, when in enumerate(WHEN):
        cells = []
        for place in range(len(seeds)):
            for method in METHODS:
                cells.append(f"{one[method][place, i]:.3f} / {many[method][place, i]:.2f}")
        line(when, *cells)


def crossings(tables: dict, seeds: list[int]):
    """The step from which on every block of MaxRL is above that of another method."""
    head(
        "MaxRL ahead from step ... on, of",
        *(f"{METHODS[method]}, {name}" for name in tables for method in OTHERS),
    )
    leads = [table["maxrl"] - table[method] for table in tables.values() for method in OTHERS]

    def since(lead: np.ndarray) -> str:
        step = crossing(lead)
        return "never" if step is None else str(step)

    for place, seed in enumerate(seeds):
        line(f"seed {seed}", *(since(lead[place]) for lead in leads))
    # The mean of the leads, without rounding of their difference.
    means = [
        table["maxrl"].mean(0) - table[method].mean(0)
        for table in tables.values()
        for method in OTHERS
    ]
    line("mean over seeds", *map(since, means))


def per_run(runs: dict, seeds: list[int], base: str):
    """Clipped steps and seconds of every run, entropy and response length in its last block."""
    seconds = ("seconds per step, median", "lower decile")
    head(f"{base} base", "steps clipped", *seconds, "entropy at the end", "tokens at the end")
    for seed in seeds:
        for method, name in METHODS.items():
            rows = runs[method][seed]
            last = rows[-BLOCK // KEPT :]
            times = [row["seconds"] for row in rows]
            line(
                f"seed {seed} {name}",
                f"{statistics.mean(row['clipped'] for row in rows):.0%}",
                f"{statistics.median(times):.2f}",
                f"{np.quantile(times, 0.1):.2f}",
                f"{statistics.mean(row['entropy'] for row in last):.3f}",
                f"{statistics.mean(row['completions/mean_length'] for row in last):.1f}",
            )


def decile(rows: list[dict]) -> np.ndarray:
    """Seconds after each line, by the lower decile of each block: the machine had other work."""
    seconds = np.array([row["seconds"] for row in rows]).reshape(-1, BLOCK // KEPT)
    return KEPT * np.cumsum(np.repeat(np.quantile(seconds, 0.1, axis=1), BLOCK // KEPT))


def everything(rows: list[dict]) -> np.ndarray:
    """Seconds after each line, by all steps."""
    return KEPT * np.cumsum([row["seconds"] for row in rows])


def equal_seconds(runs: dict, seeds: list[int]):
    """MaxRL after as many seconds as the other took for all of its steps, by two clocks."""
    ours = ("MaxRL's steps", "MaxRL's pass@1 / pass@32")
    by_all = [f"by all seconds: {name}" for name in ours]
    head("in the seconds of", "minutes", "its pass@1 / pass@32", *ours, *by_all)
    clocks: tuple[Clock, ...] = (decile, everything)
    for seed in seeds:
        for method in OTHERS:
            theirs, maxrl = runs[method][seed], runs["maxrl"][seed]
            cells = [f"{decile(theirs)[-1] / 60:.1f}", at_the_end(theirs)]
            for clock in clocks:
                done = int((clock(maxrl) <= clock(theirs)[-1]).sum())
                cells += [str(KEPT * done), at_the_end(maxrl[:done])]
            line(f"seed {seed} {METHODS[method]}", *cells)


def at_the_end(rows: list[dict]) -> str:
    """pass@1 / pass@32, means of the last block of steps."""
    last = rows[-BLOCK // KEPT :]
    return " / ".join(f"{statistics.mean(row[key] for row in last):.3f}" for key in PANELS.values())


def clipping(clipped: dict, unclipped: dict):
    """pass@1 / pass@32 of one seed of the weak base, with and without clipping at norm 1."""
    (seed,) = unclipped["maxrl"]
    names, columns = [], []
    for method in unclipped:
        names += [METHODS[method], f"{METHODS[method]}, not clipped"]
        columns += [clipped[method][seed], unclipped[method][seed]]
    head(f"weak base, seed {seed}", *names)
    values = [[blocks(rows, key) for key in PANELS.values()] for rows in columns]
    for i, when in enumerate(WHEN):
        line(when, *(f"{one[i]:.3f} / {many[i]:.2f}" for one, many in values))


def tested(results: dict, runs: Path, base: str, seeds: list[int]):
    """pass@k on the test mazes, and the samples one method needs for another's (Figure 5)."""
    ks = [1, 8, 64, 256, 512]
    found = coverage(results, ks)

    def run(i: int, name: str) -> Path:
        return runs / f"{base}-seed{seeds[i]}-{name}{'' if name == 'base' else '-lr1e-4'}"

    levels(found, ks, run)
    differences(found, ks, f"{base} base, ")
    # Straight lines between powers of two.
    powers = [2**i for i in range(10)]
    curves = coverage(results, powers)
    shown = [3, 6, 8, 9]
    head("times fewer samples MaxRL needs for the pass@k of", *(f"k = {powers[i]}" for i in shown))
    for name in ("base", "rloo", "grpo"):
        times = times_fewer(powers, curves[name], curves["maxrl"])  # (3, ks)
        cells = [[fewer(value, powers[i]) for value in times[:, i]] for i in shown]
        line(name, *(f"{mean} [{least}, {most}]" for mean, least, most in cells))
    for name, whose in (("base", "its base's"), ("grpo", "GRPO's")):
        title = f"times fewer samples MaxRL needs for {whose} pass@k, by seed"
        head(title, *(f"k = {powers[i]}" for i in shown))
        for place, seed in enumerate(seeds):
            one = slice(place, place + 1)
            times = times_fewer(powers, curves[name][one], curves["maxrl"][one], draws=1)[0]
            line(f"seed {seed}", *(fewer(times[i], powers[i]) for i in shown))
    shown = [0, 1, 3, 6]
    head("samples needed for MaxRL's pass@k, by", *(f"k = {powers[i]}" for i in shown))
    for name in ("base", "rloo", "grpo"):
        need = samples_to_match(powers, curves["maxrl"].mean((0, 1)), curves[name].mean((0, 1)))
        line(name, *(f"{need[i]:.0f}" if need[i] < np.inf else "over 512" for i in shown))


def fewer(times: float, k: int) -> str:
    """k times fewer is one sample, and fewer may do; 0 is never within the samples taken."""
    return "< 1" if times == 0 else f"≥ {k}" if times == k else f"{times:.1f}"


def main(study: Path):
    for base in ("weak", "strong"):
        found = read(study / "runs", base)
        seeds = sorted(set.intersection(*(set(found[method]) for method in METHODS)))
        print(f"\n## {base} base, seeds {', '.join(map(str, seeds))}")
        tables = {
            name: {
                method: np.stack([blocks(found[method][seed], key) for seed in seeds])
                for method in METHODS
            }
            for name, key in PANELS.items()
        }
        for name, table in tables.items():
            mean_curves(table, name)
        seed_curves(tables, seeds)
        crossings(tables, seeds)
        per_run(found, seeds, base)
        equal_seconds(found, seeds)
        results = evaluated(study / f"{base}-test.json")
        if results is not None:
            tested(results, study / "runs", base, seeds)
    print("\n## Clipping")
    clipping(read(study / "runs", "weak"), read(study / "runs", "weak", "1e-4-unclipped"))
