"""The options that eval.py and sample.py share: fields of Config, and how responses are drawn."""

import argparse
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from maxrl.learning.config import FREE_ON_RESUME, LANGUAGE, Config
from maxrl.models import checkpoint
from maxrl.run.cli import say, warn
from maxrl.run.command_line import add_field, override, refuse_code
from maxrl.run.recipes import recipe_of_run
from maxrl.run.setup import check_learned, check_templates, check_total, choose_rewards, load
from maxrl.run.trl.options import FIELDS
from maxrl.system.arguments import Parser, check_least, dashed, typed
from maxrl.system.distributed import launched
from maxrl.system.errors import UsageError, refusing
from maxrl.system.user_code import located
from maxrl.tasks.base import NoSplit, Task
from maxrl.tasks.registry import usual_options
from maxrl.tasks.rewards import Judge, probe

# Fields of Config that are options here: with the value of the checkpoint's recipe, or of Config.
# What judges; it is the same for all rows.
JUDGE = ("reward", "reward_weights", "zero_reward_at_limit")
# Options of a task that say where its data are, or what is done to them in training alone.
PLACES = ("task.train", "task.validation", "task.test", "task.directory", "task.augment")
KEPT = ("max_response", "precision", "reward_errors", "reward_timeout")
OWN = ("task", *JUDGE, *KEPT)
DRAWN = ("eval_temperature", "eval_top_p")  # --temperature and --top-p
FRESH = ("max_prompt", "seed", "device", "cuda_graphs", "workers")


def option_parser(prog: str, description: str | None, split: str) -> Parser:
    """Return a parser of the options of both scripts, and of a task's, --task.NAME VALUE.

    split  default of --split; "" stands for validation, or train if the task has no other split
    """
    parser = Parser(prog, inner=("task",), other=FIELDS, description=description)
    for name in OWN + FRESH:
        about = Config.__dataclass_fields__[name].metadata["help"]
        known = "the checkpoint's own" if name in OWN else getattr(Config, name)
        add_field(parser, parser.read, name, f"{about} ({known})")
    add = parser.add_argument
    splits = ("train", "validation", "test")
    add("--split", default=split, choices=splits, help=f"({split or 'validation, or train'})")
    add("--top-k", type=int, default=0, help="only the k most probable tokens (0: all)")
    smallest = "only the smallest set of this probability "
    for name, about in (("temperature", ""), ("top_p", smallest)):
        # The second name is that of the recipe's field, which messages use.
        add(
            f"--{dashed(name)}",
            f"--eval-{dashed(name)}",
            dest=f"eval_{name}",
            metavar=name.upper(),
            type=float,
            default=argparse.SUPPRESS,
            help=f"{about}(the checkpoint's own eval_{name}, else 1)",
        )
    return parser


def read_options(parser: Parser, arguments: list[str]) -> argparse.Namespace:
    """Return the options of the script, with those that are fields of Config in a dict, `given`.

    Raises UsageError for an unknown option and for a number that is too small or too large.
    """
    args = parser.parse_options(arguments)
    for name in ("samples", "prompts"):
        check_least(name, getattr(args, name), 1, 10**6)
    check_least("top_k", args.top_k, 0)
    fields = OWN + FRESH + DRAWN
    names = [name for name in vars(args) if name in fields or name.startswith("task.")]
    args.given = {name: vars(args).pop(name) for name in names}
    return args


def complete(args: argparse.Namespace, rows: Sequence[Path]) -> Config:
    """Return the recipe of the first checkpoint that has one, with the options that are given.

    Temperature and top-p are those of its evaluations. max_response is the largest that any had in
    training, and what judges them is the same for all, see judging_fields().

    A checkpoint may come from anywhere: a task or reward function that is code runs only if the
    options name it too. Raises UsageError in that case, if there is no task, and for options that
    describe no distribution.
    """
    args.rows = rows
    given = args.given
    records = records_of(rows)
    recipes = [recipe_of_run(record) for record in records]
    if not recipes and "task" not in given:
        raise UsageError(f"{rows[0]} does not say what it was trained on: name it with --task")
    recipe = recipes[0] if recipes else Config()
    task = given.get("task", recipe.task)
    fields: dict = {name: getattr(recipe, name) for name in (*KEPT, *DRAWN)} | {"task": task}
    fields |= judging_fields(task, given, recipes)
    recipe = Config(**fields, aggregation="sequence", out=".")
    refuse_code(" or ".join(records), recipe, given)
    longest = {"max_response": max(known.max_response for known in recipes)} if recipes else {}
    return replace(override(recipe, longest | given), init=str(rows[0]))


def records_of(rows: Sequence[Path]) -> list[str]:
    """Return the recipe.json of those checkpoints that have one."""
    files = [path / "recipe.json" for path in rows]
    return [str(file) for file in files if file.exists()]


def judging_fields(task: str, given: dict, recipes: Sequence[Config]) -> dict:
    """Return what the recipes of a task say about its prompts and verdicts: the task's options and
    the fields of JUDGE.

    A warm-up has no say beside a run that was judged. Raises UsageError if they differ in what is
    not given, but for PLACES.
    """
    recipes = [recipe for recipe in recipes if located(recipe.task) == located(task)]
    recipes = [recipe for recipe in recipes if not recipe.supervised] or recipes
    # Weights belong to their reward functions.
    rewards = given.get("reward")
    weighed = recipes
    if rewards:
        named = [*map(located, rewards)]
        weighed = [recipe for recipe in recipes if [*map(located, recipe.reward)] == named]
        check_order(rewards, given, [recipe for recipe in recipes if recipe not in weighed])
    fields: dict = {}
    if recipes:
        fields = {name: getattr(recipes[0], name) for name in ("task_options", *JUDGE)}
        fields["reward_weights"] = weighed[0].reward_weights if weighed else ()
    if rewards:
        fields["reward"] = tuple(rewards)
    different = differences(recipes)
    different["reward_weights"] = differences(weighed).get("reward_weights", [])
    settled = {*PLACES, *(name.replace("-", "_") for name in given)}
    said = []
    for name, values in different.items():
        if values and (name in JUDGE or name.startswith("task.")) and name not in settled:
            first, other, *_ = values
            said.append(f"--{dashed(name)} {first or 'none'} and {other or 'none'}")
    if said:
        raise UsageError(
            f"the checkpoints were trained with {', '.join(said)}: give the values to judge all of "
            "them by"
        )
    return fields


