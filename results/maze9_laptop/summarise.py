"""The tables and the figure of README.md from the protocol's runs.

    PYTHONPATH=. python results/maze9_laptop/summarise.py runs/protocol
"""

import json
import statistics
import sys
from pathlib import Path

from maxrl import plots
from maxrl.metrics import mean_and_se, pass_at_k

KS = (1, 8, 64)
COLUMNS = [f"pass@{k}" for k in KS]


def line(cells: list[str]):
    print(f"| {' | '.join(cells)} |")


def head(*cells: str):
    print()
    line(list(cells))
    print("|---" * len(cells) + "|")


def clipped(run: Path) -> str:
    norms = [json.loads(text)["grad_norm"] for text in (run / "metrics.jsonl").open()]
    return f"{sum(norm > 1 for norm in norms) / len(norms):.0%}"


def run_of(checkpoint: str, root: Path) -> Path:
    """.../protocol/seed0/maxrl-lr1e-4/step-000160 as a run under root."""
    return root / Path(*Path(checkpoint).parts[-3:-1])


def table(results: dict, root: Path):
    """One row per checkpoint; then, per name, the mean over seeds with its standard error over seeds."""
    head("run", *COLUMNS, "steps clipped")
    seeds = {}
    for row in results["checkpoints"]:
        run = run_of(row["path"], root)
        cells = [mean_and_se(pass_at_k(results["samples"], row["counts"], k)) for k in KS]
        seeds.setdefault(row["name"], []).append([mean for mean, _ in cells])
        line([f"{run.parent.name} {run.name}", *(f"{m:.3f} ± {s:.3f}" for m, s in cells), clipped(run)])
    for name, rows in seeds.items():
        if len(rows) > 1:
            means = [(statistics.mean(column), statistics.stdev(column) / len(column) ** 0.5) for column in zip(*rows)]
            line([f"**{name}**, {len(rows)} seeds (± over seeds)", *(f"**{m:.3f}** ± {s:.3f}" for m, s in means), ""])


def differences(results: dict):
    """MaxRL minus each, per seed, standard errors paired over prompts; and over all seeds' prompts."""
    counts = {}
    for row in results["checkpoints"]:
        counts.setdefault(row["name"], []).append(row["counts"])
    head("MaxRL minus", *COLUMNS)
    for name in ("grpo", "rloo", "base"):
        pairs = list(zip(counts["maxrl"], counts[name]))
        for label, chosen in [*((f"seed {i}", [pair]) for i, pair in enumerate(pairs)), ("all seeds", pairs)]:
            cells = []
            for k in KS:
                gaps = [pass_at_k(results["samples"], a, k) - pass_at_k(results["samples"], b, k) for a, b in chosen]
                mean, se = mean_and_se(sum(gaps) / len(gaps))
                cells.append(f"{mean:+.3f} ± {se:.3f}")
            line([f"{name}, {label}", *cells])


def equal_seconds(results: dict, root: Path):
    """Validation pass@k at the last evaluation within the seconds of the shortest run of each seed."""
    runs = {}
    for row in results["checkpoints"]:
        run = run_of(row["path"], root)
        if row["name"] != "base":
            runs.setdefault(run.parent.name, {})[row["name"]] = [json.loads(text) for text in (run / "metrics.jsonl").open()]
    head("seed, training seconds", "run", "step", *COLUMNS)
    for seed, methods in sorted(runs.items()):
        budget = min(sum(row["seconds"] for row in rows) for rows in methods.values())
        for name, rows in methods.items():
            spent, last = 0.0, None
            for row in rows:
                spent += row["seconds"]
                if spent <= budget * 1.0001 and "eval/pass@1" in row:
                    last = row
            cells = [f"{last[f'eval/pass@{k}']:.3f}" for k in KS]
            line([f"{seed}, {budget:.0f}", name, str(last["step"] + 1), *cells])


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in ("rates.json", "test.json"):
        results = json.loads((root / name).read_text())
        sizes = f"{results['prompts']} mazes x {results['samples']} samples"
        print(f"\n{name}: {results['split']}, {sizes}, torch {results['torch']}")
        table(results, root)
        if name == "test.json":
            differences(results)
            equal_seconds(results, root)
            caption = f"9x9 mazes, 308,448 parameters, 160 steps (reduced scale), three seeds: {sizes}"
            plots.coverage(results["pass@k"], "maxrl", Path(__file__).parent / "coverage.png", caption)
