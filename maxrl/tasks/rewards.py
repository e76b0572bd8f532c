"""Rewards from the user's functions or from the task, and what happens when these fail.

A reward function follows TRL's convention: f(prompts, completions, **columns), which returns a list
of numbers or None. It is called once per step, or per round, for all its rollouts of this process,
prompt by prompt. Completions of chat prompts are [{"role": "assistant", "content": text}]. A
function gets the columns of the data, and `completion_ids`, if it has an argument of that name or
**kwargs. Several functions are added up with weights.

None means that there is no verdict. If one of several functions returns it, its term is left out of
the sum. If all of them do, the reward is NaN and the rollout is left out of the step, alone or with
its group (maxrl/README.md says what that changes).
"""

import asyncio
import copy
import faulthandler
import inspect
import json
import math
import warnings
from collections.abc import Callable, Container, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from maxrl.system import distributed
from maxrl.system.errors import FAULTS, RunError, UsageError, describe_error
from maxrl.system.sandbox import TooSlow
from maxrl.system.totals import Metrics, Totals
from maxrl.system.user_code import import_object
from maxrl.tasks.base import (
    Example,
    Examples,
    Task,
    WrongAnswer,
    as_numbers,
    example_of,
    is_success,
)
from maxrl.tasks.ready import READY
from maxrl.tasks.verifiers import POOL

T = TypeVar("T")
# What a reward function written for texts most likely has to change.
CHAT = '; a completion of a chat prompt is a list of messages: its text is c[0]["content"]'


class Judge:
    """Gives the rewards (P_local, N) of rollouts: `judge(examples, rollouts)`.

    A reward is NaN if there is no verdict. With finished_only, it is at most 0 for a response that
    was cut by the length limit. Training and evaluation have a Judge each, because the statistics
    of a step are read after its evaluation.
    """

    finished_only = False

    def __init__(self, task: Any):
        self.task = task
        self.totals = Totals()  # since counted() was called

    def __call__(self, examples: Examples, rollouts: Any) -> Tensor:
        rewards = self.verdicts(examples, rollouts)
        # A cut response keeps a penalty, as being cut must not pay.
        cut = rewards.clamp(max=0)
        return torch.where(rollouts.finished, rewards, cut) if self.finished_only else rewards

    def verdicts(self, examples: Any, rollouts: Any) -> Tensor:
        """Return the rewards (P_local, N) of whole and cut responses alike."""
        return self.task.rewards(examples, rollouts)

    def counted(self) -> Totals:
        """Return the statistics since the last time; a step in rounds has several calls."""
        totals = self.totals
        self.totals = Totals()
        return totals

    def means(self) -> Metrics:
        """Return the mean of each reward function over all ranks, which must all ask."""
        return {}


