"""Figure 5 with intervals: how many times fewer samples one method needs than another."""

from typing import Any

import numpy as np

from maxrl.metrics import samples_to_match
from maxrl.run.table import coverage, powers
from results.lab.data import paper, tested
from results.lab.figures import MAZE9, curve, pair, panel, seed_curves, seeds_said

# Several methods have the same bound: their triangles stand beside each other.
BESIDE = {"base": 0.87, "rloo": 1, "grpo": 1.15}


def times_fewer(
    ks: Any, coverage_a: Any, coverage_b: Any, draws: int = 1000, seed: int = 0
) -> np.ndarray:
    """How many times fewer samples method b needs for the pass@k of a, with a bootstrap interval.

    ks (M,)                 increasing
    coverage_a, coverage_b  pass@k (seeds, P, M) of every seed and prompt; the prompts are the
                            same, the numbers of seeds may differ
    returns (3, M)          k / samples_to_match(...) of the means, and the ends of the 95 %
                            interval; 0 where b never gets there

    Each draw takes P prompts with replacement, the same ones for a and b, and as many seeds as
    there are, also with replacement: the same ones, as pairs, where a and b have equally many.
    The ends are the 2.5 % and 97.5 % quantiles. An interval over three seeds says little about a
    fourth one.
    """
    ks, a, b = map(np.asarray, (ks, coverage_a, coverage_b))
    rng = np.random.default_rng(seed)
    seeds, prompts, _ = a.shape

    def ratio(times: np.ndarray, of_a: Any, of_b: Any) -> np.ndarray:
        # Dividing a sum once makes equal means equal.
        mean_a = (times @ a)[of_a].sum(0) / (len(a) * prompts)  # (M,)
        mean_b = (times @ b)[of_b].sum(0) / (len(b) * prompts)
        return ks / samples_to_match(ks, mean_a, mean_b)

    found = [ratio(np.ones(prompts), slice(None), slice(None))]
    for _ in range(draws):
        times = np.bincount(rng.integers(prompts, size=prompts), minlength=prompts)  # (P,)
        of_a = rng.integers(seeds, size=seeds)
        of_b = of_a if len(b) == seeds else rng.integers(len(b), size=len(b))
        found.append(ratio(times, of_a, of_b))
    ends = np.quantile(found[1:], (0.025, 0.975), axis=0, method="inverted_cdf")
    return np.stack([found[0], *ends])


def times_lines(name: str, ks, times, **more) -> list[dict]:
    """How many times fewer samples MaxRL needs at each of ks: a line, and triangles where one
    sample of MaxRL is enough, so that the number is a lower bound."""
    ks, times = np.array(ks), np.array(times)
    bound, shown = times >= ks, (times > 0) & (times < ks)
    lines = [curve(name, ks[shown], times[shown], unnamed=True, **more)]
    if bound.any() and not more:
        beside = ks[bound] * BESIDE[name]
        lines.append(curve(name, beside, times[bound], points="^", unnamed=True))
    return lines


def fewer_panels(curves: dict, ks: list[int]) -> list[dict]:
    """How many times fewer samples MaxRL needs: the paper's against GRPO, ours against each of
    {method: pass@k (seeds, prompts, ks)}."""
    labels = ("k", "times fewer samples for MaxRL")
    axes = {"xscale": "log", "yscale": "log", "ylim": (0.4, 1.5 * ks[-1])}
    lines = []
    for setting in paper(5).values():
        (x, grpo), (_, maxrl) = setting["grpo"], setting["maxrl"]
        times = times_fewer(x, grpo[None, None], maxrl[None, None], draws=1)[0]
        lines += times_lines("grpo", x[1:], times[1:], paper=True, lw=1)
    left = panel("paper: eight settings of Qwen3, each against GRPO", *labels, lines, **axes)
    lines = []
    for name, values in curves.items():
        if name != "maxrl":
            times = times_fewer(ks, values, curves["maxrl"], draws=1)[0]
            lines += times_lines(name, ks[1:], times[1:])
    return [left, panel(MAZE9, *labels, lines, **axes)]


def figure5(file: str, what: str, title: str, together: str) -> dict:
    """pass@k against k, and how many times fewer samples MaxRL needs."""
    results = tested(file)
    ks = powers(results)
    curves = coverage(results, ks)
    lines = [seed_curves(name, ks, values.mean(1)) for name, values in curves.items()]
    left = ("paper: Qwen3-4B-Base, BeyondAIME", "pass@k", paper(5)["Qwen3-4B-Base / BeyondAIME"])
    return {
        "title": title,
        "caption": "Figure 5: coverage, and how many times fewer samples MaxRL needs for another "
        "one's pass@k (triangles, side by side: one sample is enough). Ours: "
        f"{what}, {results['prompts']} test mazes x {results['samples']} samples, above "
        f"{seeds_said(len(curves['maxrl']))}, below of the mean over seeds, as far as MaxRL "
        f"reaches the other. Lines that lie together: {together}. Dashed: the paper's",
        "panels": [
            *pair(left, (MAZE9, "pass@k", lines), "k", xscale="log"),
            *fewer_panels(curves, ks),
        ],
    }
