"""The figures of the study: exact gradients, and norms of language models."""

import numpy as np

from maxrl.advantages import weight
from results.gradients import oracle
from results.lab.data import paper, read_json
from results.lab.figures import curve, panel, seed_curves, theirs

ROLLOUTS = [2**i for i in range(1, 12)]
NAMES = {
    "reinforce": "REINFORCE, no baseline",
    "reinforce_mean": "REINFORCE, mean as baseline; Dr. GRPO",
    "rloo": "RLOO",
    "grpo": "GRPO",
    "pkpo-8": "PKPO, k = 8",
    "maxrl_order-4": "MaxRL, order 4",
    "maxrl": "MaxRL, Algorithm 1",
    "maxrl_success": "MaxRL, Eq. (9)",
    "maxrl_centered": "MaxRL, Eq. (10)",
    "maxrl_rare": "MaxRL, rare side",
}
MAZES = {
    "maze_strong": "mazes, strong base",
    "maze_weak": "mazes, weak base",
}
NORMS = MAZES | {"smollm2": "GSM8K, SmolLM2-135M"}
UP_TO = (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1 - 1e-9, 1)


def gradient(method: str, N: int, order: int = 0, scatter: int = 1) -> dict[str, np.ndarray]:
    """oracle.exact() and what follows from it, (policies,) each."""
    found = oracle.exact(method, N, order, scatter)
    signal = found["cosine"] * found["length"]  # along grad log p
    # So many rollouts a prompt, in groups of N, until the noise is as long as the signal.
    needed = N * found["noise"] ** 2 / signal**2
    return found | {"needed": needed, "error": error(found, N, N)}


def error(found: dict, N: int, budget: int) -> np.ndarray:
    """Mean squared distance of the gradient to M, (policies,), in units of M's squared length,
    after the constant factor that makes it smallest, as a learning rate can.

    budget  rollouts of a prompt, in groups of N whose mean is taken
    """
    square = found["noise"] ** 2 * N / budget
    return 1 - (found["cosine"] * found["length"]) ** 2 / (found["length"] ** 2 + square)


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
    for name, title in MAZES.items():
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
        "bins. RLOO: rewards less their mean. Ours: 9x9 mazes, 256 prompts of seed 0 alone "
        "(solid, axis to .45); "
        "dashed: the paper's, on MATH-500. A norm of 0 is not drawn",
        "panels": panels,
    }


def exact_curve(name: str, key: str, N: int | None = None) -> dict:
    """A number of a row against its N, or of maxrl_order against the order: each of five policies
    and their mean."""
    x = ROLLOUTS if N is None else [2**i for i in range(N.bit_length())]
    found = [gradient(name, n) if N is None else gradient(name, N, n) for n in x]
    return seed_curves(name, x, np.stack([one[key] for one in found], 1))


def oracle_rollouts() -> dict:
    """Direction and error of each estimator's gradient as N grows."""
    panels = []
    for key, title, ylabel, top in (
        ("cosine", "direction of the expected gradient", "cosine with grad log p", 1.02),
        ("error", "squared distance to grad log p, best step", "error", 1.02),
    ):
        names = ("rloo", "grpo", "pkpo-8", "maxrl_order-4", "maxrl")
        lines = [exact_curve(name, key) for name in names]
        labels = (title, "rollouts N of a prompt", ylabel)
        panels.append(panel(*labels, lines, xscale="log", ylim=(0, top)))
    return {
        "title": "As N grows MaxRL's gradient turns into that of log p",
        "caption": "The exact oracle: 12 prompts, pass rates .001 to .9, one group of N rollouts "
        "each, mean of five policies and each of them (thin). T = 4 and k = 8, "
        "at most N. Error: squared distance to grad log p after the best step",
        "panels": panels,
    }


FIGURES = {
    "figure1": figure1,
    "figure6": figure6,
    "oracle": oracle_rollouts,
}
