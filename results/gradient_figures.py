"""Figures of what estimators' gradients are: norms next to the paper's, and the exact oracle."""

import json

import numpy as np

from results.gradient_norms import summarise as norms
from results.oracle import summarise as oracle
from results.panels import METHODS, line, over_seeds, theirs
from results.reading import RESULTS, paper


def figure6():
    """Gradient norm of a prompt against its pass rate, before RL."""
    folder = RESULTS / "gradient_norms"
    axes = {
        "xlabel": "pass rate",
        "ylabel": "gradient norm of a prompt",
        "yscale": "log",
        "xlim": (-0.02, 1.02),
        "ylim": (0.4, 200),
    }
    # At pass rate 1 the norm is 0, which a logarithm cannot show.
    curves = {name: (x[x < 1], y[x < 1]) for name, (x, y) in paper(6)["medians"].items()}
    panels = [theirs(curves, title="paper: Qwen2.5-1.5B-Instruct on MATH-500", **axes)]
    for study in norms.there(folder):
        lines = [
            line(name.replace("_mean", ""), p, median, low=low, high=high)
            for name, (p, (low, median, high)) in norms.curves(folder, study).items()
        ]
        panels.append(
            {"lines": lines, "title": f"ours: {norms.STUDIES[study]} (reduced scale)", **axes}
        )
    return {
        "caption": "Figure 6: norm of a prompt's gradient from 128 rollouts. The paper's RLOO is our REINFORCE",
        "told": "solid: ours, median of a bin of prompts, bands its quartiles; dashed: the paper's medians; "
        "a norm of 0 is not drawn",
        "panels": panels,
    }


def policies(rows: list[dict], name: str, x: str, key: str) -> dict:
    """A line of the oracle: a number of an estimator's rows against their N or order, over the five policies."""
    return over_seeds(
        name, [row[x] for row in rows], np.stack([oracle.numbers(row)[key] for row in rows], 1)
    )


def bare(one: dict) -> dict:
    """A line without its band."""
    return line(one["name"], one["x"], one["y"])


def oracle_rollouts():
    """The exact oracle: direction, noise and error of each estimator's gradient as N grows."""
    study = json.loads((RESULTS / "oracle/results.json").read_text())
    drawn = {
        "cosine": {
            "ylabel": "cosine with grad log p",
            "title": "direction of the expected gradient",
            "ylim": (0, 1.02),
        },
        "needed": {
            "ylabel": "rollouts a prompt",
            "title": "rollouts until noise = signal",
            "ylim": (0, None),
        },
        "error": {
            "ylabel": "error",
            "title": "squared distance to grad log p, best step",
            "ylim": (0, 1.02),
        },
    }
    panels = []
    for key, axes in drawn.items():
        lines = [
            policies([row for row in study["rows"] if row["method"] == name], name, "rollouts", key)
            for name in ("rloo", "grpo", "pkpo-8", "maxrl_order-4", "maxrl")
        ]
        # Bands of all would cover each other.
        lines = [one if key == "cosine" and one["name"] in METHODS else bare(one) for one in lines]
        panels.append({"lines": lines, "xlabel": "rollouts N of a prompt", "xscale": "log", **axes})
    lines = []
    for name in METHODS:
        rows = [row for row in study["noisier"] if row["method"] == name and row["factor"] == 100]
        lines.append(
            line(
                name,
                [row["rollouts"] for row in rows],
                [oracle.error(row, 16384).mean() for row in rows],
            )
        )
    panels.append(
        {
            "lines": lines,
            "xlabel": "16,384 rollouts of a prompt in groups of N",
            "xscale": "log",
            **drawn["error"],
            "title": "the same, scores with 100 times the scatter",
        }
    )
    return {
        "caption": "The exact oracle: 12 prompts, pass rates .001 to .9, one group of N rollouts each (last panel: more)",
        "told": "exact; T = 4 and k = 8, at most N; mean of five policies, bands in the first panel: lowest to highest",
        "panels": panels,
    }


def oracle_orders():
    """The exact oracle: order T with the same rollouts, between RLOO and Algorithm 1."""
    study = json.loads((RESULTS / "oracle/results.json").read_text())
    panels = []
    for N, key, axes in (
        (256, "cosine", {"ylabel": "cosine with grad log p", "ylim": (0, 1.02)}),
        (256, "needed", {"ylabel": "rollouts until noise = signal", "ylim": (0, None)}),
        (16, "error", {"ylabel": "error", "ylim": (0, 1.02)}),
        (256, "error", {"ylabel": "error", "ylim": (0, 1.02)}),
    ):
        rows = [row for row in study["orders"] if row["rollouts"] == N]
        lines = [policies(rows, "maxrl_order", "order", key)]
        for name in ("rloo", "maxrl"):
            (row,) = [
                row for row in study["rows"] if row["method"] == name and row["rollouts"] == N
            ]
            lines.append(line(name, [1, N], [oracle.numbers(row)[key].mean()] * 2))
        if key != "cosine":
            lines[0] = bare(lines[0])
        panels.append(
            {
                "lines": lines,
                "title": f"{N} rollouts a prompt",
                "xlabel": "order T",
                "xscale": "log",
                **axes,
            }
        )
    return {
        "caption": "The exact oracle: order T from the same rollouts. MaxRL is Algorithm 1, of order N - 1",
        "told": "exact; mean of five policies, band in the first panel from the lowest to the highest",
        "panels": panels,
    }


def oracle_rare():
    """The exact oracle: what the majority of the others as baseline saves in rows and costs in noise."""
    found = oracle.rare_side(json.loads((RESULTS / "oracle/results.json").read_text())["policies"])
    called = {"maxrl": "Algorithm 1", "maxrl_rare": "majority of the others"}
    panels = []
    for i, (ylabel, title) in enumerate(
        (
            ("variance, relative to MaxRL's", "noise of a prompt's gradient"),
            ("share of the rollouts", "rollouts with an advantage"),
        )
    ):
        lines = [
            line(name, oracle.run.TARGETS, found[baseline][i]) for name, baseline in called.items()
        ]
        panels.append(
            {
                "lines": lines,
                "xlabel": "pass rate p",
                "xscale": "log",
                "ylabel": ylabel,
                "title": title,
                "ylim": (0, None),
            }
        )
    return {
        "caption": "The exact oracle: MaxRL (Algorithm 1) and its rare side, both of order 31, 32 rollouts of a prompt",
        "told": "exact; mean of five policies",
        "panels": panels,
    }
