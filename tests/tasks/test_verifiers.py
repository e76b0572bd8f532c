r"""The verifiers of numbers: what \boxed{...} is worth, from a hand-written table, broken text
and hostile text."""

import random
import re
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxrl.tasks.verifiers import last_boxed, read_number, verify_number
from tests.helpers.hostile import TIMES
from tests.helpers.tables import each
from tests.helpers.verdict_tables import SPICE, boxed, table

TABLE = [
    *table("numbers"),
    (boxed(" 18 "), "18", 1),
    (boxed("\n18\n"), "18", 1),
    (boxed("1\u2009234"), "1234", 1),  # thin space
    (boxed("1\u202f234"), "1234", 1),  # narrow space
    (boxed("18\0"), "18", 0),
    (boxed("1.8 lakh"), "180000", 1),
    (boxed("18 trillion"), "18000000000000", 1),
    (boxed("18 feet above"), "18", 1),
    (boxed("above 18 feet"), "18", 0),
    (boxed("9" * 500), "9" * 500, 1),
    (boxed("9" * 501), "9" * 501, 0),
    ("\\boxed\n{18}", "18", 1),
    ("\0\0\\boxed{18}\0", "18", 1),
    ("\ud800 \\boxed{18}", "18", 1),
    (r"\boxed{18}" + " " * 100_000, "18", 1),
    (r"\boxed{" + " " * 9_990 + "18}", "18", 1),  # just under 10,000 characters
    (r"\boxed{" + " " * 10_000 + "18}", "18", 0),
]


def test_the_table_of_numbers():
    assert len(TABLE) >= 300
    found = [verify_number(response, answer) for response, answer, _ in TABLE]
    assert [row for row, verdict in zip(TABLE, found) if verdict != row[2]] == []
    assert {type(verdict) for verdict in found} == {float}


# Ways to write one number; none changes its value.
DRESSES = (
    r"%s|{%s}|$%s$|\$%s|%s dollars|%s \text{ km/h}|\text{%s}|%s.|x = %s|%s\%%|(%s)|3 + 4 = %s"
    r"|%s \text{ ft}^2|\left(%s\right)|\mathbf{%s}|about %s apples|%s^\circ"
)


@settings(max_examples=500, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(0, 4), st.data())
def test_a_number_in_any_dress_is_itself_and_nothing_else(digits, decimals, data):
    value = Fraction(digits, 10**decimals)
    head, tail = divmod(abs(digits), 10**decimals)
    whole = f"{head:,}".replace(",", data.draw(st.sampled_from(["", ",", "{,}", r"\,", "\u2009"])))
    text = whole + (f".{tail:0{decimals}}" if decimals else "")
    minus = data.draw(st.sampled_from(["-", "− "]))
    dress = data.draw(st.sampled_from(DRESSES.split("|")))
    text = dress % (minus * (digits < 0) + text)
    pair = "(" in dress and re.fullmatch(r"\d+(,[1-9]\d\d)+", whole) and not decimals
    dash = "about" in dress and digits < 0 and " " in minus
    if pair or dash:
        assert read_number(text) is None, "it may be something else"
        return
    assert read_number(text) == value
    as_json = int(value) if value.denominator == 1 else str(value)
    assert verify_number(boxed(text), as_json) == 1
    other = value + data.draw(st.sampled_from([1, -1, Fraction(1, 1000), 10**6]))
    assert verify_number(boxed(text), str(other)) == 0


@settings(max_examples=300, deadline=None)
@given(
    st.integers(-999, 999),
    st.integers(1, 999),
    st.integers(0, 99),
    st.sampled_from(["%s/%s", r"\frac{%s}{%s}"]),
)
def test_fractions(above, below, whole, form):
    value = Fraction(above, below)
    assert read_number(form % (above, below)) == value
    mixed = whole + value if 0 <= above < below else None
    assert read_number(f"{whole} " + form % (above, below)) == mixed


BOXES = r"""
\boxed{a {b} c} d} | a {b} c
\boxed{\left\{ x \right.} } | \left\{ x \right.
\boxed{x \} y} | x \} y
\boxed{a \\} b} | a \\
\boxed{\{ | None
\boxed{a \\\} b | None
"""


@each("text, inside", BOXES)
def test_where_a_box_ends(text, inside):
    assert str(last_boxed(text)) == inside


