"""The reward functions that --reward knows by name: what each gives, in TRL's convention and by
the examples of TRL's pages."""

import json
from pathlib import Path

import pytest
from judged import judged
from runs import metrics, refused

from maxrl import verifiers
from maxrl.errors import UsageError
from maxrl.rewards import ready as ready_rewards
from maxrl.rewards.functions import Rewards
from maxrl.rewards.ready import READY, format_reward

THIRD = r"\frac{1}{3}"


def chat(*texts):
    return [[{"role": "assistant", "content": text}] for text in texts]


def both(function, texts, **columns):
    """A function's rewards of texts, which are those of the same texts as chat messages."""
    rewards = function(list(texts), **columns)
    assert rewards == function(chat(*texts), **columns)
    return rewards


@pytest.fixture
def no_worker(monkeypatch):
    """Verdicts without math-verify: equal texts in a box are equal, and a gold of letters cannot
    be read."""

    def same(responses, answers):
        return [
            float(verifiers.last_boxed(response) == answer)
            for response, answer in zip(responses, answers, strict=True)
        ]

    monkeypatch.setattr(ready_rewards, "verify_math_batch", same)
    monkeypatch.setattr(
        ready_rewards,
        "readable_batch",
        lambda golds: [not gold.isalpha() and gold != "" for gold in golds],
    )


def test_which_column_is_the_reference(no_worker):
    """A row's answer, or else its solution; of a worked solution its last box. A number is its
    text."""
    accuracy = READY["accuracy_reward"]
    four = [r"\boxed{4}"] * 4
    assert both(accuracy, four, solution=["4", "5", r"2 \boxed{3} \boxed{4}", "so"]) == [
        1,
        0,
        1,
        None,
    ]
    assert both(accuracy, four, answer=["4", None, 4, ""], solution=["5", "4", "5", "5"]) == [
        1,
        1,
        1,
        0,
    ]
    assert both(accuracy, four[:2], answer=[None, 0], solution=[None, "4"]) == [None, 0]
    assert both(accuracy, four, answer=["4", "5", "so", ""]) == [1, 0, None, None]
    for columns in ({}, {"answer": None}):
        with pytest.raises(ValueError, match="the data has no column 'answer' and no 'solution'"):
            accuracy(four, **columns)
    texts = [[r"\boxed{4}", "4"]] * 2
    rewards, stats = judged(
        Rewards(["accuracy_reward"]), ["p", "q"], texts, {"solution": ["4", "so"]}
    )
    assert rewards[0].tolist() == [1, 0] and rewards[1].isnan().all()
    assert stats["rewards/accuracy_reward/mean"] == 0.5 and stats["rewards/groups_left_out"] == 1


def test_accuracy_by_math_verify():
    """A third is one however it is written, and of what math-verify reads no value there is no
    verdict."""
    pytest.importorskip("math_verify")
    accuracy = READY["accuracy_reward"]
    answers = chat(r"My answer is \boxed{\frac{1}{3}}", r"My answer is \boxed{\frac{1}{2}}")
    assert accuracy(answers, solution=[THIRD] * 2) == [1, 0]
    golds = [
        THIRD,
        f"${THIRD}$",
        r"\boxed{\frac13}",
        "1/3",
        "2/6",
        "1,000",
        "x+1",
        "(1,2)",
        "B. 4",
        r"\frac{",
        "",
        " ",
        None,
    ]
    readable = [True] * 8 + [False] * 5
    texts = [r"\boxed{\frac13}"] * len(golds)
    assert accuracy(texts, answer=golds) == [1] * 5 + [0] * 3 + [None] * 5
    # A sentence has no answer but in its formulas; a word may be one.
    money = "He had $20, spent $5, so he has $15 left."
    sentences = ["There is none.", "So $a = 3$ and $x = 4$.", "none", money]
    assert accuracy([r"\boxed{4}"] * 4, solution=sentences) == [None, 1, 0, None]
    assert verifiers.readable_batch([gold or "" for gold in golds]) == readable
    assert verifiers.readable_batch([" " * verifiers.LONGEST_BOX + "1"]) == [False]
    published = READY["published_reward"]
    texts = ["the answer is 18 dollars", r"\boxed{18}", "19", "18"]
    assert published(texts, answer=["18", "18", "18", "B. 4"]) == [1, 1, 0, None]
    assert accuracy(["the answer is 18 dollars"], answer=["18"]) == [0]


