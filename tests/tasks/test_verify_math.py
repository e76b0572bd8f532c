r"""The verifiers of LaTeX: what math-verify finds equal, the published code's verdict, and
faults."""

import pytest

from maxrl.system.sandbox import Died
from maxrl.system.totals import Totals
from maxrl.tasks import latex, verifiers
from maxrl.tasks.rewards import count_faults
from maxrl.tasks.verifiers import verify_math_batch, verify_published_batch
from tests.helpers.verdict_tables import boxed, table
from tests.tasks import verdicts

TABLE = [
    *table("latex"),
    (boxed("\0"), "5", 0),
    (boxed(r"\triangle ABC ="), r"\triangle ABC =", 1),  # no value, but the same to the letter
    (boxed("\ud800"), "5", 0),
    (r"\boxed{" + "5" * 1_000_000 + "}", "5", 0),
]
TOWER = "9^{9^{9^{9}}}"


@pytest.fixture
def math_verify():
    return pytest.importorskip("math_verify")


def test_the_table_of_latex(math_verify):
    found = verify_math_batch([row[0] for row in TABLE], [row[1] for row in TABLE])
    assert len(TABLE) >= 70
    assert [row for row, verdict in zip(TABLE, found) if verdict != row[2]] == []
    assert {type(verdict) for verdict in found} == {float}


def test_hostile_latex_counts_as_unequal(math_verify, monkeypatch):
    """It costs its CPU time at most, is counted and said, and the rest of the batch is judged."""
    monkeypatch.setattr(verifiers, "SECONDS", 1.0)
    verifiers.POOL.faults.clear()
    hostile = [TOWER, "{" * 400 + "5" + "}" * 400, "3"]
    with pytest.warns(UserWarning, match="more than 1 seconds of CPU time"):
        found = verify_math_batch([boxed(text) for text in hostile], ["6", "6", r"\frac62"])
    assert found == [0, 0, 1]
    totals = Totals()
    count_faults(totals)
    faults = totals.metrics()
    assert list(faults) == ["rewards/verifier_timeouts"]
    count_faults(totals)
    assert totals.metrics() == faults


def test_what_sympy_keeps_is_dropped_where_memory_is_short(math_verify, monkeypatch):
    """Or a large power would make later comparisons unequal."""
    called = []
    monkeypatch.setattr("sympy.core.cache.clear_cache", lambda: called.append(1))
    for large, count in ((2**60, 0), (0, 1)):
        monkeypatch.setattr(latex, "LARGE", large)
        assert latex.work("boxed", "1/2", "0.5")
        assert len(called) == count


def test_the_answer_may_not_be_long_but_the_response_may(math_verify):
    response = "One step more. " * 1000 + boxed("5")
    assert verify_published_batch([response, boxed("5")], ["5", "5 " * 6000]) == [1, 0]


def test_a_batch_asks_once_and_not_for_what_is_plain(monkeypatch):
    asked = []

    def ask(seconds, verdict, *pair):
        asked.append(pair)
        return True

    monkeypatch.setattr(verifiers.POOL, "ask", ask)
    responses = [boxed(text) for text in ("x/2", "0.5x", " x/2 ", "7", "1/2", "x/2")] + ["none"]
    found = verify_math_batch(responses, ["0.5x"] * 3 + ["7", "0.50", "x", "0.5x"])
    assert found == [1, 1, 1, 1, 1, 1, 0]
    assert sorted(asked) == [("x/2", "0.5x"), ("x/2", "x")]
    assert verify_math_batch([], []) == []
    with pytest.raises(ValueError):
        verify_math_batch([boxed("5")], ["5", "6"])


# Stand-ins for math-verify: what new workers import.
RIGHT = """
parse = lambda text, *args, **kwargs: text
LatexExtractionConfig = lambda **kwargs: None
class grader:
    sympy_numeric_eq = None
def verify(gold, box, **kwargs):
    {mishap}
    return True
"""
DYING = "import os\n    if '7' in box: os._exit(1)"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """installed(text) makes text the math-verify of new workers."""
    monkeypatch.syspath_prepend(str(tmp_path))
    verifiers.POOL.forget()
    yield (tmp_path / "math_verify.py").write_text
    verifiers.POOL.forget()


def test_a_process_that_dies_is_counted_and_said(installed):
    installed(RIGHT.format(mishap=DYING))
    verifiers.POOL.faults.clear()
    with pytest.warns(UserWarning, match="the process died") as said:
        assert verify_math_batch([boxed("7"), boxed("8")], ["6", "6"]) == [0, 1]
    assert len(said) == 1
    assert verifiers.POOL.faults == [Died, Died]


def test_the_published_verdict_is_math_verify_s(math_verify):
    """On some of the responses of verdicts.py, and a few more: math_metric as the published code
    calls it."""
    from math_verify.metric import math_metric
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

    metric = math_metric(
        (LatexExtractionConfig(),), (ExprExtractionConfig(), LatexExtractionConfig())
    )

    def oracle(response, answer):
        try:
            return metric([rf"\boxed{{{answer}}}"], [response])[0]
        except Exception:  # as its compute_score does
            return 0.0

    rows = [*verdicts.cases(False)][::149] + [*verdicts.cases(True)][::61]
    # Python writes no number of so many digits, which makes math_metric fail.
    mixed = "9" * 4300 + r"\frac{1}{2}"
    rows += [("", "5"), ("5", ""), ("none", "none"), (r"\boxed{", "5"), (boxed(mixed), mixed)]
    found = verify_published_batch(*zip(*rows))
    assert {*found} == {0.0, 1.0}
    assert [row for row, verdict in zip(rows, found) if verdict != oracle(*row)] == []
