"""The sentence under the table of eval.py."""

import re

from maxrl.analysis import table


def in_samples(k, against, **counts):
    """What is said of these numbers of right samples of 8, the same for three prompts."""
    rows = [{"name": name, "counts": [n] * 3} for name, n in counts.items()]
    return table.in_samples({"checkpoints": rows, "classes": 0, "samples": 8}, k, against)


def test_how_many_samples_match():
    # pass@4 of base is 1/2, as pass@1 of mine, whose pass@4 best has at once.
    said = in_samples(4, "mine", base=1, mine=4, best=8)
    assert re.search(r"pass@4 of base in 1 .*4\).* of best in more than 4 .*1\)", said)
    # Three of 8 are right, so that 6 samples always have one. Both rows need as many.
    assert re.findall(r"\d+", in_samples(6, "other", one=3, other=3)) == ["6"] * 3


def test_nothing_is_said_of_a_row_that_solves_nothing():
    assert in_samples(4, "mine", none=0, mine=4) == ""
    assert "none" not in in_samples(4, "mine", none=0, some=1, mine=4)
