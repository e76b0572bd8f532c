"""What math-verify finds equal, for the processes of maxrl/tasks/verifiers.py.

math-verify limits its own time by SIGALRM, which only works in the main thread and does not
interrupt a long operation in C. Here it runs without that limit, in a process that has one.
"""

from collections.abc import Callable


def work(verdict: str, *texts: str) -> bool:
    """Answer a request: one of the functions below, by name."""
    verdicts: dict[str, Callable] = {
        "boxed": boxed,
        "published": published,
        "readable": readable,
    }
    return verdicts[verdict](*texts)


def boxed(box: str, answer: str) -> bool:
    """Return whether the texts of two boxes are equal."""
    import math_verify
    import sympy

    # The box as a whole counts or nothing, never some formula within an unreadable one.
    sides = [parse_box(text, extraction_mode="first_match") for text in (answer, box)]
    equal = bool(math_verify.verify(*sides, timeout_seconds=None))
    # It compares decimals, of which small fractions have too few. 5 is its 5%.
    if (
        equal
        and "%" not in answer + box
        and all(getattr(side[0], "is_rational", False) for side in sides)
    ):
        return sympy.simplify(sides[0][0] - sides[1][0]) == 0
    return equal


def readable(answer: str) -> bool:
    """Return whether an answer has a value, where for `boxed` its text alone would do."""
    return bool(parse_box(answer, fallback_mode="no_fallback"))


def parse_box(text: str, **mode: str) -> list:
    import math_verify

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
