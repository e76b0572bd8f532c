"""The exact oracle, from results.json."""

import json
from pathlib import Path

import numpy as np

from results.oracle import run
from results.tables.cells import half_width, head, line

SHOWN = (2, 8, 32, 128, 512, 2048)
LADDER = (4, 8, 16, 32, 64, 128)
BUDGETS = (32, 256, 2048)
LONG_BUDGETS = (256, 2048, 16384)
SOME_PROMPTS = (0, 3, 6, 9, 11)  # pass rates .001, .01, .1, .5, .9
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
PAIRS = {  # the estimators of S11, as functions of N
    "Algorithm 1": lambda N: ("maxrl", {}),
    "order N - 1": lambda N: ("maxrl_order", {"order": N - 1}),
    "order N": lambda N: ("maxrl_order", {"order": N}),
    "Eq. (9), successes only": lambda N: ("maxrl_success", {}),
    "Eq. (10), centred": lambda N: ("maxrl_centered", {}),
}
RARE = {  # baseline -> estimator, as functions of N: all of order N - 1 but the last
    "Algorithm 1": lambda N: ("maxrl", {}),
    "mean of the others": lambda N: ("maxrl_order", {"order": N - 1}),
    "majority of the others": lambda N: ("maxrl_rare", {"order": N - 1}),
    "none, Eq. (9)": lambda N: ("maxrl_success", {}),
}


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


def by_rollouts(rows: list[dict], key: str, form: str):
    """A row for each method, a column for each N; mean and 95 % t interval over the policies."""
    head("method", *(f"N = {N}" for N in SHOWN))
    for method, name in NAMES.items():
        found = {row["rollouts"]: numbers(row)[key] for row in rows if row["method"] == method}
        line(name, *(with_error(found[N], form) for N in SHOWN))


def with_error(values: np.ndarray, form: str = ".3f") -> str:
    return f"{values.mean():{form}} ± {half_width(values):{form}}"


def best_group(rows: list[dict], budget: int, best_step: bool = True) -> str:
    """Into groups of which size are so many rollouts a prompt best divided? The error, and that
    N."""
    found = {
        row["rollouts"]: error(row, budget, best_step).mean()
        for row in rows
        if row["rollouts"] <= budget
    }
    N = min(found, key=found.get)
    # Without a baseline the mean of two groups is one group: only rounding is left to choose by.
    size = f"N = {N}" if max(found.values()) - found[N] > 1e-6 else "any N"
    return f"{found[N]:.3f} ({size})"


def best_rollouts(rows: list[dict], best_step: bool):
    head("method", *(f"{budget:,} rollouts a prompt" for budget in BUDGETS))
    for method, name in NAMES.items():
        own = [row for row in rows if row["method"] == method]
        line(name, *(best_group(own, budget, best_step) for budget in BUDGETS))


def noisier(rows: list[dict], more: list[dict]):
    """The error of one group of N, and the best N for a budget, where the scores scatter more."""
    columns = [f"N = {N}" for N in SHOWN[1:]] + [f"best for {budget:,}" for budget in LONG_BUDGETS]
    head("scatter", "method", *columns)
    for factor in (1, *run.NOISIER["factors"]):
        for method in run.NOISIER["methods"]:
            own = [
                row
                for row in rows + more
                if row["method"] == method and row.get("factor", 1) == factor
            ]
            cells = [f"{error(row).mean():.3f}" for row in own if row["rollouts"] in SHOWN[1:]]
            line(
                f"x {factor}",
                NAMES[method],
                *cells,
                *(best_group(own, budget) for budget in LONG_BUDGETS),
            )


def by_policy(rows: list[dict]):
    """On how many of the policies is MaxRL's error of one group below that of another method?"""
    head("MaxRL's error is below that of", *(f"N = {N}" for N in LADDER))
    for method in ("rloo", "grpo"):
        cells = []
        for N in LADDER:
            errors = {row["method"]: error(row) for row in rows if row["rollouts"] == N}
            cells.append(f"{(errors['maxrl'] < errors[method]).sum()} of {len(errors[method])}")
        line(NAMES[method], *cells)


def orders(rows: list[dict]):
    """The path from RLOO to maximum likelihood with the same rollouts."""
    head("N", "order T", "cosine", "length", "rollouts until noise = signal", "error of one group")
    for row in rows:
        values = numbers(row)
        cells = [with_error(values["cosine"]), with_error(values["length"])]
        cells += [with_error(values["needed"], ".0f"), with_error(values["error"])]
        line(str(row["rollouts"]), str(row["order"]), *cells)


