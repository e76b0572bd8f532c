"""One rank of test_invariance.py, started by torchrun: writes the gradients that it computed to
FILE.rank.
"""

import itertools
import sys

import tiny
import torch

from maxrl.advantages import ADVANTAGES  # noqa: E402
from maxrl.evaluation import judge_samples  # noqa: E402
from maxrl.parallel import distributed  # noqa: E402
from maxrl.run import cli
from maxrl.tasks import Example, Task  # noqa: E402
from maxrl.tasks.maze import VOCABULARY  # noqa: E402

LENGTHS, N = (20, 3, 17, 1, 25, 2), 5  # of the prompts; rollouts per prompt
ORDERS = ("as they are", "groups permuted", "rollouts permuted")
MICRO_BATCHES = (
    1,
    30,
    10**6,
)  # tokens: one row a forward, slices of a group and small groups, everything
CASES = list(
    itertools.product(ORDERS, MICRO_BATCHES, (False, True), (False, True))
)  # the last: checkpointing, shared prompt


def stored(dtype):
    """The rollouts of all ranks, and Algorithm 1's advantages (P, N) of random rewards, those of
    group 2 all 0.
    """
    rewards = (torch.rand(len(LENGTHS), N, generator=torch.Generator().manual_seed(4)) < 0.5).to(
        dtype
    )
    rewards[2] = 0
    return tiny.rollouts(LENGTHS, N=N, L=8, dtype=dtype), ADVANTAGES["maxrl"](rewards)


def ordered(rollouts, advantages, order: str):
    """The same rollouts, their groups, or the rollouts within each group, in another order."""
    P = len(rollouts.prompts)
    groups, rows = torch.arange(P), torch.arange(N).repeat(P, 1)  # (P,), (P, N)
    generator = torch.Generator().manual_seed(7)
    if order == "groups permuted":
        groups = torch.randperm(P, generator=generator)
    if order == "rollouts permuted":
        rows = torch.stack([torch.randperm(N, generator=generator) for _ in range(P)])
    rollouts.prompts = [rollouts.prompts[g] for g in groups]
    for name in ("tokens", "lengths", "finished", "log_probs", "entropies"):
        setattr(rollouts, name, getattr(rollouts, name)[groups[:, None], rows])
    return rollouts, advantages[groups[:, None], rows]


def of_rank(rollouts, advantages, rank: int, world: int):
    """Rank r takes groups r, r + G, ..."""
    mine = torch.arange(len(rollouts.prompts)) % world == rank
    return rollouts.select(mine), advantages[mine]


def compute(rank: int, world: int, dtype=torch.float32, cases=CASES) -> dict:
    """{case: gradient (parameters,)}."""
    results = {}
    for order, budget, again, share in cases:
        rollouts, advantages = of_rank(*ordered(*stored(dtype), order), rank, world)
        policy = tiny.policy(
            tiny.model(dtype),
            micro_batch_tokens=budget,
            gradient_checkpointing=again,
            share_prompt=share,
        )
        results[order, budget, again, share] = tiny.gradient(policy, rollouts, advantages)
    return results


RIGHT = VOCABULARY[4:16]


class LastWord(Task):
    """The answer is the last word of a response, if it has more than one; RIGHT are right."""

    def __getitem__(self, index):
        return Example(" ".join(["UP"] * (index + 1)), "")

    def verify(self, response, example):
        return float(self.final(response) in RIGHT)

    def final(self, response):
        return response.split()[-1] if len(response.split()) > 1 else None


def votes() -> list:
    """Counts of right samples, and the majority votes, of seven prompts shared by the ranks."""
    counts, majority = judge_samples(tiny.policy(tiny.model()), LastWord(), range(7), 4, seed=2)
    return [counts.tolist(), majority.tolist()]


def main(file: str):
    rank, world, _ = distributed.setup("cpu")
    torch.set_num_threads(1)
    torch.save(compute(rank, world) | {"votes": votes()}, f"{file}.{rank}")
    cli.cleanup()


if __name__ == "__main__":
    main(sys.argv[1])
