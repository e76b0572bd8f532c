"""The command line of train.py: a recipe and its options; --help and --dry-run."""

import dataclasses
import inspect
import shlex
import textwrap
from pathlib import Path

from maxrl.advantages import ADVANTAGES
from maxrl.config import CLASSIFIERS, SEQUENCES, Config, fields_of, with_overrides
from maxrl.errors import UsageError
from maxrl.io.arguments import dashed, split_arguments
from maxrl.io.user_code import imported
from maxrl.recipes import RECIPES, find_recipe, is_record
from maxrl.registry import add_own
from maxrl.run import dry_run
from maxrl.tasks import TASKS


def read_recipe(arguments: list[str], lecture: str) -> tuple[str, Config] | None:
    """The name and the Config that `RECIPE --field value ...` asks for; None after --help (which begins with the lecture,
    where there is no recipe) or --dry-run has printed all that was asked for."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{lecture}\nRecipes:")
        for name, recipe in RECIPES.items():
            print(f"  {name:24} {recipe.__doc__.splitlines()[0]}")
        return None
    dry = "--dry-run" in arguments
    name, *rest = [word for word in arguments if word != "--dry-run"] or [""]
    recipe = find_recipe(name)
    if "--help" in rest or "-h" in rest:
        print(f"{inspect.getdoc(recipe) or name}\n\n{help_of(recipe())}")
        return None
    if dry:
        print(dry_run.dry_run(name, recipe(), rest))
        return None
    if is_record(name):
        refuse_code(name, recipe(), rest)
    cfg = with_overrides(recipe(), rest)
    if ":" in cfg.estimator:
        add_estimator(cfg.estimator)
    return name, dataclasses.replace(cfg, out=cfg.out or default_directory(name, cfg.estimator))


def default_directory(recipe: str, estimator: str) -> str:
    """runs/RECIPE-ESTIMATOR, or runs/RECIPE if supervised; of FILE.py:NAME the NAME, of RUN/recipe.json runs/RUN-again."""
    if is_record(recipe):
        return f"runs/{Path(recipe).absolute().parent.name}-again"
    names = [recipe.rpartition(":")[2]]
    if estimator != "supervised":
        names.append(estimator.rpartition(":")[2])
    return "runs/" + "-".join(names)


def refuse_code(recipe: str, cfg: Config, arguments: list[str]):
    """A recipe.json may come from anywhere: the code that it names is run where the command names it too."""
    given = {key for key, _ in split_arguments(arguments)}
    code = []
    for name in ("task", "estimator", "reward"):
        value = typed(getattr(cfg, name))
        if ":" in value and name not in given:
            code += [f"--{name}", value]
    if code:
        raise UsageError(
            f"{recipe} names code that would be run: {shlex.join(code)} says that you trust it"
        )


def add_estimator(name: str):
    """An estimator of the user's own, FILE.py:NAME."""
    try:
        add_own(name, imported(name, "--estimator"))
    except (TypeError, ValueError) as error:
        raise UsageError(f"--estimator {name}: {error}") from None


GROUPS = {  # the first field of each
    "task": "what is learned",
    "estimator": "the estimator",
    "optimizer": "the optimizer",
    "seed": "the machine",
    "eval_every": "evaluation and files",
}
LISTS = {
    "task": sorted(TASKS),
    "estimator": ADVANTAGES,
    "schedule": ["constant", "cosine"],
}  # the names an option may have


def typed(value) -> str:
    """A value as the command line takes it; nothing for what is empty."""
    if isinstance(value, tuple):
        return ",".join(map(typed, value))
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def entry(option: str, sentence: str) -> list[str]:
    """An option and its sentence, in lines of at most 120 columns."""
    head = f"  {option}"
    margin = " " * 34
    if len(option) < 32:
        return textwrap.wrap(sentence, 120, initial_indent=f"{head:34}", subsequent_indent=margin)
    return [head, *textwrap.wrap(sentence, 120, initial_indent=margin, subsequent_indent=margin)]


def help_of(cfg: Config) -> str:
    """What --help prints: every option with its value in this recipe, as it can be typed, in groups; without those that mean
    nothing to the recipe's kind of model."""
    task = inspect.signature(TASKS[cfg.task]).parameters if cfg.task in TASKS else {}
    task = {
        name: cfg.task_options.get(name, p.default) for name, p in task.items() if name != "split"
    }
    known = getattr(ADVANTAGES.get(cfg.estimator), "known", ())
    known = {
        name: cfg.estimator_options.get(name)
        for name in known
        if name not in ("allow_fractional", "mean_log_probs")
    }
    hidden = fields_of(SEQUENCES if cfg.task == "images" else CLASSIFIERS)
    inner = {"task": task, "estimator": known}
    lines = [
        "--name VALUE as it is in this recipe; a list has commas, true and false are written out"
    ]
    for f in dataclasses.fields(cfg):
        if f.name in GROUPS:
            lines += ["", f"{GROUPS[f.name]}:"]
        value = getattr(cfg, f.name)
        if isinstance(value, dict) or f.name in hidden:
            continue
        said = f.metadata["help"] + (
            f" One of {', '.join(LISTS[f.name])}." if f.name in LISTS else ""
        )
        lines += entry(f"--{dashed(f.name)} {typed(value)}", said)
        for name, value in inner.get(f.name, {}).items():
            lines += entry(f"--{f.name}.{name} {typed(value)}", f"Option of this {f.name}.")
    lines += [
        "",
        "without training:",
        *entry("--dry-run", "Prints what the run asks of each GPU, by arithmetic alone."),
        *entry("--gpus 1", "With --dry-run: so many."),
        *entry(
            "--mean-response 0",
            "With --dry-run: the assumed length of a response in tokens (0: half the longest).",
        ),
        *entry(
            "--bench FILE",
            "With --dry-run: the time of a step too, by what tests/bench/bench.py has measured.",
        ),
    ]
    return "\n".join(lines)