def pairs(policies: list[dict]):
    """Algorithm 1 against the exact orders: the weights, and one prompt's variance relative to
    Algorithm 1's."""
    rates = [f"p = {run.TARGETS[i]:g}" for i in SOME_PROMPTS]
    head(
        "N",
        "estimator",
        "order of its weight",
        "largest relative difference",
        *(f"variance, {rate}" for rate in rates),
    )
    for N in (2, 4, 8):
        reference = None
        for name, rule in PAIRS.items():
            found = [run.moments(*rule(N), N, **run.tensors(policy)) for policy in policies]
            w = np.stack([w.numpy() for w, _ in found])  # (policies, P)
            variance = np.stack([trace.numpy() for _, trace in found])
            reference = variance if reference is None else reference
            p = np.array([policy["p"] for policy in policies])
            away = {T: np.abs(w * p / (1 - (1 - p) ** T) - 1).max() for T in (N - 1, N)}
            T = min(away, key=away.get)
            ratios = (variance / reference).mean(0)
            order = "N" if T == N else "N - 1"
            # A difference of rounding is no number to print.
            said = "below 1e-12" if away[T] < 1e-12 else f"{away[T]:.2g}"
            line(str(N), name, order, said, *(f"{ratios[i]:.3f}" for i in SOME_PROMPTS))


def rare_side(policies: list[dict], N: int = 32) -> dict[str, tuple]:
    """With each baseline: the variance of one prompt's gradient, relative to Algorithm 1's, and the
    share of its rollouts that have an advantage; (P,) each, means over the policies."""
    exact = [run.tensors(policy) for policy in policies]
    rules = {name: rule(N) for name, rule in RARE.items()}
    variance = {
        name: np.stack([run.moments(*rule, N, **one)[1] for one in exact])
        for name, rule in rules.items()
    }
    rows = {
        name: np.stack([run.live(*rule, N, one["p"]) for one in exact])
        for name, rule in rules.items()
    }
    return {
        name: ((variance[name] / variance["Algorithm 1"]).mean(0), rows[name].mean(0))
        for name in RARE
    }


def rare_table(policies: list[dict]):
    found = rare_side(policies)
    head("baseline, N = 32", *found)
    for i, target in enumerate(run.TARGETS):
        line(
            f"p = {target:g}",
            *(f"{variance[i]:.3f}, {rows[i]:.3f}" for variance, rows in found.values()),
        )


def one_prompt(policies: list[dict], N: int = 128):
    """How much of the length of one prompt's gradient is signal: |expected gradient| / root of the
    mean squared length."""
    head(f"signal share of the length, N = {N}", *(f"p = {target:g}" for target in run.TARGETS))
    for method in ("rloo", "grpo", "maxrl"):
        shares = []
        for policy in map(run.tensors, policies):
            w, trace = run.moments(method, {}, N, **policy)
            signal = (w * policy["p"]).square() * policy["gram"].diagonal()
            shares.append((signal / (signal + trace)).sqrt().numpy())
        line(NAMES[method], *(f"{share:.2f}" for share in np.mean(shares, 0)))


def sampled(rows: list[dict]):
    head(
        "control, N = 16, policy 0", "signal, sampled", "exact", "squared length, sampled", "exact"
    )
    for row in rows:
        cells = []
        for key in ("signal", "square"):
            mean, se, exact = row[key]
            cells += [f"{mean:.4f} ± {se:.4f}", f"{exact:.4f}"]
        line(NAMES[row["method"]], *cells)


def main(folder: Path):
    results = json.loads((folder / "results.json").read_text())
    rows = results["rows"]
    print(f"{len(results['policies'])} policies, torch {results['torch']}, {results['seconds']} s")
    for key, form, title in (
        ("cosine", ".3f", "cosine with grad log p"),
        ("length", ".3f", "length of the expectation"),
        ("needed", ".0f", "rollouts a prompt until noise = signal"),
        ("error", ".3f", "error of one group, best step"),
    ):
        print(f"\n{title}")
        by_rollouts(rows, key, form)
    for best_step in (True, False):
        print(f"\nbest N, {'best step' if best_step else 'as it is'}")
        best_rollouts(rows, best_step)
    by_policy(rows)
    orders(results["orders"])
    pairs(results["policies"])
    rare_table(results["policies"])
    one_prompt(results["policies"])
    sampled(results["control"])
    noisier(rows, results["noisier"])
