"""The sentences under the table of eval.py."""

import re

import numpy as np
import pytest

from maxrl.analysis import table
from tests.helpers.tables import each


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


def test_the_table_in_words():
    """More and fewer are differences of two paired standard errors; ten prompts, +-.01."""
    noise = np.array([0.01, -0.01] * 5)
    values = {"base": 0.1 + noise, "grpo": 0.3 + noise[::-1], "maxrl": 0.2 + noise}
    assert "more than base, fewer than grpo" in table.in_words(64, values, "maxrl")
    values = {"base": 0.4 + noise, "grpo": 0.8 + noise, "maxrl": 0.8 + noise[::-1]}
    said = table.in_words(64, values, "maxrl")
    assert "more than base, neither clearly more nor fewer than grpo" in said


# So many prompts, the pass rates of two rows, and that of mine at one more prompt. Equal
# differences, whose error is 0, of three and of nine prompts say nothing.
PROMPTS = """
3 .25 .1 | neither
9 0 1 | neither
1 .5 .9 | neither
200 .5 .5 | neither
10 0 1 | solves more
9 .75 .5 .7 | solves fewer
9 .5 .5 .7 | neither
"""


@each("numbers, verdict", PROMPTS)
@pytest.mark.parametrize("k", [1, 2, 64])
def test_a_verdict_needs_prompts(numbers, verdict, k):
    count, base, mine, *last = map(float, numbers.split())
    mine = [mine] * int(count) + last
    values = {"base": np.full(len(mine), base), "mine": np.array(mine)}
    said = table.in_words(k, values, "mine")
    assert f"mine {verdict}" in said.replace("solves neither", "neither")
    # One try has no number, and k tries have theirs.
    assert re.findall(r"\d+", said) == ([] if k == 1 else [str(k)])
