"""The reward functions that --reward knows by name: what each gives, in TRL's convention and by
the examples of TRL's pages."""

import ast

import pytest

from maxrl.tasks import verifiers
from maxrl.tasks.ready import READY
from tests.helpers.runs import metrics, passed, refused
from tests.helpers.tables import each

THIRD = r"\frac{1}{3}"
FOUR = r"\boxed{4}"


def given(name, texts, **columns):
    """A function's rewards of texts, which are those of the same texts as chat messages."""
    chat = [[{"role": "assistant", "content": text}] for text in texts]
    rewards = READY[name](texts, **columns)
    assert rewards == READY[name](chat, **columns)
    return rewards


@pytest.fixture
def math_verify():
    pytest.importorskip("math_verify")


# A row's answer, or else its solution; of a worked solution its last box. A number is its text, and
# without a value there is no verdict. A sentence has no answer but in its formulas; a word may be
# one.
REFERENCES = r"""
None | "4" | 1
None | "5" | 0
None | r"2 \boxed{3} \boxed{4}" | 1
"4" | "5" | 1
"" | "5" | 0
4 | "5" | 1
0 | "4" | 0
None | None | None
"" | None | None
None | "two apples" | None
None | "x + y" | 0
None | "So $a = 3$ and $x = 4$." | 1
None | "none" | 0
None | "He had $20, spent $5, so he has $15 left." | None
None | "a fee of $4$." | 1
"""


@each("row", REFERENCES)
def test_which_column_is_the_reference(math_verify, row):
    answer, solution, reward = map(ast.literal_eval, row)
    columns = {"answer": [answer, "4"], "solution": [solution, None]}
    assert given("accuracy_reward", [FOUR, FOUR], **columns) == [reward, 1]


def test_one_column_is_enough(math_verify):
    for column in ("answer", "solution"):
        assert given("accuracy_reward", [FOUR], **{column: ["4"]}) == [1]
    for columns in ({}, {"answer": None}):
        with pytest.raises(ValueError, match="the data has no column 'answer' and no 'solution'"):
            READY["accuracy_reward"]([FOUR], **columns)


# What a third may be written as, what is something else, and what has no value.
GOLDS = [THIRD, f"${THIRD}$", r"\boxed{\frac13}", "1/3", "2/6"]
OTHERS = ["1,000", "x+1", "(1,2)"]
UNREADABLE = ["B. 4", r"\frac{", "", " "]


def test_accuracy_by_math_verify(math_verify):
    """A third is one however it is written, and of what math-verify reads no value there is no
    verdict."""
    golds = [*GOLDS, *OTHERS, *UNREADABLE]
    rewards = given("accuracy_reward", [rf"So \boxed{{{THIRD}}}"] * 12, answer=golds)
    assert rewards == [1] * 5 + [0] * 3 + [None] * 4
    assert verifiers.readable_batch(golds) == [True] * 8 + [False] * 4
    assert verifiers.readable_batch(["1+" * verifiers.LONGEST_BOX + "1"]) == [False]


def test_the_published_verdict_needs_no_box(math_verify):
    texts = ["the answer is 18 dollars", r"\boxed{18}", "19", "18"]
    answers = ["18", "18", "18", "B. 4"]
    assert given("published_reward", texts, answer=answers) == [1, 1, 0, None]
    assert given("accuracy_reward", texts, answer=answers) == [0, 1, 0, None]


FORMATS = r"""
1 | <think>\nThis is my reasoning.\n</think>\nThis is my answer.
1 | <think></think>
0 | <think>\nThis is my reasoning.\nThis is my answer.
0 | So <think>a</think>
0 | <think>a<think>b</think>
0 | <think>a</think>b<think>
0 | </think><think>
0 |
"""


@each("reward, text", FORMATS)
def test_format(reward, text):
    assert given("format_reward", [text.replace(r"\n", "\n")]) == [int(reward)]


def test_a_run(own, shell):
    """By name, from training to a look at the run: what is ours needs no word of trust; what is
    the user's still does."""
    ask = ("train.py", *own, "--estimator", "rloo", "--reward")
    passed(shell(*ask, "format_reward", "--out", "run"))
    first = metrics("run")[0]
    assert first["rewards/format_reward/mean"] == first["reward"] == 0
    for look in (("sample.py", "run"), ("eval.py", "run", "--k", 1, "--prompts", 2)):
        passed(shell(*look, "--samples", 2, "--max-prompt", 80))
    mixed = ("format_reward,rewards.py:short", "--reward-weights", "1,0", "--out", "mixed")
    passed(shell(*ask, *mixed))
    command = "add --reward format_reward,rewards.py:short if you trust it"
    refused(shell("sample.py", "mixed"), command)
