r"""The answer of a row, in every type and form that data sets have it, for every task that reads
one: what it is, what is missing, and what is refused or named before the first step."""

import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from maxrl.errors import UsageError
from maxrl.io.files import DataError
from maxrl.io.tables import as_text
from maxrl.rewards.ready import READY, check_references
from maxrl.tasks import load_task
from maxrl.tasks.base import FilteredTask
from maxrl.verifiers import verify_math_batch, verify_number
from tests.helpers.runs import passed, refused
from tests.helpers.tables import put, rows

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
NAN = float("nan")
# A value, and what people write for it. A value that is missing has no text.
VALUES = [
    ("\\frac12", "\\frac12"),
    (" 4", " 4"),
    (np.str_("x"), "x"),
    (7, "7"),
    (4.0, "4"),
    (-2.50, "-2.5"),
    (1e-05, "0.00001"),
    (1e20, "1" + "0" * 20),
    (1.5e16, "15" + "0" * 15),
    (np.int64(7), "7"),
    (np.float32(0.1), "0.1"),
    (np.float16(0.1), "0.1"),
    (np.array(3), "3"),
    (torch.tensor(5), "5"),
    (torch.tensor(0.1), "0.1"),
    (Decimal("1E+2"), "100"),
    (Decimal("0.10"), "0.10"),
    (Fraction(1, 2), "1/2"),
    (None, ""),
    ("", ""),
    (NAN, ""),
    (np.float32(NAN), ""),
    (torch.tensor(NAN), ""),
    (Decimal("NaN"), ""),
]
OTHERS = [["7", "seven"], ["7"], {"a": 1}, np.arange(2), torch.ones(1), b"4", float("inf")]
OTHERS += [datetime.date(2020, 1, 1), ("4",)]


@pytest.mark.parametrize("value, text", VALUES)
def test_values(value, text):
    assert as_text(value, "here") == text
    assert load_task("prompts", "train", train=[{"prompt": "p", "answer": value}])[0].answer == text


def test_the_missing_values_of_pandas():
    pandas = pytest.importorskip("pandas")
    for value in (pandas.NA, pandas.NaT):
        assert as_text(value, "here") == ""
    table = pandas.DataFrame({"prompt": ["a", "b", "c"], "answer": ["4", None, "5"]})
    table["solution"] = pandas.Series([1.0, 2e-7, None])
    task = load_task("prompts", "train", train=table.to_dict("records"))
    assert [task[i].answer for i in range(3)] == ["4", "0.0000002", "5"]


@pytest.mark.parametrize("value", OTHERS)
def test_other_types_are_refused_where_they_are_compared_with(value):
    """With the row and the column. A reward function of one's own may read them."""
    data = [{"prompt": "p", "answer": "4"}, {"prompt": "q", "answer": value}]
    task = load_task("prompts", "train", train=data)
    assert task[1].columns["answer"] is value
    for functions, supervised in (([READY["accuracy_reward"]], False), ([], True)):
        with pytest.raises(DataError, match="row 1 of the train data.*'answer'"):
            check_references(task, "train", functions, supervised)
    assert check_references(task, "train", [len], False) == ""
    with pytest.raises(DataError):
        READY["accuracy_reward"](["4"], answer=[value])
    with pytest.raises(DataError):
        verify_number("4", value)


@pytest.mark.parametrize("value", [["4"], {"a": 1}])
def test_other_types_in_files(value, shell):
    put(Path("a.jsonl"), [{"problem": "p", "answer": "4"}, {"problem": "q", "answer": value}])
    with pytest.raises(UsageError, match="a.jsonl, line 2: 'answer'"):
        load_task("math", "train", train="a.jsonl")
    put(Path("b.jsonl"), [{"question": "q", "answer": value}])
    said = shell("data/minerva/prepare.py", "--out", "out", "--source", "b.jsonl")
    refused(said, "b.jsonl, line 1: 'answer'")


