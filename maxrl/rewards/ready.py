r"""Reward functions that --reward knows by name, in the convention of maxrl/rewards/functions.py. TRL has some like them.

python train.py prompts --reward accuracy_reward --task.train mine.jsonl --init MODEL
"""

from maxrl.verifiers import last_boxed, readable_batch, verify_math_batch, verify_published_batch


def texts(completions: list) -> list[str]:
    """Completions as texts: one of chat messages is its last message's."""
    return [text if isinstance(text, str) else text[-1]["content"] for text in completions]


def accuracy_reward(completions, answer=None, solution=None) -> list[float | None]:
    r"""1.0 where math-verify finds the last \boxed{...} equal to the reference, else 0.0; None where it reads no reference.

    The reference is the column `answer`, or `solution` where a prompt has none; of a worked solution it is the last box.
    """
    return verdicts(verify_math_batch, completions, answer, solution)


def published_reward(completions, answer=None, solution=None) -> list[float | None]:
    """accuracy_reward by the verdict of the paper's code: math-verify on the whole response, with or without a box."""
    return verdicts(verify_published_batch, completions, answer, solution)


def verdicts(judge, completions, answers, solutions) -> list[float | None]:
    """judge(texts, references), None where a reference cannot be read; ValueError where the data has neither column."""
    if not (answers or solutions):
        raise ValueError("the data has no column 'answer' and no 'solution'")
    golds = []
    for pair in zip(answers or solutions, solutions or answers):
        gold = next((str(value) for value in pair if value is not None), "")
        golds.append(last_boxed(gold) or gold)
    rewards = judge(texts(completions), golds)
    return [reward if known else None for reward, known in zip(rewards, readable_batch(golds))]


def format_reward(completions) -> list[float]:
    """1.0 for a completion that begins with <think>, has no second one and has a </think>: TRL's think_format_reward."""
    rewards = []
    for text in texts(completions):
        thinks = text.startswith("<think>") and text.count("<think>") == 1
        rewards.append(float(thinks and "</think>" in text))
    return rewards


def length_penalty(completion_ids, max_response) -> list[float]:
    """0 up to four fifths of --max-response, from there in a line down to -1 at the limit (DAPO, Eq. 13; TRL's
    get_soft_overlong_punishment). Negative, so it goes with rloo and grpo and not with maxrl."""
    rewards = []
    for ids, limit in zip(completion_ids, max_response):
        rewards.append(min(0.0, 4 - 5 * len(ids) / limit))
    return rewards


READY = {f.__name__: f for f in (accuracy_reward, published_reward, format_reward, length_penalty)}
