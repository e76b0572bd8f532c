"""The figures of the"""

import numpy as np

from maxrl.advantages import weight
from results.gradients import oracle
from results.lab.data import paper, read_json
from results.lab.figures import curve, panel, seed_curves, theirs
from results.lab.tables import METHODS

# The estimators of MaxRL as functions of N.
FORMS = {
    "Algorithm 1": lambda N: ("maxrl", {}),
    "order N - 1": lambda N: ("maxrl_order", {"order": N - 1}),
    "order N": lambda N: ("maxrl_order", {"order": N}),
    "Eq. (9), successes only": lambda N: ("maxrl_success", {}),
    "Eq. (10), centred": lambda N: ("maxrl_centered", {}),
}
RARE = {  # baseline -> estimator: all of order N - 1 but the last
    "Algorithm 1": FORMS["Algorithm 1"],
    "mean of the others": FORMS["order N - 1"],
    "majority of the others": lambda N: ("maxrl_rare", {"order": N - 1}),
    "none, Eq. (9)": FORMS["Eq. (9), successes only"],
}
NORMS = {
    "maze_strong": "mazes, strong base",
    "maze_weak": "mazes, weak base",
    "smollm2": "GSM8K, SmolLM2-135M",
}
UP_TO = (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1 - 1e-9, 1)


def numbers(row: dict) -> dict[str, np.ndarray]:
    """What follows from a row's cosine, length and noise, (policies,) each."""
    cosine, length, noise = (np.array(row[key]) for key in ("cosine", "length", "noise"))
    signal = cosine * length  # along grad log p
    return {
        "cosine": cosine,
        "length": length,
        # So many rollouts a prompt, in groups of N, until the noise is as long as the signal.
        "needed": row["rollouts"] * noise**2 / signal**2,
        "error": error(row),
    }


def error(row: dict, budget: int | None = None, best_step: bool = True) -> np.ndarray:
    """Mean squared distance of the gradient to M, (policies,), in units of M's squared length.

    budget     rollouts of a prompt, in groups of N whose mean is taken; N without it
    best_step  times the constant factor that makes it smallest, as a learning rate can
    """
    cosine, length, noise = (np.array(row[key]) for key in ("cosine", "length", "noise"))
    square = noise**2 * row["rollouts"] / (budget or row["rollouts"])
    if best_step:
        return 1 - (cosine * length) ** 2 / (length**2 + square)
    return 1 - 2 * cosine * length + length**2 + square


def of(rows: list[dict], **about) -> list[dict]:
    """The rows of which this is true."""
    return [row for row in rows if all(row.get(key, 1) == value for key, value in about.items())]


def rare_side(policies: list[dict], N: int = 32) -> dict[str, tuple]:
    """With each baseline: the variance of one prompt's gradient, relative to Algorithm 1's, and the
    share of its rollouts that have an advantage; (P,) each, means over the policies."""
    found = {}
    reference = None
    for name, rule in RARE.items():
        method, options = rule(N)
        traces = [oracle.moments(method, options, N, **policy)[1] for policy in policies]
        shares = [oracle.live(method, options, N, policy["p"]) for policy in policies]
        variance = np.stack(traces)
        reference = variance if reference is None else reference
        found[name] = (variance / reference).mean(0), np.stack(shares).mean(0)
    return found