def test_every_task_and_preparation_reads_the_same(shell):
    """A number as it is written, and a row without one."""
    for value, text in ((1e-05, "0.00001"), (3.0, "3"), (12, "12"), ("x", "x")):
        put(Path("a.jsonl"), [{"question": "q", "answer": value}, {"question": "r", "answer": NAN}])
        task = load_task("math", "train", train="a.jsonl")
        assert task[0].answer == f"\\boxed{{{text}}}"
        assert task[1].answer == task[1].columns["answer"] == ""
        passed(shell("data/minerva/prepare.py", "--out", text, "--source", "a.jsonl"))
        assert [row["answer"] for row in rows(Path(text, "test.jsonl"))] == [text]
        assert math(value, name="gsm8k")[0].answer == f"\\boxed{{{text}}}"


# The columns of a row, the answer in them, and the demonstration if that is not its box alone.
WORKED = [
    ({"solution": r"We have $2+2=\boxed{4}$."}, "4", True),
    ({"solution": r"\boxed{3} fails, so \boxed{5}"}, "5", True),
    ({"solution": r"As $y$ is 1, so $x = 42$."}, "x = 42", True),
    ({"solution": "48/2 = 24 clips.\n#### 72"}, "72", True),
    ({"answer": "48/2 = 24 clips.\n#### 72"}, "72", True),
    ({"answer": r"Thus it is \boxed{\frac{1}{2}}."}, r"\frac{1}{2}", True),
    ({"answer": NAN, "solution": r"So $\boxed{7}$"}, "7", True),
    ({"answer": "4", "solution": r"So \boxed{5}"}, "4", True),
    ({"answer": "4", "solution": ["steps"]}, "4", False),
    ({"answer": "4", "solution": NAN}, "4", False),
    ({"solution": "4"}, "4", False),
    ({"solution": "$4$."}, "4", False),
    ({"answer": r"\boxed{4}"}, "4", False),
    ({"answer": "even function"}, "even function", False),
    ({"answer": r"$1$ and $2$"}, r"$1$ and $2$", False),
    ({"solution": "By induction this holds."}, "", False),
    ({"solution": "He had $20, spent $5, so he has $15 left."}, "", False),
]


@pytest.mark.parametrize("columns, answer, worked", WORKED)
def test_a_worked_solution_is_not_an_answer(columns, answer, worked):
    """What it comes to is; the solution stays for the demonstration."""
    put(Path("a.jsonl"), [{"problem": "p"} | columns])
    example = load_task("math", "train", train="a.jsonl")[0]
    assert example.columns["answer"] == answer
    boxed = f"\\boxed{{{answer}}}" if answer else ""
    solution = columns.get("solution", columns.get("answer"))
    assert example.answer == (f"{solution}\n{boxed}" if worked else boxed)


def test_a_number_behind_gsm8ks_mark():
    """As in rows of openai/gsm8k, for a reward of one's own."""
    gold = "He has 5 + 6 = <<5+6=11>>11 apples.\n#### 1,024"
    assert verify_number(r"\boxed{1024}", gold) == 1
    assert verify_number(r"\boxed{11}", gold) == 0


# A reference, a box that is equal to it, and one that is not.
PERIODS = [
    ("4.", "4", "5"),
    ("$4.$", "4", "40"),
    (r"\frac{1}{2}.", r"\frac{1}{2}", r"\frac{1}{3}"),
    (r"$x^2$.", "x^2", "x"),
    ("0.5.", r"\frac12", "5"),
    (r"\text{etc.}", r"\text{etc.}", r"\text{no}"),
    (r"\left.x\right.", r"\left.x\right.", "y"),
    ("1e-5", "0.00001", "1"),
    ("1e3", "1000", "e"),
    ("4.5E3", "4500", "4"),
]


