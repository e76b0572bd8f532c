"""Tables that studies share. Every function prints Markdown."""

from collections.abc import Iterable

from maxrl.analysis.plots import look
from results.lab.data import at_clocks, clock, paired, runs
from results.lab.intervals import ahead, holm, interval, p_value

METHODS = ("maxrl", "grpo", "rloo")
# What is compared with and is not an estimator of the package.
OTHERS = {
    "dapo": "DAPO",
    "ada": "Reinforce-Ada",
    "ada-half": "Reinforce-Ada, half the rate",
    "grpo-low": "GRPO, half the rate",
}


def label_of(name: str) -> str:
    """What a row such as maxrl-128 is called."""
    return OTHERS.get(name) or look(name).label


def table(columns: Iterable, rows: Iterable[Iterable]):
    """A head, and rows of cells."""
    columns = list(columns)
    print()
    for cells in (columns, None, *rows):
        print(f"| {' | '.join(map(str, cells))} |" if cells else "|---" * len(columns) + "|")


def summary(title: str, columns: Iterable, rows: dict, sign: str = "", cell=interval):
    """A row for each of {name: values (columns, seeds)}; `cell` makes a text of the values of one
    column, such as `side_by_side`, or `with_error` of values over prompts."""
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


def differences(found: dict, pairs: Iterable[tuple[str, str]]) -> dict:
    """{"one minus another": values (columns, seeds)} of the pairs of rows."""
    return {
        f"{label_of(own)} minus {label_of(other)}": found[own] - found[other]
        for own, other in pairs
    }


def searched(study: str, seed: int, ks, steps: int = 1, more: Iterable[str] = ()):
    """Every arm of a search on validation problems at the end; `more` are further metrics."""
    keys = [*(f"eval/pass@{k}" for k in ks), *more]
    lines = []
    for arm, seeds in sorted(runs(study, steps=steps).items()):
        if seed in seeds and "-lr" in arm:
            found = [seeds[seed][-1].get(key) for key in keys]
            lines.append([arm, *("" if value is None else f"{value:.3f}" for value in found)])
    heads = (key.removeprefix("eval/") for key in keys)
    table([f"search, seed {seed}, validation", *heads], lines)


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
