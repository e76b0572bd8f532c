"""Look at rollouts: a right one next to a wrong one, or one of each of several models.

    python sample.py runs/maze9_laptop-maxrl
    python sample.py runs/maze9_laptop_sft runs/maze9_laptop-maxrl
    python sample.py Qwen/Qwen3-1.7B --task math --split test --task.test math500 --samples 8 \\
        --max-response 2048
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from maxrl.models import checkpoint
from maxrl.run import build, cli, evaluation_options
from maxrl.run.samples import best_and_worst
from maxrl.system import distributed
from maxrl.tasks.base import is_success


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = evaluation_options.option_parser("sample.py", __doc__, "")
    add = parser.add_argument
    add("checkpoints", nargs="+", metavar="PATH", help="checkpoint or run directory")
    add("--prompts", type=int, default=2, help="number of prompts to show (2)")
    add("--both", action="store_true", help="only prompts with right and with wrong rollouts")
    add("--samples", type=int, default=32, help="rollouts of each prompt (32)")
    return evaluation_options.read_options(parser, arguments)


def side_by_side(texts: list[str]) -> str:
    """Return texts next to each other, each as wide as its longest line."""
    blocks = [text.split("\n") for text in texts]
    widths = [max(map(len, lines)) for lines in blocks]
    rows = []
    for row in itertools.zip_longest(*blocks, fillvalue=""):
        cells = [f"{line:{width}}" for line, width in zip(row, widths)]
        rows.append("    ".join(cells).rstrip())
    return "\n".join(rows)


def columns(names: list[str], groups: list, show: Callable[[str], str]) -> list[str]:
    """Return one model's best and worst rollout, or the first rollout of each of several models.

    The best and the worst are a right and a wrong one if the model has both.

    groups  for each model, the rollouts of one prompt and their rewards (N,)
    """
    if len(groups) > 1:
        texts = []
        for name, (rollouts, rewards) in zip(names, groups):
            right, judged = counts(rewards)
            heading = f"{name}: {right} of {judged} are right"
            texts.append(f"{heading}\n{response(rollouts, rewards, 0, show)}")
        return texts
    rollouts, rewards = groups[0]
    return [response(rollouts, rewards, i, show) for i in best_and_worst(rewards)]


def response(rollouts, rewards: torch.Tensor, i: int, show: Callable[[str], str]) -> str:
    """Return rollout i of a prompt as text, below its reward unless all rewards are 0 or 1."""
    text = show(rollouts.text(0, i))
    if ((rewards == 0) | (rewards == 1)).all():
        return text
    reward = f"reward {rewards[i]:g}" if rewards[i].isfinite() else "no verdict"
    return f"{reward}\n{text}"


def counts(rewards: torch.Tensor) -> tuple[int, int]:
    """Return how many of a prompt's rollouts are right, and how many have a verdict."""
    return int(is_success(rewards).sum()), int(rewards.isfinite().sum())


@torch.no_grad()
def main(arguments: list[str]):
    """Print rollouts until as many prompts as asked for are shown."""
    args = read_arguments(arguments)
    paths = [checkpoint.find(path) for path in args.checkpoints]
    cfg = evaluation_options.complete(args, paths)
    task, judge = evaluation_options.find_task(args, cfg)
    device = distributed.setup(cfg.device)
    policies: list[Any] = []
    for path in paths:
        policy: Any = build.policy_from(replace(cfg, init=str(path)), task, None, None, device)
        policy.model.eval()
        policies.append(policy)
    drawn = evaluation_options.drawn(args, cfg, classifier=bool(task.classes))
    shown = 0
    for index in range(len(task)):
        examples = task.batch([index])
        groups = []
        for policy in policies:
            rollouts = policy.rollout(
                examples, args.samples, indices=[index], seed=cfg.seed, **drawn
            )
            groups.append((rollouts, judge(examples, rollouts).cpu()[0]))
        found = [counts(rewards) for _, rewards in groups]
        if args.both and not any(0 < right < judged for right, judged in found):
            continue
        heading = f"prompt {index}"
        if len(groups) == 1:
            right, judged = found[0]
            heading += f": {right} of {judged} rollouts are right"
        print(heading)
        texts = columns(args.checkpoints, groups, lambda text: task.show(text, task[index]))
        print(side_by_side(texts), end="\n\n")
        shown += 1
        if shown == args.prompts:
            return
    if not shown:
        cli.say("no prompt has right and wrong rollouts: raise --samples")


if __name__ == "__main__":
    with cli.script("sample.py", OSError):
        main(sys.argv[1:])
