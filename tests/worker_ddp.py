"""One rank of test_distributed.py, started by torchrun: writes what it computed to FILE.rank."""

import sys
from pathlib import Path

import tiny
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from maxrl import distributed  # noqa: E402
from maxrl.policy import count_successes  # noqa: E402
from maxrl.tasks import Example, Task  # noqa: E402

P, N = 6, 4


class Parity(Task):
    """Succeeds when the response has an even number of tokens."""

    def __getitem__(self, index):
        return Example(" ".join(["UP"] * (index + 1)), "")

    def verify(self, response, example):
        return float(len(response.split(" ")) % 2 == 0)


def advantages(kind: str) -> torch.Tensor:
    """(P, N); with two ranks the even prompts are rank 0's."""
    values = torch.randn(P, N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    zero = {
        "mixed": [2],
        "rank 1 has none": [1, 3, 5],
        "rank 0 has none": [0, 2, 4],
        "one group": [0, 1, 2, 4, 5],
        "nobody": range(P),
    }[kind]
    return values.index_fill(0, torch.tensor(list(zero)), 0)


# what the ranks may disagree about: (advantages, aggregation, micro_batch_tokens); with 30 tokens a micro-batch the
# long prompts of rank 0 take more forwards than the short ones of rank 1
CASES = [
    ("mixed", "token", 10**6),
    ("mixed", "sequence", 30),
    ("mixed", "constant", 1),
    ("rank 1 has none", "token", 30),
    ("rank 0 has none", "sequence", 10**6),
    ("one group", "token", 10),
    ("nobody", "token", 30),
]


def compute(rank: int, world: int) -> dict:
    """Gradients and statistics of every case on the same stored rollouts, rollouts of step one, counts."""
    mine, results = list(range(rank, P, world)), {}
    everything = tiny.rollouts((20, 3, 17, 1, 25, 2), N=N)
    everything.tokens, everything.lengths = everything.tokens[mine], everything.lengths[mine]
    everything.log_probs, everything.prompts = everything.log_probs[mine], [everything.prompts[i] for i in mine]
    for case in CASES:
        kind, aggregation, budget = case
        policy = tiny.policy(tiny.model(), aggregation=aggregation, micro_batch_tokens=budget)
        gradient = tiny.gradient(policy, everything, advantages(kind)[mine])
        results[case] = gradient, policy.backward(everything, advantages(kind)[mine])
    policy = tiny.policy(tiny.model(), seed=7)
    rollouts = policy.rollout([Parity()[i] for i in mine], N, step=1, indices=mine)
    results["rollouts"] = {i: [rollouts.text(g, j) for j in range(N)] for g, i in enumerate(mine)}
    results["counts"] = count_successes(policy, Parity(), [3, 0, 5, 4, 2], 6, seed=9).tolist()
    return results


def main(file: str):
    rank, world, _ = distributed.setup("cpu")
    torch.set_num_threads(1)
    torch.save(compute(rank, world), f"{file}.{rank}")
    distributed.cleanup()


if __name__ == "__main__":
    main(sys.argv[1])
