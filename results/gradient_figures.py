"""Figures of gradients: norms next to the paper's, and the exact oracle."""

import numpy as np

from results.panels import METHODS, line, over_seeds, panel, theirs
from results.reading import RESULTS, paper, read_json
from results.tables import norms, oracle


def figure6() -> dict:
    """Gradient norm of a prompt against its pass rate, before RL."""
    folder = RESULTS / "gradient_norms"
    labels = ("pass rate", "gradient norm of a prompt")
    axes = {"yscale": "log", "ylim": (0.4, 1000)}
    rloo = {"reinforce": "rloo", "reinforce_mean": "rloo"}
    # At pass rate 1 the norm is 0, which a logarithm cannot show.
    curves = {
        rloo.get(name, name): (x[x < 1], y[x < 1]) for name, (x, y) in paper(6)["medians"].items()
    }
    title = "paper: Qwen2.5-1.5B-Instruct"
    panels = [panel(title, *labels, theirs(curves), xlim=(-0.02, 1.02), **axes)]
    for study in norms.there(folder):
        lines = []
        for name, (p, (_, median, _)) in norms.curves(folder, study).items():
            lines.append(line(rloo.get(name, name), p, median))
        title = f"ours: {norms.STUDIES[study].split(', ')[-1]} (reduced scale)"
        panels.append(panel(title, *labels, lines, xlim=(-0.01, 0.45), **axes))
    return {
        "title": "MaxRL's gradient is largest on hard prompts; ours reach a pass rate of .35 only",
        "caption": "Figure 6: norm of a prompt's gradient from 128 rollouts before RL, medians of "
        "bins. RLOO: rewards less their mean. Ours: 9x9 mazes, 256 prompts of seed 0 alone, and "
        "GSM8K, 32 prompts x 64, of which 11 have one to three successes (solid, axis to .45); "
        "dashed: the paper's, on MATH-500. A norm of 0 is not drawn",
        "panels": panels,
    }


def policies(rows: list[dict], name: str, x: str, key: str) -> dict:
    """A number of an estimator's rows against their N or order: each of five policies and
    their mean."""
    values = np.stack([oracle.numbers(row)[key] for row in rows], 1)
    return over_seeds(name, [row[x] for row in rows], values)


def of_method(rows: list[dict], **about) -> list[dict]:
    return [row for row in rows if all(row[key] == value for key, value in about.items())]


def oracle_rollouts() -> dict:
    """Direction, noise and error of each estimator's gradient as N grows."""
    study = read_json("oracle/results.json")
    drawn = {
        "cosine": ("direction of the expected gradient", "cosine with grad log p", 1.02),
        "needed": ("rollouts until noise = signal", "rollouts a prompt", None),
        "error": ("squared distance to grad log p, best step", "error", 1.02),
    }
    panels = []
    for key, (title, ylabel, top) in drawn.items():
        lines = []
        for name in ("rloo", "grpo", "pkpo-8", "maxrl_order-4", "maxrl"):
            lines.append(policies(of_method(study["rows"], method=name), name, "rollouts", key))
        labels = (title, "rollouts N of a prompt", ylabel)
        panels.append(panel(*labels, lines, xscale="log", ylim=(0, top)))
    lines = []
    for name in METHODS:
        rows = of_method(study["noisier"], method=name, factor=100)
        errors = [oracle.error(row, 16384).mean() for row in rows]
        lines.append(line(name, [row["rollouts"] for row in rows], errors))
    title = "the same, scores with 100 times the scatter"
    label = "16,384 rollouts of a prompt in groups of N"
    panels.append(panel(title, label, "error", lines, xscale="log", ylim=(0, 1.02)))
    return {
        "title": "As N grows MaxRL's gradient turns into that of log p, with more noise from "
        "N = 64 on",
        "caption": "The exact oracle: 12 prompts, pass rates .001 to .9, one group of N rollouts "
        "each (last panel: more), mean of five policies and each of them (thin). T = 4 and k = 8, "
        "at most N. Error: squared distance to grad log p after the best step",
        "panels": panels,
    }


def oracle_orders() -> dict:
    """Order T with the same rollouts, between RLOO and Algorithm 1."""
    study = read_json("oracle/results.json")
    panels = []
    for N, key, ylabel, top in (
        (256, "cosine", "cosine with grad log p", 1.02),
        (256, "needed", "rollouts until noise = signal", None),
        (16, "error", "error", 1.02),
        (256, "error", "error", 1.02),
    ):
        lines = [policies(of_method(study["orders"], rollouts=N), "maxrl_order", "order", key)]
        for name in ("rloo", "maxrl"):
            (row,) = of_method(study["rows"], method=name, rollouts=N)
            lines.append(line(name, [1, N], [oracle.numbers(row)[key].mean()] * 2))
        labels = (f"{N} rollouts a prompt", "order T", ylabel)
        panels.append(panel(*labels, lines, xscale="log", ylim=(0, top)))
    return {
        "title": "With the same rollouts the order T turns the gradient from RLOO's to MaxRL's",
        "caption": "The exact oracle: order T from the same rollouts, mean of five policies and "
        "each of them (thin). MaxRL is Algorithm 1, of order N - 1. Error: squared distance to "
        "grad log p after the best step",
        "panels": panels,
    }


def oracle_rare() -> dict:
    """What the majority of the others as baseline saves in rows and costs in noise."""
    found = oracle.rare_side(read_json("oracle/results.json")["policies"])
    called = {"maxrl": "Algorithm 1", "maxrl_rare": "majority of the others"}
    panels = []
    for i, (title, ylabel) in enumerate(
        (
            ("noise of a prompt's gradient", "variance, relative to MaxRL's"),
            ("rollouts with an advantage", "share of the rollouts"),
        )
    ):
        lines = [line(name, oracle.run.TARGETS, found[rule][i]) for name, rule in called.items()]
        labels = (title, "pass rate p", ylabel)
        panels.append(panel(*labels, lines, xscale="log", ylim=(0, None)))
    return {
        "title": "The rare side trains on few rows of a hard prompt, without more noise there",
        "caption": "The exact oracle: MaxRL (Algorithm 1) and its rare side, both of order 31, 32 "
        "rollouts of a prompt, mean of five policies; one of them has .033, .025 and .10 where the "
        "axis says .05, .1 and .2",
        "panels": panels,
    }
