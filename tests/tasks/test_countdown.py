"""Countdown: verdicts beside Python's own arithmetic, and problems by enumeration."""

import ast
import itertools
import random
import re
import time
from fractions import Fraction  # noqa: F401 - of texts that are evaluated
from types import SimpleNamespace

import numpy as np
import pytest

from maxrl.models.tokenizer import Tokenizer
from maxrl.run.build import language_model
from maxrl.run.evaluation import judge_samples
from maxrl.tasks import TASKS, load_task
from maxrl.tasks.base import Example
from maxrl.tasks.countdown import (
    TARGETS,
    Countdown,
    expressions,
    normal,
    parsed,
    value,
    values_of,
)
from tests.helpers import tiny

# Primes whose sums and products are all different.
NUMBERS = [101, 1009, 10007, 100003]
PROBLEM = Example("", "", {"numbers": [8, 3, 3, 8], "target": 24})


def own_verdict(text, numbers, target):
    """Python's arithmetic on fractions; the numbers by the digits that are there."""
    if [int(found) for found in sorted(re.findall(r"\d+", text), key=int)] != sorted(numbers):
        return 0.0
    try:
        return float(eval(re.sub(r"\d+", r"Fraction(\g<0>)", text)) == target)
    except (SyntaxError, TypeError, ZeroDivisionError):
        return 0.0


def test_verdicts_are_those_of_pythons_arithmetic():
    """Of every expression of four numbers, a part of them in other brackets."""
    rng = random.Random(0)
    numbers = [6, 2, 3, 4]
    found = []
    for text in rng.sample(list(expressions(4)), 2000):
        text = text.format(*rng.choice([numbers, numbers[::-1], [6, 2, 3, 3]]))
        if rng.random() < 0.3:
            text = text.replace("(", " ( ", 1).replace(")", "", 1)  # often no expression any more
        target = rng.choice([12, 24, 10])
        example = Example("", "", {"numbers": numbers, "target": target})
        verdict = Countdown("test").verify(f"{text} <eos>", example)
        assert verdict == own_verdict(text, numbers, target), text
        found.append(verdict)
    assert 10 < sum(found) < 500


RIGHT = ["8 / ( 3 - 8 / 3 )", "8/(3-8/3) <eos>", " (8 / ((3) - (8/3)))"]
WRONG = [
    "",
    "24",
    "8 * 3",
    "8 * 3 * ( 8 - 3 )",
    "8 * 3 + 8 - 8",  # 8 three times
    "8 / ( 3 - 3 ) + 8",
    "8 / ( 3 - 8 / 3",
    "8 / ( 3 - 8 / 3 ) = 24",
    "3 * 8 ** ( 8 // 8 )",
    "- 8 / ( 8 / 3 - 3 )",  # a sign is no operation on two numbers
    "( 8 , 3 ) + ( 3 , 8 )",
    "8 ( 3 ) ( 3 ) ( 8 )",
    "( 8\n/ 3",
    "08 * 3 + 3 - 8",
    "8 3 3 8 <eos> <eos>",
    "\u0668 / ( 3 - \u0668 / 3 )",  # digits that are not ASCII
    "[8] * 3",
    "( " * 49 + "8",
    "(" * 30000,
]


@pytest.mark.parametrize("response", RIGHT)
def test_right(response):
    assert Countdown("test").verify(response, PROBLEM) == 1


@pytest.mark.parametrize("response", WRONG)
def test_wrong(response):
    assert Countdown("test").verify(response, PROBLEM) == 0


