"""Prompts and the verdicts on responses: tasks, reward functions and verifiers."""

from typing import TYPE_CHECKING, Any

__all__ = ["TASKS", "Example", "Task", "load_task"]

if TYPE_CHECKING:
    from maxrl.tasks.base import Example, Task
    from maxrl.tasks.registry import TASKS, load_task
else:

    def __getattr__(name: str) -> Any:
        """Import a name when it is asked for: the processes of latex.py need no torch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from maxrl.tasks import base, registry

        return getattr(base if name in ("Example", "Task") else registry, name)
