"""The exact oracle (oracle.py), and gradient norms of language models (norms.py)."""

import numpy as np

from results.gradients import oracle
from results.gradients.curves import (
    FIGURES,
    FORMS,
    NORMS,
    UP_TO,
    bins,
    error,
    numbers,
    of,
    rare_side,
)
from results.lab.data import read_json
from results.lab.intervals import interval
from results.lab.tables import METHODS, table

__all__ = ["FIGURES"]
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
CALLED = ("0", ".02", ".05", ".1", ".2", ".3", ".5", ".7", ".9", "below 1", "1")
RUNS: dict[str, dict] = {}
MEASURE = "results/gradients/norms.py"
MAZES = "--split validation --samples 128 --prompts 256"
SMOLLM2 = "--split train --prompts 32 --samples 64 --precision bfloat16 --micro-batch-tokens 2048"
TESTS = {
    "oracle.json": ["results/gradients/oracle.py"],
    "maze_weak.json": f"{MEASURE} weak=runs/mazes/weak/seed0/base {MAZES}".split(),
    "maze_strong.json": f"{MEASURE} strong=runs/mazes/strong/seed0/base {MAZES}".split(),
    "smollm2.json": f"{MEASURE} runs/smollm2/base {SMOLLM2}".split(),
}


def by_rollouts(rows: list[dict], key: str, digits: int):
    """A row for each method, a column for each N; mean and 95 % t interval over the policies."""
    lines = []
    for method, name in NAMES.items():
        found = {row["rollouts"]: numbers(row)[key] for row in of(rows, method=method)}
        lines.append([name, *(interval(found[N], digits=digits) for N in SHOWN)])
    table(["method", *(f"N = {N}" for N in SHOWN)], lines)


def best_group(rows: list[dict], budget: int, best_step: bool = True) -> str:
    """Into groups of which size are so many rollouts a prompt best divided? The error, and that
    N."""
    found = {}
    for row in rows:
        if row["rollouts"] <= budget:
            found[row["rollouts"]] = error(row, budget, best_step).mean()
    N = min(found, key=found.get)
    # Without a baseline the mean of two groups is one group: only rounding is left to choose by.
    size = f"N = {N}" if max(found.values()) - found[N] > 1e-6 else "any N"
    return f"{found[N]:.3f} ({size})"


def best_rollouts(rows: list[dict], best_step: bool):
    lines = []
    for method, name in NAMES.items():
        own = of(rows, method=method)
        lines.append([name, *(best_group(own, budget, best_step) for budget in BUDGETS)])
    table(["method", *(f"{budget:,} rollouts a prompt" for budget in BUDGETS)], lines)


def more_scatter(rows: list[dict]):
    """The error of one group of N, and the best N for a budget, where the scores scatter more."""
    lines = []
    for factor in (1, *oracle.NOISIER["factors"]):
        for method in oracle.NOISIER["methods"]:
            own = of(rows, method=method, factor=factor)
            cells = [f"{error(row).mean():.3f}" for row in own if row["rollouts"] in SHOWN[1:]]
            cells += [best_group(own, budget) for budget in LONG_BUDGETS]
            lines.append([f"x {factor}", NAMES[method], *cells])
    columns = [f"N = {N}" for N in SHOWN[1:]] + [f"best for {budget:,}" for budget in LONG_BUDGETS]
    table(["scatter", "method", *columns], lines)


def by_policy(rows: list[dict]):
    """On how many of the policies is MaxRL's error of one group below that of another method?"""
    lines = []
    for method in ("rloo", "grpo"):
        cells = []
        for N in LADDER:
            errors = {row["method"]: error(row) for row in of(rows, rollouts=N)}
            cells.append(f"{(errors['maxrl'] < errors[method]).sum()} of {len(errors[method])}")
        lines.append([NAMES[method], *cells])
    table(["MaxRL's error is below that of", *(f"N = {N}" for N in LADDER)], lines)


def orders(rows: list[dict]):
    """The path from RLOO to maximum likelihood with the same rollouts."""
    lines = []
    for row in rows:
        values = numbers(row)
        cells = [interval(values[key]) for key in ("cosine", "length")]
        cells += [interval(values["needed"], digits=0), interval(values["error"])]
        lines.append([row["rollouts"], row["order"], *cells])
    columns = ("cosine", "length", "rollouts until noise = signal", "error of one group")
    table(["N", "order T", *columns], lines)


