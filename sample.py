"""Look at rollouts, a right one next to a wrong one.

    python sample.py runs/maze9_laptop-maxrl
    python sample.py Qwen/Qwen3-1.7B --task math --split test --task.test math500 --samples 8 \\
        --max-response 2048
"""

import argparse
import itertools
import sys

# Before torch, whose import takes seconds: maxrl notes which process is the launcher.
from maxrl import checkpoint

# isort: split
import torch

from maxrl.parallel import distributed
from maxrl.run import cli, sampling_options, setup


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = sampling_options.option_parser("sample.py", __doc__, "")
    add = parser.add_argument
    add("checkpoint", help="checkpoint or run directory")
    add("--prompts", type=int, default=2, help="number of prompts to show (2)")
    add("--both", action="store_true", help="only prompts with right and with wrong rollouts")
    add("--samples", type=int, default=32, help="rollouts of each prompt (32)")
    return sampling_options.read_options(parser, arguments)


def side_by_side(left: str, right: str) -> str:
    """Return two texts next to each other, aligned by the longest line of `left`."""
    rows = list(itertools.zip_longest(left.split("\n"), right.split("\n"), fillvalue=""))
    width = max(len(line) for line, _ in rows) + 4
    return "\n".join(f"{a:{width}}{b}" for a, b in rows)


def main(arguments: list[str]):
    """Print rollouts until as many prompts as asked for are shown."""
    args = read_arguments(arguments)
    path = checkpoint.find(args.checkpoint)
    sampling_options.complete(args, path)
    task = setup.find_task(args, path)
    device = distributed.setup(args.device)[2]
    indices = range(len(task) if args.both else min(args.prompts, len(task)))
    policy = setup.start_policy(args, task, None, None, device)
    policy.model.eval()
    options = {"seed": args.seed, "temperature": args.temperature}
    if not task.classes:
        options |= {"top_k": args.top_k, "top_p": args.top_p}
    shown = 0
    for index in indices:
        examples = task.batch([index])
        with torch.no_grad():
            rollouts = policy.rollout(examples, args.samples, indices=[index], **options)
        right = task.rewards(examples, rollouts).cpu()[0] == 1  # (N,)
        if args.both and (right.all() or not right.any()):
            continue
        print(f"prompt {index}: {int(right.sum())} of {args.samples} rollouts are right")
        texts = []
        for chosen in (right, ~right):
            text = rollouts.text(0, int(chosen.long().argmax()))
            texts.append(task.show(text, task[index]) if chosen.any() else "")
        print(side_by_side(*texts), end="\n\n")
        shown += 1
        if shown == args.prompts:
            return
    if not shown:
        cli.say("no prompt has right and wrong rollouts: raise --samples")


if __name__ == "__main__":
    with cli.script("sample.py", OSError):
        main(sys.argv[1:])
