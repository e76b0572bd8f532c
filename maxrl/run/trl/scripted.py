"""What scripts for TRL ask of trainer, arguments and accelerator that is not here."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from maxrl.system import distributed
from maxrl.system.arguments import near

MAIN = "is_main_process is_world_process_zero should_log should_save"


class Nothing(float):
    """Stands for what is not here: no number, an empty list or path, with every attribute and item,
    and a function that does nothing.
    """

    def __new__(cls) -> "Nothing":
        return super().__new__(cls, "nan")

    def __call__(self, *given: object, **named: object) -> "Nothing":
        return self

    __getitem__ = __call__

    def __getattr__(self, name: str) -> "Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __iter__(self) -> Iterator:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __fspath__(self) -> str:
        return ""


class Scripted:
    """Has what scripts may ask, and says so of all else.

    Before a training that is a mistake. After it nothing is worth the end of a script that has
    trained for hours, so it is Nothing.

    called   what the sentence calls it
    instead  what to do instead, by the name of an attribute
    """

    called = ""
    instead: Mapping[str, str] = {}
    begun = True

    def __init__(self, called: str, known: Mapping[str, object]):
        vars(self).update(known, called=called)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        hint = self.instead.get(name) or near(name, dir(self), "see maxrl/run/coming_from_trl.md")
        said = f"{self.called} has no {name}: {hint}"
        if not self.begun:
            raise AttributeError(said)
        warnings.warn(f"{said}; here it does nothing", stacklevel=2)
        return Nothing()


def of_process() -> dict[str, Any]:
    """Return what scripts ask of their arguments, or of an accelerator, about this process."""
    # By the launcher: scripts ask before the ranks have met.
    rank, local = (distributed.launched(name, 0) for name in ("RANK", "LOCAL_RANK"))
    world = distributed.launched("WORLD_SIZE", 1)
    return {
        "process_index": rank,
        "local_process_index": local,
        **dict.fromkeys(("world_size", "num_processes"), world),
        **dict.fromkeys(MAIN.split(), rank == 0),
        **dict.fromkeys(("is_local_main_process", "is_local_process_zero"), local == 0),
        "device": torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu"),
        "n_gpu": torch.cuda.device_count(),
        "print": print if rank == 0 else Nothing(),
        "wait_for_everyone": distributed.barrier,
        "unwrap_model": lambda model, **options: model,
        "get_process_log_level": lambda: logging.WARNING,
        # Whatever the other processes wait for is made by each of them.
        "main_process_first": lambda *given, **named: contextlib.nullcontext(),
    }
