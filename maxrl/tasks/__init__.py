"""Prompts and the verdicts on responses: tasks, reward functions and verifiers."""

from typing import Any

__all__ = ["TASKS", "Example", "Task", "load_task"]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the processes of latex.py need no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from maxrl.tasks import base, registry

    return getattr(base if name in ("Example", "Task") else registry, name)
