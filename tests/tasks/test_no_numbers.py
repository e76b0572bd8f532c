"""References with a number in them that is not their value."""

from maxrl.tasks.references import answer_in
from maxrl.tasks.verifiers import verify_number
from tests.helpers.tables import each

# Notations and parts in words, two readings, changed numbers, bounds, dates and the like, feet.
# math-verify finds the first number in them, or computes a difference or a product of letters.
NO_NUMBERS = r"""
0b101
0o17
0B11
101 (binary)
A5 (hex)
17 (octal)
twenty-one
one-half
two-thirds
four-fifths
4-fifths
\text{thirty-two}
ninety-nine apples
three-quarters
5 and 1/2
5 and a half
5 and \frac{1}{2}
1.000 €
€1.000
1.500 EUR
R$ 2.000
$3x = 15$, $x = 5$
x > 3 and x < 5
x \ge 1 \text{ and } x \le 2
5 doubled
doubled 5
tripled 5
6 halved
5's square
inverse 5
5 tens
20 percent of 50
ten percent of 40
a loss of 5
5 in debt
a debt of $5
no more than 5
under 5
5 or more
at least 5
up to 5
fewer than 5
5 hours or less
2024-05-01
05/01/2024
555-1234
(555) 123-4567
10–15
5'3"
6' 2"
"""


@each("reference", NO_NUMBERS)
def test_what_is_not_the_number_in_it_has_no_answer(reference):
    """So that it is counted before the first step."""
    assert answer_in(reference) == ""
    assert verify_number(r"\boxed{5}", reference) == 0
