"""Look at rollouts, a right one beside a wrong one: `python sample.py runs/maze9_laptop-maxrl` draws held-out mazes.

    python sample.py Qwen/Qwen3-1.7B --task math --split test --task.test math500 --max-response 2048 --rollouts 8
"""

import argparse
import os
import sys

import torch

from maxrl import checkpoint, distributed, evaluation
from maxrl.config import UsageError


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("sample.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="checkpoint or run directory")
    parser.add_argument("--prompts", type=int, default=2, help="how many prompts to show (2)")
    parser.add_argument("--first", type=int, default=0, help="place of the first of them in the split (0)")
    parser.add_argument("--rollouts", type=int, default=32, help="drawn for each; one right and one wrong are shown (32)")
    evaluation.add_options(parser, "validation")
    parser.add_argument("--colour", default="auto", choices=("auto", "always", "never"),
                        help="auto: in a terminal, unless NO_COLOR is set")
    return evaluation.read_options(parser, arguments, ("prompts", "rollouts"))


def side_by_side(left: str, right: str, gap: str = "    ") -> str:
    """Two texts next to each other; `left`'s width is that of its longest line without escapes."""
    columns = [text.split("\n") for text in (left, right)]
    widths = [len(plain(line)) for line in columns[0]]
    height, width = max(map(len, columns)), max(widths)
    for column in columns:
        column += [""] * (height - len(column))
    return "\n".join(a + " " * (width - len(plain(a))) + gap + b for a, b in zip(*columns))


def plain(line: str) -> str:
    """The line without its ANSI colours."""
    while "\x1b[" in line:
        before, _, rest = line.partition("\x1b[")
        line = before + rest.partition("m")[2]
    return line


def main(arguments: list[str]):
    args = read_arguments(arguments)
    path = checkpoint.find(args.checkpoint)
    evaluation.complete(args, path)
    task = evaluation.find_task(args, path)
    if not 0 <= args.first < len(task):
        raise UsageError(f"--first {args.first} lies outside the {len(task)} prompts of the {args.split} split")
    device = distributed.setup(args.device)[2]
    indices = range(args.first, min(args.first + args.prompts, len(task)))
    policy = evaluation.load_policy(args, path, task, device, indices)
    policy.model.eval()
    examples = task.batch(indices)
    cut = {} if task.classes else {"top_k": args.top_k, "top_p": args.top_p}
    with torch.no_grad():
        rollouts = policy.rollout(examples, args.rollouts, indices=indices, seed=args.seed, temperature=args.temperature, **cut)
    rewards = task.rewards(examples, rollouts).cpu()  # (P, N)
    colour = args.colour == "always" or args.colour == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for i, index in enumerate(indices):
        example, successes = task[index], int((rewards[i] == 1).sum())
        print(f"prompt {index}: {successes} of {args.rollouts} rollouts are right")
        shown = [torch.nonzero((rewards[i] == 1) == right).flatten().tolist()[:1] for right in (True, False)]
        print(side_by_side(*[task.show(rollouts.text(i, j[0]), example, colour) if j else "" for j in shown]), end="\n\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UsageError, OSError) as error:
        distributed.refuse("sample.py", error)
