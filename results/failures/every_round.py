"""train.py with Eq. (10) in rounds: failed rounds are trained on as well.

    PYTHONPATH=. python results/failures/every_round.py maze9_laptop --rollouts 8,8,16 \\
        --estimator results/failures/every_round.py:centered ...

Whether a round is sampled depends on earlier rounds alone. Given that it is sampled, the mean score
of all of its rollouts has expectation 0. So Eq. (10) may subtract it from the mean score of the
successes in every round, the failed ones included, and the expected gradient is still w_n grad p,
with n the sum of the sizes (tests/results/test_every_round.py enumerates it). A prompt without a
success then has a gradient, and no row is skipped. The divisor of the loss is that of rounds: it
counts the last round of each prompt.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

import train
from maxrl.advantages import ADVANTAGES
from maxrl.advantages.registry import estimator
from maxrl.learning import rounds
from maxrl.learning.rounds import Sampled, in_rounds, unsolved
from maxrl.sampling.drawing import at_least_float32
from maxrl.sampling.rollouts import Rollouts, joined


@estimator(takes="binary", group=True, rounds=True, registry={})
def centered(rewards: Tensor) -> Tensor:
    """Eq. (10). In rounds it is exact only if failed rounds are trained on, as here."""
    return ADVANTAGES["maxrl_centered"](rewards)


@dataclass
class EveryRound(Rollouts):
    """Rollouts of all rounds, one group each, of which the last round of a prompt is counted.

    A step's length would otherwise depend on how many of its rounds have failed.
    """

    last: Tensor | None = None  # (groups,) bool

    def counts(self, group_ids: list[int]) -> dict[str, float]:
        """Count the rollouts and tokens of last rounds alone, as those of in_rounds."""
        assert self.last is not None
        assert self.last[group_ids].any(), "an update without a last round: use --minibatches 1"
        return super().counts([i for i in group_ids if self.last[i]])


def every_round(sizes, policy, judge: Callable[..., Tensor], *where) -> Sampled:
    """Sample as in_rounds does, but learn from all rounds of a prompt, each as a group."""
    most = max(sizes)
    parts = []
    rewards = []
    last = []

    def judged(examples, rollouts) -> Tensor:
        verdicts = at_least_float32(judge(examples, rollouts))
        parts.append(rollouts)
        no_more = len(parts) == len(sizes)
        last.append(~unsolved(verdicts) | no_more)
        rewards.append(F.pad(verdicts, (0, most - verdicts.shape[1]), value=torch.nan))
        return verdicts

    sampled = in_rounds(sizes, policy, judged, *where)
    rollouts = EveryRound(**vars(joined(parts, N=most)), last=torch.cat(last))
    return replace(sampled, rollouts=rollouts, rewards=torch.cat(rewards))


if __name__ == "__main__":
    with mock.patch.object(rounds, "in_rounds", every_round):
        train.main(sys.argv[1:])
