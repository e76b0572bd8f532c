"""Gradient norms of language models, from the JSON files of norms.py in gradient_norms/."""

from pathlib import Path

import numpy as np

from results.reading import evaluated
from results.tables.cells import head, line

STUDIES = {
    "words": "word problems",
    "maze_strong": "mazes, strong base",
    "maze_weak": "mazes, weak base",
    "smollm2": "GSM8K, SmolLM2-135M",
}
NAMES = {"maxrl": "MaxRL", "grpo": "GRPO", "reinforce_mean": "REINFORCE"}
UP_TO = (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1 - 1e-9, 1)
CALLED = ("0", ".02", ".05", ".1", ".2", ".3", ".5", ".7", ".9", "below 1", "1")


def there(folder: Path) -> dict[str, str]:
    """The studies that have been run."""
    return {study: name for study, name in STUDIES.items() if (folder / f"{study}.json").exists()}


def read(folder: Path, study: str):
    """Pass rates (prompts,) and {estimator: norms (prompts,)}, of all seeds."""
    rows = evaluated(folder / f"{study}.json")["checkpoints"]
    norms = {
        name: np.concatenate([row["norms"][name] for row in rows]) for name in rows[0]["norms"]
    }
    return np.concatenate([row["pass_rates"] for row in rows]), norms


def medians(folder: Path, study: str):
    """Counts of the bins of UP_TO, and {estimator: median of each bin, NaN where it is empty}."""
    p, norms = read(folder, study)
    bins = np.searchsorted(UP_TO, p)
    counts = np.bincount(bins, minlength=len(UP_TO))
    found = {}
    for name, values in norms.items():
        found[name] = [np.median(values[bins == i]) if n else np.nan for i, n in enumerate(counts)]
    return counts, found


def curves(folder: Path, study: str) -> dict[str, tuple]:
    """{estimator: pass rates, and quartiles (3, bins) of the norms} of the bins between 0 and 1, at
    their median pass rates."""
    p, norms = read(folder, study)
    bins = np.searchsorted(UP_TO, p)
    inner = [i for i in np.unique(bins) if 0 < UP_TO[i] < 1]
    found = {}
    for name, values in norms.items():
        quartiles = np.stack([np.quantile(values[bins == i], (0.25, 0.5, 0.75)) for i in inner], 1)
        found[name] = [np.median(p[bins == i]) for i in inner], quartiles
    return found


def ratios(folder: Path, study: str) -> dict[str, float]:
    """The largest relative deviation from 1/p and from 1/sqrt(p(1-p)), over prompts with 0 < K <
    N."""
    p, norms = read(folder, study)
    some = (p > 0) & (p < 1)
    p = p[some]
    plain = norms["reinforce_mean"][some]
    wanted = {"maxrl": 1 / p, "grpo": (p * (1 - p)) ** -0.5}
    return {
        name: np.abs(norms[name][some] / plain / weight - 1).max()
        for name, weight in wanted.items()
    }


def main(folder: Path):
    studies = there(folder)
    for study, name in studies.items():
        counts, found = medians(folder, study)
        head(f"{name}, K/N up to", *CALLED)
        line("prompts", *map(str, counts))
        for method, values in found.items():
            line(NAMES[method], *("-" if np.isnan(value) else f"{value:.3g}" for value in values))
    head("largest deviation of the ratio", *(NAMES[method] for method in ("maxrl", "grpo")))
    for study, name in studies.items():
        line(name, *(f"{value:.1g}" for value in ratios(folder, study).values()))
