"""The options that eval.py and sample.py share."""

import argparse
import shlex
import sys
from pathlib import Path

from maxrl import checkpoint
from maxrl.errors import UsageError
from maxrl.io.arguments import check_least, guess, parse, refuse_blanks, split_arguments


def add_options(parser: argparse.ArgumentParser, split: str):
    """The options of both scripts; `split` is the default of --split, where it is "" the first that there is."""
    # What else setup.choose_rewards and setup.build_policy ask of a Config.
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
    add(
        "--split",
        default=split,
        choices=("train", "validation", "test"),
        help=f"({split or 'validation, or train where the task has no other'})",
    )
    add("--task", help="task by name; its options follow as --task.size 9 (the checkpoint's own)")
    add(
        "--reward",
        action="extend",
        type=lambda text: text.split(","),
        default=[],
        metavar="FILE.py:F",
        help="reward function for the task's verdict, package.module:F or accuracy_reward; repeatable",
    )
    add_list(
        parser,
        "--reward-weights",
        float,
        "W,W",
        "what each reward function of --reward counts in "
        "their sum (the checkpoint's own for its own functions, else 1 each)",
    )
    add(
        "--max-prompt",
        type=int,
        default=0,
        help="leave out prompts of more tokens and count them (0: all must fit)",
    )
    add("--max-response", type=int, help="longest response in tokens (the checkpoint's own)")
    add(
        "--temperature",
        type=float,
        help="of the sampling (the checkpoint's own eval_temperature, else 1)",
    )
    add("--top-k", type=int, default=0, help="sample from the k most probable tokens only (0: all)")
    add(
        "--top-p",
        type=float,
        help="sample from the smallest set of this probability, 1: all tokens (the "
        "checkpoint's own eval_top_p, else 1)",
    )
    add("--seed", type=int, default=0, help="of the samples")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        help="of the forward (the checkpoint's own)",
    )


def is_number(word: str) -> bool:
    return isinstance(guess(word), int | float)


ITEMS = {  # what a further word of a list looks like, where a checkpoint might follow
    "k": is_number,
    "reward-weights": is_number,
    "estimators": lambda word: word.replace("_", "").isalpha() and word.islower(),
    "reward": lambda word: ":" in word,
}


def add_list(
    parser: argparse.ArgumentParser, name: str, kind: type, metavar: str, sentence: str, default=()
):
    """An option whose values have commas between them, as those of train.py have."""
    parser.add_argument(
        name,
        default=default,
        metavar=metavar,
        help=sentence,
        type=lambda text: parse(tuple[kind, ...], name.removeprefix("--"), text),
    )


def read_options(parser: argparse.ArgumentParser, arguments: list[str]):
    """The options, those of the task (--task.NAME VALUE) as a dict `task_options`. UsageError for an unknown option and for a
    number that is too small."""
    refuse_blanks(arguments, ITEMS)
    args, rest = parser.parse_known_args(arguments)
    args.task_options = {}
    for key, value in split_arguments(rest):
        if key == "rollouts":
            raise UsageError(
                "--rollouts is the N of training; what is drawn for each prompt here is --samples"
            )
        if not key.startswith("task."):
            raise UsageError(f"--{key} is not an option ({parser.prog} --help lists all)")
        args.task_options[key.removeprefix("task.")] = guess(value)
    for name in ("samples", "prompts", "rollouts", "max_response"):
        check_least(name, getattr(args, name, None), 1)
    for name in ("seed", "max_prompt", "workers"):
        check_least(name, getattr(args, name, None), 0)
    if args.reward_weights and not args.reward:
        raise UsageError("--reward-weights belongs to --reward")
    return args


def complete(args, path: Path):
    """What the options leave open is the recipe's of checkpoint `path`: the task and, where it is this one, its options and
    what becomes of cut responses (`zero_reward_at_limit`); the longest response (`own_max_response`); the precision;
    temperature and top-p of its evaluations. A task or reward functions of the user's are code, which runs only where the
    options name it too: the checkpoint may come from anywhere. UsageError for what is no distribution to sample from."""
    try:
        trained = checkpoint.recorded(path) if (path / "recipe.json").exists() else {}
    except ValueError as error:
        raise UsageError(f"{error}: move that file away, and name the task with --task") from None
    task = args.task or trained.get("task")
    if not task:
        raise UsageError(f"{path} does not say what it was trained on: name it with --task")
    same = task == trained.get("task")
    code = []
    if ":" in task and not args.task:
        code += ["--task", task]
    if same and not args.reward:
        args.reward = trained["reward"]
        if any(":" in name for name in args.reward):
            code += ["--reward", ",".join(args.reward)]
    if code:
        raise UsageError(
            f"{path} was trained with a task or rewards that are code: {shlex.join(code)} says that you trust it, "
            f"as in {shlex.join(['python', *sys.argv, *code])}"
        )
    if same:
        args.task = task
        args.task_options = trained["task_options"] | args.task_options
        args.zero_reward_at_limit = trained["zero_reward_at_limit"]
        if args.reward == trained["reward"]:
            args.reward_weights = args.reward_weights or trained["reward_weights"]
    args.precision = args.precision or trained.get("precision", "auto")
    args.own_max_response = trained.get("max_response")
    for name in ("temperature", "top_p"):
        if getattr(args, name) is None:
            setattr(args, name, trained.get(f"eval_{name}", 1.0))
    if not 0 <= args.temperature < float("inf") or not 0 < args.top_p <= 1 or args.top_k < 0:
        raise UsageError(
            f"--temperature {args.temperature} --top-k {args.top_k} --top-p {args.top_p} is no distribution: "
            "temperature and top-k must not be negative, top-p lies in (0, 1]"
        )
