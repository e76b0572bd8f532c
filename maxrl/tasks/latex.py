"""What math-verify finds equal, for the processes of maxrl/tasks/verifiers.py.

math-verify limits its own time by SIGALRM, which only works in the main thread and does not
interrupt a long operation in C. Here it runs without that limit, in a process that has one.
"""

import re
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from maxrl.tasks.answers import SEVERAL, read_number
from maxrl.tasks.references import unnamed, value, words

BASE = re.compile(r"[0-9]\s*[)}]?\s*_[\s{]*(?:\\text\s*\{\s*)?(?!10\b)(\w+)")
# f' and f''(x): math-verify leaves the primes out.
PRIME = re.compile(r"(?<=[A-Za-z)}'′’])\s*(?:['′’]|\^\s*(?:\{\s*)?\\prime|(?<=prime)\s*\\prime)")
# Between values and around them.
AND = re.compile(r"(?<![\s,;])(?:[,;\s]*+(?:\\text\s*+\{\s*+and\s*+\}|\band\b)|\s*+[,;])[,;\s]*+")
AROUND = re.compile(r"(?:\\left\s*)?\(((?:[^()]|\([^()]*\))*?)(?:\\right\s*)?\)")
NAMED = re.compile(r"([A-Za-z]\w*|[A-Za-z]_\{\w+\}|\\[A-Za-z]+)\s*=([^=<>]+)")
# \frac\pi2 and \sqrt\pi, of which math-verify takes the backslash alone.
GREEK = r"(\\(?:pi|alpha|beta|gamma|theta|lambda|phi|varphi|omega)(?![A-Za-z]))"
FIRST = re.compile(rf"(\\(?:[dtc]?frac|sqrt))\s*{GREEK}")
SECOND = re.compile(rf"(\\[dtc]?frac\s*(?:[0-9]|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}))\s*{GREEK}")
LARGE = 1 << 28  # bytes


def work(verdict: str, *texts: str) -> bool:
    """Answer a request: one of the functions below, by name."""
    verdicts: dict[str, Callable] = {
        "boxed": boxed,
        "published": published,
        "readable": readable,
    }
    try:
        return verdicts[verdict](*texts)
    finally:
        # What sympy keeps, such as 2^{60000000}, would take the memory of later requests.
        if resident() > LARGE:
            from sympy.core.cache import clear_cache

            clear_cache()


