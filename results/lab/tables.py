"""Tables that studies share. Every function prints Markdown."""

import statistics
from collections.abc import Iterable

from maxrl.analysis.plots import look
from results.lab.data import at_clocks, clock, evaluations, paired, runs
from results.lab.intervals import ahead, holm, interval, p_value, with_error

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


def searched(study: str, seed: int, ks, steps: int = 1, more=lambda rows: {}):
    """Every arm of a search on validation problems at the end; `more` gives {column: value} of a
    run's rows."""
    lines, measured = [], {}
    for arm, seeds in sorted(runs(study, steps=steps).items()):
        if seed in seeds and "-lr" in arm:
            passed = [evaluations(seeds[seed], k)[-1] for k in ks]
            measured = more(seeds[seed])
            lines.append([arm, *(f"{value:.3f}" for value in [*passed, *measured.values()])])
    table([f"search, seed {seed}, validation", *pass_columns(ks), *measured], lines)


def corrected(title: str, rows: dict):
    """Differences {name: (seeds,)} that were named before the runs, each with its p value and the
    one that Holm's correction for their number makes of it."""
    ps = [p_value(gaps) for gaps in rows.values()]
    lines = []
    for (name, gaps), p, with_others in zip(rows.items(), ps, holm(ps)):
        lines.append([name, interval(gaps, "+"), ahead(gaps), f"{p:.4f}", f"{with_others:.4f}"])
    table([title, "95 %", "ahead on", "p", "p, Holm"], lines)


def equal(of: str, found: dict, pairs: Iterable, every: int, ks):
    """Differences on validation mazes at equal seconds or rollouts, on the seeds that both have.

    found  {method: {seed: rows of metrics}}, evaluated once in `every` steps
    """
    rows = {}
    for own, other in pairs:
        both = paired(found, (own, other))
        sides = [[(clock(run, every, of), run) for run in side.values()] for side in both.values()]
        if sides[0]:
            rows[f"{label_of(own)} minus {label_of(other)}"] = at_clocks(*sides, ks)
    leads(f"equal {of}, validation", pass_columns(ks), rows)


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
