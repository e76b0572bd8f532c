"""What stays of a study's runs and tests, an entry of runs.json or tests.json for each.

A run is its command, versions, machine and metrics: of sequences the means of every five steps, of
a classifier its evaluations. Seconds are medians: a step during which
the machine slept says nothing of the method. A test is its command, settings and what each
checkpoint has: the counts of every problem, or of classifiers pass rates.
"""

import json
import statistics
from pathlib import Path

from maxrl.analysis.metrics import exact_pass_at_k
from maxrl.system.files import json_lines
from results.lab.data import RESULTS, kept, write_entries

STEPS = 5
KEPT = (
    "reward",
    "frac_unsolved",
    "frac_reward_zero_mean",
    "frac_reward_one_mean",
    "entropy",
    "completions/mean_length",
    "loss",
    "kl",
    "grad_norm",
    "lr",
    "seconds",
    "seconds/rollout",
    "seconds/backward",
    "rollouts",
)
# What a run has recorded of itself; earlier versions have written neither commit nor machine.
ABOUT = ("command", "torch", "python", "commit", "machine")
# What is known of a test, and of its checkpoints.
ASKED = ("command", "torch", "precision", "task_options", "split", "prompts", "samples", "classes")
ROWS = ("name", "path", "counts", "majority", "distinct")
# The k whose best rewards are kept, of every problem.
BEST_KS = ("1", "8", "64")
# The k of a test of classifiers whose means are kept.
KS = (1, 2, 4, 8, 16, 25, 32, 64, 128, 256, 512)


def digits(values, count: int) -> list[float]:
    return [float(f"{value:.{count}g}") for value in values]


def thinned(rows: list[dict], size: int = STEPS) -> list[dict]:
    """Means over `size` steps, the step that of the last one; `clipped` is the share with a
    gradient norm above 1. What an evaluation found stands where it was."""
    result = []
    for i in range(0, len(rows), size):
        part = rows[i : i + size]
        row = {"step": part[-1]["step"]}
        for key in KEPT:
            known = [one[key] for one in part if one.get(key) is not None]
            mean = statistics.median if key.startswith("seconds") else statistics.fmean
            if known:
                row |= {key: digits([mean(known)], 6)[0]}
        row["clipped"] = sum(one["grad_norm"] > 1 for one in part) / len(part)
        for one in part:
            row |= {key: value for key, value in one.items() if key.startswith("eval/")}
        result.append(row)
    return result


def between(rows: list[dict]) -> dict:
    """A classifier's evaluations."""
    places = [i for i, row in enumerate(rows) if "eval/pass@1" in row]
    seconds = len(rows) * statistics.median(row["seconds"] for row in rows)
    result = {"seconds": round(seconds, 1), "steps": [rows[i]["step"] + 1 for i in places]}
    for key in rows[-1]:
        if key.startswith("eval/"):
            result[key.removeprefix("eval/")] = digits([rows[i][key] for i in places], 4)
    return result


def columns(rows: list[dict]) -> dict[str, list]:
    """{key: a value of every row, or None}."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: [row.get(key) for row in rows] for key in keys}


def kept_run(folder: Path, size: int = STEPS) -> dict:
    """What stays of a run."""
    recipe = json.loads((folder / "recipe.json").read_text())
    rows = [row for row, _ in json_lines(folder / "metrics.jsonl")]
    known = {key: recipe[key] for key in ABOUT if key in recipe}
    if "pass_rate" in rows[-1]:
        return known | between(rows)
    return known | {"metrics": columns(thinned(rows, size))}


def kept_test(file: Path) -> dict:
    """What stays of a test: of classifiers means over the images of pass@k and top-1, and four
    digits of each pass rate; of partial credit the best of some k, to five digits."""
    results = json.loads(file.read_text())
    if "checkpoints" not in results:
        return results
    rows = []
    for row in results["checkpoints"]:
        some = {key: row[key] for key in ROWS if key in row}
        if "best" in row:
            some["best"] = {k: digits(row["best"][k], 5) for k in BEST_KS if k in row["best"]}
        if results["classes"]:
            some["pass@k"] = digits([exact_pass_at_k(row["pass_rates"], k).mean() for k in KS], 6)
            some["top1"] = statistics.mean(row["top1"])
            some["pass_rates"] = digits(row["pass_rates"], 4)
        rows.append(some)
    return {key: results[key] for key in ASKED if key in results} | {"checkpoints": rows}


def ended(run: Path) -> bool:
    """Whether the run has done all of its steps, or has stopped where it was told to."""
    config = json.loads((run / "recipe.json").read_text())["config"]
    rows = [row for row, _ in json_lines(run / "metrics.jsonl")]
    if not rows:
        return False
    reached = config["stop_at_pass"] and rows[-1].get("eval/pass@1", 0) >= config["stop_at_pass"]
    return bool(reached) or rows[-1]["step"] + 1 == config["steps"]


def keep(study: str, stages: dict, named: dict, size: int):
    """Keep the runs that have ended, a row for each `size` steps, beside those kept before, and the
    tests."""
    folder = Path("runs", study)
    runs, tests = kept(study, "runs"), kept(study, "tests")
    for name in (name for stage in stages.values() for name in stage):
        if (folder / name / "metrics.jsonl").exists() and ended(folder / name):
            run = kept_run(folder / name, size)
            # An entry of the same run may know more of it.
            if not run.items() <= runs.get(name, {}).items():
                runs[name] = run
    for name in named:
        if (folder / name).exists():
            tests[name] = kept_test(folder / name)
    write_entries(RESULTS / study, "runs", runs, "keep")
    write_entries(RESULTS / study, "tests", tests, "keep")