def check_order(rewards: Sequence[str], given: dict, recipes: Sequence[Config]) -> None:
    """UsageError if a recipe has weights for these reward functions in another order."""
    for one in recipes:
        alike = sorted(map(located, one.reward)) == sorted(map(located, rewards))
        if alike and one.reward_weights and "reward_weights" not in given:
            raise UsageError(
                f"--reward-weights {typed(one.reward_weights)} belong to --reward "
                f"{typed(one.reward)}: name the functions in this order, or give the weights"
            )


def check_row(name: str, paths: Sequence[Path]) -> None:
    """Warn if the checkpoints of a row differ in more than their seeds, or not even in these."""
    if launched("RANK", 0):
        return
    recipes = [recipe_of_run(record) for record in records_of(paths)]
    free = FREE_ON_RESUME | {"seed", "init"}
    options = [f"--{dashed(option)}" for option in differences(recipes) if option not in free]
    # Where training stops at a pass rate, every seed has its own number of steps.
    steps = {path.name for path in paths if path.name.startswith("step-")}
    if recipes and all(recipe.stop_at_pass for recipe in recipes):
        steps = set()
    said = []
    if options:
        said.append(f"differ in {', '.join(options)}")
    if len(steps) > 1:
        said.append(f"are of {', '.join(sorted(steps))}")
    elif not options and len({(r.seed, r.init) for r in recipes}) < len(recipes):
        said.append("count as seeds, but some share a seed")
    for what in said:
        warnings.warn(f"{name}: its checkpoints {what}", stacklevel=3)


def differences(recipes: Sequence[Config]) -> dict[str, list[str]]:
    """Return the values, as they are typed, of each option in which the recipes differ."""
    said = [by_option(recipe) for recipe in recipes]
    different = {}
    for name in {name: None for one in said for name in one}:
        values = dict.fromkeys(one.get(name, "") for one in said)
        if len(values) > 1:
            different[name] = [*values]
    return different


def by_option(recipe: Config) -> dict[str, str]:
    """Return the fields of a recipe and the options of its task and its estimator, as typed."""
    fields = dict(vars(recipe))
    inner = {
        "task": usual_options(recipe.task) | fields.pop("task_options"),
        "estimator": fields.pop("estimator_options"),
    }
    for prefix, options in inner.items():
        fields |= {f"{prefix}.{name}": value for name, value in options.items()}
    said = {}
    for name, value in fields.items():
        # The order of a dict says nothing.
        said[name] = json.dumps(value, sort_keys=True) if isinstance(value, dict) else typed(value)
    return said


def drawn(args: argparse.Namespace, cfg: Config, classifier: bool = False) -> dict[str, float]:
    """Return how a policy's rollout() draws."""
    temperature = {"temperature": cfg.eval_temperature}
    if classifier:
        return temperature
    return temperature | {"top_k": args.top_k, "top_p": cfg.eval_top_p}


def find_task(args: argparse.Namespace, cfg: Config) -> tuple[Task, Judge]:
    """Return the split that is asked for and its judge, as they fit the checkpoint cfg.init.

    Without --split it is validation, or train if that is the only one named; args.split is set.
    Raises UsageError if no prompt is left, if nothing can judge, and for options that mean nothing
    to the task.
    """
    split = args.split or "validation"
    try:
        task = load(cfg, split)
    except NoSplit:
        if args.split:
            raise
        split = "train"
        say("no validation prompts are named, so these are training prompts")
        task = load(cfg, split)
    args.split = split
    if split != "train":
        check_learned(cfg, task, split)
    if task.classes:
        # Classes are drawn at a temperature, too.
        given = LANGUAGE.intersection(args.given) - {*DRAWN}
        if given or args.top_k or cfg.eval_top_p != 1:
            raise UsageError(
                "a classifier draws classes, not tokens: leave out --max-prompt, --max-response, "
                "--top-k, --top-p, --reward, --reward-weights, --zero-reward-at-limit and "
                "--cuda-graphs"
            )
    else:
        check_other_rows(args, cfg, task)
        check_total(cfg)
        if not cfg.reward:
            # A missing package or reward function is named before any sampling.
            probe(task)
        if "max_response" not in args.given and not records_of(args.rows):
            raise UsageError(
                f"{cfg.init} does not say how long its responses may be: set --max-response"
            )
    return task, choose_rewards(cfg, task, split)


def check_other_rows(args: argparse.Namespace, cfg: Config, task: Task) -> None:
    """Warn of the chat templates of further checkpoints as load() does of the first one's."""
    if launched("RANK", 0) or len(args.rows) == 1:
        return
    said = {*check_templates(cfg, task, checkpoint.load_tokenizer(cfg.init))}
    for path in args.rows[1:]:
        with refusing(f"{path}: ", ValueError):
            found = {*check_templates(cfg, task, checkpoint.load_tokenizer(path))}
        for sentence in found - said:
            warn(f"{path}: {sentence}")
        said |= found
