r"""Reward functions that --reward knows by name, some of them as TRL has them.

python train.py prompts --reward accuracy_reward --task.train mine.jsonl --init MODEL
"""

import random
import warnings
from collections.abc import Callable, Collection

from maxrl.system import distributed
from maxrl.system.errors import UsageError
from maxrl.tasks.base import Task
from maxrl.tasks.rows import reference
from maxrl.tasks.verifiers import (
    last_formula,
    readable_batch,
    verify_math_batch,
    verify_published_batch,
)

Completions = list[str] | list[list[dict]]  # texts or chat messages
Column = list | None
SAMPLE = 2000


def accuracy_reward(
    completions: Completions, answer: Column = None, solution: Column = None
) -> list[float | None]:
    r"""1.0 if math-verify finds the last \boxed{...} equal to the reference, otherwise 0.0.

    The reference is a row's `answer`, or `solution` without one; of a worked solution it is the
    last box, or else the last formula in dollars. None if math-verify reads no value in the
    reference, or if it is words alone.
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
    golds = [gold({"answer": answer, "solution": solution}) for answer, solution in rows]
    rewards = compare(texts(completions), golds)
    return [reward if known else None for reward, known in zip(rewards, readable_batch(golds))]


def gold(row: dict, where: str = "a row") -> str:
    """Return what a response to a row is compared with, "" without a reference."""
    return last_formula(reference(row, where))


def check_references(task: Task, split: str, functions: Collection[Callable]) -> None:
    """Warn of the references of a split that cannot be read.

    functions  those that judge, maybe the task's own rewards(); none if references are learned

    UsageError if none can be read, or if one that is to be learned is missing. Of more than SAMPLE
    references that take math-verify a random sample is read.
    """
    compared = any(function in (accuracy_reward, published_reward) for function in functions)
    judge = getattr(task, "judge", None) if task.rewards in functions else None
    learned = not functions and hasattr(task, "rows")
    if not (learned or compared or judge):
        return
    indices = [*range(len(task))]
    # math-verify takes milliseconds, so of many references it is asked about a random sample.
    if (compared or judge is verify_published_batch) and len(task) > SAMPLE:
        indices = sorted(random.Random(0).sample(indices, SAMPLE))
    positions = getattr(task, "positions", range(len(task)))
    places = [f"row {positions[i]} of the {split} data" for i in indices]
    examples = [task[i] for i in indices]
    if learned:
        known = [bool(example.answer) for example in examples]
    elif judge:
        answers = [example.columns["answer"] for example in examples]
        known = judge([rf"\boxed{{{answer}}}" for answer in answers], answers)
    else:
        golds = [gold(example.columns, place) for example, place in zip(examples, places)]
        known = readable_batch(golds)
    if all(known):
        return
    first = known.index(False)
    found = reference(examples[first].columns, places[first])
    said = f"{known.count(False)} of {len(known)} references cannot be read, the first is "
    said += f"{found!r:.60} in {places[first]}"
    if learned or not any(known) and len(known) == len(task):
        raise UsageError(f"{said}: write the answer alone into the column 'answer'")
    if distributed.rank() == 0:
        warnings.warn(f"{said}; no response to these succeeds", stacklevel=2)


def format_reward(completions: Completions) -> list[float]:
    """1.0 for a completion with one <think>, at its beginning, and a </think> (TRL's
    think_format_reward)."""
    rewards = []
    for text in texts(completions):
        thinks = text.startswith("<think>") and text.count("<think>") == 1
        rewards.append(float(thinks and "</think>" in text))
    return rewards


def texts(completions: Completions) -> list[str]:
    """Return completions as texts: of chat messages the last one."""
    return [text if isinstance(text, str) else text[-1]["content"] for text in completions]


READY: dict[str, Callable] = {
    "accuracy_reward": accuracy_reward,
    "published_reward": published_reward,
    "format_reward": format_reward,
}
