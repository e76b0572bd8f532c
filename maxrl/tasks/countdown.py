"""Countdown: reach a target with four numbers, each used once, by + - * / and parentheses.

The game is that of Stream of Search (arXiv 2404.03683) and TinyZero; the problems are drawn here.
"""

import ast
import itertools
import operator
import random
import re
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from maxrl.tasks.base import Example, Task

OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# An operation and its inverse.
SUM = (ast.Add, ast.Sub)
PRODUCT = (ast.Mult, ast.Div)
LARGEST = 99
TARGETS = range(10, 100)
# A checksum of its numbers, modulo 100, decides where a problem belongs, so splits share none.
SHARES = {"train": range(90), "validation": range(90, 95), "test": range(95, 100)}
REQUEST = (
    "Using the numbers {numbers}, write an expression that equals {target}. Use each number "
    "exactly once, with +, -, *, / and parentheses. Think step by step and give the expression "
    "within <answer></answer>."
)


class Countdown(Task):
    """Problems with a solution, each a function of seed, split and index alone.

    size     how many, by default 100,000, and 2,000 in words, which are all read before a run
    numbers  how many, each from 1 to 99; the target is one that they reach, from 10 to 99
    words    ask in a sentence, for language models, and judge the last <answer>
    """

    vocabulary: tuple[str, ...] = ("<pad>", "<bos>", "<eos>", "<unk>", "target", *"+-*/()") + tuple(
        map(str, range(1, LARGEST + 1))
    )
    stop_tokens: tuple[str, ...] = ("<eos>",)
    several = True

    def __init__(
        self,
        split: str = "train",
        size: int | None = None,
        seed: int = 0,
        numbers: int = 4,
        words: bool = False,
    ):
        if not 2 <= numbers <= 5:
            raise ValueError(f"numbers must be 2 to 5, got {numbers}")
        size = size if size is not None else 2_000 if words else 100_000
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        if split not in SHARES:
            raise ValueError(f"split must be {', '.join(SHARES)}, got {split!r}")
        self.split = split
        self.size = size
        self.seed = seed
        self.numbers = numbers
        self.words = words
        self.equally_long = not words
        if words:
            self.vocabulary = self.stop_tokens = ()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Example:
        rng = random.Random(f"{self.seed} {self.split} {index}")
        targets: list[int] = []
        while not targets:
            numbers = [rng.randint(1, LARGEST) for _ in range(self.numbers)]
            if zlib.crc32(str(sorted(numbers)).encode()) % 100 in SHARES[self.split]:
                values = values_of(numbers)
                targets = [target for target in TARGETS if target in values]
        target = rng.choice(targets)
        solution = rng.choice(np.flatnonzero(values == target))
        answer = normal(parsed(expressions(self.numbers)[solution].format(*numbers)))
        columns = {"numbers": numbers, "target": target, "answer": answer}
        if self.words:
            request = {"role": "user", "content": REQUEST.format(**columns)}
            return Example([request], f"<answer>{answer}</answer>", columns)
        prompt = f"<bos> {' '.join(map(str, numbers))} target {target}"
        return Example(prompt, f"{answer} <eos>", columns)

    def verify(self, response: str, example: Example) -> float:
        tree = self.read(response)
        if tree is None:
            return 0.0
        used: list[Any] = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        numbers = example.columns["numbers"]
        return float(sorted(used) == sorted(numbers) and value(tree) == example.columns["target"])

    def final(self, response: str) -> str | None:
        """Return the expression in its normal form."""
        tree = self.read(response)
        return None if tree is None else normal(tree)

    def read(self, response: str) -> Any:
        """Return the syntax tree of a response, None if it is no expression."""
        if not self.words:
            return parsed(response.removesuffix("<eos>"))
        before, _, _ = response.rpartition("</answer>")
        _, opened, answer = before.rpartition("<answer>")
        return parsed(answer) if opened else None

    def guess(self, example: Example) -> float:
        """Return the share of right ones among the sums with signs, + as often as - or up to twice
        more: of four numbers with one or two -.

        In the mean it is .04 there; of all sums with signs .03 are right, of all expressions .005.
        """
        signs = np.array(list(itertools.product((1, -1), repeat=self.numbers)))
        sums = signs[np.isin(signs.sum(1), (0, 1, 2))] @ example.columns["numbers"]
        return float(np.mean(sums == example.columns["target"]))