def test_words():
    """A sentence for a language model, whose last answer counts."""
    task = load_task("countdown", "test", words=True)
    example = task[0]
    prompt = example.prompt[0]["content"]
    assert all(str(number) in prompt for number in example.columns["numbers"])
    assert not task.vocabulary and not task.stop_tokens
    answer = example.columns["answer"]
    right = f"First <answer>1 + 1</answer>, no:\n<answer> {answer}\n</answer>."
    assert task.verify(example.answer, example) == task.verify(right, example) == 1
    assert task.verify(f"{right} <answer>2</answer>", example) == 0
    assert task.verify(answer, example) == 0
    assert task.final(right) == answer


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_problems(split):
    """Every demonstration is right and can be written; the same index gives the same problem."""
    task = Countdown(split, numbers=4)
    words = set(task.vocabulary)
    for i in range(200):
        example = task[i]
        assert example == Countdown(split)[i]
        assert task.verify(example.answer, example) == 1
        assert set(example.prompt.split()) | set(example.answer.split()) <= words
        assert 10 <= example.columns["target"] <= 99
    assert task[0] != Countdown(split, seed=1)[0]


def test_no_numbers_are_in_two_splits():
    """And every number from 1 to 99 and every target from 10 to 99 is asked for."""
    of, numbers, targets = {}, set(), set()
    for split in ("train", "validation", "test"):
        task = Countdown(split, numbers=2)
        problems = [task[i].columns for i in range(1500)]
        of[split] = {tuple(sorted(problem["numbers"])) for problem in problems}
        numbers |= set().union(*of[split])
        targets |= {problem["target"] for problem in problems}
    assert numbers == set(range(1, 100)) and targets == set(range(10, 100))
    assert all(first.isdisjoint(second) for first, second in itertools.combinations(of.values(), 2))


def test_sizes():
    """Sizes that there are no words for, or whose expressions fill the memory; no problems."""
    for numbers in (1, 6):
        with pytest.raises(ValueError, match=f"got {numbers}"):
            Countdown("test", numbers=numbers)
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"size .* got {size}"):
            Countdown("test", size=size)


@pytest.mark.parametrize("numbers", [[50, 3, 7, 7, 2], [95, 48, 53, 53, 78], [7, 7, 1, 99, 99]])
def test_a_division_by_zero_reaches_nothing(numbers):
    """Of five numbers 50 + 3 / (2 / (7 - 7)) would be 50 if 2 / 0 were infinite."""
    found = values_of(numbers)
    for solution in np.flatnonzero(np.isin(found, TARGETS))[::7]:
        tree = parsed(expressions(5)[solution].format(*numbers))
        assert tree is not None and value(tree) == found[solution]


def test_a_language_model_without_words_hears_of_them():
    """The maze has no such option, so its error does not name it."""
    start = SimpleNamespace(tokenizer=Tokenizer.from_vocabulary(("<unk>", "Hello")))
    for task, named in ((Countdown("test"), True), (SimpleNamespace(stop_tokens=["DONE"]), False)):
        with pytest.raises(ValueError, match="no token") as error:
            language_model(None, start, task, None, None)
        assert ("--task.words true" in str(error.value)) == named


def test_of_words_many_answers_are_read_in_one_pass():
    """Whoever loops writes thousands of beginnings: each was once searched for its end."""
    task = Countdown("test", words=True)
    start = time.process_time()
    assert task.verify("<answer>" * 100_000, PROBLEM) == 0
    assert time.process_time() - start < 5  # all of them took minutes
    assert task.verify("<answer>" * 9 + RIGHT[1][:-5] + "</answer>", PROBLEM) == 1


def test_prompts_of_words_of_its_own_are_equally_long():
    """So that one is read before a training, not a hundred thousand."""
    for numbers in (2, 5):
        task = Countdown("train", numbers=numbers)
        assert task.equally_long
        assert len({len(task[i].prompt.split()) for i in range(30)}) == 1
    assert not Countdown("train", words=True).equally_long
    assert len(Countdown("train", words=True)) < 10_000 < len(Countdown("train"))
    assert len(Countdown("train", 20_000, words=True)) == 20_000


