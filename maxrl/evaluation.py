"""What eval.py and sample.py share: the options of sampling, the task that is asked, and the policy that answers."""

import argparse
import shlex
import sys
from pathlib import Path

from maxrl import checkpoint, distributed
from maxrl.config import UsageError, guess, parse, refuse_blanks, split_arguments
from maxrl.policy import make_policy
from maxrl.rewards import Rewards, Verdicts, probe
from maxrl.sampler import check_prompts
from maxrl.tasks import load_task
from maxrl.tasks.base import NoSplit, Task, Within, example_of, finished_only


def add_options(parser: argparse.ArgumentParser, split: str):
    """The options of both scripts; `split` is the default of --split, where it is "" the first that there is."""
    parser.add_argument("--split", default=split, choices=("train", "validation", "test"),
                        help=f"({split or 'validation, or train where the task has no other'})")
    parser.add_argument("--task", help="task by name; its options follow as --task.size 9 (the checkpoint's own)")
    parser.add_argument("--reward", action="append", default=[], metavar="FILE.py:F",
                        help="reward function for the task's verdict, or package.module:F; repeatable")
    add_list(parser, "--reward-weights", float, "W,W", "what each reward function counts in their sum (1 each)")
    parser.add_argument("--max-prompt", type=int, default=0,
                        help="leave out prompts of more tokens and count them (0: all must fit)")
    parser.add_argument("--max-response", type=int, help="longest response in tokens (the checkpoint's own)")
    parser.add_argument("--temperature", type=float, help="of the sampling (the checkpoint's own eval_temperature, else 1)")
    parser.add_argument("--top-k", type=int, default=0, help="sample from the k most probable tokens only (0: all)")
    parser.add_argument("--top-p", type=float, help="sample from the smallest set of this probability, 1: all tokens (the "
                        "checkpoint's own eval_top_p, else 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), help="of the forward (the checkpoint's own)")


ITEMS = {  # what a further word of a list looks like, where a checkpoint might follow
    "k": lambda word: isinstance(guess(word), int | float),
    "reward-weights": lambda word: isinstance(guess(word), int | float),
    "estimators": lambda word: word.replace("_", "").isalpha() and word.islower(),
    "reward": lambda word: ":" in word,
}


def add_list(parser: argparse.ArgumentParser, name: str, kind: type, metavar: str, told: str, default=()):
    """An option whose values have commas between them, as those of train.py have."""
    parser.add_argument(name, default=default, metavar=metavar, help=told,
                        type=lambda text: parse(tuple[kind, ...], name.removeprefix("--"), text))


def read_options(parser: argparse.ArgumentParser, arguments: list[str], positive: tuple[str, ...]) -> argparse.Namespace:
    """The options, those of the task (--task.NAME VALUE) as a dict `task_options`. UsageError for an unknown option, for one
    of `positive` below 1 and for what is no distribution to sample from."""
    refuse_blanks(arguments, ITEMS)
    args, rest = parser.parse_known_args(arguments)
    pairs = split_arguments(rest)
    unknown = [key for key, _ in pairs if not key.startswith("task.")]
    if unknown:
        raise UsageError(f"--{unknown[0]} is not an option ({parser.prog} --help lists all)")
    args.task_options = {key.removeprefix("task."): guess(value) for key, value in pairs}
    for name in (*positive, "max_response"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(args, name)} must be at least 1")
    for name in ("seed", "max_prompt"):
        if getattr(args, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(args, name)} must not be negative")
    temperature, top_p = (1.0 if value is None else value for value in (args.temperature, args.top_p))
    if not 0 <= temperature < float("inf") or not 0 < top_p <= 1 or args.top_k < 0:
        raise UsageError(f"--temperature {temperature} --top-k {args.top_k} --top-p {top_p} is no distribution: "
                         "temperature and top-k must not be negative, top-p lies in (0, 1]")
    args.reward = tuple(function for text in args.reward for function in text.split(","))
    if args.reward_weights and not args.reward:
        raise UsageError("--reward-weights belongs to --reward")
    return args


def complete(args: argparse.Namespace, path: Path):
    """What the options leave open is the recipe's of checkpoint `path`: the task and, where it is this one, its options and
    what becomes of cut responses (`zero_reward_at_limit`); the longest response (`own_max_response`); the precision;
    temperature and top-p of its evaluations. A task or reward functions of the user's are code, which runs only where the
    options name it too: the checkpoint may come from anywhere."""
    try:
        trained = checkpoint.recorded(path) if (path / "recipe.json").exists() else {}
    except ValueError as error:
        raise UsageError(f"{error}: move that file away, and name the task with --task") from None
    args.zero_reward_at_limit = False
    if not (args.task or trained):
        raise UsageError(f"{path} does not say what it was trained on: name it with --task")
    code = [] if args.task or ":" not in trained["task"] else ["--task", trained["task"]]
    if trained and (not args.task or args.task == trained["task"]) and trained["reward"] and not args.reward:
        code += ["--reward", ",".join(trained["reward"])]
    if code:
        raise UsageError(f"{path} was trained with a task or rewards that are code: {shlex.join(code)} says that you trust it, "
                         f"as in {shlex.join(['python', *sys.argv, *code])}")
    if not args.task or args.task == trained.get("task"):
        args.task, args.task_options = trained["task"], trained["task_options"] | args.task_options
        args.zero_reward_at_limit = trained["zero_reward_at_limit"]
        if list(args.reward) == trained["reward"]:
            args.reward_weights = args.reward_weights or trained["reward_weights"]
    args.precision = args.precision or trained.get("precision", "auto")
    args.own_max_response = trained.get("max_response")
    for name in ("temperature", "top_p"):
        if getattr(args, name) is None:
            setattr(args, name, trained.get(f"eval_{name}", 1.0))


def load_split(args: argparse.Namespace) -> Task:
    """The split that is asked; where none is, validation, or train where nothing else was named. Sets args.split."""
    if not args.split:
        try:
            args.split = "validation"
            return load_task(args.task, args.split, **args.task_options)
        except NoSplit:
            args.split = "train"
            print("no validation prompts are named: these are prompts of the training", file=sys.stderr)
    return load_task(args.task, args.split, **args.task_options)


def find_task(args: argparse.Namespace, path: Path) -> Task:
    """The split that is asked, without the prompts that are longer than --max-prompt in the tokens of checkpoint `path`, and
    judged by the reward functions if there are any; sets args.max_response. UsageError where no prompt is left, where nothing
    can judge, and for an option that means nothing to the task."""
    task = load_split(args)
    if len(task) == 0:
        raise UsageError(f"the {args.split} split of task {args.task} is empty")
    judge = Rewards(args.reward, args.reward_weights).judge if args.reward else None
    if not judge and not task.classes:
        probe(task)  # a package or reward functions that are missing are named before any sampling
    if task.classes and (args.max_prompt or args.max_response or args.top_k or args.top_p != 1):
        raise UsageError("a classifier draws classes, not tokens: leave out --max-prompt, --max-response, --top-k and --top-p")
    if not task.classes:
        args.max_response = args.max_response or args.own_max_response
        if not args.max_response:
            raise UsageError(f"{path} does not say how long its responses may be: set --max-response")
    if args.max_prompt:
        try:
            task = Within(task, checkpoint.load_tokenizer(path), args.max_prompt)
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from None
        if task.left_out and distributed.rank() == 0:
            print(f"{args.split}: {task.told}", file=sys.stderr)
        if len(task) == 0:
            raise UsageError(f"no prompt of the {args.split} split is left: raise --max-prompt {args.max_prompt}")
    if not task.classes:
        task.rewards = judge or Verdicts(task).judge
    if args.zero_reward_at_limit:
        task.rewards = finished_only(task.rewards)
    return task


def load_policy(args: argparse.Namespace, path: Path, task, device, indices, **options):
    """The policy of checkpoint `path` for a task; UsageError where they do not fit each other, or where one of the prompts
    `indices` leaves no room for the response."""
    try:
        checkpoint.check_whole(path)
        model, tokenizer, stop = checkpoint.load_model(path)
        own = {} if task.classes else {"max_tokens": args.max_response, "aggregation": "sequence"}
        policy = make_policy(model, tokenizer, stop, task, device, seed=args.seed,
                             autocast=distributed.use_bfloat16(args.precision, device), **own, **options)
        if not task.classes:
            check_prompts(model, [tokenizer.encode_prompt(example_of(task, i).prompt) for i in indices], args.max_response)
        return policy
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
