"""What a rule gives to successes and failures."""

import torch

from maxrl.advantages import ADVANTAGES


def by_successes(name: str, N: int, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """(N + 1,) each: the advantage of a success and of a failure where K = 0, ..., N of N rollouts
    succeed. That of a success means nothing at K = 0, that of a failure at K = N."""
    rewards = torch.ones(N + 1, N, dtype=torch.float64).tril(-1)  # row K: K ones first
    advantages = ADVANTAGES[name](rewards, **options)
    return advantages[:, 0], advantages[:, -1]
