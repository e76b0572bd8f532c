"""Calls of other people's code, and what happens when one fails."""

import faulthandler
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from maxrl.system import distributed
from maxrl.system.errors import FAULTS, RunError, UsageError, describe_error
from maxrl.system.totals import Totals

T = TypeVar("T")


class WrongAnswer(Exception):
    """Says what is wrong with what a function returned."""


@dataclass
class Attempts:
    """Calls of other people's code: one that fails ends the run, or is counted.

    subject    what is called, for error messages
    errors     "stop": a failure raises RunError, with one sentence; "drop": it is counted
    timeout    seconds that a call may take, 0 for no limit; after that the process ends with the
               stack of the call
    directory  gets the batch of a failed call
    """

    subject: str
    errors: str = "stop"
    timeout: float = 0.0
    directory: str | Path = "."
    failed_calls: float = 0.0  # of the latest step or round

    def __post_init__(self):
        # A task or a function may change the working directory.
        self.directory = Path(self.directory).absolute()

    def attempt(
        self, name: str, run: Callable[[], T], batch: Callable[[], dict], hint: str = ""
    ) -> T | None:
        """Return run(), which calls other people's code, or None if it fails.

        A failure is named, with the hint, counted and its batch() saved. With errors "stop" it ends
        the run.
        """
        if self.timeout:
            # This ends code in C, too, that lets no thread run. 2 is standard error.
            faulthandler.dump_traceback_later(self.timeout, exit=True, file=2)
        try:
            # Autograd stays on in this process, even if other people's code turns it off.
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                return run()
        except UsageError:
            raise
        except WrongAnswer as wrong:
            error = f"returned {wrong}"
            hint = ""
        except FAULTS as raised:
            error = describe_error(raised)
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.failed_calls += 1
        file = self.save(name, error, batch())
        said = f"{self.subject} {name} {error}{hint}; its batch is in {file}"
        if self.errors == "stop":
            raise RunError(f"{said} (--reward-errors drop leaves the groups of such a call out)")
        warnings.warn(f"{said}; the groups of this call are left out", stacklevel=2)
        return None

    def save(self, name: str, error: str, batch: dict[str, list]) -> Path:
        """Write the batch as JSONL, one rollout a line, in place of an earlier one."""
        folder = Path(self.directory)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"reward_error_{name}_rank{distributed.rank()}.jsonl"
        with open(file, "w", encoding="utf-8") as out:
            for values in zip(*batch.values()):
                row = {"error": error, "function": name} | dict(zip(batch, values))
                out.write(json.dumps(row, default=str, skipkeys=True) + "\n")
        return file

    def count(self, totals: Totals, groups: Any):
        """Add the failed calls, and the groups that are left out, by them or otherwise."""
        totals.sum("rewards/groups_left_out", groups)
        totals.sum("rewards/failed_calls", self.failed_calls)


def as_numbers(result: object, size: int) -> list[float]:
    """Return a function's result as numbers, NaN for None; WrongAnswer if it is not that."""
    if hasattr(result, "tolist"):  # an array or a tensor
        result = result.tolist()
    if not isinstance(result, list | tuple):
        raise WrongAnswer(f"{type(result).__name__} instead of a list of numbers")
    if len(result) != size:
        raise WrongAnswer(f"{len(result)} rewards for {size} completions")
    values = []
    for i, value in enumerate(result):
        try:
            # float() alone would read texts and bytes as well.
            number = math.nan if value is None else float(value + 0)
        except TypeError:
            said = f"{value!r:.40} for completion {i} instead of a number or None"
            raise WrongAnswer(said) from None
        if value is not None and not abs(number) <= torch.finfo(torch.float32).max:
            raise WrongAnswer(f"{value} for completion {i} instead of a finite number or None")
        values.append(number)
    return values
