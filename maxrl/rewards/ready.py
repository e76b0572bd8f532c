r"""Reward functions that --reward knows by name, some of them as TRL has them.

python train.py prompts --reward accuracy_reward --task.train mine.jsonl --init MODEL
"""

import re
from collections.abc import Callable

from maxrl.tasks.prompts import reference
from maxrl.verifiers import last_boxed, readable_batch, verify_math_batch, verify_published_batch

Completions = list[str] | list[list[dict]]  # texts or chat messages
Column = list | None
# Not of amounts of money: no blank within, beside the dollars, and no digit behind them.
FORMULA = re.compile(r"\$(?!\s)([^$]+)(?<!\s)\$(?!\d)")


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
    golds = [last_formula(reference(answer, solution)) for answer, solution in rows]
    rewards = compare(texts(completions), golds)
    return [reward if known else None for reward, known in zip(rewards, readable_batch(golds))]


def last_formula(text: str) -> str:
    """Return the answer in a reference, "" for a sentence without one."""
    if box := last_boxed(text):
        return box
    formulas = FORMULA.findall(text)
    if formulas:
        return formulas[-1]
    words = text.split()
    # math-verify would read letters as variables. A single word may be an answer, or its unit.
    plain = [word for word in words if len(word) > 1 and word.strip(".,:;!?").isalpha()]
    return "" if len(plain) > 1 else text


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
