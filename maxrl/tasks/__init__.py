"""The tasks by name. Another project's task is named package.module:Class."""

import importlib

from maxrl.config import UsageError
from maxrl.tasks.base import Example, Task
from maxrl.tasks.images import Images
from maxrl.tasks.maze import Maze

TASKS = {"maze": Maze, "images": Images}

__all__ = ["TASKS", "Example", "Task", "load_task"]


def load_task(name: str, split: str, **options) -> Task:
    """A task's split ("train", "validation" or "test"). UsageError for an unknown name or option."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            constructor = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"task {name} cannot be imported: {error}") from None
    elif name in TASKS:
        constructor = TASKS[name]
    else:
        raise UsageError(f"task {name!r} is unknown; use {', '.join(TASKS)} or package.module:Class")
    if "split" in options:
        raise UsageError("--task.split is not an option: training takes the train split; eval.py and sample.py have --split")
    try:
        return constructor(split=split, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"task {name}: {error}; its options are set with --task.NAME VALUE") from None
