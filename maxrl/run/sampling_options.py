"""The options that eval.py and sample.py share."""

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path

from maxrl import checkpoint
from maxrl.errors import UsageError
from maxrl.io.arguments import Parser, check_least, parse

TRAINED = {"--rollouts": "the number of responses to a prompt is --samples here"}


def option_parser(prog: str, description: str | None) -> Parser:
    """Return a parser that also takes the options of a task, --task.NAME VALUE."""
    return Parser(prog, inner=("task",), hints=TRAINED, description=description)


def add_options(parser: argparse.ArgumentParser, split: str):
    """Add the options of both scripts.

    split  default of --split; "" stands for validation, or train if the task has no other split
    """
    # What setup.choose_rewards and setup.build_policy ask of a Config in addition.
    parser.set_defaults(
        zero_reward_at_limit=False,
        reward_errors="stop",
        reward_timeout=0.0,
        no_verdict="group",
        out=".",
        workers=0,
        aggregation="sequence",
    )
    add = parser.add_argument
    splits = ("train", "validation", "test")
    add("--split", default=split, choices=splits, help=f"({split or 'validation, or train'})")
    add("--task", help="task by name; its options follow as --task.size 9 (the checkpoint's own)")
    add(
        "--reward",
        action="extend",
        type=partial(parse, tuple[str, ...]),
        default=[],
        metavar="FILE.py:F",
        help="reward function in place of the task's verdict, by name or package.module:F too",
    )
    add(
        "--reward-weights",
        type=partial(parse, tuple[float, ...]),
        default=(),
        metavar="W,W",
        help="weights of the reward functions (the checkpoint's own for its own functions, else 1)",
    )
    add("--max-prompt", type=int, default=0, help="leave out longer prompts (0: all must fit)")
    add("--max-response", type=int, help="longest response in tokens (the checkpoint's own)")
    add("--temperature", type=float, help="(the checkpoint's own eval_temperature, else 1)")
    add("--top-k", type=int, default=0, help="only the k most probable tokens (0: all)")
    add(
        "--top-p",
        type=float,
        help="only the smallest set of this probability (the checkpoint's own eval_top_p, else 1)",
    )
    add("--seed", type=int, default=0, help="of the samples (0)")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--precision", choices=("auto", "float32", "bfloat16"), help="(the checkpoint's own)")


def read_options(parser: Parser, arguments: list[str]) -> argparse.Namespace:
    """Return the options, with those of the task as a dict `task_options`.

    Raises UsageError for an unknown option and for a number that is too small.
    """
    args = parser.parse_options(arguments)
    args.task_options = {}
    for name, value in vars(args).copy().items():
        if name.startswith("task."):
            args.task_options[name.removeprefix("task.")] = value
    for name in ("samples", "prompts", "rollouts", "max_response"):
        check_least(name, getattr(args, name, None), 1)
    for name in ("seed", "max_prompt", "workers"):
        check_least(name, getattr(args, name, None), 0)
    if args.reward_weights and not args.reward:
        raise UsageError("--reward-weights belongs to --reward")
    return args


def complete(args: argparse.Namespace, path: Path):
    """Fill in what the options leave open from the recipe recorded in checkpoint `path`.

    That is the task; if it is the same task, its options, rewards and zero_reward_at_limit; the
    longest response (as own_max_response), the precision, and temperature and top-p of evaluations.

    The checkpoint may come from anywhere: a task or reward function that is code runs only if the
    options name it too. Raises UsageError in that case, if there is no task, and for options that
    describe no distribution.
    """
    try:
        trained = checkpoint.recorded(path) if (path / "recipe.json").exists() else {}
    except ValueError as error:
        raise UsageError(f"{error}: move that file away, and name the task with --task") from None
    task = args.task or trained.get("task")
    if not task:
        raise UsageError(f"{path} does not say what it was trained on: name it with --task")
    code = ["--task", task] if ":" in task and not args.task else []
    if task == trained.get("task"):
        args.task = task
        args.task_options = trained["task_options"] | args.task_options
        args.zero_reward_at_limit = trained["zero_reward_at_limit"]
        if not args.reward:
            args.reward = trained["reward"]
            if any(":" in name for name in args.reward):
                code += ["--reward", ",".join(args.reward)]
        if args.reward == trained["reward"]:
            args.reward_weights = args.reward_weights or trained["reward_weights"]
    if code:
        raise UsageError(
            f"{path} was trained with a task or rewards that are code: {shlex.join(code)} says that"
            f" you trust it, as in {shlex.join(['python', *sys.argv, *code])}"
        )
    args.own_max_response = trained.get("max_response")
    args.precision = args.precision or trained.get("precision", "auto")
    for name in ("temperature", "top_p"):
        if getattr(args, name) is None:
            setattr(args, name, trained.get(f"eval_{name}", 1.0))
    if not 0 <= args.temperature < float("inf") or not 0 < args.top_p <= 1 or args.top_k < 0:
        raise UsageError(
            f"--temperature {args.temperature} --top-k {args.top_k} --top-p {args.top_p}: none "
            "may be negative, and top-p must lie in (0, 1]"
        )
