"""What tables and figures read: kept runs, tests, and the paper's curves."""

import json
import re
from pathlib import Path

import numpy as np

from maxrl.analysis import table
from maxrl.system.files import write_text

RESULTS = Path(__file__).parents[1]


def read_json(name: str):
    """A JSON file below results/."""
    return json.loads((RESULTS / name).read_text())


def kept(study: str, what: str) -> dict[str, dict]:
    """{name: kept run or test} of STUDY/runs.json or STUDY/tests.json."""
    file = f"{study}/{what}.json"
    return read_json(file)[what] if (RESULTS / file).exists() else {}


def write_entries(study: Path, what: str, entries: dict, made_by: str):
    """WHAT.json in the folder of a study, a line an entry, so that those kept before stay as they
    are."""
    lines = []
    for name, entry in sorted(entries.items()):
        lines.append(f'"{name}": {json.dumps(entry, allow_nan=False, separators=(",", ":"))}')
    command = f'"command": "python -m results.lab {study.name} {made_by}"'
    if lines:
        text = f'{{{command},\n"{what}": {{\n' + ",\n".join(lines) + "}}\n"
        write_text(study / f"{what}.json", text)


def paper(number: int) -> dict:
    """{panel: {method: (x, y)}} of a figure of the paper; percent become fractions."""
    figure = read_json("paper/numbers.json")[f"figure{number:02}"]
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
    for name, run in kept(study, "runs").items():
        match = re.fullmatch(pattern, name)
        if match and run["metrics"]["step"][-1] + 1 >= steps:
            found.setdefault(match["method"], {})[int(match["seed"])] = rows_of(run)
    return {method: dict(sorted(seeds.items())) for method, seeds in found.items()}


def paired(found: dict, methods) -> dict[str, dict[int, list]]:
    """The methods, in their order, with the seeds that all of them have."""
    seeds = sorted(set.intersection(*(set(found.get(method, ())) for method in methods)))
    return {method: {seed: found[method][seed] for seed in seeds} for method in methods}


def tested(name: str) -> dict:
    """What eval.py wrote to STUDY/NAME."""
    study, _, test = name.partition("/")
    return kept(study, "tests")[test]


def by_seed(study: str, name: str, ks, measure=table.coverage) -> dict[str, dict[int, np.ndarray]]:
    """{row: {seed: the mean over prompts of pass@k, or of another measure, (ks,)}}.

    The tests are NAME-seedSEED.json, where the name is a pattern, or NAME.json, whose seeds are
    counted from 0.
    """
    found: dict[str, dict] = {}
    for test, results in sorted(kept(study, "tests").items()):
        whole, _, seed = test.removesuffix(".json").partition("-seed")
        if re.fullmatch(name, whole):
            for row, values in measure(results, ks).items():
                for place, each in enumerate(values):
                    found.setdefault(row, {})[int(seed or place)] = each.mean(0)
    return found


def all_seeds(study: str, name: str, ks, measure=table.coverage) -> dict[str, np.ndarray]:
    """The same of rows that have the same seeds, {row: (ks, seeds)}."""
    found = by_seed(study, name, ks, measure)
    return {row: np.transpose([*seeds.values()]) for row, seeds in found.items()}


def minus(found: dict, own: str, other: str) -> np.ndarray:
    """One row of by_seed() minus another, (ks, seeds), on the seeds that both have."""
    mine, theirs = (np.array(list(each.values())) for each in paired(found, (own, other)).values())
    return (mine - theirs).T


def from_bases(study: str, test: str, found: dict, k: int) -> dict[str, np.ndarray]:
    """{method: pass@k of its runs {seed: rows} on validation, (seeds, evaluations)}, the first that
    of their bases in STUDY/TEST.json."""
    bases = all_seeds(study, test, [k])["base"].T  # (seeds, 1)
    curves = {}
    for method, seeds in found.items():
        passed = [evaluations(rows, k) for rows in seeds.values()]
        curves[method] = np.concatenate([bases, passed], 1)
    return curves


def means(rows: list[dict], key: str, size: int = 100) -> np.ndarray:
    """Means over whole blocks of `size` steps of a run, (blocks,)."""
    length = size // (rows[0]["step"] + 1)
    values = np.array([row[key] for row in rows])
    return values[: len(values) // length * length].reshape(-1, length).mean(1)


def clock(rows: list[dict], every: int, of: str = "seconds") -> np.ndarray:
    """Seconds, or rollouts, of the steps up to each evaluation, one in `every` steps."""
    ends = np.array([0, *(row["step"] + 1 for row in rows)])
    spent = np.cumsum([0, *(np.diff(ends) * [row[of] for row in rows])])
    return np.interp(np.arange(every, ends[-1] + 1, every), ends, spent)


def at_clocks(own: list, theirs: list, ks) -> np.ndarray:
    """Differences (ks, seeds) in an evaluation's pass@k when the shorter run of each seed ends, on
    the line between two evaluations of the longer one.

    own, theirs  (clock, rows) of each seed's run

    ValueError if a run ends before the other has been evaluated.
    """
    ends = [min(mine[-1], other[-1]) for (mine, _), (other, _) in zip(own, theirs)]
    starts = [max(mine[0], other[0]) for (mine, _), (other, _) in zip(own, theirs)]
    if any(end < start for end, start in zip(ends, starts)):
        raise ValueError("a run ends before the first evaluation of the one that it is paired with")
    at = [
        [np.interp(end, spent, evaluations(rows, k)) for end, (spent, rows) in zip(ends, side)]
        for side in (own, theirs)
        for k in ks
    ]
    mine, other = np.reshape(at, (2, len(ks), -1))
    return mine - other
