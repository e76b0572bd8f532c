r"""train.py with the sampling of a neighbour, on one process.

    python -m results.maze13_end.neighbours dapo maze9_laptop --estimator grpo ...
    python -m results.maze13_end.neighbours ada maze9_laptop --estimator reinforce \
        --no-verdict rollout ...

dapo  DAPO's dynamic sampling (arXiv 2503.14476, Eq. 11): of ten batches of prompts as many are
      sampled as give a batch of prompts that have right and wrong rollouts.
ada   Reinforce-Ada-Seq-pos (arXiv 2510.04996, Algorithm 2, with the first success as in its code):
      rounds of 8 until one has a success; of all rollouts of a prompt 8 are kept, half of them
      right where so many are; A = (r - p) / p with the share p of right ones among all.

A run is resumed by the same command, since train.py would go on without the neighbour's sampling.

Of the metrics `rollouts` is what was sampled, and `rounds` counts DAPO's batches. `frac_unsolved`
says nothing here, since what is learned from was chosen: frac_reward_zero_mean is of the first
batch, and of ada's 32. Seconds, tokens and lengths of ada are those of all 32.
"""

import sys
from unittest import mock

import torch

import train
from maxrl.learning.rounds import Sampled
from maxrl.run import cli
from maxrl.sampling.rollouts import joined

BATCHES = 10
ROUND, KEPT = 8, 8


def dapo(cfg, policy, judge, examples, step, indices, clock) -> Sampled:
    """Batches of P = cfg.prompts / 10 prompts, until P of them have a signal."""
    N, P = cfg.rollouts[0], cfg.prompts // BATCHES
    kept, rewards = [], []
    missing = P
    for start in range(0, cfg.prompts, P):
        batch = slice(start, start + P)
        with clock("rollout"):
            rollouts = policy.rollout(examples[batch], N, step=step, indices=indices[batch])
        with clock("reward"):
            verdicts = judge(examples[batch], rollouts)  # (P, N)
        if start == 0:
            first = rollouts, verdicts
        mixed = verdicts.std(1) > 0  # (P,)
        chosen = mixed & (mixed.cumsum(0) <= missing)
        kept.append(rollouts.select(chosen))
        rewards.append(verdicts[chosen])
        missing -= int(chosen.sum())
        if missing == 0:
            break
    num_rollouts = torch.full((batch.stop,), float(N))
    num_rounds = torch.full((batch.stop,), batch.stop / P)
    return Sampled(*first, joined(kept, N=N), torch.cat(rewards), num_rollouts, num_rounds)


def ada(cfg, policy, judge, examples, step, indices, clock) -> Sampled:
    """All rounds are drawn at once, which are the same rollouts, and those that would have been
    drawn are counted.
    """
    N = cfg.rollouts[0]
    with clock("rollout"):
        rollouts = policy.rollout(examples, N, step=step, indices=indices)
    with clock("reward"):
        verdicts = judge(examples, rollouts)  # (P, N)
    num_rollouts, advantages = pooled(verdicts)
    num_rounds = num_rollouts / ROUND
    return Sampled(rollouts, verdicts, rollouts, advantages, num_rollouts, num_rounds)


def pooled(verdicts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rollouts that each prompt had (P,), and advantages (P, N), NaN for what is not kept."""
    P, N = verdicts.shape
    right = verdicts == 1  # (P, N)
    # A prompt ends with the round of its first success, or with the last one.
    first = torch.where(right.any(1), right.int().argmax(1), N - 1)  # (P,)
    had = (first // ROUND + 1) * ROUND  # (P,)
    pool = torch.arange(N) < had[:, None]  # (P, N)
    num_right = (right & pool).sum(1, keepdim=True)  # (P, 1)
    num_wrong = had[:, None] - num_right
    keep_right = num_right.clamp(max=KEPT // 2)
    keep_wrong = num_wrong.minimum(KEPT - keep_right)
    keep_right = num_right.minimum(KEPT - keep_wrong)
    right, wrong = right & pool, ~right & pool
    kept = right & (right.cumsum(1) <= keep_right) | wrong & (wrong.cumsum(1) <= keep_wrong)
    p = num_right / had[:, None]  # (P, 1)
    advantages = (verdicts - p) / p.where(p > 0, 1.0)  # (P, N)
    return had.float(), advantages.masked_fill(~kept, torch.nan)


if __name__ == "__main__":
    method = {"dapo": dapo, "ada": ada}[sys.argv[1]]
    cli.never_fail("stdout")
    # Afterwards train.py is itself again, for a process that goes on.
    with (
        mock.patch.object(train, "sample", method),
        cli.script("train.py", memory=cli.LESS_MEMORY),
    ):
        train.main(sys.argv[2:])
