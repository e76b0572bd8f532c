"""The command line of train.py: a recipe and its options, --help and --dry-run."""

import argparse
import dataclasses
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from maxrl.advantages import ADVANTAGES
from maxrl.learning.config import Config
from maxrl.run import dry_run
from maxrl.run.recipes import RECIPES, find_recipe, is_record
from maxrl.run.trl.options import FIELDS, WHY_NOT
from maxrl.system.arguments import Parser, dashed, guess, typed
from maxrl.system.errors import UsageError
from maxrl.system.user_code import located
from maxrl.tasks.registry import TASKS, takes_text, usual_options

# The first field of each group of --help.
GROUPS = {
    "task": "what is learned",
    "estimator": "the estimator",
    "optimizer": "the optimizer",
    "seed": "the machine",
    "eval_every": "evaluation and files",
}


def option_parser(config: Config, prog: str = "train.py", **options) -> Parser:
    """Return a parser of the fields of Config; its result has only the options that were given.

    config   the values that --help shows
    options  of Parser
    """
    parser = Parser(
        prog,
        inner=("task", "estimator"),
        usage=f"{prog} RECIPE [--NAME VALUE ...]",
        argument_default=argparse.SUPPRESS,
        add_help=False,
        other=FIELDS | WHY_NOT,
        **options,
    )
    for name, f in Config.__dataclass_fields__.items():
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        if not isinstance(getattr(config, name), dict):
            value = typed(getattr(config, name)) or '""'
            add_field(group, parser.read, name, f.metadata["help"], value)
    return parser


def add_field(group, read, name: str, about: str, metavar: str | None = None):
    """Add the option of a field of Config, which the result has only if it was given.

    group    the parser, or a group of it
    read     turns a type and a text into a value
    about    for --help, in which `metavar` stands for the value
    """
    kind = Config.__dataclass_fields__[name].type
    # A switch alone is true, and --resume alone is yes.
    alone = "true" if kind is bool else "yes" if name == "resume" else None
    group.add_argument(
        f"--{dashed(name)}",
        # Reward functions may be named one by one.
        action="extend" if name == "reward" else "store",
        nargs="?" if alone else None,
        const=alone,
        default=argparse.SUPPRESS,
        type=partial(read, kind),
        metavar=metavar,
        help=about,
    )


def override(config: Config, given: Mapping, trusted: bool = False) -> Config:
    """Return `config` with the values `given` by the names of its fields, or as "task.size".

    trusted  whether code that the recipe names may be run, to see what its options are
    """
    changes: dict = {}
    inner: dict[str, dict] = {"task": {}, "estimator": {}}
    task = given.get("task") or (config.task if trusted or config.task in TASKS else "")
    for key, value in given.items():
        name, dot, option = key.partition(".")
        if dot:
            option = option.replace("-", "_")
            text = not isinstance(value, str) or name == "task" and takes_text(task, option)
            inner[name][option] = value if text else guess(value)
        else:
            changes[name] = value
    samples = changes.get("eval_samples") or float("inf")
    fitting = tuple(k for k in config.eval_k if k <= samples)
    changes.setdefault("eval_k", fitting or config.eval_k)
    # A number of steps takes the place of the recipe's epochs.
    if "steps" in changes and changes.setdefault("epochs", 0.0):
        raise UsageError("--steps and --epochs say the same thing twice: leave one out")
    for name, options in inner.items():
        usual = getattr(config, f"{name}_options")
        # Another task or estimator does not take the recipe's options.
        known = getattr(config, name)
        if located(changes.get(name, known)) != located(known):
            usual = config.estimator_defaults.get(changes[name], {}) if name == "estimator" else {}
        changes[f"{name}_options"] = usual | options
    rewards = changes.get("reward", config.reward)
    others = [*map(located, rewards)] != [*map(located, config.reward)]
    if config.reward_weights and others and "reward_weights" not in changes:
        raise UsageError(
            f"--reward-weights {typed(config.reward_weights)} belong to --reward "
            f"{typed(config.reward)}: give weights for the new reward functions"
        )
    # Supervised training has one answer per prompt.
    if changes.get("estimator") == "supervised" != config.estimator:
        changes.setdefault("rollouts", (1,))
    return dataclasses.replace(config, **changes)


