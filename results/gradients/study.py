"""The exact oracle (oracle.py), and gradient norms of language models (norms.py)."""

from results.gradients.curves import FIGURES, NAMES, ROLLOUTS, SCATTERS, error, gradient
from results.lab.data import read_json
from results.lab.intervals import interval
from results.lab.tables import table

__all__ = ["FIGURES"]
SHOWN = (2, 8, 32, 128, 512, 2048)
BUDGETS = (256, 2048, 16384)
ORDERS = {N: [2**i for i in range(N.bit_length())] for N in (16, 64, 256)}
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


def by_rollouts(key: str, digits: int):
    """A row for each method, a column for each N; mean and 95 % t interval over the policies."""
    lines = []
    for method, name in NAMES.items():
        cells = [interval(gradient(method, N)[key], digits=digits) for N in SHOWN]
        lines.append([name, *cells])
    table(["method", *(f"N = {N}" for N in SHOWN)], lines)


def best_group(method: str, budget: int, scatter: int) -> str:
    """Into groups of which size are so many rollouts a prompt best divided? The error, and that
    N."""
    found = {}
    for N in ROLLOUTS:
        if budget >= N:
            found[N] = error(gradient(method, N, scatter=scatter), N, budget).mean()
    best = min(found, key=found.get)
    return f"{found[best]:.3f} (N = {best})"


def more_scatter():
    """The error of one group of N, and the best N for a budget, where the scores scatter more."""
    lines = []
    for scatter in SCATTERS:
        for method in ("rloo", "grpo", "maxrl"):
            cells = [
                f"{gradient(method, N, scatter=scatter)['error'].mean():.3f}" for N in SHOWN[1:]
            ]
            cells += [best_group(method, budget, scatter) for budget in BUDGETS]
            lines.append([f"x {scatter}", NAMES[method], *cells])
    columns = [f"N = {N}" for N in SHOWN[1:]] + [f"best for {budget:,}" for budget in BUDGETS]
    table(["scatter", "method", *columns], lines)


def orders():
    """The path from RLOO to maximum likelihood with the same rollouts."""
    lines = []
    for N, some in ORDERS.items():
        for T in some:
            found = gradient("maxrl_order", N, T)
            cells = [interval(found[key]) for key in ("cosine", "length")]
            cells += [interval(found["needed"], digits=0), interval(found["error"])]
            lines.append([N, T, *cells])
    columns = ("cosine", "length", "rollouts until noise = signal", "error of one group")
    table(["N", "order T", *columns], lines)


def tables():
    results = read_json("gradients/oracle.json")
    policies = len(results["policies"])
    print(f"{policies} policies, torch {results['torch']}, {results['seconds']} s")
    for key, digits, title in (
        ("cosine", 3, "cosine with grad log p"),
        ("length", 3, "length of the expectation"),
        ("needed", 0, "rollouts a prompt until noise = signal"),
        ("error", 3, "error of one group, best step"),
    ):
        print(f"\n{title}")
        by_rollouts(key, digits)
    orders()
    more_scatter()
