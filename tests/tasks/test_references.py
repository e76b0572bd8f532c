r"""The answer of a row, in every type and form that data sets have it, for every task that reads
one: what it is, what is missing, and what is refused or named before the first step."""

# ruff: noqa: F401 - the tables have expressions
import datetime
import json
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from maxrl.system.errors import UsageError
from maxrl.system.files import DataError
from maxrl.system.tables import as_text
from maxrl.tasks import load_task, ready
from maxrl.tasks.base import FilteredTask
from maxrl.tasks.prompts import Prompts
from maxrl.tasks.ready import READY, check_references
from maxrl.tasks.references import answer_in
from maxrl.tasks.verifiers import verify_math_batch, verify_number
from tests.helpers.runs import passed, refused
from tests.helpers.tables import each, put, rows

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
# A value, and what people write for it; nothing where it is missing.
VALUES = r"""
3 * 6.1 | 18.3
0.1 + 0.2 | 0.3
1000000000000001.0 | 1000000000000001
np.float64(4.35 * 100) | 435
3.141592653589793 | 3.141592653589793
"\\frac12" | \frac12
np.str_("x") | x
7 | 7
4.0 | 4
-2.50 | -2.5
1e-05 | 0.00001
1e20 | 100000000000000000000
1.5e16 | 15000000000000000
np.int64(7) | 7
np.float32(0.1) | 0.1
np.float16(0.1) | 0.1
np.array(3) | 3
torch.tensor(5) | 5
torch.tensor(0.1) | 0.1
Decimal("1E+2") | 100
Decimal("0.10") | 0.10
Fraction(1, 2) | 1/2
None |
"" |
float("nan") |
np.float32("nan") |
torch.tensor(float("nan")) |
Decimal("NaN") |
np.datetime64("NaT") |
"""
OTHERS = """
["7", "seven"]
["7"]
("4",)
{"a": 1}
np.arange(2)
torch.ones(1)
b"4"
float("inf")
datetime.date(2020, 1, 1)
"""
NAN = float("nan")


@each("value, text", VALUES)
def test_values(value, text):
    row = {"prompt": "p", "answer": eval(value)}
    assert as_text(row, "answer", "") == text.strip()
    assert load_task("prompts", "train", train=[row])[0].answer == text.strip()


def test_the_missing_values_of_pandas():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"prompt": ["a", "b", "c"], "answer": ["4", None, pandas.NA]})
    table["solution"] = pandas.Series([1.0, 2e-7, None])
    task = load_task("prompts", "train", train=table.to_dict("records"))
    assert [task[i].answer for i in range(3)] == ["4", "0.0000002", ""]


@each("value", OTHERS)
def test_other_types_are_refused_where_they_are_compared_with(value):
    """With the row and the column. A reward function of one's own may read them."""
    answer = eval(value)
    data = [{"prompt": "p", "answer": "4"}, {"prompt": "q", "answer": answer}]
    task = load_task("prompts", "train", train=data)
    check_references(task, "train", [len])
    for functions in ([READY["accuracy_reward"]], []):
        with pytest.raises(DataError, match="row 1 of the train data.*'answer'"):
            check_references(task, "train", functions)
    with pytest.raises(DataError):
        READY["accuracy_reward"](["4"], answer=[answer])
    with pytest.raises(DataError):
        verify_number("4", answer)


def boxed_task(*answers, name="math"):
    put(Path("train.jsonl"), [{"problem": "p", "answer": answer} for answer in answers])
    Path("info.json").write_text("{}")
    options = {"directory": "."} if name == "gsm8k" else {"train": "train.jsonl"}
    return load_task(name, "train", **options)


def prepared(shell, name, *answers):
    put(Path("in"), [{"question": "q", "answer": answer} for answer in answers])
    test = ("--test", "in") if name == "gsm8k" else ()
    return shell(f"data/{name}/prepare.py", "--out", "out", "--overwrite", "--source", "in", *test)


