"""A step of the large recipes on paper, with all rollouts at once and in rounds.

    PYTHONPATH=. python results/price/paper.py

Sampling and training of Algorithm 1 are the estimates of maxrl/run/large_runs.md. Training follows
the tokens that are run, a prompt once for each group with a live row. Sampling has a part that
follows the rollouts, and launches, which every round pays again: a round has as many steps as its
longest response has tokens. Every prompt has the same pass rate here.
"""

import math

from maxrl.advantages import ADVANTAGES

KERNEL = 1.5e-6  # seconds to launch one in a graph
# recipe: prompt and response tokens, N, rounds, kernels in sampling, seconds of sampling and of
# training
RECIPES = {
    "maze17": (310, 45, 128, (16, 16, 32, 64), 24_000, 0.07, 0.06),
    "SmolLM2-360M": (100, 200, 128, (32, 96), 2.0e6, 6.6, 9.5),
    "Qwen3-1.7B": (150, 1850, 16, (8, 8), 3.5e6, 16.5, 11.5),
    "Qwen3-4B": (150, 1800, 16, (8, 8), 4.5e6, 25.0, 21.5),
}
RATES = (0.05, 0.3, 0.6)


def live(name: str, N: int, p: float) -> tuple[float, float]:
    """The share of groups with a live row, and the rows with an advantage of a group, both in
    expectation."""
    import torch

    rewards = torch.ones(N + 1, N, dtype=torch.float64).tril(-1)  # K successes in row K
    rows = (ADVANTAGES[name](rewards) != 0).sum(1).tolist()
    chances = [math.comb(N, K) * p**K * (1 - p) ** (N - K) for K in range(N + 1)]
    groups = sum(chance for chance, n in zip(chances, rows) if n)
    return groups, sum(chance * n for chance, n in zip(chances, rows))


def step(recipe: str, name: str, sizes: tuple[int, ...], p: float) -> tuple[float, float, float]:
    """Rollouts of a prompt, and seconds of sampling and training."""
    prompt, response, N, _, kernels, sampling, training = RECIPES[recipe]
    rollouts = tokens = drawn = 0.0
    for size in sizes:
        reached = (1 - p) ** drawn
        groups, rows = live(name, size, p)
        rollouts += reached * size
        tokens += reached * (groups * prompt + rows * response)
        drawn += size
    launches = kernels * KERNEL
    seconds = len(sizes) * launches + rollouts / N * (sampling - launches)
    return rollouts, seconds, training * tokens / (prompt + N * response)


def main():
    print("| of one GPU and step, s | p | Algorithm 1 | `maxrl_rare` | in rounds |")
    print("|---|---|---|---|---|")
    for recipe, (_, _, N, rounds, *_) in RECIPES.items():
        for p in RATES:
            cells = []
            for name, sizes in (("maxrl", (N,)), ("maxrl_rare", (N,)), ("maxrl_rare", rounds)):
                rollouts, sampling, training = step(recipe, name, sizes, p)
                cells.append(f"{sampling:.2g} + {training:.2g}")
            said = f"{recipe}, {N} or {', '.join(map(str, rounds))}" if p == RATES[0] else ""
            print("|", said, "|", p, "|", " | ".join(cells), f"({rollouts:.3g} rollouts) |")


if __name__ == "__main__":
    main()