def bins(study: str) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Pass rates (prompts,) of all seeds, {estimator: norms (prompts,)}, and bins of UP_TO."""
    rows = read_json(f"gradients/{study}.json")["checkpoints"]
    p = np.concatenate([row["pass_rates"] for row in rows])
    norms = {}
    for name in rows[0]["norms"]:
        norms[name] = np.concatenate([row["norms"][name] for row in rows])
    return p, norms, np.searchsorted(UP_TO, p)


def figure1() -> dict:
    """What each objective weighs, exactly: no run is needed."""
    kinds = {
        "rloo": ("rloo", {}),
        "grpo": ("grpo", {}),
        "maxrl-16": ("maxrl", {"order": 15}),
        "maxrl-128": ("maxrl", {"order": 127}),
        "maxrl-1024": ("maxrl", {"order": 1023}),
        "maximum likelihood": ("maxrl", {}),
    }
    p = np.logspace(-4, np.log10(0.98), 81)
    weights, shares = [], []
    for name, (method, options) in kinds.items():
        w = np.array([weight(method, value, **options) for value in p])
        weights.append(curve(name, p, w))
        shares.append(curve(name, p, w * p))
    axes = {"xscale": "log", "yscale": "log"}
    right = "share of maximum likelihood's weight"
    return {
        "title": "MaxRL gives prompts the weight of maximum likelihood, down to a pass rate of 1/N",
        "caption": "The gradient of a prompt is w(p) grad p (Table 2), exact. MaxRL, 128 is with "
        "128 rollouts: order 127. GRPO and maximum likelihood: limit of many rollouts; GRPO leaves "
        "the right panel at 1.6 and reaches 7",
        "panels": [
            panel("weight", "pass rate p", "weight w(p) of a prompt", weights, **axes),
            panel(right, "pass rate p", "w(p) p", shares, xscale="log", ylim=(0, 1.6)),
        ],
    }


def figure6() -> dict:
    """Gradient norm of a prompt against its pass rate, before RL."""
    labels = ("pass rate", "gradient norm of a prompt")
    axes = {"yscale": "log", "ylim": (0.4, 1000)}
    rloo = {"reinforce": "rloo", "reinforce_mean": "rloo"}
    # At pass rate 1 the norm is 0, which a logarithm cannot show.
    curves = {
        rloo.get(name, name): (x[x < 1], y[x < 1]) for name, (x, y) in paper(6)["medians"].items()
    }
    title = "paper: Qwen2.5-1.5B-Instruct"
    panels = [panel(title, *labels, theirs(curves), xlim=(-0.02, 1.02), **axes)]
    for name, title in NORMS.items():
        p, norms, place = bins(name)
        inner = [place == i for i in np.unique(place) if 0 < UP_TO[i] < 1]
        x = [np.median(p[inside]) for inside in inner]
        lines = []
        for rule, values in norms.items():
            y = [np.quantile(values[inside], 0.5) for inside in inner]
            lines.append(curve(rloo.get(rule, rule), x, y))
        title = f"ours: {title.split(', ')[-1]} (reduced scale)"
        panels.append(panel(title, *labels, lines, xlim=(-0.01, 0.45), **axes))
    return {
        "title": "MaxRL's gradient is largest on hard prompts; ours reach a pass rate of .35 only",
        "caption": "Figure 6: norm of a prompt's gradient from 128 rollouts before RL, medians of "
        "bins. RLOO: rewards less their mean. Ours: 9x9 mazes, 256 prompts of seed 0 alone, and "
        "GSM8K, 32 prompts x 64, of which 11 have one to three successes (solid, axis to .45); "
        "dashed: the paper's, on MATH-500. A norm of 0 is not drawn",
        "panels": panels,
    }


def of_policies(rows: list[dict], name: str, x: str, key: str) -> dict:
    """A number of an estimator's rows against their N or order: each of five policies and
    their mean."""
    values = np.stack([numbers(row)[key] for row in rows], 1)
    return seed_curves(name, [row[x] for row in rows], values)


def oracle_rollouts() -> dict:
    """Direction, noise and error of each estimator's gradient as N grows."""
    results = read_json("gradients/oracle.json")
    panels = []
    for key, title, ylabel, top in (
        ("cosine", "direction of the expected gradient", "cosine with grad log p", 1.02),
        ("needed", "rollouts until noise = signal", "rollouts a prompt", None),
        ("error", "squared distance to grad log p, best step", "error", 1.02),
    ):
        lines = []
        for name in ("rloo", "grpo", "pkpo-8", "maxrl_order-4", "maxrl"):
            rows = of(results["rows"], method=name)
            lines.append(of_policies(rows, name, "rollouts", key))
        labels = (title, "rollouts N of a prompt", ylabel)
        panels.append(panel(*labels, lines, xscale="log", ylim=(0, top)))
    lines = []
    for name in METHODS:
        rows = of(results["noisier"], method=name, factor=100)
        errors = [error(row, 16384).mean() for row in rows]
        lines.append(curve(name, [row["rollouts"] for row in rows], errors))
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
    results = read_json("gradients/oracle.json")
    panels = []
    for N, key, ylabel, top in (
        (256, "cosine", "cosine with grad log p", 1.02),
        (256, "needed", "rollouts until noise = signal", None),
        (16, "error", "error", 1.02),
        (256, "error", "error", 1.02),
    ):
        rows = of(results["orders"], rollouts=N)
        lines = [of_policies(rows, "maxrl_order", "order", key)]
        for name in ("rloo", "maxrl"):
            (row,) = of(results["rows"], method=name, rollouts=N)
            lines.append(curve(name, [1, N], [numbers(row)[key].mean()] * 2))
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
    policies = map(oracle.tensors, read_json("gradients/oracle.json")["policies"])
    found = rare_side(list(policies))
    called = {"maxrl": "Algorithm 1", "maxrl_rare": "majority of the others"}
    panels = []
    for i, (title, ylabel) in enumerate(
        (
            ("noise of a prompt's gradient", "variance, relative to MaxRL's"),
            ("rollouts with an advantage", "share of the rollouts"),
        )
    ):
        lines = [curve(name, oracle.TARGETS, found[rule][i]) for name, rule in called.items()]
        panels.append(panel(title, "pass rate p", ylabel, lines, xscale="log", ylim=(0, None)))
    return {
        "title": "The rare side trains on few rows of a hard prompt, without more noise there",
        "caption": "The exact oracle: MaxRL (Algorithm 1) and its rare side, both of order 31, 32 "
        "rollouts of a prompt, mean of five policies; one of them has .033, .025 and .10 where the "
        "axis says .05, .1 and .2",
        "panels": panels,
    }


FIGURES = {
    "figure1": figure1,
    "figure6": figure6,
    "oracle": oracle_rollouts,
    "oracle_orders": oracle_orders,
    "oracle_rare": oracle_rare,
}
