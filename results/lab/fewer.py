"""Figure 5: how many times fewer samples one method needs than another."""

import numpy as np

from maxrl.metrics import samples_to_match
from results.lab.data import paper
from results.lab.figures import MAZE9, curve, pair, panel, seed_curves, seeds_said

# Several methods have the same bound: their triangles stand beside each other.
BESIDE = {"base": 0.87, "rloo": 1, "grpo": 1.15}


def times_fewer(ks: list[int], ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """How many times fewer samples `theirs` needs for the pass@k of `ours`, (ks,).

    Both are pass@k (..., ks), of which the means count. 0 where `theirs` never gets there.
    """
    curves = [values.reshape(-1, len(ks)) for values in (ours, theirs)]
    # Dividing a sum once makes equal means equal.
    means = [values.sum(0) / len(values) for values in curves]
    return np.array(ks) / samples_to_match(ks, *means)


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
        times = times_fewer(x, grpo, maxrl)
        lines += times_lines("grpo", x[1:], times[1:], paper=True, lw=1)
    left = panel("paper: eight settings of Qwen3, each against GRPO", *labels, lines, **axes)
    lines = []
    for name, values in curves.items():
        if name != "maxrl":
            times = times_fewer(ks, values, curves["maxrl"])
            lines += times_lines(name, ks[1:], times[1:])
    return [left, panel(MAZE9, *labels, lines, **axes)]


def figure5(curves: dict, ks: list[int], what: str, title: str, together: str) -> dict:
    """pass@k against k of {method: pass@k (seeds, prompts, ks)}, and how many times fewer samples
    MaxRL needs; `together` names lines that lie together."""
    lines = [seed_curves(name, ks, values.mean(1)) for name, values in curves.items()]
    left = ("paper: Qwen3-4B-Base, BeyondAIME", "pass@k", paper(5)["Qwen3-4B-Base / BeyondAIME"])
    return {
        "title": title,
        "caption": "Figure 5: coverage, and how many times fewer samples MaxRL needs for another "
        "one's pass@k (triangles, side by side: one sample is enough). Ours: "
        f"{what}, above {seeds_said(len(curves['maxrl']))}, below of the mean over seeds, as far "
        f"as MaxRL reaches the other.{together} Dashed: the paper's",
        "panels": [
            *pair(left, (MAZE9, "pass@k", lines), "k", xscale="log"),
            *fewer_panels(curves, ks),
        ],
    }