def test_every_task_and_preparation_reads_the_same(shell):
    """A number as it is written, a row without one, and the place of any other value."""
    for value, text in ((1e-05, "0.00001"), (3.0, "3"), (12, "12"), ("x", "x")):
        for name in ("math", "gsm8k"):
            task = boxed_task(value, NAN, name=name)
            assert task[0].answer == f"\\boxed{{{text}}}"
            assert task[1].answer == task[1].columns["answer"] == ""
        passed(prepared(shell, "minerva", value, NAN))
        assert [row["answer"] for row in rows(Path("out/test.jsonl"))] == [text]
    for value in (["4"], {"a": 1}):
        for name in ("math", "gsm8k"):
            with pytest.raises(UsageError, match="train.jsonl, line 2: 'answer'"):
                boxed_task("4", value, name=name)
        refused(prepared(shell, "minerva", "4", value), "in, line 2: 'answer'")


# The columns of a row, the answer in them, and what the demonstration has before it.
WORKED = r"""
{"solution": "We have $2+2=\\boxed{4}$."} | 4 | solution
{"solution": "\\boxed{3} fails, so \\boxed{5}"} | 5 | solution
{"solution": "As $y$ is 1, so $x = 42$."} | x = 42 | solution
{"solution": "48/2 = 24 clips.\n#### 72"} | 72 | solution
{"answer": "48/2 = 24 clips.\n#### 72"} | 72 | answer
{"answer": "Thus it is \\boxed{\\frac{1}{2}}."} | \frac{1}{2} | answer
{"answer": NaN, "solution": "So $\\boxed{7}$"} | 7 | solution
{"answer": "4", "solution": "So \\boxed{5}"} | 4 | solution
{"answer": "4", "solution": ["steps"]} | 4 | nothing
{"answer": "4", "solution": NaN} | 4 | nothing
{"answer": "\\boxed{4}", "solution": "2 + 2 = \\boxed{4}"} | 4 | solution
{"answer": "#### 4", "solution": "2 + 2 = 4"} | 4 | solution
{"solution": "4"} | 4 | nothing
{"solution": "$4$."} | 4 | nothing
{"answer": "\\boxed{4}"} | 4 | nothing
{"answer": "even function"} | even function | nothing
{"answer": "$1$ and $2$"} | $1$ and $2$ | nothing
{"answer": "18 red marbles"} | 18 red marbles | nothing
{"solution": "By induction this holds."} |  | nothing
{"solution": "He had $20, spent $5, so he has $15 left."} |  | nothing
"""


@each("columns, answer, before", WORKED)
def test_a_worked_solution_is_not_an_answer(columns, answer, before):
    """What it comes to is; the solution stays for the demonstration."""
    Path("a.jsonl").write_text(columns.replace("{", '{"problem": "p", ', 1))
    example = load_task("math", "train", train="a.jsonl")[0]
    assert example.columns["answer"] == answer
    worked = "" if before == "nothing" else json.loads(columns)[before] + "\n"
    assert example.answer == (f"{worked}\\boxed{{{answer}}}" if answer else "")


def test_a_number_behind_gsm8ks_mark():
    """As in rows of openai/gsm8k, for a reward of one's own."""
    gold = "He has 5 + 6 = <<5+6=11>>11 apples.\n#### 1,024"
    assert [verify_number(rf"\boxed{{{n}}}", gold) for n in (1024, 11)] == [1, 0]


# A reference, a box that is equal to it, and one that is not.
PERIODS = r"""
4. | 4 | 5
$4.$ | 4 | 40
\frac{1}{2}. | \frac{1}{2} | \frac{1}{3}
$x^2$. | x^2 | x
0.5. | \frac12 | 5
\text{etc.} | \text{etc.} | \text{no}
\left.x\right. | \left.x\right. | y
1e-5 | 0.00001 | 1
1e3 | 1000 | e
4.5E3 | 4500 | 4
"""


