"""What each objective weighs, and where the expected gradient of each estimator points, exactly."""

import numpy as np

from maxrl.advantages import weight
from results.lab.data import read_json
from results.lab.figures import curve, panel, seed_curves
from results.lab.intervals import interval
from results.lab.tables import table

SHOWN = (2, 8, 32, 128, 512, 2048)
ROLLOUTS = [2**i for i in range(1, 12)]
# A row's name: what it is called, the estimator and its options, which are lowered to N.
METHODS = {
    # REINFORCE with and without a baseline has the same weight, and so has Dr. GRPO.
    "rloo": ("RLOO, REINFORCE", "rloo", {}),
    "grpo": ("GRPO", "grpo", {}),
    "pkpo-8": ("PKPO, k = 8", "pkpo", {"k": 8}),
    "maxrl_order-4": ("MaxRL, order 4", "maxrl_order", {"order": 4}),
    "maxrl": ("MaxRL, Algorithm 1", "maxrl", {}),
    # As Eq. (10) and the rare side.
    "maxrl_success": ("MaxRL, Eqs. (9) and (10), rare side", "maxrl_success", {}),
}


def cosine(w, p, gram) -> np.ndarray:
    """Between the mean of w grad p and that of grad log p over the prompts, (policies,).

    w, p  (policies, prompts); gram  (policies, prompts, prompts), inner products of grad log p
    """
    expected = w * p  # grad p = p grad log p
    along = np.einsum("si,sij->s", expected, gram)
    length = np.einsum("si,sij,sj->s", expected, gram, expected)
    return along / np.sqrt(length * gram.sum((1, 2)))


def cosines(method: str, N: int) -> np.ndarray:
    """cosine() of a row of METHODS, of the kept policies."""
    policies = read_json("gradients/policies.json")["policies"]
    p, gram = (np.array([policy[key] for policy in policies]) for key in ("p", "gram"))
    _, rule, options = METHODS[method]
    lowered = {key: min(value, N) for key, value in options.items()}
    return cosine(np.asarray(weight(rule, p, rollouts=N, **lowered)), p, gram)


def tables():
    """A row for each method, a column for each N; mean and 95 % t interval over the policies."""
    rows = []
    for method, (name, _, _) in METHODS.items():
        rows.append([name, *(interval(cosines(method, N)) for N in SHOWN)])
    table(["method", *(f"N = {N}" for N in SHOWN)], rows)


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


def directions() -> dict:
    """Direction of each estimator's gradient as N grows."""
    lines = []
    for name in ("rloo", "grpo", "pkpo-8", "maxrl_order-4", "maxrl"):
        lines.append(seed_curves(name, ROLLOUTS, np.stack([cosines(name, N) for N in ROLLOUTS], 1)))
    title = "direction of the expected gradient"
    labels = (title, "rollouts N of a prompt", "cosine with grad log p")
    return {
        "title": "As N grows MaxRL's gradient turns into that of log p",
        "caption": "The exact oracle: 12 prompts, pass rates .001 to .9, one group of N rollouts "
        "each, mean of five policies and each of them (thin). T = 4 and k = 8, at most N",
        "panels": [panel(*labels, lines, xscale="log", ylim=(0, 1.02))],
    }


FIGURES = {"figure1": figure1, "oracle": directions}