def resident() -> int:
    """Return the bytes of memory that this process uses, 0 where that is not known."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def boxed(box: str, answer: str) -> bool:
    """Return whether the texts of two boxes are equal."""
    import math_verify

    texts = (answer, box)
    # math-verify reads words as products of their letters, leaves out the base of 1010_2, and takes
    # x + y for a name.
    said = [*map(words, texts)]
    if any(said):
        return said[0] == said[1]
    # It divides 3:4:5 from left to right.
    ratios: list[list] = [[read_number(part) for part in text.split(":")] for text in texts]
    if all(len(ratio) > 2 and all(ratio) for ratio in ratios):
        gold, other = ratios
        return [part / gold[0] for part in gold] == [part / other[0] for part in other]
    if values := by_name(answer, box):
        return all(boxed(value(one), value(other)) for one, other in values)
    if ("=" in box) == ("=" in answer) and len({len(PRIME.findall(text)) for text in texts}) > 1:
        return False
    bases = [BASE.findall(text) for text in texts]
    before = "" if "=" in box else unnamed(answer)
    if bases[0] != bases[1] or before and not SEVERAL.search(before):
        return False
    sides = [parse_box(text) for text in apart(*texts)]
    compare = math_verify.grader.sympy_numeric_eq
    with patch.object(math_verify.grader, "sympy_numeric_eq", partial(equal, compare)):
        return bool(math_verify.verify(*sides, timeout_seconds=None))


def by_name(answer: str, box: str) -> list[tuple[str, str]]:
    """Return the values of a box beside those of an answer in several unknowns, x = 3, y = 4.

    Without names those of the box are in the answer's order. math-verify compares them as a set.
    Empty if these are no such texts.
    """
    gold = named(answer)
    # x_1 and x_2 are values of one unknown, in any order, and a set has none.
    if len({name.partition("_")[0] for name in gold}) < 2 or r"\{" in box:
        return []
    found = named(box)
    before, _, after = box.rpartition("=")
    if not found:
        names, values = (AND.split(inside(side)) for side in (before, after))
        found = dict(zip(names if before.strip() else gold, values))
        if len(values) != len(gold):
            return []
    return [(found[name], gold[name]) for name in gold] if found.keys() == gold.keys() else []


def named(text: str) -> dict[str, str]:
    """Return {name: value} of a text that says no more than name = value, several times."""
    pairs = [NAMED.fullmatch(part) for part in AND.split(inside(text))]
    found = {pair[1]: pair[2].strip() for pair in pairs if pair}
    return found if len(found) == len(pairs) else {}


def inside(text: str) -> str:
    """Return a text without brackets around it."""
    around = AROUND.fullmatch(text.strip())
    return (around[1] if around else text).strip()


def equal(compare: Callable, gold: Any, value: Any, *precision: int, **named: int) -> bool:
    """Return compare(gold, value), but of two numbers whether they are equal to six digits.

    math-verify compares six places: too few of 7e-10, too many of 6.02e23. Exact numbers must be
    equal.
    """
    import sympy

    same = compare(gold, value, *precision, **named)
    sides = [side.doit() for side in (gold, value)]
    numbers = [side for side in sides if isinstance(side, sympy.Expr) and side.is_number]
    if len(numbers) < 2 or not all(number.is_finite for number in numbers):
        return same
    difference = sympy.simplify(sides[0] - sides[1])
    if difference.is_Rational:
        return difference == 0
    bound = abs(sympy.N(sides[0])) * (1.000001e-6 if same else 1e-14)
    return bool(abs(sympy.N(difference)) <= bound)


def readable(answer: str) -> bool:
    """Return whether an answer has a value, where for `boxed` its text alone would do."""
    return words(answer) != "" or parse_box(answer, fallback_mode="no_fallback") != []


def apart(*texts: str) -> list[str]:
    """Return the texts with other letters for capitals that one of them has in both cases, as R and
    r, since math-verify takes both for one unknown."""
    bare = [re.sub(r"\\[A-Za-z]+", " ", text) for text in texts]
    both = sorted({c for text in bare for c in text if c.isupper() and c.lower() in text})
    free = [c for c in "abcfghjklmnpqrstuvwxyz" if c not in "".join(bare).lower()]
    other = dict(zip(both, free))
    return [
        re.sub(r"\\[A-Za-z]+|[A-Z]", lambda found: other.get(found[0], found[0]), text)
        for text in texts
    ]


def parse_box(text: str, **mode: str) -> list:
    import math_verify

    text = SECOND.sub(r"\1{\2}", FIRST.sub(r"\1{\2}", text))
    # The box as a whole counts or nothing, never some formula within an unreadable one.
    mode["extraction_mode"] = "first_match"
    latex = math_verify.LatexExtractionConfig(boxed_match_priority=0)
    return math_verify.parse(rf"\boxed{{{text}}}", [latex], parsing_timeout=None, **mode)


def published(response: str, answer: str) -> bool:
    """Return the verdict of math_verify.metric.math_metric, with the answer in a box."""
    import math_verify

    latex = math_verify.LatexExtractionConfig()
    either = (math_verify.ExprExtractionConfig(), latex)
    read = math_verify.parse(response, either, parsing_timeout=None)
    gold = math_verify.parse(rf"\boxed{{{answer}}}", (latex,), parsing_timeout=None)
    try:
        # math_metric writes the values as well, and fails over a number of 4,300 digits.
        for value in (*gold, *read):
            str(value)
        return bool(gold) and bool(math_verify.verify(gold, read, 6, timeout_seconds=None))
    except Exception:  # as the published code, which counts whatever fails as wrong
        return False