class CarefulJudge(Judge):
    """Calls other people's code: a call that fails ends the run, or is counted.

    errors     "stop": a failure raises RunError, with one sentence; "drop": it is counted
    timeout    seconds that a call may take, 0 for no limit; after that the process ends with the
               stack of the call
    directory  gets the batch of a failed call
    """

    subject = "the task"  # what is called, for error messages

    def __init__(self, task: Any, errors: str, timeout: float, directory: str | Path):
        super().__init__(task)
        self.errors = errors
        self.timeout = timeout
        # A task or a function may change the working directory.
        self.directory = Path(directory).absolute()

    def attempt(
        self, name: str, run: Callable[[], T], otherwise: T, batch: Callable[[], dict], hint=""
    ) -> T:
        """Return run(), which calls other people's code, or `otherwise` if it fails.

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
        self.totals.sum("rewards/failed_calls", 1)
        file = self.save(name, error, batch())
        said = f"{self.subject} {name} {error}{hint}; its batch is in {file}"
        if self.errors == "stop":
            raise RunError(f"{said} (--reward-errors drop leaves the groups of such a call out)")
        warnings.warn(f"{said}; this call is left out", stacklevel=2)
        return otherwise

    def save(self, name: str, error: str, batch: dict[str, list]) -> Path:
        """Write the batch as JSONL, one rollout a line, in place of an earlier one."""
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / f"reward_error_{name}_rank{distributed.rank()}.jsonl"
        with open(file, "w", encoding="utf-8") as out:
            for values in zip(*batch.values()):
                row = {"error": error, "function": name} | dict(zip(batch, values))
                out.write(json.dumps(row, default=str, skipkeys=True) + "\n")
        return file

    def count_left_out(self, groups: Any):
        """Add the groups that are left out, by failed calls or otherwise."""
        self.totals.sum("rewards/groups_left_out", groups)
        self.totals.sum("rewards/failed_calls", 0)  # the ranks have the same names


class Rewards(CarefulJudge):
    """Makes rewards (P_local, N) of rollouts, and their statistics.

    functions   callables, names of READY, "FILE.py:name" or "package.module:name"
    weights     one for each function, none for 1; a function of weight 0 is only logged
    errors, timeout, directory
                what is done about a call that raises, hangs or returns no list of numbers, see
                CarefulJudge; with errors "drop" its groups are left out (NaN)
    no_verdict  what is left out with a rollout that has no verdict: "group" or "rollout"
    """

    subject = "the reward function"

    def __init__(
        self,
        functions: Sequence[str | Callable],
        weights: Sequence[float] = (),
        errors: str = "stop",
        timeout: float = 0.0,
        directory: str | Path = ".",
        no_verdict: str = "group",
    ):
        super().__init__(None, errors, timeout, directory)
        self.functions = by_name(functions)
        self.weights = list(weights) or [1.0] * len(self.functions)
        self.no_verdict = no_verdict
        if not self.functions or len(self.weights) != len(self.functions):
            raise UsageError(
                f"{len(self.functions)} reward functions and {len(self.weights)} weights: there "
                "must be one weight for each function, and at least one function"
            )
        if not all(map(math.isfinite, self.weights)) or not any(self.weights):
            raise UsageError(f"reward weights must be finite numbers and not all 0: {self.weights}")
        if errors not in ("stop", "drop") or no_verdict not in ("group", "rollout"):
            said = f"errors={errors!r} (stop, drop), no_verdict={no_verdict!r} (group, rollout)"
            raise UsageError(said)

    def verdicts(self, examples: list[Example], rollouts) -> Tensor:
        P, N = rollouts.lengths.shape
        batch = batch_of(examples, rollouts)
        calls = [self.call(name, function, batch) for name, function in self.functions.items()]
        results = [[math.nan] * (P * N) if result is None else result for result in calls]
        # One (P, N) for each function, NaN without a verdict.
        values = torch.tensor(results, dtype=torch.float64).view(len(results), P, N)
        weights = torch.tensor(self.weights, dtype=torch.float64)
        rewards = (weights[:, None, None] * values).nansum(0)  # (P, N)
        # After a failed call of a function that counts there is no verdict at all.
        failed = any(weight and result is None for weight, result in zip(self.weights, calls))
        judged = ~values[weights != 0].isnan().all(0)  # (P, N)
        if self.finished_only:
            # A cut response has a verdict, whatever the functions say of it.
            judged |= ~rollouts.finished
        judged &= not failed
        # A rollout by itself has nothing that it is better or worse than.
        least = N if self.no_verdict == "group" else min(2, N)
        judged &= judged.sum(1, keepdim=True) >= least
        rewards[~judged] = torch.nan
        self.count(values, judged)
        rounded = rewards.float()
        # More than what adding the functions up rounds.
        other = (rewards - rewards[:, :1]).abs() > 1e-12 * rewards.abs()
        if (other & (rounded == rounded[:, :1])).any():
            warnings.warn("unequal rewards are equal in float32: subtract a constant", stacklevel=2)
        return rounded

    def count(self, values: Tensor, judged: Tensor):
        """Add to the statistics what the functions said, values (functions, P, N)."""
        self.totals.sum("rewards/rollouts_left_out", (~judged).sum())
        self.count_left_out((~judged.any(1)).sum())
        found = dict(zip(self.functions, values))
        if len(found) > 1:
            right = is_success(values)
            differ = (right.any(0) & ~right.all(0)).double()  # (P, N)
            # A function may be called so.
            name = free_name("disagreement", found)
            found[name] = differ.where(~values.isnan().any(0), torch.nan)
        for name, column in found.items():
            known = column[~column.isnan()]
            total = known.sum()
            self.totals.mean(f"rewards/{name}/mean", total, len(known))
            self.totals.std(f"rewards/{name}/std", total, (known**2).sum(), len(known))

    def means(self) -> Metrics:
        # In an evaluation, a rank without a prompt has no statistics.
        counted = self.counted().parts
        totals = Totals()
        for name in self.functions:
            key = f"rewards/{name}/mean"
            totals.mean(key, *counted.get(key, (0, 0)))
        return {name: mean for name, mean in totals.metrics().items() if not math.isnan(mean)}

    def call(self, name: str, function: Callable, batch: dict[str, list]) -> list[float] | None:
        """Return a number for each rollout, NaN for None; None if the call fails."""
        size = len(batch["completions"])
        taken = self.taken(name, function, batch)

        def run() -> list[float] | None:
            # Copies, because a function may write into what it gets.
            copies = {name: list(map(copy.deepcopy, values)) for name, values in taken.items()}
            result = function(**copies)
            if inspect.iscoroutine(result):
                result = result_of(result)
            return as_numbers(result, size)

        chat = any(isinstance(completion, list) for completion in batch["completions"])
        return self.attempt(name, run, None, lambda: batch, CHAT if chat else "")

    def bind(self, task: Task):
        """UsageError, before any sampling, if a function needs a column that no example has."""
        names = {"prompts", "completions", "completion_ids"}
        # Of a million equally long ones, the first is read before training.
        for i in range(1 if task.equally_long else len(task)):
            names |= example_of(task, i).columns.keys() - {"prompt"}
        for name, function in self.functions.items():
            self.taken(name, function, dict.fromkeys(names, []))

    def taken(self, name: str, function: Callable, batch: dict) -> dict:
        """Return what a function takes of the batch; UsageError if it needs something else."""
        try:
            signature = inspect.signature(function)
            known = signature.parameters
            every = any(p.kind is p.VAR_KEYWORD for p in known.values())
            taken = {column: batch[column] for column in batch if every or column in known}
            signature.bind(**taken)
        except (TypeError, ValueError) as error:
            said = f"{error}; the data has {', '.join(sorted(map(str, batch)))}"
            raise UsageError(f"the reward function {name}: {said}") from None
        return taken


class Verdicts(CarefulJudge):
    """A task's own rewards, whose failures are treated as those of reward functions."""

    def verdicts(self, examples: list[Example], rollouts) -> Tensor:
        """Return the task's rewards (P_local, N); NaN if it fails and errors are dropped."""
        P, N = rollouts.lengths.shape

        def run() -> Tensor:
            rewards = self.task.rewards(examples, rollouts)
            if not isinstance(rewards, Tensor) or rewards.shape != (P, N):
                raise WrongAnswer(f"{rewards!r:.60} instead of a tensor of shape ({P}, {N})")
            if not rewards.isfinite().all():
                raise WrongAnswer("a reward that is not a finite number")
            return rewards

        name = task_class(self.task).__name__
        none = torch.full((P, N), math.nan)
        rewards = self.attempt(name, run, none, lambda: batch_of(examples, rollouts))
        self.count_left_out(rewards[:, 0].isnan().sum())
        return rewards