@pytest.mark.parametrize("gold, right, wrong", PERIODS)
def test_a_period_at_the_end_does_not_count(gold, right, wrong):
    """Neither does the way in which a number has its exponent."""
    pytest.importorskip("math_verify")
    texts = [rf"\boxed{{{right}}}", rf"\boxed{{{wrong}}}"]
    assert verify_math_batch(texts, [gold] * 2) == [1, 0]
    assert READY["accuracy_reward"](texts[:1], answer=[gold]) != [0]


def prompts(*answers):
    """A task of one's own with these answers, without its second prompt, which is too long."""
    data = [{"prompt": "p", "answer": answer} for answer in answers]
    data.insert(1, {"prompt": "p p p", "answer": "4"})
    task = load_task("prompts", "train", train=data)

    class Words:
        def encode_prompt(self, prompt):
            return prompt.split()

    return FilteredTask(task, Words(), 2)


def math(*answers, name="math"):
    put(Path("train.jsonl"), [{"problem": "p", "answer": answer} for answer in answers])
    Path("info.json").write_text("{}")
    options = {"directory": "."} if name == "gsm8k" else {"train": "train.jsonl"}
    return load_task(name, "train", **options)


@pytest.mark.parametrize("name", ["math", "gsm8k", "accuracy_reward", "published_reward"])
def test_references_that_nothing_can_read_are_counted_and_named(name):
    """Once, before any step; if there is no other, they are refused."""
    pytest.importorskip("math_verify")
    functions = [READY[name]] if name in READY else []
    make = prompts if functions else lambda *answers: math(*answers, name=name)
    row = 2 if functions else 1
    assert check_references(make("4", "1/2", "5."), "train", functions, False) == ""
    said = check_references(make("4", r"\frac{", NAN, "5"), "train", functions, False)
    assert "2 of 4" in said
    assert f"row {row} of the train data" in said
    assert repr(r"\frac{") in said
    for answers in ([NAN], [r"\frac{", ""]):
        with pytest.raises(UsageError, match="row 0 of the train data"):
            check_references(make(*answers), "train", functions, False)


@pytest.mark.parametrize("answer", [NAN, None, ""])
def test_a_supervised_run_without_an_answer_is_refused_before_it_begins(answer, own, shell):
    others = [{"prompt": "UP", "answer": "DONE"}] * 7
    put(Path("mine.jsonl"), [*others, {"prompt": "UP", "answer": answer}])
    ask = ("train.py", *own, "--estimator", "supervised", "--rollouts", 1, "--out", "run")
    refused(shell(*ask), "row 7 of the train data")
    assert not Path("run/metrics.jsonl").exists()


def test_a_run_names_them(own, shell):
    """And goes on with the others."""
    pytest.importorskip("math_verify")
    data = [{"prompt": "UP", "answer": "4"}] * 3 + [{"prompt": "UP", "answer": "two apples"}]
    put(Path("mine.jsonl"), data)
    ask = ("train.py", *own, "--reward", "accuracy_reward", "--steps", 1, "--out", "run")
    assert "1 of 4" in passed(shell(*ask))
    put(Path("mine.jsonl"), data[3:] * 4)
    refused(shell(*ask[:-1], "none"), "4 of 4", "two apples")


# What stands behind ####, and the number if it is one.
MARKED = {"1,024": "1024", "-1,234,567.5": "-1234567.5", "5.": "5", ".5": ".5", "1024": "1024"}
WRONG = "2,5 0,5 1,23 1.234,5 1,,2 12,34,567 0,500 5.. 3/4 50%"


@pytest.mark.parametrize("answer", [*MARKED, *WRONG.split()])
def test_commas_of_gsm8k(answer, shell):
    """Those that separate thousands are left out; what they may mean otherwise is refused."""
    put(Path("in"), [{"question": "Q", "answer": f"#### {answer}"}])
    said = shell("data/gsm8k/prepare.py", "--out", "out", "--source", "in", "--test", "in")
    if answer not in MARKED:
        refused(said, "#### and a number")
        return
    passed(said)
    (row,) = rows(Path("out/train.jsonl"))
    assert row["answer"] == MARKED[answer]
