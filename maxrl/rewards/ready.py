r"""Reward functions that --reward knows by name, some of them as TRL has them.

python train.py prompts --reward accuracy_reward --task.train mine.jsonl --init MODEL
"""

import re
from collections.abc import Callable

from maxrl.verifiers import last_boxed, readable_batch, verify_math_batch, verify_published_batch

Completions = list[str] | list[list[dict]]  # texts or chat messages
Column = list | None
FORMULA = re.compile(r"\$([^$]+)\$")


def accuracy_reward(
    completions: Completions, answer: Column = None, solution: Column = None
) -> list[float | None]:
    r"""1.0 if math-verify finds the last \boxed{...} equal to the reference, otherwise 0.0.

    The reference is the column `answer`, or `solution` for a prompt without an answer; of a worked
    solution it is the last box, or else the last formula in dollars. None if math-verify reads no
    value in the reference, or if it is words alone.
    """
    return verdicts(verify_math_batch, completions, answer, solution)


def published_reward(
    completions: Completions, answer: Column = None, solution: Column = None
) -> list[float | None]:
    """The same by the paper's code: math-verify on the whole response, with or without a box."""
    return verdicts(verify_published_batch, completions, answer, solution)


def verdicts(
    judge: Callable, completions: Completions, answers: Column, solutions: Column
) -> list[float | None]:
    """Return judge(texts, references), None for a reference that cannot be read.

    ValueError if the data has neither column.
    """
    if not (answers or solutions):
        raise ValueError("the data has no column 'answer' and no 'solution'")
    golds = []
    for pair in zip(answers or solutions or (), solutions or answers or ()):
        golds.append(reference(next((str(value) for value in pair if value is not None), "")))
    rewards = judge(texts(completions), golds)
    return [reward if known else None for reward, known in zip(rewards, readable_batch(golds))]


def reference(text: str) -> str:
    """Return the answer in a reference, "" for a sentence without one."""
    if box := last_boxed(text):
        return box
    formulas = FORMULA.findall(text)
    if formulas:
        return formulas[-1]
    words = text.split()
    # math-verify would read letters as variables. A single word may be an answer.
    sentence = len(words) > 1 and all(word.strip(".,:;!?").isalpha() for word in words)
    return "" if sentence else text


def format_reward(completions: Completions) -> list[float]:
    """1.0 for a completion with one <think>, at its beginning, and a </think> (TRL's
    think_format_reward)."""
    rewards = []
    for text in texts(completions):
        thinks = text.startswith("<think>") and text.count("<think>") == 1
        rewards.append(float(thinks and "</think>" in text))
    return rewards


def length_penalty(completion_ids: list[list[int]], max_response: list[int]) -> list[float]:
    """0 up to four fifths of --max-response, then linearly down to -1 at the limit.

    This is DAPO's Eq. 13 and TRL's get_soft_overlong_punishment. It is negative, so it goes with
    rloo and grpo but not with maxrl.
    """
    rewards = []
    for ids, limit in zip(completion_ids, max_response):
        rewards.append(min(0.0, 4 - 5 * len(ids) / limit))
    return rewards


def texts(completions: Completions) -> list[str]:
    """Return completions as texts: of chat messages the last one."""
    return [text if isinstance(text, str) else text[-1]["content"] for text in completions]


READY: dict[str, Callable] = {
    "accuracy_reward": accuracy_reward,
    "published_reward": published_reward,
    "format_reward": format_reward,
    "length_penalty": length_penalty,
}