def test_format():
    right = ["<think>\nThis is my reasoning.\n</think>\nThis is my answer.", "<think></think>"]
    wrong = [
        "<think>\nThis is my reasoning.\nThis is my answer.",
        "So <think>a</think>",
        "<think>a<think>b</think>",
        "<think>a</think>b<think>",
        "</think><think>",
        "",
    ]
    assert both(format_reward, right) == [1] * 2 and both(format_reward, wrong) == [0] * 6


def test_an_unknown_name():
    names = "accuracy_reward, published_reward, format_reward"
    with pytest.raises(
        UsageError, match=f"--reward accuracy is not written .* and is none of {names}"
    ):
        Rewards(["accuracy"])


def by_length(completions):
    return [float(len(text) > 1) for text in completions]


def by_letter(completions):
    return [None if text == "?" else float("a" in text) for text in completions]


def test_disagreement():
    """Two verifiers disagree where one says 1 and the other does not, among the rollouts that
    both have judged. One of weight 0 is only looked at: it changes no reward, and gives none a
    verdict."""
    prompts, texts = ["p", "q"], [["a", "ab", "b"], ["bb", "?", "ba"]]
    first, stats = judged(Rewards([by_length]), prompts, texts)
    assert "rewards/disagreement/mean" not in stats
    rewards, stats = judged(Rewards([by_length, by_letter], [1, 0]), prompts, texts)
    assert rewards.tolist() == first.tolist() and "rewards/by_letter/mean" in stats
    assert stats["rewards/disagreement/mean"] == pytest.approx(2 / 5)
    rewards, stats = judged(Rewards([by_letter, by_length], [1, 0]), prompts, texts)
    assert rewards[0].tolist() == [1, 1, 0] and rewards[1].isnan().all()
    assert stats["rewards/groups_left_out"] == 1

    def half(completions):
        return [0.5 * value for value in by_length(completions)]

    stats = judged(Rewards([by_length, half]), prompts, texts)[1]
    assert stats["rewards/disagreement/mean"] == pytest.approx(3 / 6)  # a half is no success
    with pytest.raises(UsageError, match="must be finite numbers and not all 0, not 0, 0"):
        Rewards([by_length, by_letter], [0, 0])


def test_a_run(own, shell):
    """By name, from training to a look at the run: what is ours needs no word of trust; what is
    the user's still does."""
    rows = [json.loads(line) for line in Path("mine.jsonl").read_text().splitlines()]
    lines = [json.dumps({"prompt": row["prompt"]}) + "\n" for row in rows]
    Path("mine.jsonl").write_text("".join(lines))
    ask = ("train.py", *own, "--estimator", "rloo", "--reward")
    code, said = shell(*ask, "format_reward", "--out", "run")
    assert code == 0 and metrics("run")[0]["rewards/format_reward/mean"] == 0, said
    assert metrics("run")[0]["rewards/format_reward/mean"] == metrics("run")[0]["reward"] == 0
    for look in (("sample.py", "run"), ("eval.py", "run", "--k", 1, "--prompts", 2)):
        code, said = shell(*look, "--samples", 2, "--max-prompt", 80)
        assert code == 0, said
    mixed = ("format_reward,rewards.py:short", "--reward-weights", "1,0", "--out", "mixed")
    assert shell(*ask, *mixed)[0] == 0
    refused(
        shell("sample.py", "mixed"),
        "add --reward format_reward,rewards.py:short if you trust it",
    )
