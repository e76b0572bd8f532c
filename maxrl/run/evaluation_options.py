"""The options that eval.py and sample.py share: fields of Config, and how responses are drawn."""

import argparse
import json
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from maxrl.learning.config import FREE_ON_RESUME, Config
from maxrl.run.cli import say
from maxrl.run.command_line import add_field, override, refuse_code
from maxrl.run.recipes import recipe_of_run
from maxrl.run.setup import choose_rewards, fix_date, load
from maxrl.run.trl.options import FIELDS
from maxrl.system.arguments import Parser, check_least, dashed, typed
from maxrl.system.distributed import launched
from maxrl.system.errors import UsageError
from maxrl.system.user_code import same_code
from maxrl.tasks import Task, usual_options
from maxrl.tasks.base import NoSplit
from maxrl.tasks.rewards import Judge, probe

# Fields of Config that are options here: with the value of the checkpoint's recipe, or of Config.
# What judges; it is the same for all rows.
JUDGE = ("reward", "reward_weights", "zero_reward_at_limit")
# Options of a task that say where its data are, or what is done to them in training alone.
PLACES = ("train", "validation", "test", "directory", "augment")
OWN = ("task", *JUDGE, "max_response", "precision", "reward_errors", "reward_timeout")
FRESH = ("max_prompt", "seed", "device", "cuda_graphs", "workers")


@dataclass
class Asked:
    """What a script asks of a checkpoint's recipe: its Config, and how responses are drawn."""

    cfg: Config
    given: Collection[str]  # the fields of Config that the command names
    split: str
    temperature: float
    top_k: int
    top_p: float
    limited: bool  # whether cfg.max_response comes from a recipe or the command
    rows: Sequence[Path]  # all checkpoints

    def of(self, path: Path) -> Config:
        """Return the Config of another checkpoint."""
        return replace(self.cfg, init=str(path))

    def drawn(self, classifier: bool) -> dict[str, float]:
        """Return how a policy's rollout() draws."""
        if classifier:
            return {"temperature": self.temperature}
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}


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
    add("--temperature", type=float, help="(the checkpoint's own eval_temperature, else 1)")
    add("--top-k", type=int, default=0, help="only the k most probable tokens (0: all)")
    add(
        "--top-p",
        type=float,
        help="only the smallest set of this probability (the checkpoint's own eval_top_p, else 1)",
    )
    return parser


def read_options(parser: Parser, arguments: list[str]) -> tuple[argparse.Namespace, dict]:
    """Return the options of the script alone, and those that are fields of Config.

    Raises UsageError for an unknown option and for a number that is too small or too large.
    """
    args = parser.parse_options(arguments)
    for name in ("samples", "prompts", "rollouts"):
        check_least(name, getattr(args, name, None), 1, 10**6)
    names = [name for name in vars(args) if name in OWN + FRESH or name.startswith("task.")]
    return args, {name: vars(args).pop(name) for name in names}


def complete(args: argparse.Namespace, given: dict, path: Path, *others: Path) -> Asked:
    """Complete the options by the recipe that is recorded in checkpoint `path`.

    Temperature and top-p are those of its evaluations. max_response is the largest that it and the
    others had in training, and what judges them is the same for all, see `judged`.

    The checkpoint may come from anywhere: a task or reward function that is code runs only if the
    options name it too. Raises UsageError in that case, if there is no task, and for options that
    describe no distribution.
    """
    file = path / "recipe.json"
    if not file.exists() and "task" not in given:
        raise UsageError(f"{path} does not say what it was trained on: name it with --task")
    rows = (path, *others)
    records = [str(row / "recipe.json") for row in rows]
    records = [record for record in records if Path(record).exists()]
    recipes = [recipe_of_run(record) for record in records]
    recipe = recipes[0] if file.exists() else Config()
    task = given.get("task", recipe.task)
    kept = (*OWN[OWN.index("max_response") :], "eval_temperature", "eval_top_p")
    fields: dict = {name: getattr(recipe, name) for name in kept} | {"task": task}
    fields |= judging_fields(task, given, recipes)
    recipe = Config(**fields, aggregation="sequence", out=".")
    refuse_code(" or ".join(records), recipe, given)
    longest = {"max_response": max(known.max_response for known in recipes)} if recipes else {}
    cfg = replace(override(recipe, longest | given), init=str(path))
    temperature = cfg.eval_temperature if args.temperature is None else args.temperature
    top_p = cfg.eval_top_p if args.top_p is None else args.top_p
    if not 0 <= temperature < float("inf") or not 0 < top_p <= 1 or args.top_k < 0:
        raise UsageError(
            f"--temperature {temperature} --top-k {args.top_k} --top-p {top_p}: none may be "
            "negative, and top-p must lie in (0, 1]"
        )
    limited = bool(recipes) or "max_response" in given
    return Asked(cfg, given.keys(), args.split, temperature, args.top_k, top_p, limited, rows)