def test_how_long_a_box_may_be():
    for length in (10_000, 10_001):
        inside = "x" * length
        assert last_boxed(rf"\boxed{{{inside}}}") == (inside if length == 10_000 else None)


@pytest.mark.parametrize(
    "inside", ["18", r"\text{18} \text{ dollars}", r"\frac{36}{2}", r"3 \times 6 = 18"]
)
def test_a_response_cut_anywhere_is_never_right(inside):
    """Tokens are cut off at the length limit: no beginning of a response that ends with its box
    is worth anything."""
    response = r"It was \boxed{18} at first. Now \boxed{" + inside + "}"
    assert last_boxed(response) == inside
    cuts = range(response.index("Now"), len(response))
    # Only while the second box is not yet begun.
    begun = response.rindex(r"\boxed") + 6
    assert not any(verify_number(response[:cut], "18") for cut in cuts if cut >= begun)


MILLION = 1_000_000
HOSTILE = [
    r"\text{" * 400 + "5" + "}" * 400,
    "9" * MILLION,
    "0." + "9" * 9000,
    " " * MILLION,
    "-" * 9000,
    "1/" * 4500,
    "1 1/" * 2400,
    "1,111," * 1600,
    "1." * 4500,
    r"\frac{1}{1}" * 800,
    r"\frac{" * 1600,
    r"\frac" + " " * 9000,
    "½" * 3000,
    "5 " + "thousand " * 1000,
    "a^{2" * 2400,
    "a" + " " * 9000 + "^2",
    "\\" * 9000,
    "5, " * 3000,
    "=" * 9000,
]
HOSTILE = [boxed(inside) for inside in HOSTILE] + [
    r"\boxed{" * (MILLION // 7),
    r"\boxed{}" * (MILLION // 8),
    r"\boxed{" * (MILLION // 8) + "5" + "}" * (MILLION // 8),
    r"\boxed{" * (MILLION // 8) + "}" * (MILLION // 8),
    r"\boxed" * (MILLION // 6),
    r"\boxed" + " " * MILLION,
    r"\boxed{" + "." * MILLION,
    r"\boxed{" + "{ " * MILLION,
    "\\" * MILLION,
    "There are 5 of them, {x} = 5. " * (MILLION // 30) + boxed("5"),
    boxed("5") + "=5" * (MILLION // 2),
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:24])
def test_hostile_text_takes_milliseconds(text):
    """As a response and as an answer; where it took the square of its length it would take
    hours."""
    begin = time.thread_time()
    assert verify_number(text, "5") in (0.0, 1.0)
    assert verify_number(boxed("5"), text[:10_000]) in (0.0, 1.0)
    assert time.thread_time() - begin < 2  # measured: at most 0.05 s


ALPHABET = "".join(chr(c) for c in range(128)) + "½²−–·×€\u2009\u200b\ud800π٣𝟓"


def strings(count, seed):
    """Boxes of pieces, and rows of the table with up to four put in, taken out or doubled."""
    rng = random.Random(seed)
    rows = [(response, answer) for response, answer, _ in TABLE if len(response) < 200]
    pieces = [*SPICE, *ALPHABET]
    for _ in range(count // 2):
        response, answer = rng.choice(rows)
        yield boxed("".join(rng.choices(pieces, k=rng.randrange(30)))), answer
        for _ in range(rng.randrange(1, 5)):
            here = rng.randrange(len(response) + 1)
            there = min(len(response), here + rng.randrange(6))
            piece = rng.choice(["", rng.choice(SPICE), rng.choice(ALPHABET), response[here:there]])
            response = response[:here] + piece + response[rng.choice([here, there]) :]
        yield response, answer


def test_thousands_of_strings():
    """Nothing raises, every verdict is 0.0 or 1.0, and what is accepted holds a digit in a box."""
    found = {0: [], 1: []}
    for response, answer in strings(5_000 * TIMES, seed=0):
        found[verify_number(response, answer)].append((response, answer))
    assert len(found[1]) > 200, "the fuzz reaches right answers, too"
    for response, answer in found[1]:
        assert r"\boxed" in response
        assert re.search("[0-9½⅓¼¾]", response), response
        assert last_boxed(response + r"\boxed{1") is None
        assert verify_number(response + r"\boxed{}", answer) == 1
