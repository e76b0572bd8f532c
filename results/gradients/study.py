"""The exact oracle (oracle.py), and gradient norms of language models (norms.py)."""

from results.gradients.curves import FIGURES, NAMES, gradient
from results.lab.data import read_json
from results.lab.intervals import interval
from results.lab.runs import product
from results.lab.tables import table

__all__ = ["FIGURES"]
SHOWN = (2, 8, 32, 128, 512, 2048)
# The strong base is that of fixed_set.
RUNS = {"base": product("weak/base", "train.py maze9_laptop_sft --stop-at-pass .015 --seed 0")}
MEASURE = "results/gradients/norms.py"
MAZES = "--split validation --samples 128 --prompts 256"
SMOLLM2 = "--split train --prompts 32 --samples 64 --precision bfloat16 --micro-batch-tokens 2048"
TESTS = {
    "oracle.json": ["results/gradients/oracle.py"],
    "maze_weak.json": f"{MEASURE} weak=runs/gradients/weak/base {MAZES}".split(),
    "maze_strong.json": f"{MEASURE} strong=runs/fixed_set/seed0/base {MAZES}".split(),
    "smollm2.json": f"{MEASURE} runs/smollm2/base {SMOLLM2}".split(),
}


def by_rollouts(key: str, digits: int):
    """A row for each method, a column for each N; mean and 95 % t interval over the policies."""
    lines = []
    for method, name in NAMES.items():
        cells = [interval(gradient(method, N)[key], digits=digits) for N in SHOWN]
        lines.append([name, *cells])
    table(["method", *(f"N = {N}" for N in SHOWN)], lines)


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