def judging_fields(task: str, given: dict, recipes: Sequence[Config]) -> dict:
    """Return what the recipes of a task say about its prompts and verdicts: the task's options and
    the fields of JUDGE.

    A warm-up has no say beside a run that was judged. Raises UsageError if they differ in what is
    not given, but for PLACES.
    """
    typed_in = {name.replace("-", "_") for name in given}
    fields: dict = {}
    different = {}
    recipes = [recipe for recipe in recipes if same_code(recipe.task, task)]
    recipes = [recipe for recipe in recipes if not recipe.supervised] or recipes
    if recipes:
        fields["task_options"] = recipes[0].task_options
        usual = usual_options(task)
        for key in {key: None for recipe in recipes for key in recipe.task_options}:
            texts = [typed((usual | recipe.task_options).get(key)) for recipe in recipes]
            if len(set(texts)) > 1 and key not in PLACES and f"task.{key}" not in typed_in:
                other = next(text for text in texts if text != texts[0])
                different[f"--task.{dashed(key)}"] = f"{texts[0] or 'none'} and {other or 'none'}"
    for name in JUDGE:
        # Weights belong to their reward functions.
        rewards = given.get("reward") if name == "reward_weights" else None
        for recipe in recipes:
            if rewards and not (
                len(rewards) == len(recipe.reward) and all(map(same_code, rewards, recipe.reward))
            ):
                continue
            value = getattr(recipe, name)
            if fields.setdefault(name, value) != value and name not in given:
                values = f"{typed(fields[name]) or 'none'} and {typed(value) or 'none'}"
                different[f"--{dashed(name)}"] = values
    if "reward" in given:
        # The weights are those of these functions.
        fields["reward"] = tuple(given["reward"])
    if different:
        said = ", ".join(f"{option} {values}" for option, values in different.items())
        raise UsageError(
            f"the checkpoints were trained with {said}: give the values to judge all of them by"
        )
    return fields


def check_row(name: str, paths: Sequence[Path]) -> None:
    """Warn if the checkpoints of a row differ in more than their seeds, or not even in these."""
    if launched("RANK", 0):
        return
    records = [path / "recipe.json" for path in paths]
    recipes = [recipe_of_run(str(record)) for record in records if record.exists()]
    said = [by_option(recipe) for recipe in recipes]
    free = FREE_ON_RESUME | {"seed", "init", "out"}
    names = [name for name in {name: None for one in said for name in one} if name not in free]
    options = [f"--{dashed(n)}" for n in names if len({one.get(n) for one in said}) > 1]
    # Where training stops at a pass rate, every seed has its own number of steps.
    steps = {path.name for path in paths if path.name.startswith("step-")}
    if recipes and all(recipe.stop_at_pass for recipe in recipes):
        steps = set()
    if options:
        warnings.warn(f"{name}: its checkpoints differ in {', '.join(options)}", stacklevel=3)
    if len(steps) > 1:
        warnings.warn(f"{name}: its checkpoints are of {', '.join(sorted(steps))}", stacklevel=3)
    elif not options and len({(r.seed, r.init) for r in recipes}) < len(recipes):
        warnings.warn(
            f"{name}: its checkpoints count as seeds, but some share a seed", stacklevel=3
        )


def by_option(recipe: Config) -> dict[str, str]:
    """Return the fields of a recipe and the options of its task and its estimator, as JSON."""
    fields: dict = recipe.to_dict()
    fields["task_options"] = usual_options(recipe.task) | fields["task_options"]
    for prefix in ("task", "estimator"):
        inner = fields.pop(f"{prefix}_options")
        fields |= {f"{prefix}.{name}": value for name, value in inner.items()}
    return {name: json.dumps(value, sort_keys=True, default=str) for name, value in fields.items()}


def find_task(asked: Asked) -> tuple[Task, Judge]:
    """Return the split that is asked for and its judge, as they fit the checkpoint of asked.cfg.

    Without --split it is validation, or train if that is the only one named; asked.split is set.
    Raises UsageError if no prompt is left, if nothing can judge, and for options that mean nothing
    to the task.
    """
    cfg = asked.cfg
    fix_date(*asked.rows)
    split = asked.split or "validation"
    try:
        task = load(cfg, split)
    except NoSplit:
        if asked.split:
            raise
        split = "train"
        say("no validation prompts are named, so these are training prompts")
        task = load(cfg, split)
    asked.split = split
    if task.classes:
        names = {"max_prompt", "max_response", "reward", "reward_weights", "zero_reward_at_limit"}
        if names & set(asked.given) or asked.top_k or asked.top_p != 1:
            raise UsageError(
                "a classifier draws classes, not tokens: leave out --max-prompt, --max-response, "
                "--top-k, --top-p, --reward, --reward-weights and --zero-reward-at-limit"
            )
        return task, choose_rewards(cfg, task)
    if not cfg.reward:
        # A missing package or reward function is named before any sampling.
        probe(task)
    if not asked.limited:
        raise UsageError(
            f"{cfg.init} does not say how long its responses may be: set --max-response"
        )
    return task, choose_rewards(cfg, task, name=split)
