"""Tables that studies share. Every function prints Markdown."""

import statistics
from collections.abc import Iterable

import numpy as np

from maxrl.plots import called
from results.lab.data import read_json
from results.lab.intervals import ahead, interval, with_error

METHODS = {"maxrl": "MaxRL", "grpo": "GRPO", "rloo": "RLOO"}


def table(columns: Iterable, rows: Iterable[Iterable]):
    """A head, and rows of cells."""
    columns = list(columns)
    print()
    for cells in (columns, None, *rows):
        print(f"| {' | '.join(map(str, cells))} |" if cells else "|---" * len(columns) + "|")


def clipped(rows: list[dict]) -> str:
    """Share of the steps whose gradient was clipped; empty where the run was not kept."""
    return f"{statistics.mean(row['clipped'] for row in rows):.0%}" if rows else ""


def pass_columns(ks) -> list[str]:
    return [f"pass@{k}" for k in ks]


def lead_columns(ks) -> list[str]:
    return [cell for column in pass_columns(ks) for cell in (column, "ahead on")]


def lead_cells(gaps) -> list[str]:
    """Cells under lead_columns() of differences (ks, seeds)."""
    return [cell for gap in gaps for cell in (interval(gap, "+"), ahead(gap))]


def levels(found: dict, ks: list[int], kept: dict, first: int = 0, prompts: str = "mazes"):
    """The means over seeds, where there are several; then every run with its error over prompts.

    found   {name: pass@k, (seeds, prompts, ks)}, the seeds count from `first`
    kept    {name: {seed: rows of metrics}} of the runs that were kept
    """
    columns = pass_columns(ks)
    if all(len(seeds) > 1 for seeds in found.values()):
        means = ([name, *map(interval, seeds.mean(1).T)] for name, seeds in found.items())
        table(["mean over seeds, 95 %", *columns], means)
    rows = []
    for name, seeds in found.items():
        for seed, values in enumerate(seeds, first):
            title = f"seed {seed} {name}" if len(seeds) > 1 else name
            run = kept.get(name, {}).get(seed, [])
            rows.append([title, *map(with_error, values.T), clipped(run)])
    table([f"run, standard error over {prompts}", *columns, "steps clipped"], rows)


def differences(found: dict, ks: list[int], name: str = "", first: int = 0, prompts: str = "mazes"):
    """MaxRL minus each, over seeds, and of each seed paired over prompts; `name` goes before, and
    the seeds count from `first`."""
    gaps = {other: found["maxrl"] - found[other] for other in found if other != "maxrl"}
    over_all = ([other, *lead_cells(gap.mean(1).T)] for other, gap in gaps.items())
    table([f"{name}MaxRL minus, 95 % over seeds", *lead_columns(ks)], over_all)
    rows = []
    for other, seeds in gaps.items():
        for seed, gap in enumerate(seeds, first):
            cells = [with_error(column, "+") for column in gap.T]
            rows.append([f"{other}, seed {seed}", *cells])
    table([f"{name}MaxRL minus, standard error over {prompts}", *pass_columns(ks)], rows)


def over_blocks(title: str, curves: dict, labels: Iterable):
    """Every block of {method: (seeds, blocks)} as the mean over seeds, and MaxRL minus each."""
    rows = []
    for i, label in enumerate(labels):
        cells = [interval(values[:, i]) for values in curves.values()]
        for other in ("grpo", "rloo"):
            cells.append(interval(curves["maxrl"][:, i] - curves[other][:, i], "+"))
        rows.append([label, *cells])
    table([title, *METHODS.values(), "MaxRL minus GRPO", "MaxRL minus RLOO"], rows)


def class_levels(found: dict, names, k: int, title: str, naming=called):
    """Means over seeds of class_means() at 1 and k, and each seed's pass@1."""
    rows = []
    for name in names:
        each = " / ".join(f"{value:.3f}" for value in found[name][0])
        rows.append([naming(name), *map(interval, found[name]), each])
    table([title, "pass@1", f"pass@{k}", "top-1", "pass@1 of each seed"], rows)


def lost(file: str, names, naming=called):
    """Images that 1,024 rollouts seldom meet, and those that one rollout does, of a test of
    classifiers."""
    models = read_json(file)["checkpoints"]
    rows = []
    for name in names:
        p = np.array([row["pass_rates"] for row in models if row["name"] == name])  # (seeds, P)
        parts = [p < 0.001, (p >= 0.001) & (p <= 0.5), p > 0.5]
        rows.append([naming(name), *(interval(part.mean(1)) for part in parts)])
    table(["share of test images with pass rate", "below .001", ".001 to .5", "above .5"], rows)
