"""train.py with Eq. (10) in rounds: failed rounds are trained on as well.

    PYTHONPATH=. python results/failures/every_round.py maze9_laptop --rollouts 8,8,16 \\
        --estimator results/failures/every_round.py:centered ...

Whether a round is sampled depends on earlier rounds alone. Given that it is sampled, the mean score
of all of its rollouts has expectation 0. So Eq. (10) may subtract it from the mean score of the
successes in every round, the failed ones included, and the expected gradient is still w_n grad p,
with n the sum of the sizes (tests/results/test_every_round.py enumerates it). A prompt without a
success then has a gradient, and no row is skipped. The divisor of the loss counts every round as a
group, so the step as a whole has a factor that depends on how many rounds have failed.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

import train
from maxrl import rounds
from maxrl.advantages import ADVANTAGES
from maxrl.registry import estimator
from maxrl.rollouts import joined
from maxrl.rounds import Sampled, in_rounds, numbers


@estimator(takes="binary", group=True, rounds=True, registry={})
def centered(rewards: Tensor) -> Tensor:
    """Eq. (10). In rounds it is exact only if failed rounds are trained on, as here."""
    return ADVANTAGES["maxrl_centered"](rewards)


def every_round(sizes, rollout: Callable, judge: Callable[..., Tensor], *where) -> Sampled:
    """Sample as in_rounds does, but learn from all rounds of a prompt, each as a group."""
    most = max(sizes)
    parts = []
    rewards = []

    def judged(examples, rollouts) -> Tensor:
        verdicts = numbers(judge(examples, rollouts))
        parts.append(rollouts)
        rewards.append(F.pad(verdicts, (0, most - verdicts.shape[1]), value=torch.nan))
        return verdicts

    sampled = in_rounds(sizes, rollout, judged, *where)
    return replace(sampled, rollouts=joined(parts, N=most), rewards=torch.cat(rewards))


if __name__ == "__main__":
    with mock.patch.object(rounds, "in_rounds", every_round):
        train.main(sys.argv[1:])