def parsed(text: str) -> Any:
    """Return the syntax tree of an expression of numbers, + - * / and parentheses that has a value;
    else None.
    """
    # Nothing is run: the text is short, and of the syntax tree four operations are allowed.
    text = " ".join(text.split())
    if not re.fullmatch(r"[0-9+*/() -]{1,100}", text):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
        value(tree)
    except (SyntaxError, KeyError, ZeroDivisionError):
        return None
    return tree


def value(tree: Any) -> Fraction:
    """Return the exact value; KeyError for what is not allowed."""
    if isinstance(tree, ast.Constant):
        return Fraction(str(tree.value))
    if not isinstance(tree, ast.BinOp):
        raise KeyError(tree)
    return OPERATIONS[type(tree.op)](value(tree.left), value(tree.right))


def normal(tree: Any) -> str:
    """Return one text for all orders and brackets of the same sums and products.

    Without a bracket that changes nothing, what is added or multiplied before what is subtracted or
    divided by, and the larger value first: "3 - (7 - 25)" is "25 + 3 - 7". Only a difference that
    is turned within a product stays another text: 9 - 2 * (3 - 4) beside 9 + 2 * (4 - 3).
    """
    if isinstance(tree, ast.Constant):
        return str(tree.value)
    pair = SUM if type(tree.op) in SUM else PRODUCT
    signs = "+-" if pair is SUM else "*/"
    found = sorted(parts(tree, pair, False))
    return " ".join(f"{signs[inverse]} {text}" for inverse, _, text in found)[2:]


def parts(tree: Any, pair: tuple, inverse: bool) -> list[tuple[bool, Fraction, str]]:
    """Return what a sum or product consists of: (subtracted or divided by?, -value, text)."""
    if isinstance(tree, ast.BinOp) and type(tree.op) in pair:
        turned = inverse ^ (type(tree.op) is pair[1])
        return parts(tree.left, pair, inverse) + parts(tree.right, pair, turned)
    text = normal(tree)
    if isinstance(tree, ast.BinOp) and pair is PRODUCT:
        text = f"( {text} )"
    return [(inverse, -value(tree), text)]


def every(leaves: np.ndarray, operations: Sequence[Callable]) -> np.ndarray:
    """Return what all expressions that use each leaf once give, in an order that is the same for
    all leaves; of four there are 7,680.
    """
    found = {1 << i: leaves[i : i + 1] for i in range(len(leaves))}  # {set of leaves: results}
    for mask in range(1, 1 << len(leaves)):
        results = []
        for left in range(1, mask):
            if left & mask == left:
                pairs = found[left][:, None], found[mask ^ left]
                results += [operation(*pairs).ravel() for operation in operations]
        if results:
            found[mask] = np.concatenate(results)
    return found[mask]


def values_of(numbers: list[int]) -> np.ndarray:
    """Return the value of each of `expressions`, NaN where it divides by 0."""
    operations = [operator.add, operator.sub, operator.mul, divided]
    found = every(np.array(numbers, dtype=float), operations)
    # Of at most five numbers below 100 a value that is no whole number is 1e-8 away from one.
    return found.round(9)


def divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b, NaN where b is 0: with infinity, 50 + 3 / (2 / 0) would be 50."""
    return a / np.where(b == 0, np.nan, b)


@cache
def expressions(count: int) -> np.ndarray:
    """Return the texts of all expressions of {0}, {1}, ..."""
    leaves = np.array([f"{{{i}}}" for i in range(count)], dtype=object)
    return every(leaves, [lambda a, b, sign=sign: "(" + a + sign + b + ")" for sign in "+-*/"])
