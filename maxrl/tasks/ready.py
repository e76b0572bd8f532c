r"""Reward functions that --reward knows by name, some of them as TRL has them.

python train.py prompts --reward accuracy_reward --task.train mine.jsonl --init MODEL
"""

import contextlib
import random
import re
import warnings
from collections.abc import Callable, Collection

from maxrl.system import distributed
from maxrl.system.errors import UsageError
from maxrl.system.files import DataError
from maxrl.tasks.base import Task
from maxrl.tasks.references import answer_in
from maxrl.tasks.rows import reference
from maxrl.tasks.verifiers import (
    readable_batch,
    verify_math_batch,
    verify_published_batch,
)

Completions = list[str] | list[list[dict]]  # texts or chat messages
Column = list | None
SAMPLE = 2000
THINK = re.compile("<think>(?!.*<think>).*</think>", re.DOTALL)


def accuracy_reward(
    completions: Completions, answer: Column = None, solution: Column = None
) -> list[float | None]:
    r"""1.0 if math-verify finds the last \boxed{...} equal to the reference, otherwise 0.0.

    The reference is a row's `answer`, or `solution` without one, read by answer_in(). None if it
    has no value, see readable_batch().
    """
    return verdicts(verify_math_batch, completions, answer, solution)


def published_reward(
    completions: Completions, answer: Column = None, solution: Column = None
) -> list[float | None]:
    """The same by the paper's code: math-verify on the whole response, with or without a box."""
    return verdicts(verify_published_batch, completions, answer, solution)


def verdicts(
    compare: Callable, completions: Completions, answers: Column, solutions: Column
) -> list[float | None]:
    """Return compare(texts, references), None for a reference that cannot be read.

    ValueError without references.
    """
    if answers is None and solutions is None:
        raise ValueError("the data has no column 'answer' and no 'solution'")
    missing = [None] * len(completions)
    rows = zip(answers or missing, solutions or missing)
    golds = [
        reference({"answer": answer, "solution": solution}, "a row") for answer, solution in rows
    ]
    rewards = compare(texts(completions), golds)
    return [reward if known else None for reward, known in zip(rewards, readable_batch(golds))]


# Their verdicts are those of math-verify.
COMPARING = (accuracy_reward, published_reward, verify_math_batch, verify_published_batch)


def check_references(task: Task, split: str, functions: Collection[Callable]) -> None:
    """Warn of the references of a split that are missing, or that no verdict can read.

    functions  those that judge, maybe the task's own rewards(); none if references are learned

    UsageError if none can be read, or if one that is to be learned is missing. Of more than SAMPLE
    references that take math-verify a random sample is read. Functions of the user's may read any
    value, and rows without any reference may need none.
    """
    judge = getattr(task, "judge", None) if task.rewards in functions else None
    compared = any(one in COMPARING for one in (judge, *functions))
    if not (compared or judge or hasattr(task, "rows")) or [*functions] == [format_reward]:
        return
    indices = [*range(len(task))]
    # math-verify takes milliseconds, so of many references it is asked about a random sample.
    if compared and len(task) > SAMPLE:
        indices = sorted(random.Random(0).sample(indices, SAMPLE))
    positions = getattr(task, "positions", range(len(task)))
    places = [f"row {positions[i]} of the {split} data" for i in indices]
    examples = [task[i] for i in indices]
    if compared:
        golds = [reference(example.columns, place) for example, place in zip(examples, places)]
        known = readable_batch(golds)
    elif judge:
        # A task may have a judge of its own, so it is asked about each answer in a box.
        answers = [answer_in(example.columns["answer"]) for example in examples]
        known = judge([rf"\boxed{{{answer}}}" for answer in answers], answers)
    elif functions:
        known = [given(example.columns) for example in examples]
    else:
        known = [bool(example.answer) for example in examples]
    needed = compared or judge or not functions
    if all(known) or not needed and not any(known):
        return
    first = known.index(False)
    found = reference(examples[first].columns, places[first])
    said = (
        f"{known.count(False)} of {len(known)} references are missing or cannot be read, the first "
        f"is {found!r:.60} in {places[first]}: write the answer alone into the column 'answer'"
    )
    if not functions or not any(known) and len(known) == len(task):
        raise UsageError(said)
    if distributed.rank() == 0:
        warnings.warn(f"{said}, or leave these rows out", stacklevel=2)


def given(row: dict) -> bool:
    """Return whether a row has a reference, of whatever type."""
    with contextlib.suppress(DataError):
        return reference(row, "") != ""
    return True


def format_reward(completions: Completions) -> list[float]:
    """1.0 for a completion with one <think>, at its beginning, and a </think> (TRL's
    think_format_reward)."""
    return [float(bool(THINK.match(text))) for text in texts(completions)]


def texts(completions: Completions) -> list[str]:
    """Return completions as texts: of chat messages the last one."""
    return [text if isinstance(text, str) else text[-1]["content"] for text in completions]


READY: dict[str, Callable] = {
    "accuracy_reward": accuracy_reward,
    "published_reward": published_reward,
    "format_reward": format_reward,
}