@pytest.mark.parametrize("count, formulas", [(2, 6), (3, 68), (4, 1170)])
def test_enumeration(count, formulas):
    """All expressions: their values by fractions, and how many different functions they are: the
    numbers of OEIS A140606.
    """
    numbers = NUMBERS[:count]
    texts = [text.format(*numbers) for text in expressions(count)]
    found = values_of(numbers)
    exact, forms = set(), set()
    for text, rounded in zip(texts, found, strict=True):
        tree = parsed(text)
        assert rounded == pytest.approx(float(value(tree)), rel=1e-9, abs=1e-9)
        assert value(tree) == eval(re.sub(r"\d+", r"Fraction(\g<0>)", text))
        form = normal(tree)
        assert value(parsed(form)) == value(tree)
        assert normal(parsed(form)) == form
        exact.add(value(tree))
        forms.add(form)
    assert len(set(texts)) == len(texts) == {2: 8, 3: 192, 4: 7680}[count]
    assert len(exact) == formulas
    # Differences turned within a product are the only ones that are told apart: a - b * (c - d) and
    # a + b * (d - c), 72 of these, and (a - b) * (c - d) and (b - a) * (d - c), 18.
    assert len(forms) == formulas + (90 if count == 4 else 0)


def swapped(tree, rng):
    """Another order and other brackets of the same expression, by rules that hold for numbers."""
    if isinstance(tree, ast.Constant):
        return f"({tree.value})"
    left, right = swapped(tree.left, rng), swapped(tree.right, rng)
    sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(tree.op)]
    if sign in "+*" and rng.random() < 0.5:
        left, right = right, left
    inner = tree.right
    # a - (b - c) is (a + c) - b, and the same for a quotient.
    if sign in "-/" and isinstance(inner, ast.BinOp) and type(inner.op) is type(tree.op):
        other = {"-": "+", "/": "*"}[sign]
        first, second = swapped(inner.left, rng), swapped(inner.right, rng)
        return f"(({left} {other} {second}) {sign} {first})"
    return f"({left} {sign} {right})"


def test_normal_form_knows_no_order():
    rng = random.Random(1)
    for text in rng.sample(list(expressions(4)), 1500):
        tree = parsed(text.format(*NUMBERS))
        assert normal(parsed(swapped(tree, rng))) == normal(tree)


def test_guess():
    """The sums with one or two minus signs, counted one by one. They are right more often than all
    sums, and these than all expressions, and reach what all sums reach.
    """
    task = Countdown("test")
    every_sum, guesses, of_all = [], [], []
    for i in range(500):
        numbers, target = task[i].columns["numbers"], task[i].columns["target"]
        signs = list(itertools.product((1, -1), repeat=4))
        right = {one: np.dot(one, numbers) == target for one in signs}
        guesses.append(task.guess(task[i]))
        assert guesses[-1] == np.mean([right[one] for one in signs if one.count(-1) in (1, 2)])
        every_sum.append(np.mean(list(right.values())))
        of_all.append(np.mean(values_of(numbers) == target))
    assert np.mean(guesses) > 1.3 * np.mean(every_sum) > 5 * np.mean(of_all)
    assert np.count_nonzero(guesses) > 0.9 * np.count_nonzero(every_sum)


@pytest.mark.parametrize("count, minus", [(2, (0, 1)), (3, (1,)), (5, (2,))])
def test_guess_of_other_counts(count, minus):
    task = Countdown("test", numbers=count)
    for i in range(30):
        numbers, target = task[i].columns["numbers"], task[i].columns["target"]
        signs = itertools.product((1, -1), repeat=count)
        right = [np.dot(one, numbers) == target for one in signs if one.count(-1) in minus]
        assert task.guess(task[i]) == pytest.approx(np.mean(right))


class Spelled(tiny.Parity):
    """All answers are right, and each has a text of its own, as 1 + x and x + 1 have."""

    def verify(self, response, example):
        return 1.0

    def final(self, response):
        return response


class Several(Spelled):
    several = True


def test_different_answers_are_counted_where_several_can_be_right():
    """Of one right answer they would be its spellings."""
    policy = tiny.policy()
    _, one = judge_samples(policy, Spelled(), range(3), 4)
    _, many = judge_samples(policy, Several(), range(3), 4)
    assert set(one) == {"clipped", "majority"} and set(many) == {*one, "distinct"}
    assert many["distinct"].max() > 1
    assert [name for name, task in TASKS.items() if task.several] == ["countdown"]