def batch_of(examples: list[Example], rollouts) -> dict[str, list]:
    """Return what functions may ask for, by name: a value for each of P_local N rollouts."""
    P, N = rollouts.lengths.shape
    each = [example for example in examples for _ in range(N)]
    batch: dict[str, list] = {}
    for name in dict.fromkeys(name for example in examples for name in example.columns):
        batch[name] = [example.columns.get(name) for example in each]
    # The task's own reading of a column of this name.
    batch.pop("prompt", None)
    batch["prompts"] = [example.prompt for example in each]
    batch["completions"] = [rollouts.completion(i, j) for i in range(P) for j in range(N)]
    batch["completion_ids"] = [rollouts.response(i, j) for i in range(P) for j in range(N)]
    for place, example in enumerate(each):
        if not isinstance(example.prompt, str):
            message = {"role": "assistant", "content": batch["completions"][place]}
            batch["completions"][place] = [message]
    return batch


def count_faults(totals: Totals):
    """Add what went wrong in math-verify since the last call; only what did becomes a metric."""
    faults = POOL.faults
    POOL.faults = []
    slow = faults.count(TooSlow)
    for name, count in {"timeouts": slow, "failures": len(faults) - slow}.items():
        totals.add(f"rewards/verifier_{name}", lambda ranks: ranks.sum() or None, count)


def result_of(coroutine: Coroutine) -> object:
    """Return what a coroutine returns, in this thread unless it has a running loop.

    A notebook has one. Signals, as those of math-verify's time-outs, need the main thread, and
    Ctrl-C ends a coroutine only there.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def by_name(functions: Sequence[str | Callable]) -> dict[str, Callable]:
    """Return the functions by name, a second one of a name as name_2, a third as name_3."""
    result: dict[str, Callable] = {}
    for function in functions:
        if isinstance(function, str):
            if ":" not in function and function not in READY:
                raise UsageError(
                    f"--reward {function} is not written package.module:name or FILE.py:name, and "
                    f"is none of {', '.join(READY)}"
                )
            function = READY.get(function) or import_object(function, "--reward")
        if not callable(function) or isinstance(function, type):
            raise UsageError(
                f"the reward function {function!r:.60} is no function: pass f(prompts, completions,"
                " **columns), or an object that is called so"
            )
        name = getattr(function, "__name__", type(function).__name__)
        result[free_name(name, result)] = function
    return result


def free_name(name: str, names: Container[str]) -> str:
    """Return a name that is none of `names`: itself, or else name_2, name_3 and so on."""
    free = name
    number = 1
    while free in names:
        number += 1
        free = f"{name}_{number}"
    return free


def task_class(task: Task) -> type[Task]:
    """Return the class of a task, also of one behind a FilteredTask."""
    inner: Task = getattr(task, "task", task)
    return type(inner)


def probe(task: Task, errors: str = "stop"):
    """UsageError if a task cannot judge an empty response and a boxed one.

    This names a mistake or a missing package before any sampling. A task with rewards() of its own
    need not have verdicts on texts.
    """
    if task_class(task).rewards is not Task.rewards:
        return
    try:
        task.verify_all(["", r"\boxed{x+y}"], [task[0]] * 2)
    except UsageError:
        raise
    except FAULTS as error:
        if errors == "stop":
            raise UsageError(
                f"the task {task_class(task).__name__} {describe_error(error)}: a verdict must be "
                "0.0 or 1.0 for any text, also for an empty one"
            ) from None