@each("gold, box, other", PERIODS)
def test_a_period_at_the_end_does_not_count(gold, box, other):
    """Neither does the way in which a number has its exponent."""
    pytest.importorskip("math_verify")
    texts = [rf"\boxed{{{text}}}" for text in (box, other)]
    assert verify_math_batch(texts, [gold] * 2) == [1, 0]
    assert READY["accuracy_reward"](texts[:1], answer=[gold]) != [0]


class Words:
    def encode_prompt(self, prompt):
        return prompt.split()


def filtered(*answers):
    """A task of one's own with these answers, without its second prompt, which is too long."""
    data = [{"prompt": "p", "answer": answer} for answer in answers]
    data.insert(1, {"prompt": "p p p", "answer": "4"})
    return FilteredTask(load_task("prompts", "train", train=data), Words(), 2)


@pytest.mark.parametrize("name", ["math", "gsm8k", "accuracy_reward", "published_reward"])
def test_references_that_nothing_can_read_are_counted_and_named(name, recwarn):
    """Once, before any step; if there is no other, they are refused."""
    pytest.importorskip("math_verify")

    def check(*answers):
        task = filtered(*answers) if name in READY else boxed_task(*answers, name=name)
        check_references(task, "train", [READY.get(name, task.rewards)])

    check("4", "1/2", "5.")
    assert not recwarn.list
    row = 2 if name in READY else 1
    with pytest.warns(UserWarning, match=rf"2 of 4 .*frac\{{' in row {row} of the train data"):
        check("4", r"\frac{", NAN, "5")
    for answers in ([NAN], [r"\frac{", ""]):
        with pytest.raises(UsageError, match="row 0 of the train data"):
            check(*answers)


def test_a_judge_of_ones_own_is_asked_about_the_references(recwarn):
    """Letters are no numbers."""
    task = boxed_task("A", "B", name="gsm8k")
    task.judge = lambda responses, answers: [float(a in r) for r, a in zip(responses, answers)]
    check_references(task, "train", [task.rewards])
    assert not recwarn.list


@pytest.mark.parametrize("answer", [NAN, None, "", ["4"]])
def test_a_supervised_run_without_an_answer_is_refused_before_it_begins(answer, own, shell):
    learned = [*["DONE"] * 7, answer]
    put(Path("mine.jsonl"), [{"prompt": "UP", "answer": answer} for answer in learned])
    ask = ("train.py", *own, "--estimator", "supervised", "--rollouts", 1, "--out", "run")
    refused(shell(*ask), "row 7 of the train data")
    assert not Path("run/metrics.jsonl").exists()


def test_a_run_names_them(own, shell):
    """And goes on with the others."""
    pytest.importorskip("math_verify")
    data = [{"prompt": "UP", "answer": answer} for answer in ("4", "5", "two apples")]
    put(Path("mine.jsonl"), data)
    ask = ("train.py", *own, "--reward", "accuracy_reward", "--steps", 1, "--out", "run")
    assert "1 of 3" in passed(shell(*ask))
    put(Path("mine.jsonl"), data[2:] * 4)
    refused(shell(*ask[:-1], "none"), "4 of 4", "two apples")
    logged = ("--reward", "rewards.py:some", "--reward-weights", "0,1")
    passed(shell(*ask[:-1], "logged", *logged))


# What stands behind ####, and the number if it is one.
MARKED = {"1,024": "1024", "-1,234,567.5": "-1234567.5", "5.": "5", ".5": ".5", "1024": "1024"}
WRONG = "2,5|0,5|1,23|1.234,5|1,,2|12,34,567|0,500|5..|3/4|50%||5 apples|\u0665|5 and no mark"


@pytest.mark.parametrize("answer", [*MARKED, *WRONG.split("|")])
def test_numbers_of_gsm8k(answer, shell):
    """Commas that separate thousands are left out; what may mean something else is refused."""
    said = prepared(shell, "gsm8k", answer if "mark" in answer else f"#### {answer}")
    if answer in MARKED:
        passed(said)
        assert rows(Path("out/train.jsonl"))[0]["answer"] == MARKED[answer]
    else:
        refused(said, "#### and a number")
        assert not Path("out").exists()