def forms(policies: list[dict]):
    """Algorithm 1 against the exact orders: the weights, and one prompt's variance relative to
    Algorithm 1's."""
    lines = []
    p = np.stack([policy["p"].numpy() for policy in policies])
    for N in (2, 4, 8):
        reference = None
        for name, rule in FORMS.items():
            method, options = rule(N)
            found = [oracle.moments(method, options, N, **policy) for policy in policies]
            w = np.stack([w.numpy() for w, _ in found])  # (policies, P)
            variance = np.stack([trace.numpy() for _, trace in found])
            reference = variance if reference is None else reference
            away = {T: np.abs(w * p / (1 - (1 - p) ** T) - 1).max() for T in (N - 1, N)}
            T = min(away, key=away.get)
            # A difference of rounding is no number to print.
            said = "below 1e-12" if away[T] < 1e-12 else f"{away[T]:.2g}"
            ratios = (variance / reference).mean(0)
            cells = ["N" if T == N else "N - 1", said, *(f"{ratios[i]:.3f}" for i in SOME_PROMPTS)]
            lines.append([N, name, *cells])
    rates = [f"variance, p = {oracle.TARGETS[i]:g}" for i in SOME_PROMPTS]
    columns = ["N", "estimator", "order of its weight", "largest relative difference"]
    table([*columns, *rates], lines)


def rare_table(policies: list[dict]):
    found = rare_side(policies)
    lines = []
    for i, target in enumerate(oracle.TARGETS):
        cells = [f"{variance[i]:.3f}, {rows[i]:.3f}" for variance, rows in found.values()]
        lines.append([f"p = {target:g}", *cells])
    table(["baseline, N = 32", *found], lines)


def one_prompt(policies: list[dict], N: int = 128):
    """How much of the length of one prompt's gradient is signal: |expected gradient| / root of the
    mean squared length."""
    lines = []
    for method in ("rloo", "grpo", "maxrl"):
        shares = []
        for policy in policies:
            w, trace = oracle.moments(method, {}, N, **policy)
            signal = (w * policy["p"]).square() * policy["gram"].diagonal()
            shares.append((signal / (signal + trace)).sqrt().numpy())
        lines.append([NAMES[method], *(f"{share:.2f}" for share in np.mean(shares, 0))])
    rates = [f"p = {target:g}" for target in oracle.TARGETS]
    table([f"signal share of the length, N = {N}", *rates], lines)


def sampled(rows: list[dict]):
    lines = []
    for row in rows:
        cells = []
        for key in ("signal", "square"):
            mean, se, exact = row[key]
            cells += [f"{mean:.4f} ± {se:.4f}", f"{exact:.4f}"]
        lines.append([NAMES[row["method"]], *cells])
    columns = ("signal, sampled", "exact", "squared length, sampled", "exact")
    table(["control, N = 16, policy 0", *columns], lines)


def norm_tables():
    """Medians in bins of the pass rate, and the largest relative deviation from 1/p and from
    1/sqrt(p(1-p)), over prompts with 0 < K < N."""
    deviations = []
    for study, title in NORMS.items():
        p, norms, place = bins(study)
        counts = np.bincount(place, minlength=len(UP_TO))
        lines = [["prompts", *counts]]
        for name, values in norms.items():
            called = METHODS.get(name, "REINFORCE")
            medians = [np.median(values[place == i]) if n else None for i, n in enumerate(counts)]
            lines.append([called, *("-" if m is None else f"{m:.3g}" for m in medians)])
        table([f"{title}, K/N up to", *CALLED], lines)
        some = (p > 0) & (p < 1)
        wanted = {"maxrl": 1 / p[some], "grpo": (p[some] * (1 - p[some])) ** -0.5}
        plain = norms["reinforce_mean"][some]
        away = [np.abs(norms[name][some] / plain / w - 1).max() for name, w in wanted.items()]
        deviations.append([title, *(f"{value:.1g}" for value in away)])
    table(["largest deviation of the ratio", "MaxRL", "GRPO"], deviations)


def tables():
    results = read_json("gradients/oracle.json")
    rows = results["rows"]
    policies = [oracle.tensors(policy) for policy in results["policies"]]
    print(f"{len(policies)} policies, torch {results['torch']}, {results['seconds']} s")
    for key, digits, title in (
        ("cosine", 3, "cosine with grad log p"),
        ("length", 3, "length of the expectation"),
        ("needed", 0, "rollouts a prompt until noise = signal"),
        ("error", 3, "error of one group, best step"),
    ):
        print(f"\n{title}")
        by_rollouts(rows, key, digits)
    for best_step in (True, False):
        print(f"\nbest N, {'best step' if best_step else 'as it is'}")
        best_rollouts(rows, best_step)
    by_policy(rows)
    orders(results["orders"])
    forms(policies)
    rare_table(policies)
    one_prompt(policies)
    sampled(results["control"])
    more_scatter(rows + results["noisier"])
    norm_tables()
