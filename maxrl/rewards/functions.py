"""Reward functions of the user, in TRL's convention: f(prompts, completions, **columns) -> list[float | None].

Such a function is called once per step for all rollouts of this process, prompt by prompt. Prompts that are chat messages
get completions [{"role": "assistant", "content": text}]; a column of the data is handed over where the function has an
argument of its name, all of them where it takes **kwargs; so is completion_ids. Several functions are added up with weights.

None says that there is no verdict. From one of several functions: its term is left out of the sum. From all of them for one
rollout: its reward is NaN and it is left out of the step, alone or with its group (maxrl/README.md says what that changes).
"""

import asyncio
import faulthandler
import inspect
import json
import math
import numbers
import os
import re
import sys
import threading
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import torch

from maxrl.errors import FAULTS, RunError, UsageError
from maxrl.io.user_code import imported
from maxrl.parallel import distributed
from maxrl.rewards.ready import READY
from maxrl.tasks import Task

GRACE = 1.0  # seconds after which a call that lets no other thread run is ended all the same


class Rewards:
    """Called with P prompts, P lists of N completions and columns of P values: rewards (P, N) and their statistics.

    functions: callables, names of READY, or where they are ("FILE.py:name", "package.module:name"). weights: one for each, or
    none for 1; one of weight 0 is only looked at. no_verdict: "group" or "rollout", what is left out where none has a verdict.
    errors: "stop", an exception or an answer that is no list of numbers ends the run with one sentence (UsageError), and the
    batch is in `directory`; "drop", the groups of that call are left out (NaN) and counted. timeout: seconds that one call
    may take, 0 for no limit; after that the process ends with the stack of the call. max_response: the longest response, a
    column like those of the data.
    """

    judges = "the reward function"  # who speaks in a sentence

    def __init__(
        self,
        functions,
        weights=(),
        errors: str = "stop",
        timeout: float = 0.0,
        directory=".",
        no_verdict: str = "group",
        max_response: int = 0,
    ):
        self.functions = {}
        seen = Counter()
        for function in functions:
            if isinstance(function, str):
                if ":" not in function and function not in READY:
                    raise UsageError(
                        f"--reward {function} is not written package.module:name or FILE.py:name, and is none of "
                        f"{', '.join(READY)}"
                    )
                function = READY.get(function) or imported(function, "--reward")
            name = getattr(function, "__name__", type(function).__name__)
            seen[name] += 1
            # The second function of a name is called name_2.
            self.functions[f"{name}_{seen[name]}" if seen[name] > 1 else name] = function
        self.weights = list(weights) or [1.0] * len(self.functions)
        self.errors = errors
        self.timeout = timeout
        self.directory = Path(directory)
        self.no_verdict = no_verdict
        self.max_response = max_response
        self.sums = {}  # of the calls since over_ranks() was asked, see `metrics`
        if not self.functions or len(self.weights) != len(self.functions):
            raise UsageError(
                f"{len(self.functions)} reward functions and {len(self.weights)} weights: there must be one "
                "weight for each function, and at least one function"
            )
        if not all(math.isfinite(w) for w in self.weights) or not any(self.weights):
            raise UsageError(
                f"reward weights must be finite numbers and not all 0, not {', '.join(map(str, self.weights))}"
            )
        if errors not in ("stop", "drop"):
            raise UsageError(f"--reward-errors {errors} is not one of stop, drop")
        if not 0 <= timeout < threading.TIMEOUT_MAX:
            raise UsageError(
                f"--reward-timeout {timeout} must be a number of seconds, 0 for no limit"
            )

    def judge(self, examples, rollouts) -> torch.Tensor:
        """Rewards (P_local, N) of rollouts, on their device: what a task's rewards() gives, for its place."""
        N = rollouts.lengths.shape[1]
        prompts = []
        completions = []
        ids = []
        columns = {name: [] for example in examples for name in example.columns}
        for i, example in enumerate(examples):
            prompts.append(example.prompt)
            completions.append([rollouts.completion(i, j) for j in range(N)])
            ids.append([rollouts.response(i, j) for j in range(N)])
            for name, column in columns.items():
                column.append(example.columns.get(name))
        return self(prompts, completions, columns, ids)[0].to(rollouts.lengths.device)

    def __call__(
        self,
        prompts: list,
        completions: list[list[str]],
        columns: dict | None = None,
        completion_ids=None,
    ):
        P = len(prompts)
        N = len(completions[0]) if completions else 0
        columns = columns or {}
        wrong = [name for name, column in columns.items() if len(column) != P]
        if len(completions) != P or wrong or any(len(group) != N for group in completions):
            raise ValueError(
                f"{P} prompts need as many equally long lists of completions, and columns as long as they; got "
                f"{len(completions)} lists and columns {wrong} of another length"
            )
        batch = {}
        for name, column in columns.items():
            if name not in ("prompt", "prompts", "completions", "completion_ids"):
                batch[name] = each(column, N)
        batch["prompts"] = each(prompts, N)
        batch["completions"] = []
        for prompt, group in zip(prompts, completions):
            for text in group:
                message = [{"role": "assistant", "content": text}]
                batch["completions"].append(text if isinstance(prompt, str) else message)
        if self.max_response:
            batch["max_response"] = [self.max_response] * (P * N)
        if completion_ids is not None:
            batch["completion_ids"] = [ids for group in completion_ids for ids in group]
        self.failed_calls = 0.0
        results = [self.call(name, function, batch) for name, function in self.functions.items()]
        stacked = torch.tensor(results, dtype=torch.float64).view(
            len(results), P, N
        )  # NaN: no verdict
        weights = torch.tensor(self.weights, dtype=torch.float64)[:, None, None]
        rewards = (weights * stacked).nansum(0)  # (P, N)
        # A verdict of a function that does not count is none, and after a failed call there is none at all.
        judged = ~stacked[weights.flatten() != 0].isnan().all(0) & (not self.failed_calls)  # (P, N)
        # A rollout by itself has nothing that it is better or worse than.
        least = N if self.no_verdict == "group" else min(2, N)
        judged &= judged.sum(1, keepdim=True) >= least
        rewards[~judged] = torch.nan
        sums = {
            "rollouts_left_out": float((~judged).sum()),
            "groups_left_out": float((~judged.any(1)).sum()),
            "failed_calls": self.failed_calls,
        }
        named = dict(zip(self.functions, stacked))
        if len(named) > 1:
            right = stacked == 1
            differ = (right.any(0) & ~right.all(0)).double()  # (P, N)
            named["disagreement"] = differ.where(~stacked.isnan().any(0), torch.nan)
        for name, values in named.items():
            known = values[~values.isnan()]
            sums |= {
                f"{name}/count": known.numel(),
                f"{name}/sum": float(known.sum()),
                f"{name}/squares": float((known**2).sum()),
            }
        self.add(sums)
        return rewards.float(), metrics(sums)

    def add(self, sums: dict):
        """Add up the sums of one call, of which a step in rounds has several."""
        self.sums = {name: self.sums.get(name, 0.0) + value for name, value in sums.items()}

    def faults(self) -> dict:
        """Of verifiers in processes of their own; reward functions have none."""
        return {}

    def over_ranks(self) -> dict:
        """The statistics since the last time over the rollouts of all ranks, which all must ask for them."""
        sums = self.sums
        self.sums = {}
        return metrics(distributed.all_reduce(sums))

    def call(self, name: str, function, batch: dict) -> list[float]:
        """One number for each rollout, NaN for None; all are NaN where the call has failed."""
        arguments = own(self.arguments(name, function, batch))
        count = len(batch["prompts"])
        try:
            with self.watchdog(name, batch):
                result = function(**arguments)
                if inspect.iscoroutine(result):
                    result = asyncio.run(result)
            values, error = checked(result, count)
        except (*FAULTS, asyncio.CancelledError, GeneratorExit) as caught:
            error = raised(caught)
        if error:
            self.failed(name, batch, error)
            values = [math.nan] * count
        return values

    def failed(self, name: str, batch: dict, error: str):
        """Counts the call and saves the batch; then the run ends, or goes on without the groups of this call."""
        self.failed_calls += 1
        sentence = f"{self.judges} {name} {error}; its batch is in {self.save(name, batch, error)}"
        if self.errors == "stop":
            raise RunError(
                f"{sentence} (--reward-errors drop leaves the groups of such a call out)"
            )
        warnings.warn(f"{sentence}; the groups of this call are left out", stacklevel=3)

    def arguments(self, name: str, function, batch: dict) -> dict:
        """What of the batch a function takes; UsageError where it needs what is not there."""
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # some functions in C do not say
            return {key: batch[key] for key in ("prompts", "completions")}
        everything = False
        for key, parameter in parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                everything = True
            elif (
                key not in batch
                and parameter.default is parameter.empty
                and parameter.kind is not parameter.VAR_POSITIONAL
            ):
                raise UsageError(
                    f"the reward function {name} takes {key!r}, which the data does not have; there are "
                    f"{', '.join(sorted(batch))}"
                )
        return {key: values for key, values in batch.items() if everything or key in parameters}

    @contextmanager
    def watchdog(self, name: str, batch: dict):
        """Ends the process, with the stacks of its threads, when the block takes longer than the limit.

        A timer's thread does it, which can say why and save the batch. Where the call lets no other thread run (code in C
        that keeps Python's lock) faulthandler does it a second later, by a thread that needs no Python.
        """
        if not self.timeout:
            yield
            return

        def end():
            faulthandler.cancel_dump_traceback_later()
            say(
                f"the reward function {name} took longer than --reward-timeout {self.timeout:g} seconds; this is where it is:"
            )
            faulthandler.dump_traceback(sys.__stderr__)
            try:
                say(f"its batch is in {self.save(name, batch, 'took too long')}")
            finally:
                os._exit(1)

        timer = threading.Timer(self.timeout, end)
        timer.daemon = True
        faulthandler.dump_traceback_later(self.timeout + GRACE, exit=True, file=sys.__stderr__)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            faulthandler.cancel_dump_traceback_later()

    def save(self, name: str, batch: dict, error: str) -> Path:
        """The batch as JSONL, one rollout a line, in a new file; the first of a run where errors are dropped."""
        self.directory.mkdir(parents=True, exist_ok=True)
        file = (
            self.directory
            / f"reward_error_{re.sub('[^A-Za-z0-9_]', '', name)}_rank{distributed.rank()}.jsonl"
        )
        if file.exists() and self.errors == "drop":
            return file
        taken = len(list(self.directory.glob(f"{file.stem}*")))
        if taken:
            file = file.with_stem(f"{file.stem}_{taken + 1}")
        with open(file, "x", encoding="utf-8") as out:
            for values in zip(*batch.values()):
                row = {"error": error, "function": name} | dict(zip(batch, values))
                out.write(json.dumps(row, default=str, skipkeys=True) + "\n")
        return file