ENUMERATIONS = r"""
The roots are \boxed{3} and \boxed{4}. | 3, 4
$\boxed{1}$, $\boxed{2}$ or $\boxed{3}$ | 1, 2, 3
\boxed{x} or \boxed{b} | x, b
\boxed{3} fails, so \boxed{5} | 5
$1$ and $2$ | 1, 2
$(1,2)$, $(3,4)$ | (1,2), (3,4)
$x=1$ or $x=2$ | x=1, x=2
So $a = 3$ and $x = 4$. | x = 4
$x=1$ and $y=2$ | x=1, y=2
$n = 3$ or $n=5$ | n = 3, n=5
$x = 1$ or $2$ | x = 1, 2
\[1\], \[2\] | 1, 2
12 square units | 12
2 hours and 15 minutes |
"""


@each("text, answer", ENUMERATIONS)
def test_an_enumeration_is_one_answer(text, answer):
    """And a number with the words of its unit is the number."""
    assert answer_in(text) == answer


def test_a_list_of_boxes_of_any_length_is_read_at_once():
    begin = time.thread_time()
    many = [str(i) for i in range(3000)]
    assert answer_in(", ".join(rf"\boxed{{{i}}}" for i in many)) == ", ".join(many)
    assert time.thread_time() - begin < 2  # measured: 0.06 s; it was minutes


def both(prompts, completions, answer=None, **columns):
    return [float(text in str(gold)) for text, gold in zip(completions, answer)]


@pytest.mark.parametrize("missing", ["", None, NAN])
def test_missing_references_are_counted_for_a_function_of_ones_own(missing, recwarn):
    """Which may give 1 to anything there. Without any reference, it needs none."""
    given = [{"prompt": "p", "answer": answer} for answer in ("4", missing, ["7"])]
    task = Prompts("train", given)
    with pytest.warns(UserWarning, match="1 of 3 .*row 1 of the train data"):
        check_references(task, "train", [both])
    recwarn.clear()
    check_references(task, "train", [READY["format_reward"]])
    check_references(Prompts("train", given[::2]), "train", [both])
    check_references(Prompts("train", [given[1]] * 3), "train", [both])
    assert not recwarn.list


def test_a_sample_of_references_is_no_row_in_two(monkeypatch):
    """Half of the rows is a pattern that even steps would meet or miss as a whole."""
    monkeypatch.setattr(ready, "SAMPLE", 20)
    texts = ["3", "By induction this holds."] * 30
    given = [{"prompt": "p", "answer": text} for text in texts]
    with pytest.warns(UserWarning, match="of 20 references"):
        check_references(Prompts("train", given), "train", [READY["accuracy_reward"]])


def test_a_sample_without_a_readable_reference_does_not_refuse_the_run(monkeypatch):
    """The others may have one. All rows without one are refused."""
    monkeypatch.setattr(ready, "SAMPLE", 5)
    given = [{"prompt": "p", "answer": "By induction this holds."}] * 30
    rewards = [READY["accuracy_reward"]]
    with pytest.warns(UserWarning, match="5 of 5 references"):
        check_references(Prompts("train", given), "train", rewards)
    with pytest.raises(UsageError, match="5 of 5 references"):
        check_references(Prompts("train", given[:5]), "train", rewards)


# Beside a number, functions and roundings change it; units and things do not.
FUNCTIONS = """
logarithm of 100
sine of 5
cosine of 0
tangent of 45
arctan 1
tanh 1
exp 5
absolute value of -5
floor of 5.5
rounded 5.5
negation of 5
5 in hex
"""


@each("reference", FUNCTIONS)
def test_a_function_of_a_number_is_not_the_number(reference):
    assert answer_in(reference) == ""


def test_units_that_look_like_functions():
    for reference in ("5 sec", "5 seconds", "5 tons", "5 cots"):
        assert verify_number(r"\boxed{5}", reference) == 1
