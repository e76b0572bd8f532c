"""Look at rollouts: `python sample.py runs/maze9_laptop-maxrl` draws right and wrong paths of held-out mazes."""

import argparse
import os
import sys

import torch

from maxrl import checkpoint, distributed
from maxrl.config import UsageError
from maxrl.policy import make_policy
from maxrl.rewards import Rewards
from maxrl.tasks import load_task


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("sample.py", description=__doc__)
    parser.add_argument("checkpoint", help="checkpoint or run directory")
    parser.add_argument("--prompts", type=int, default=2, help="how many prompts to show (2)")
    parser.add_argument("--first", type=int, default=0, help="place of the first of them in the split (0)")
    parser.add_argument("--rollouts", type=int, default=32, help="drawn for each; one right and one wrong are shown (32)")
    parser.add_argument("--split", default="validation", choices=("train", "validation", "test"))
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--colour", default="auto", choices=("auto", "always", "never"),
                        help="auto: in a terminal, unless NO_COLOR is set")
    args = parser.parse_args(arguments)
    for name in ("prompts", "rollouts"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} {getattr(args, name)} must be at least 1")
    if not 0 <= args.temperature < float("inf") or args.seed < 0:
        raise UsageError(f"--temperature {args.temperature} and --seed {args.seed} must not be negative")
    return args


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
    if not (path / "recipe.json").exists():
        raise UsageError(f"{path} does not say what it was trained on: it holds no recipe.json")
    try:
        trained = checkpoint.recorded(path)
    except ValueError as error:
        raise UsageError(str(error)) from None
    task = load_task(trained["task"], args.split, **trained["task_options"])
    if trained.get("reward"):
        task.rewards = Rewards(trained["reward"], trained["reward_weights"]).judge
    if not 0 <= args.first < len(task):
        raise UsageError(f"--first {args.first} lies outside the {len(task)} prompts of the {args.split} split")
    device = distributed.setup()[2]
    try:
        model, tokenizer, stop = checkpoint.load_model(path)
        own = {} if task.classes else {"max_tokens": trained["max_response"]}
        policy = make_policy(model, tokenizer, stop, task, device, **own)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    policy.model.eval()
    indices = range(args.first, min(args.first + args.prompts, len(task)))
    examples = task.batch(indices)
    with torch.no_grad():
        rollouts = policy.rollout(examples, args.rollouts, indices=indices, seed=args.seed, temperature=args.temperature)
    rewards = task.rewards(examples, rollouts).cpu()  # (P, N)
    colour = args.colour == "always" or args.colour == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for i, index in enumerate(indices):
        example, successes = task[index], int((rewards[i] == 1).sum())
        print(f"prompt {index}: {successes} of {args.rollouts} rollouts are right")
        shown = [torch.nonzero(rewards[i] == value).flatten().tolist()[:1] for value in (1, 0)]
        print(side_by_side(*[task.show(rollouts.text(i, j[0]), example, colour) if j else "" for j in shown]), end="\n\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UsageError, OSError) as error:
        distributed.refuse("sample.py", error)