class Verdicts(Rewards):
    """A task's own verdicts, whose faults are treated as those of reward functions."""

    judges = "the task"

    def __init__(self, task, errors: str = "stop", directory="."):
        super().__init__([task.rewards], errors=errors, directory=directory)
        self.task = task
        self.rewards = task.rewards

    def judge(self, examples, rollouts) -> torch.Tensor:
        """task.rewards(examples, rollouts), (P_local, N)."""
        lengths = rollouts.lengths
        P, N = lengths.shape
        self.failed_calls = 0.0
        error = ""
        try:
            rewards = self.rewards(examples, rollouts)
            if not isinstance(rewards, torch.Tensor) or rewards.shape != lengths.shape:
                shape = tuple(getattr(rewards, "shape", ()))
                error = (
                    f"gave {type(rewards).__name__} {shape} for {P} prompts with {N} responses each"
                )
            elif not rewards.isfinite().all():
                error = "gave a reward that is not a finite number"
        except (UsageError, torch.OutOfMemoryError):  # says what to do
            raise
        except FAULTS as caught:
            error = raised(caught)
        if error:
            batch = {
                "prompts": each([example.prompt for example in examples], N),
                "answers": each([example.answer for example in examples], N),
                "completions": [rollouts.completion(i, j) for i in range(P) for j in range(N)],
            }
            self.failed(kind(self.task).__name__, batch, error)
            rewards = torch.full((P, N), math.nan, device=lengths.device)
        self.add({"groups_left_out": P * self.failed_calls, "failed_calls": self.failed_calls})
        return rewards

    def faults(self) -> dict:
        """What has gone wrong in judging since the last call, by metric, over all ranks."""
        return distributed.all_reduce(faults(self.task))


