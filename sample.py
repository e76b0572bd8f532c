"""Look at rollouts, a right one next to a wrong one: `python sample.py runs/maze9_laptop-maxrl` draws held-out mazes.

python sample.py Qwen/Qwen3-1.7B --task math --split test --task.test math500 --max-response 2048 --samples 8
"""

import argparse
import itertools
import os
import re
import sys

import torch

from maxrl import checkpoint
from maxrl.errors import UsageError
from maxrl.parallel import distributed
from maxrl.run import cli, sampling_options, setup


def read_arguments(arguments: list[str]):
    parser = argparse.ArgumentParser(
        "sample.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("checkpoint", help="checkpoint or run directory")
    add("--prompts", type=int, default=2, help="how many prompts to show (2)")
    add("--first", type=int, default=0, help="place of the first of them in the split (0)")
    add(
        "--both",
        action="store_true",
        help="pass over prompts whose rollouts are all right or all wrong",
    )
    add(
        "--samples",
        type=int,
        default=32,
        help="rollouts of each; one right and one wrong are shown (32)",
    )
    sampling_options.add_options(parser, "")
    add(
        "--colour",
        default="auto",
        choices=("auto", "always", "never"),
        help="auto: in a terminal, unless NO_COLOR is set",
    )
    return sampling_options.read_options(parser, arguments)


def side_by_side(left: str, right: str) -> str:
    """Two texts next to each other; `left`'s width is that of its longest line without escapes."""
    rows = list(itertools.zip_longest(left.split("\n"), right.split("\n"), fillvalue=""))
    widths = [len(plain(line)) for line, _ in rows]
    lines = [a + " " * (max(widths) - width + 4) + b for (a, b), width in zip(rows, widths)]
    return "\n".join(lines)


def plain(text: str) -> str:
    """The text without its ANSI colours."""
    return re.sub(r"\x1b\[[^m]*m?", "", text)


def main(arguments: list[str]):
    args = read_arguments(arguments)
    path = checkpoint.find(args.checkpoint)
    sampling_options.complete(args, path)
    task = setup.find_task(args, path)
    if not 0 <= args.first < len(task):
        raise UsageError(
            f"--first {args.first} lies outside the {len(task)} prompts of the {args.split} split"
        )
    device = distributed.setup(args.device)[2]
    indices = range(
        args.first, len(task) if args.both else min(args.first + args.prompts, len(task))
    )
    policy = setup.load_policy(args, path, task, device, indices)
    policy.model.eval()
    colour = (
        args.colour == "always"
        or args.colour == "auto"
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
    )
    options = {"seed": args.seed, "temperature": args.temperature}
    if not task.classes:
        options |= {"top_k": args.top_k, "top_p": args.top_p}
    left = args.prompts
    for index in indices:
        examples = task.batch([index])
        with torch.no_grad():
            rollouts = policy.rollout(examples, args.samples, indices=[index], **options)
        right = task.rewards(examples, rollouts).cpu()[0] == 1  # (N,)
        if args.both and (right.all() or not right.any()):
            continue
        print(f"prompt {index}: {int(right.sum())} of {args.samples} rollouts are right")
        shown = []
        for chosen in (right, ~right):
            first = int(chosen.long().argmax())
            shown.append(
                task.show(rollouts.text(0, first), task[index], colour) if chosen.any() else ""
            )
        print(side_by_side(*shown), end="\n\n")
        left -= 1
        if not left:
            return
    if args.both:
        since = f", from prompt {args.first} on," if args.first else ""
        print(
            f"only {args.prompts - left} prompts of the {args.split} split{since} have right and wrong rollouts among "
            f"{args.samples}"
        )


if __name__ == "__main__":
    with cli.script("sample.py", OSError):
        main(sys.argv[1:])
