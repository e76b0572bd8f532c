"""Tasks by name; one of another project is named package.module:Class or FILE.py:Class."""

import inspect
import re
from collections.abc import Callable
from typing import Any

from maxrl.system.arguments import near
from maxrl.system.errors import UsageError, blaming, refusing
from maxrl.system.user_code import import_object
from maxrl.tasks.base import Task, example_of
from maxrl.tasks.countdown import Countdown
from maxrl.tasks.gsm8k import Gsm8k
from maxrl.tasks.images import Images
from maxrl.tasks.math import Math
from maxrl.tasks.maze import Maze
from maxrl.tasks.prompts import Prompts

TASKS = {
    "maze": Maze,
    "images": Images,
    "countdown": Countdown,
    "gsm8k": Gsm8k,
    "math": Math,
    "prompts": Prompts,
}


def load_task(name: str, split: str, /, **options: object) -> Task:
    """A split ("train", "validation" or "test") of a task.

    UsageError for an unknown name or option, and if the task's own code fails over its constructor,
    its length or its first example.
    """
    constructor = constructor_of(name)
    with (
        blaming(f"task {name}", FileNotFoundError),
        refusing(f"task {name}: ", TypeError, ValueError),
    ):
        known = inspect.signature(constructor).parameters
        every = any(argument.kind is argument.VAR_KEYWORD for argument in known.values())
        own = [name for name in known if name != "split"]  # which a command chooses by itself
        for option in options:
            if option not in own and not every:
                hint = near(option, own, f"its arguments are {', '.join(own)}")
                raise UsageError(f"task {name} takes no option {option!r}; {hint}")
        task = constructor(split=split, **options)
        if isinstance(task.stop_tokens, str):
            raise ValueError(f"stop_tokens = {task.stop_tokens!r} must be a list of texts")
        if len(task) and not task.classes:
            example_of(task, 0)
        return task


def constructor_of(name: str) -> Callable[..., Task]:
    """Return the class of a task; UsageError if its name is unknown."""
    if ":" in name:
        return import_object(name, "--task")
    if name in TASKS:
        return TASKS[name]
    there = f"use {', '.join(TASKS)}, package.module:Class or FILE.py:Class"
    raise UsageError(f"task {name!r} is unknown; {near(name, TASKS, there)}")


def usual_options(name: str) -> dict[str, Any]:
    """Return the options of a task with their defaults; none of a task that is not in TASKS."""
    known = inspect.signature(TASKS[name]).parameters if name in TASKS else {}
    return {option: one.default for option, one in known.items() if option != "split"}


def takes_text(name: str, option: str) -> bool:
    """Return whether a task's constructor has an argument annotated as a text or path."""
    parameters = inspect.signature(constructor_of(name)).parameters if name else {}
    kind = str(parameters.get(option))
    text = re.search(r"\b(str|Path)\b", kind)
    return bool(text and not re.search(r"\b(int|float|bool)\b", kind))