def kind(task) -> type:
    """The class of a task, also of one that is behind `Within`."""
    return type(getattr(task, "task", task))


def each(values, N: int) -> list:
    """What belongs to prompts, once for each of their N rollouts."""
    return [value for value in values for _ in range(N)]


def probe(task, errors: str = "stop"):
    """UsageError where the task cannot judge an empty response, before there is any other. A task with rewards() of its own
    need not have verdicts on texts."""
    if kind(task).rewards is not Task.rewards:
        return
    try:
        task.verify_all([""], [task[0]])
    except UsageError:
        raise
    except FAULTS as error:
        if errors == "stop":
            raise UsageError(
                f"the task {kind(task).__name__} {raised(error)} over an empty response; a verdict is 0.0 or 1.0 "
                "for any text"
            ) from None


def faults(task) -> dict:
    """task.faults() as numbers; UsageError where it gives anything else."""
    try:
        return {str(name): float(value) for name, value in task.faults().items()}
    except FAULTS as error:
        raise RunError(
            f"the task {kind(task).__name__} {raised(error)} in faults(), which must return "
            "numbers by metric"
        ) from None


def own(value):
    """A copy of lists and objects, however deep: each call has its own, so that a function that writes into them spoils
    nothing, neither for the next function nor for the data."""
    if isinstance(value, dict):
        return {key: own(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [own(inner) for inner in value]
    return value


def raised(error: BaseException) -> str:
    """An exception in a sentence, whatever its text may do."""
    try:
        said = " ".join(str(error).split())[:200]
    except Exception:
        said = ""
    return f"raised {type(error).__name__}" + (f": {said}" if said else "")


def say(sentence: str):
    print(f"rewards: {sentence}", file=sys.__stderr__, flush=True)


def metrics(sums: dict) -> dict:
    """From sums, added over ranks or not: rewards/{name}/mean and /std (divisor n - 1) over the rollouts with a verdict."""
    result = {f"rewards/{name}": count for name, count in sums.items() if "/" not in name}
    for key, n in sums.items():
        name, _, part = key.rpartition("/")
        if part != "count":
            continue
        total = sums[f"{name}/sum"]
        squares = sums[f"{name}/squares"]
        result[f"rewards/{name}/mean"] = total / n if n else math.nan
        result[f"rewards/{name}/std"] = (
            math.sqrt(max(0.0, squares - total**2 / n) / (n - 1)) if n > 1 else math.nan
        )
    return result


def checked(result, count: int) -> tuple[list, str]:
    """A function's result as numbers (NaN for None), and what is wrong with it ("" = nothing)."""
    if hasattr(result, "tolist"):  # an array or a tensor
        result = result.tolist()
    if not isinstance(result, (list, tuple)):
        return [], f"returned {type(result).__name__} instead of a list of numbers"
    if len(result) != count:
        return [], f"returned {len(result)} rewards for {count} completions"
    values = []
    for i, value in enumerate(result):
        if getattr(value, "shape", None) == ():  # a number of numpy's or torch's
            value = value.item()
        if value is None:
            values.append(math.nan)
        elif not isinstance(value, numbers.Real):
            return (
                [],
                f"returned {str(value)[:40]!r} ({type(value).__name__}) for completion {i} instead of a number or None",
            )
        elif not abs(value) <= torch.finfo(torch.float32).max:
            return [], f"returned {value} for completion {i} instead of a finite number or None"
        else:
            values.append(float(value))
    return values, ""