def read_recipe(arguments: list[str], lecture: str) -> tuple[str, Config] | None:
    """Return the recipe's name and the Config that `RECIPE --field value ...` asks for.

    lecture  what --help without a recipe prints first

    Returns None if --help or --dry-run has printed all that was asked for.
    """
    parser = option_parser(Config())
    add_modes(parser)
    parser.add_argument("recipe", nargs="?", default="")
    given = vars(parser.parse_options(arguments))
    name, asks_help = given.pop("recipe"), given.pop("help", not arguments)
    if asks_help and not name:
        print(f"{lecture}\nRecipes:")
        for known, recipe in RECIPES.items():
            about, *_ = (recipe.__doc__ or "").split("\n")
            print(f"  {known:24} {about}")
        return None
    usual, about = find_recipe(name)
    if asks_help:
        print(f"{about}\n\n{help_of(usual)}")
        return None
    gpus = given.pop("gpus", None)
    if given.pop("dry_run", False):
        print(dry_run.dry_run(name, override(usual, given), 1 if gpus is None else gpus))
        return None
    if gpus:
        raise UsageError("--gpus belongs to --dry-run; torchrun starts a run on several GPUs")
    if is_record(name):
        refuse_code(name, usual, given)
    cfg = override(usual, given, trusted=True)
    check_effect(cfg, given)
    return name, dataclasses.replace(cfg, out=cfg.out or default_directory(name, cfg.estimator))


def check_effect(cfg: Config, given: Mapping):
    """Raise UsageError for an option that was given and has no effect; a recipe may have some."""
    for name, needed in without_effect(cfg, given).items():
        raise UsageError(f"--{dashed(name)} means nothing without {needed}")


def without_effect(cfg: Config, given: Mapping) -> dict[str, str]:
    """Return the options among those given that have no effect, and what each would need."""
    several = cfg.minibatches > 1 or cfg.passes > 1
    conditions = (
        ("clip", "--minibatches or --passes above 1", several),
        ("decay_ratio", "--schedule linear or cosine", cfg.schedule != "constant"),
        ("momentum", "--optimizer sgd", cfg.optimizer == "sgd"),
        ("betas", "--optimizer adamw or muon", cfg.optimizer != "sgd"),
        ("eval_from", "--eval-every", cfg.eval_every),
    )
    return {name: needed for name, needed, has in conditions if name in given and not has}


def add_modes(parser: Parser):
    """Add the options that print something instead of training."""
    add = parser.add_argument_group("without training").add_argument
    add("-h", "--help", action="store_true", help="Prints this.")
    add("--dry-run", action="store_true", help="Prints an estimate of the memory of a GPU.")
    add("--gpus", type=int, metavar="1", help="With --dry-run: number of GPUs.")


def help_of(cfg: Config) -> str:
    """Return what --help prints: every option with its value in this recipe, as it can be typed."""
    values = usual_options(cfg.task) | cfg.task_options
    known = getattr(ADVANTAGES.get(cfg.estimator), "known", {})
    inner = [f"--task.{name} {typed(value)}" for name, value in values.items()]
    inner += [f"--estimator.{name} {typed(cfg.estimator_options.get(name))}" for name in known]
    lines = [
        "options of this task and estimator:",
        *inner,
        f"tasks: {', '.join(TASKS)}",
        f"estimators: {', '.join(ADVANTAGES)}",
    ]
    parser = option_parser(cfg, epilog="\n  ".join(lines))
    add_modes(parser)
    return parser.format_help()


def default_directory(recipe: str, estimator: str) -> str:
    """Return runs/RECIPE-ESTIMATOR, or runs/RECIPE if supervised.

    FILE.py:NAME counts as NAME; RUN/recipe.json gets runs/RUN-again.
    """
    if is_record(recipe):
        return f"runs/{Path(recipe).absolute().parent.name}-again"
    names = [recipe.rpartition(":")[2]]
    if estimator != "supervised":
        names.append(estimator.rpartition(":")[2])
    return "runs/" + "-".join(names)


def refuse_code(recipe: str, cfg: Config, given: Mapping):
    """Raise UsageError if a recipe.json names code that the options `given` do not name.

    The file may come from anywhere, so its code runs only if the command names it too.
    """
    code = []
    for name in ("task", "estimator", "reward"):
        value = typed(getattr(cfg, name))
        if ":" in value and name not in given:
            code += [f"--{name}", value]
    if code:
        raise UsageError(
            f"{recipe} names code that would be run: add {shlex.join(code)} if you trust it"
        )
