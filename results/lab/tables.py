"""Tables that studies share. Every function prints Markdown."""

import statistics
from collections.abc import Iterable

from maxrl.analysis.plots import look
from results.lab.intervals import ahead, interval, side_by_side, with_error

METHODS = {"maxrl": "MaxRL", "grpo": "GRPO", "rloo": "RLOO"}


def label_of(name: str) -> str:
    """What a row such as maxrl-128 is called."""
    return look(name).label


def table(columns: Iterable, rows: Iterable[Iterable]):
    """A head, and rows of cells."""
    columns = list(columns)
    print()
    for cells in (columns, None, *rows):
        print(f"| {' | '.join(map(str, cells))} |" if cells else "|---" * len(columns) + "|")


def clipped(rows: list[dict]) -> str:
    """Share of the steps whose gradient was clipped; empty where the run was not kept."""
    return f"{statistics.mean(row['clipped'] for row in rows):.0%}" if rows else ""


def summary(title: str, columns: Iterable, rows: dict, sign: str = "", cell=interval):
    """A row for each of {name: values (columns, seeds)}, or over prompts with `with_error`."""
    lines = []
    for name, values in rows.items():
        lines.append([name, *(cell(some, sign) for some in values)])
    table([title, *columns], lines)


def leads(title: str, columns: Iterable, rows: dict):
    """Differences {name: (columns, seeds)}, and on how many seeds they are above 0."""
    heads = [head for column in columns for head in (column, "ahead on")]
    lines = []
    for name, gaps in rows.items():
        cells = [cell for gap in gaps for cell in (interval(gap, "+"), ahead(gap))]
        lines.append([name, *cells])
    table([title, *heads], lines)


def pass_columns(ks) -> list[str]:
    return [f"pass@{k}" for k in ks]


def levels(found: dict, ks: list[int], kept: dict, prompts: str = "mazes"):
    """The means over seeds, where there are several; then every run with its error over prompts.

    found   {name: pass@k, (seeds, prompts, ks)}
    kept    {name: {seed: rows of metrics}} of the runs that were kept
    """
    columns = pass_columns(ks)
    if all(len(seeds) > 1 for seeds in found.values()):
        means = {name: seeds.mean(1).T for name, seeds in found.items()}
        summary("mean over seeds, 95 %", columns, means)
    rows = []
    for name, seeds in found.items():
        for seed, values in enumerate(seeds):
            title = f"seed {seed} {name}" if len(seeds) > 1 else name
            run = kept.get(name, {}).get(seed, [])
            rows.append([title, *map(with_error, values.T), clipped(run)])
    table([f"run, standard error over {prompts}", *columns, "steps clipped"], rows)


def differences(found: dict, ks: list[int], name: str = "", prompts: str = "mazes"):
    """MaxRL minus each, over seeds, and of each seed paired over prompts; `name` goes before."""
    gaps = {other: found["maxrl"] - found[other] for other in found if other != "maxrl"}
    columns = pass_columns(ks)
    over_all = {other: seeds.mean(1).T for other, seeds in gaps.items()}
    leads(f"{name}MaxRL minus, 95 % over seeds", columns, over_all)
    each = {}
    for other, seeds in gaps.items():
        for seed, gap in enumerate(seeds):
            each[f"{other}, seed {seed}"] = gap.T
    title = f"{name}MaxRL minus, standard error over {prompts}"
    summary(title, columns, each, "+", with_error)


def over_blocks(title: str, curves: dict, labels: Iterable):
    """Every block of {method: (seeds, blocks)} as the mean over seeds, and MaxRL minus each."""
    rows = []
    for i, label in enumerate(labels):
        cells = [interval(values[:, i]) for values in curves.values()]
        for other in ("grpo", "rloo"):
            cells.append(interval(curves["maxrl"][:, i] - curves[other][:, i], "+"))
        rows.append([label, *cells])
    table([title, *METHODS.values(), "MaxRL minus GRPO", "MaxRL minus RLOO"], rows)


def class_levels(title: str, found: dict, names, k: int, naming=label_of):
    """Means over seeds of class_means() at 1 and k, and each seed's pass@1."""
    rows = []
    for name in names:
        rows.append([naming(name), *map(interval, found[name]), side_by_side(found[name][0])])
    table([title, "pass@1", f"pass@{k}", "top-1", "pass@1 of each seed"], rows)


def behind(title: str, found: dict, names, k: int, naming=label_of):
    """Cross-entropy minus each of class_means() at 1 and k."""
    gaps = {naming(name): found["supervised"] - found[name] for name in names}
    summary(title, ("pass@1", f"pass@{k}", "top-1"), gaps, "+")


def lost(rates: dict, names, naming=label_of):
    """Images that 1,024 rollouts seldom meet, and those that one rollout does, of image_rates()."""
    rows = {}
    for name in names:
        p = rates[name]  # (seeds, images)
        parts = [p < 0.001, (p >= 0.001) & (p <= 0.5), p > 0.5]
        rows[naming(name)] = [part.mean(1) for part in parts]
    summary("share of test images with pass rate", ("below .001", ".001 to .5", "above .5"), rows)
