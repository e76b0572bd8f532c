r"""The verifiers: what \boxed{...} is worth, from hand-written tables, broken text and hostile text."""

import importlib.util
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
import verdicts
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from maxrl import verifiers
from maxrl.errors import UsageError
from maxrl.io import sandbox
from maxrl.verifiers import (
    last_boxed,
    read_number,
    read_published,
    verify_math,
    verify_math_batch,
    verify_number,
    verify_published,
    verify_published_batch,
)

needs_math_verify = pytest.mark.skipif(
    not importlib.util.find_spec("math_verify"), reason="needs math-verify"
)


def boxed(inside):
    return rf"So the answer is $\boxed{{{inside}}}$."


# What stands in the box, the answer, the verdict and why.
NUMBERS = [
    ("18", "18", 1, "plain"),
    ("19", "18", 0, "another number"),
    (" 18 ", "18", 1, "blanks"),
    ("\n18\n", "18", 1, "line breaks"),
    ("0", "0", 1, "zero"),
    ("-0", "0", 1, "minus zero"),
    ("180", "18", 0, "the answer is a prefix"),
    ("118", "18", 0, "the answer is a suffix"),
    ("1 8", "18", 0, "two numbers side by side"),
    ("018", "18", 1, "leading zero"),
    ("00018", "18", 1, "leading zeros"),
    ("18.", "18", 1, "full stop"),
    ("18.0", "18", 1, "decimals of nothing"),
    ("18.000", "18", 1, "decimals of nothing"),
    ("18.5", "18", 0, "rounded down"),
    ("17.99", "18", 0, "rounded up"),
    ("18.5", "18.5", 1, "decimals"),
    ("18.50", "18.5", 1, "cents"),
    (".5", "0.5", 1, "no zero before the point"),
    ("0.5", "1/2", 1, "an answer that is a fraction"),
    ("0.1", "0.1000000000000000055511151231257827", 0, "exact, no floats"),
    ("0.3333333333333333", "1/3", 0, "exact, no floats"),
    ("9007199254740993", "9007199254740992", 0, "equal as floats, not as integers"),
    ("123456789012345678901234567890", "123456789012345678901234567890", 1, "longer than 64 bits"),
    ("9" * 500, "9" * 500, 1, "500 digits"),
    ("9" * 501, "9" * 501, 0, "more than 500 digits are not read"),
    ("-5", "-5", 1, "negative"),
    ("-5", "5", 0, "the sign counts"),
    ("5", "-5", 0, "the sign counts"),
    ("- 5", "-5", 1, "a blank after the sign"),
    ("−5", "-5", 1, "unicode minus"),
    ("− 5", "-5", 1, "unicode minus and a blank"),
    ("–5", "-5", 1, "an en dash for a minus"),
    ("+5", "5", 1, "plus"),
    ("--5", "5", 0, "two signs"),
    ("--5", "-5", 0, "two signs"),
    (r"\pm 5", "5", 0, "two values"),
    ("±5", "5", 0, "two values"),
    (r"-\$5", "-5", 1, "sign before the currency"),
    (r"\$-5", "-5", 1, "sign after the currency"),
    (r"-\text{USD }5", "5", 0, "a sign that belongs to nothing"),
    (r"\text{profit: } -5", "-5", 1, "sign after a word"),
    ("A-5", "5", 0, "a hyphen after a letter is no sign, and not read"),
    ("A-5", "-5", 0, "a hyphen after a letter is no sign"),
    ("(5)", "5", 1, "brackets; no bookkeeper's minus"),
    (r"\left( 5 \right)", "5", 1, "LaTeX brackets"),
    ("-(5)", "5", 0, "a sign before a bracket is not worked out"),
    ("1,234", "1234", 1, "comma"),
    ("1234", "1,234", 1, "comma in the answer"),
    ("1{,}234", "1234", 1, "LaTeX comma"),
    (r"1\,234", "1234", 1, "LaTeX thin space"),
    (r"1,\!234", "1234", 1, "comma with LaTeX kerning"),
    ("1\u2009234", "1234", 1, "thin space"),
    ("1\u202f234", "1234", 1, "narrow space"),
    ("1,234,567.89", "1234567.89", 1, "millions and cents"),
    (r"1\,234\,567", "1234567", 1, "millions"),
    ("1 234", "1234", 0, "a plain blank parts two numbers"),
    ("1,23", "123", 0, "a comma in the wrong place"),
    ("1,2345", "12345", 0, "a comma in the wrong place"),
    ("12,34,567", "1234567", 0, "other groups than three"),
    ("1234,567", "1234567", 0, "other groups than three"),
    ("1.234,5", "1234.5", 0, "European, could be several things"),
    ("1.234,5", "1.2345", 0, "European, could be several things"),
    ("1.234.567", "1234567", 0, "European thousands"),
    ("0,5", "0.5", 0, "decimal comma"),
    ("0,500", "500", 0, "a group of thousands does not begin with 0"),
    ("5,5", "5", 0, "decimal comma, not the number 5 twice"),
    ("5{,}5", "5", 0, "decimal comma in LaTeX"),
    (r"1\,23", "123", 0, "a thin space in the wrong place"),
    (r"1\,1/2", "1.5", 1, "a thin space in a mixed number"),
    (r"\$18", "18", 1, "dollars"),
    ("$18", "18", 1, "dollars"),
    ("$18$", "18", 1, "mathematics in the box"),
    (r"\(18\)", "18", 1, "mathematics in the box"),
    ("£18", "18", 1, "pounds"),
    ("18€", "18", 1, "euros"),
    (r"\$1,234.50", "1234.5", 1, "a price"),
    (r"\$ 18.00", "$18", 1, "currency in the answer"),
    ("18 dollars", "18", 1, "unit"),
    (r"18\text{ dollars}", "18", 1, "unit in text"),
    (r"18 \, \mathrm{km}", "18", 1, "unit in roman"),
    (r"18~\text{km/h}", "18", 1, "unit with a slash"),
    ("18/hour", "18", 1, "a slash before a word"),
    (r"\text{18}", "18", 1, "number in text"),
    (r"\textbf{18}", "18", 1, "bold"),
    (r"\mathbf{18}", "18", 1, "bold"),
    ("{18}", "18", 1, "braces"),
    ("{{18}}", "18", 1, "braces"),
    ("1{8}", "18", 0, "not one number"),
    (r"\text{Total: } 18", "18", 1, "a word before"),
    (r"\text{Janet makes } \$18 \text{ every day.}", "18", 1, "a sentence"),
    ("18 apples, each", "18", 1, "words after"),
    ("I have 18", "18", 1, "I is a word, i a number"),
    ("18: eighteen", "18", 1, "a colon"),
    ('"18"', "18", 1, "quotation marks"),
    ("18-year-old", "18", 1, "hyphens"),
    ("18 jalapeños", "18", 1, "letters with accents"),
    ("18 half-gallons", "18", 0, "half changes the value"),
    ("18 ft^2", "18", 1, "square feet"),
    (r"18 \text{ cm}^{2}", "18", 1, "square centimetres"),
    ("18 m²", "18", 1, "square metres"),
    (r"18 \text{ m} \cdot \text{s}", "18", 0, "a sign that is not read"),
    (r"18^\circ", "18", 1, "degrees"),
    (r"18^{\circ}\text{C}", "18", 1, "degrees"),
    ("18°", "18", 1, "degrees"),
    (r"18\%", "18", 1, "percent: as the question asks"),
    ("18%", "18", 1, "percent"),
    ("18 percent", "18", 1, "percent"),
    (r"18\%", "0.18", 0, "percent is a unit"),
    ("18", "18%", 1, "percent in the answer"),
    ("2 dozen", "2", 1, "a dozen is a unit: questions ask for dozens"),
    ("2 dozen", "24", 0, "a dozen is a unit"),
    ("5 cents", "5", 1, "unit"),
    ("12 quarters", "12", 1, "coins"),
    ("3 times", "3", 1, "how many times?"),
    ("18 thousand", "18", 0, "thousand changes the value"),
    (r"18 \text{ thousand}", "18000", 1, "thousand changes the value"),
    ("18 Thousand dollars", "18,000", 1, "capitals"),
    ("18 thousands", "18000", 1, "plural"),
    (r"\$1.5 \text{ million}", "1500000", 1, "million"),
    ("1.5 million", "1.5", 0, "million"),
    ("2 hundred", "200", 1, "hundred"),
    ("3 billion", "3000000000", 1, "billion"),
    ("3 trillion", "3", 0, "trillion"),
    ("$5k", "5000", 1, "k"),
    ("5k", "5", 0, "k"),
    ("5 km", "5", 1, "k of another word"),
    ("$5M", "5000000", 1, "M"),
    ("5 m", "5", 1, "metres"),
    ("5 MB", "5", 1, "M of another word"),
    ("5 bn", "5000000000", 1, "bn"),
    ("1/2 million", "500000", 1, "a fraction of a million"),
    ("thousand 5", "5", 0, "a scale without its number"),
    ("thousand 5", "5000", 0, "a scale without its number"),
    ("5 dollars per thousand", "5", 0, "a scale without its number"),
    ("5 million million", "5000000", 0, "two scales are not read"),
    ("5 hundredths", "5", 0, "a word that changes the value"),
    ("5 lakh", "5", 0, "a word that changes the value"),
    ("2 and a half", "2", 0, "a word that changes the value"),
    ("minus 5", "5", 0, "a word that changes the value"),
    ("twice 5", "5", 0, "a word that changes the value"),
    ("twenty", "20", 0, "number words are not read"),
    (r"\frac{1}{2}", "0.5", 1, "fraction"),
    (r"\dfrac{1}{2}", "0.5", 1, "fraction"),
    (r"\tfrac12", "0.5", 1, "fraction without braces"),
    (r"\frac{1}2", "0.5", 1, "fraction with half of the braces"),
    (r"\frac 12", "0.5", 1, "fraction with a blank"),
    (r"\frac123", "0.5", 0, "a fraction and a number"),
    (r"-\frac{1}{2}", "-0.5", 1, "sign before a fraction"),
    (r"\frac{-1}{2}", "-0.5", 1, "sign in a fraction"),
    (r"\frac{1}{-2}", "-0.5", 0, "a sign below is not read"),
    (r"\frac{36}{2}", "18", 1, "a fraction that is whole"),
    (r"\frac{1,000}{4}", "250", 1, "thousands in a fraction"),
    (r"\frac{1}{3}", "0.3333333333", 0, "exact"),
    (r"\frac{1}{0}", "0", 0, "division by zero"),
    ("1/0", "1", 0, "division by zero"),
    ("0/5", "0", 1, "zero fifths"),
    ("3/4", "0.75", 1, "slash"),
    ("3 / 4", "0.75", 1, "slash with blanks"),
    ("3⁄4", "0.75", 1, "fraction slash"),
    ("{3}/{4}", "0.75", 1, "slash between braces"),
    ("3/4/5", "0.75", 0, "two slashes"),
    ("3/", "3", 0, "half of a fraction"),
    ("/4", "4", 0, "half of a fraction"),
    (r"\frac{3}{4}/5", "0.75", 0, "a fraction and a slash"),
    (r"\frac{\frac{1}{2}}{3}", "0.5", 0, "fractions in fractions are not read"),
    (r"\frac{x}{2}", "2", 0, "not a number above"),
    (r"3 \over 4", "0.75", 0, "commands that are not read"),
    (r"1\frac{1}{2}", "1.5", 1, "mixed number"),
    ("1 1/2", "1.5", 1, "mixed number"),
    (r"-1\frac{1}{2}", "-1.5", 1, "mixed number with a sign"),
    (r"1\frac{1}{2} \text{ hours}", "1.5", 1, "mixed number with a unit"),
    (r"2\frac{3}{2}", "3.5", 0, "an improper fraction: mixed, or a product?"),
    (r"2\frac{3}{2}", "3", 0, "an improper fraction: mixed, or a product?"),
    ("1 -1/2", "0.5", 0, "two numbers"),
    ("1 .5/hour", "1.5", 0, "no mixed number: nothing below"),
    (r"1 \text{ and } 1/2", "1.5", 0, "two numbers"),
    ("½", "0.5", 1, "one character"),
    ("5½", "5.5", 1, "one character after a number"),
    ("5½", "5", 0, "one character after a number"),
    ("x = 5", "5", 1, "a name before it"),
    (r"3 \times 4 = 12", "12", 1, "what follows the last ="),
    (r"3 \times 4 = 12", "3", 0, "what follows the last ="),
    ("3 + 4 = 7 = 7.0", "7", 1, "the last ="),
    (r"50\% \text{ of } 10 = 5", "5", 1, "what follows the last ="),
    ("12 = 3 * 4", "12", 0, "nothing is computed"),
    ("5 = five", "5", 0, "no number after the last ="),
    ("5 =", "5", 0, "nothing after the last ="),
    ("a = 1, b = 2", "2", 1, "what follows the last ="),
    ("x >= 5", "5", 0, "a bound is no number"),
    ("x != 5", "5", 0, "no number"),
    (r"x \neq 5", "5", 0, "no number"),
    (r"x \not= 5", "5", 0, "no number"),
    ("x < 5", "5", 0, "a bound"),
    (r"\approx 5", "5", 1, "about is not read"),
    (r"10/3 \approx 3.33", "3.33", 0, "two different numbers"),
    (r"12 \text{ apples and } 3 \text{ pears}", "12", 0, "two different numbers"),
    (r"12 \text{ apples and } 3 \text{ pears}", "3", 0, "two different numbers"),
    ("5 dollars per hour for 8 hours", "5", 0, "two different numbers"),
    ("3, 4", "3", 0, "a list"),
    ("3 to 4", "3", 0, "a range"),
    ("3-4", "3", 0, "a range"),
    ("3 or 4", "4", 0, "a choice"),
    (r"\$18 \text{ or } 18.00 \text{ dollars}", "18", 1, "the same number twice"),
    ("5(5)", "5", 0, "a product, not the same number twice"),
    ("5 5", "5", 0, "not the same number twice"),
    ("5 + 5", "5", 0, "a sum, not the same number twice"),
    ("5 - 5", "5", 0, "a difference"),
    ("5 * 5", "5", 0, "a product"),
    (r"5 \times 5", "5", 0, "a product"),
    ("5 x 5", "5", 0, "a product"),
    ("2 + 3", "5", 0, "nothing is computed"),
    ("5:30", "5", 0, "a time"),
    ("5:5", "5", 0, "a ratio"),
    ("5:05 pm", "5", 0, "a time"),
    ("5'5", "5", 0, "feet and inches"),
    ("10^3", "10", 0, "a power"),
    ("10^3", "1000", 0, "nothing is computed"),
    ("2^2", "2", 0, "a power of itself"),
    ("2²", "2", 0, "a power"),
    ("{5}^2", "5", 0, "a power, not a unit's exponent"),
    ("1e3", "1000", 0, "a float of a program"),
    ("3e3", "3", 0, "a float of a program"),
    ("0x10", "16", 0, "a program's number"),
    ("5!", "5", 0, "factorial"),
    (r"\sqrt{25}", "25", 0, "a root"),
    (r"5\pi", "5", 0, "a product"),
    ("5π", "5", 0, "a product"),
    ("5x", "5", 0, "a product with an unknown"),
    ("5i", "5", 0, "a complex number"),
    ("x5", "5", 0, "a name"),
    ("H2O", "2", 0, "a name"),
    ("No. 5", "5", 1, "a word with a full stop"),
    ("Rs.500", "500", 1, "a word with a full stop, no decimals"),
    ("...5", "5", 1, "dots, no decimals"),
    (r"0.\overline{3}", "0", 0, "a command that is not read"),
    (r"18\\", "18", 1, "a line break of LaTeX"),
    (r"\{18\}", "18", 0, "a set"),
    ("18?", "18", 0, "a sign that is not read"),
    ("**18**", "18", 0, "signs that are not read"),
    ("１８", "18", 0, "digits of another script are not read"),
    ("18\0", "18", 0, "NUL"),
    ("five (5)", "5", 1, "a word and its number"),
    *(
        (f"18 {word}", "18", 0, "a word that changes the value")
        for word in ("squared", "cubed", "pi", "fifths", "score")
    ),
    ("triple 18", "18", 0, "a word that changes the value"),
    ("not 18", "18", 0, "a word that changes the value"),
    ("+-18", "18", 0, "either sign, or minus: not read"),
    ("18 feet squared", "18", 1, "an exponent of the unit, in a word"),
    ("a score of 18", "18", 1, "a word that means something else here"),
    ("18 students in fifth grade", "18", 1, "a word that means something else here"),
    ("none", "0", 0, "no number"),
    ("18", "", 0, "no answer"),
    ("none", "none", 0, "an answer that is no number is matched by nothing"),
    ("18", "18 or 19", 0, "an answer that is two numbers"),
]

# Whole responses, the answer, the verdict and why.
RESPONSES = [
    (r"\boxed{18}", "18", 1, "nothing around it"),
    (r"The answer is 18.", "18", 0, "no box"),
    ("18", "18", 0, "no box"),
    ("#### 18", "18", 0, "no box"),
    ("", "18", 0, "nothing"),
    ("", "", 0, "nothing"),
    (r"\boxed{5} No: \boxed{18}", "18", 1, "the last box"),
    (r"\boxed{18} No: \boxed{5}", "18", 0, "the last box"),
    (r"\boxed{18} and that is more than 5.", "18", 1, "numbers after the box do not count"),
    (r"18 18 18 \boxed{5}", "18", 0, "numbers before the box do not count"),
    (r"\boxed{18} is written in \boxed{}", "18", 1, "an empty box is passed over"),
    (r"\boxed{18}, as asked in \boxed{ \quad }.", "18", 1, "an empty box is passed over"),
    (r"\boxed{18} \boxed{\text{}} \boxed{~\,{}}", "18", 1, "empty boxes are passed over"),
    (r"\boxed{18}; the form was \boxed{...}", "18", 1, "dots are nothing to read"),
    (r"\boxed{}", "0", 0, "only an empty box"),
    (r"\boxed{18} and \boxed{none}", "18", 0, "a box with words is not empty"),
    (r"\boxed{18} and \boxed{?}", "18", 0, "a box with a sign is not empty"),
    (r"\boxed{18} so \boxed{18", "18", 0, "the last box is cut off"),
    (r"\boxed{18", "18", 0, "cut off"),
    (r"\boxed{18} so \boxed{\text{18}", "18", 0, "cut off"),
    (r"\boxed{18} so \boxed{", "18", 0, "cut off"),
    (r"\boxed{18} so \boxed", "18", 0, "cut off"),
    (r"\boxed 18", "18", 1, "without a brace: legal TeX for a number"),
    (r"\boxed{5}, no: \boxed -18.5, then", "-18.5", 1, "without a brace, the last one"),
    (r"\boxed{18}, no: \boxed x = 18", "18", 0, "without a brace, no number"),
    (r"\boxed {18}", "18", 1, "a blank before the brace"),
    ("\\boxed\n{18}", "18", 1, "a line break before the brace"),
    (r"\boxed{\boxed{18}}", "18", 1, "a box in a box"),
    (r"\boxed{5 \boxed{18}}", "18", 1, "the box that opens last"),
    (r"\boxed{5 \text{so} \boxed{18}", "18", 1, "the one that opens last is closed"),
    (r"\boxed{\text{a } \{ 18}", "18", 0, "an escaped brace opens nothing, and is not read"),
    (r"} } \boxed{18} {", "18", 1, "braces outside"),
    (r"\fbox{18}", "18", 0, "another command"),
    (r"\boxedx{18}", "18", 0, "another command"),
    (r"boxed{18}", "18", 0, "no command"),
    (r"\Boxed{18}", "18", 0, "another command"),
    (r"\\boxed{18}", "18", 1, "escaped once too often"),
    (r"\[ \boxed{18} \]", "18", 1, "displayed"),
    (r"**\boxed{18}**", "18", 1, "bold"),
    ("\0\0\\boxed{18}\0", "18", 1, "NUL outside"),
    ("\ud800 \\boxed{18}", "18", 1, "half of a surrogate pair"),
    (r"\boxed{18}" + " " * 100_000, "18", 1, "a long tail"),
    (r"\boxed{" + " " * 9_990 + "18}", "18", 1, "a box of just under 10,000 characters"),
    (r"\boxed{" + " " * 10_000 + "18}", "18", 0, "a box of more than 10,000 characters"),
]
TABLE = [(boxed(inside), *rest) for inside, *rest in NUMBERS] + RESPONSES


def test_the_table_of_numbers():
    assert len(TABLE) >= 150 and len({row[:2] for row in TABLE}) == len(TABLE)
    wrong = [(r[-80:], a, v, why) for r, a, v, why in TABLE if verify_number(r, a) != v]
    assert not wrong, wrong
    assert all(type(verify_number(r, a)) is float for r, a, *_ in TABLE)


def _floats(text):
    found = re.findall(r"-?[0-9][0-9,]*\.?[0-9]*", text or "")
    return [float(number.replace(",", "")) for number in found if number.strip(",")]


def last_number_in_the_text(response, answer):
    return float(_floats(response)[-1:] == _floats(answer))


def flexible_last_number_in_the_box(response, answer):
    return float(_floats(last_boxed(response))[-1:] == _floats(answer))


def equal_strings(response, answer):
    return float((last_boxed(response) or "").replace(",", "") == answer.replace(",", ""))


def first_box(response, answer):
    return verify_number("".join(re.findall(r"\\boxed\{[^{}]*\}", response)[:1]), answer)


def last_closed_box(response, answer):
    return verify_number("".join(re.findall(r"\\boxed\{[^{}]*\}", response)[-1:]), answer)


def digits_only(response, answer):
    return float(re.sub("[^0-9]", "", last_boxed(response) or "") == re.sub("[^0-9]", "", answer))


def about_equal(response, answer):
    found = read_number(last_boxed(response) or ""), read_number(answer)
    return float(None not in found and abs(found[0] - found[1]) <= abs(found[1]) / 10**6)


def none_equals_none(response, answer):
    return float(read_number(last_boxed(response) or "") == read_number(answer))


@pytest.mark.parametrize(
    "verify, response, answer",
    [
        (last_number_in_the_text, r"The answer is 18.", "18"),
        (last_number_in_the_text, r"\boxed{18} and that is more than 5.", "18"),
        (flexible_last_number_in_the_box, boxed("3 or 4"), "4"),
        (flexible_last_number_in_the_box, boxed("18 thousand"), "18"),
        (flexible_last_number_in_the_box, boxed("5 + 5"), "5"),
        (equal_strings, boxed("18.0"), "18"),
        (equal_strings, boxed(r"\$18"), "18"),
        (equal_strings, boxed("none"), "none"),
        (first_box, r"\boxed{5} No: \boxed{18}", "18"),
        (first_box, r"\boxed{18} No: \boxed{5}", "18"),
        (last_closed_box, r"\boxed{18} so \boxed{18", "18"),
        (digits_only, boxed("1 8"), "18"),
        (digits_only, boxed("-5"), "5"),
        (digits_only, boxed("1.234,5"), "1.2345"),
        (about_equal, boxed("9007199254740993"), "9007199254740992"),
        (about_equal, boxed(r"\frac{1}{3}"), "0.3333333333"),
        (none_equals_none, boxed("none"), "none"),
    ],
)
def test_wrong_verifiers_are_wrong(verify, response, answer):
    """Each of these judges has been used to train or to evaluate somewhere; each fails this row of the table."""
    right = next(row[2] for row in TABLE if row[:2] == (response, answer))
    assert verify(response, answer) != right == verify_number(response, answer)
    assert sum(verify(r, a) == v for r, a, v, _ in TABLE) > len(TABLE) / 3, "it is no straw man"


# Ways to write one number; none changes its value.
DRESSES = [
    *(
        "%s",
        "{%s}",
        "$%s$",
        r"\$%s",
        "%s dollars",
        r"%s \text{ km/h}",
        r"\text{%s}",
        "%s.",
        "x = %s",
        r"%s\%%",
        "(%s)",
    ),
    *(
        r"3 + 4 = %s",
        r"%s \text{ ft}^2",
        r"\left(%s\right)",
        r"\mathbf{%s}",
        "about %s apples",
        r"%s^\circ",
    ),
]


@settings(max_examples=500, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(0, 4), st.data())
def test_a_number_in_any_dress_is_itself_and_nothing_else(digits, decimals, data):
    value = Fraction(digits, 10**decimals)
    head, tail = divmod(abs(digits), 10**decimals)
    whole = f"{head:,}".replace(",", data.draw(st.sampled_from(["", ",", "{,}", r"\,", "\u2009"])))
    text = whole + (f".{tail:0{decimals}}" if decimals else "")
    minus = data.draw(st.sampled_from(["-", "− "]))
    text = data.draw(st.sampled_from(DRESSES)) % (minus * (digits < 0) + text)
    assert read_number(text) == value
    assert verify_number(boxed(text), str(value)) == 1
    assert verify_number(boxed(text), int(value) if value.denominator == 1 else str(value)) == 1, (
        "as JSON has it"
    )
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
    assert read_number(form % (above, below)) == Fraction(above, below)
    proper = 0 <= above < below
    assert read_number(f"{whole} " + form % (above, below)) == (
        whole + Fraction(above, below) if proper else None
    )


@pytest.mark.parametrize(
    "text, inside",
    [
        (r"\boxed{a {b} c} d}", "a {b} c"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.} }", r"\left\{ x \right."),
        (r"\boxed{x \} y}", r"x \} y"),
        (r"\boxed{a \\} b}", "a " + r"\\"),
        (r"\boxed{\{", None),
        (r"\boxed{\}", None),
        (r"\boxed{a \\\} b", None),
        (r"\boxed{" + 10_000 * "x" + "}", 10_000 * "x"),
        (r"\boxed{" + 10_001 * "x" + "}", None),
    ],
)
def test_where_a_box_ends(text, inside):
    assert last_boxed(text) == inside


def test_a_response_cut_anywhere_is_never_right():
    """Tokens are cut off at the length limit: no beginning of a response that ends with its box is worth anything."""
    for inside in (
        "18",
        r"\text{18} \text{ dollars}",
        r"\frac{36}{2}",
        r"3 \times 6 = 18",
        r"1\,018",
        "18 ft^{2}",
    ):
        response = r"It was \boxed{18} at first. Now \boxed{" + inside + "}"
        assert last_boxed(response) == inside
        begin = response.index("Now")
        cuts = [cut for cut in range(begin, len(response)) if verify_number(response[:cut], "18")]
        assert max(cuts) <= response.rindex(r"\boxed") + 5, (
            "only while the second box is not yet begun"
        )


MILLION = 1_000_000
HOSTILE = {
    "400 nested braces": "{" * 400 + "5" + "}" * 400,
    "400 nested texts": r"\text{" * 400 + "5" + "}" * 400,
    "power tower": "9^{" * 1000 + "9" + "}" * 1000,
    "a million digits": "9" * MILLION,
    "a million zeros": "0" * MILLION + "5",
    "9000 digits": "9" * 9000,
    "9000 decimals": "0." + "9" * 9000,
    "division by zero": "1/0",
    "NUL": "\0" * 9000,
    "blanks": " " * MILLION,
    "blanks before a number": " " * 9000 + "5",
    "signs": "-" * 9000,
    "slashes": "1/" * 4500,
    "mixed numbers": "1 1/" * 2400,
    "commas": "1,111," * 1600,
    "points": "1." * 4500,
    "fractions": r"\frac{1}{1}" * 800,
    "open fractions": r"\frac{" * 1600,
    "fraction of blanks": r"\frac" + " " * 9000,
    "halves": "½" * 3000,
    "thousands": "5 " + "thousand " * 1000,
    "exponents": "a^{2" * 2400,
    "exponent of blanks": "a" + " " * 9000 + "^2",
    "backslashes": "\\" * 9000,
    "numbers": "5, " * 3000,
    "equal signs": "=" * 9000,
}
HOSTILE = {name: boxed(inside) for name, inside in HOSTILE.items()} | {
    "open boxes": r"\boxed{" * (MILLION // 7),
    "empty boxes": r"\boxed{}" * (MILLION // 8),
    "nested boxes": r"\boxed{" * (MILLION // 8) + "5" + "}" * (MILLION // 8),
    "nested empty boxes": r"\boxed{" * (MILLION // 8) + "}" * (MILLION // 8),
    "boxes without braces": r"\boxed" * (MILLION // 6),
    "a box of blanks": r"\boxed" + " " * MILLION,
    "an open box of dots": r"\boxed{" + "." * MILLION,
    "an open box of braces": r"\boxed{" + "{ " * MILLION,
    "a megabyte of backslashes": "\\" * MILLION,
    "a megabyte of text": "There are 5 of them, {x} = 5. " * (MILLION // 30) + boxed("5"),
    "a megabyte of NUL": "\0" * MILLION + boxed("5"),
    "a megabyte after the box": boxed("5") + "=5" * (MILLION // 2),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_milliseconds(name):
    begin = time.thread_time()
    verdict = verify_number(HOSTILE[name], "5")
    seconds = time.thread_time() - begin
    right = {
        "400 nested braces",
        "400 nested texts",
        "blanks before a number",
        "numbers",
        "nested boxes",
    }
    right |= {"a megabyte of text", "a megabyte of NUL", "a megabyte after the box"}
    assert verdict == (name in right)
    assert seconds < 2, f"{name} took {seconds:.3f} s"  # measured: at most 0.05 s


@pytest.mark.parametrize(
    "answer", ["9" * MILLION, " " * MILLION + "5", "=" * MILLION, "1/0", "\0", "{" * 9000]
)
def test_hostile_answers(answer):
    begin = time.thread_time()
    assert verify_number(boxed("5"), answer) == 0 and time.thread_time() - begin < 2


UNITS = {
    r"\boxed{": 20_000,
    r"\boxed{}": 20_000,
    "{": 100_000,
    "\\": 100_000,
    r"\boxed": 20_000,
    " ": 100_000,
    r"\boxed{ ": 20_000,
    r"\boxed{\text{": 10_000,
}


@pytest.mark.parametrize("unit", UNITS)
def test_time_grows_linearly(unit):
    """Ten times the text takes at most thirty times as long, or is too quick to tell; quadratic would be a hundred."""

    def fastest(text):
        times = []
        for _ in range(3):
            begin = time.thread_time()
            last_boxed(text)
            times.append(time.thread_time() - begin)
        return min(times)

    for close in ("", "}"):
        short, long = (r"\boxed{" + unit * n + close * n for n in (UNITS[unit] // 10, UNITS[unit]))
        assert fastest(long) < 30 * fastest(short) + 0.01


SPICE = [
    *(
        "\\boxed{",
        "\\boxed",
        "{",
        "}",
        "\\",
        "$",
        "\\$",
        "%",
        "\\%",
        ",",
        "{,}",
        "\\,",
        ".",
        "-",
        "−",
        "+",
        "/",
        "=",
    ),
    *(
        "0",
        "1",
        "18",
        "999",
        "1,234",
        " ",
        "\n",
        "\0",
        "\ud800",
        "½",
        "é",
        "π",
        "\\frac",
        "\\frac{1}{2}",
        "\\text{",
    ),
    *(
        "thousand",
        "k",
        "e",
        "dollars",
        "and",
        ":",
        "(",
        ")",
        "\u2009",
        "٣",
        "^",
        "_",
        "<",
        "!",
        "²",
        "^2",
        "^\\circ",
    ),
    *("~", "x", "|", "\\pi"),
]
ALPHABET = "".join(chr(c) for c in range(128)) + "½²−–·×€\u2009\u200b\ud800π٣𝟓"


def strings(count, seed):
    """Half of them rows of the table with up to four pieces put in, taken out or doubled, half new from pieces."""
    rng, rows = random.Random(seed), [(r, a) for r, a, *_ in TABLE if len(r) < 200]
    for i in range(count):
        response, answer = rng.choice(rows)
        if i % 2:
            pieces = rng.choices(SPICE if i % 4 == 1 else ALPHABET, k=rng.randrange(30))
            yield boxed("".join(pieces)) if i % 8 < 4 else "".join(pieces), answer
            continue
        for _ in range(rng.randrange(1, 5)):
            here = rng.randrange(len(response) + 1)
            there = min(len(response), here + rng.randrange(1, 6))
            piece = rng.choice(
                ["", rng.choice(SPICE), rng.choice(ALPHABET), 2 * response[here:there]]
            )
            response = response[:here] + piece + response[rng.choice([here, there]) :]
        yield response, answer


def test_a_hundred_thousand_strings():
    """Nothing raises, every verdict is 0.0 or 1.0, and what is accepted holds every digit of what it claims to be."""
    slowest, which, accepted, calls = 0.0, "", 0, 0
    for response, answer in strings(100_000, seed=0):
        begin = time.thread_time()  # not the time that other processes take
        verdict = verify_number(response, answer)
        seconds = time.thread_time() - begin
        calls += 1
        if seconds > slowest:
            slowest, which = seconds, response
        assert verdict in (0.0, 1.0)
        if verdict:
            accepted += 1
            assert r"\boxed" in response and re.search("[0-9½⅓¼¾]", response), response
            assert (
                last_boxed(response + r"\boxed{1") is None
                and verify_number(response + r"\boxed{}", answer) == 1
            )
    print(
        f"\n{calls:,} strings, {accepted:,} right, slowest {1000 * slowest:.2f} ms: {which[:60]!a}"
    )
    assert accepted > 1000, "the fuzz reaches right answers, too"


@settings(max_examples=150, deadline=None)
@given(st.text(), st.text())
def test_any_text(inside, answer):
    assert verify_number(inside, answer) == 0 or r"\boxed" in inside
    assert verify_number(rf"\boxed{{{inside}}}", answer) in (0.0, 1.0)
    last_boxed(inside)


# --- LaTeX -----------------------------------------------------------------------------------------------------------

# What stands in the box, the answer, the verdict and why.
LATEX = [
    ("5", "5", 1, "to the letter"),
    ("5", "6", 0, "another number"),
    ("5.0", "5", 1, "decimals of nothing"),
    ("1/2", r"\frac{1}{2}", 1, "slash"),
    (r"\frac12", r"\frac{1}{2}", 1, "without braces"),
    (r"\dfrac{1}{2}", r"\frac{1}{2}", 1, "displayed"),
    ("0.5", r"\frac{1}{2}", 1, "decimals"),
    (r"\frac{1}{3}", "0.333333", 1, "decimals to six places"),
    (r"\frac{1}{3}", "0.33", 0, "decimals to two places"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}", 1, "sign"),
    (r"\frac{1}{2}", r"-\frac{1}{2}", 0, "sign"),
    (r"1\frac12", r"\frac{3}{2}", 1, "mixed number"),
    ("1,234", "1234", 1, "thousands"),
    ("1{,}234", "1234", 1, "thousands"),
    (r"2\sqrt{2}", r"\sqrt{8}", 1, "roots"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", 1, "roots below"),
    (r"\sqrt{2}", "1.41", 0, "rounded"),
    ("10^{3}", "1000", 1, "a power"),
    ("2^{10}", "1023", 0, "a power"),
    ("2+3", "5", 1, "a sum"),
    ("x^2+2x+1", "(x+1)^2", 1, "the same polynomial"),
    ("x^2+2x", "(x+1)^2", 0, "another polynomial"),
    ("a+b", "b+a", 1, "another order"),
    ("x", "y", 0, "another letter"),
    (r"\sin^2 x+\cos^2 x", "1", 1, "an identity"),
    ("x=5", "5", 1, "a name before it"),
    ("5", "x=5", 1, "a name in the answer"),
    ("y=5", "x=5", 0, "another name"),
    (r"\{1,2\}", r"\{2,1\}", 1, "a set"),
    (r"\{1,2\}", r"\{1,2,3\}", 0, "a smaller set"),
    ("1,2", "2,1", 1, "a list of solutions"),
    ("5 or 6", "5", 0, "two answers"),
    ("5, 6", "6", 0, "two answers"),
    ("(1,2)", "(1, 2)", 1, "a pair"),
    (r"\left(1,2\right)", "(1,2)", 1, "a pair"),
    ("(1,2)", "(2,1)", 0, "pairs have an order"),
    ("[0,1)", "[0, 1)", 1, "an interval"),
    ("[0,1]", "[0,1)", 0, "another interval"),
    (r"\pi", r"\pi", 1, "to the letter"),
    (r"2\pi", r"\pi", 0, "twice"),
    (r"\pi", "3.14", 0, "rounded"),
    (r"\infty", r"-\infty", 0, "sign"),
    (r"90^\circ", "90", 1, "degrees"),
    (r"5\%", "5", 1, "percent"),
    (r"\$5", "5", 1, "dollars"),
    (r"5 \text{ cm}", "5", 1, "unit"),
    (r"\text{A}", "A", 1, "a choice"),
    (r"\text{A}", "B", 0, "another choice"),
    (r"\text{east}", r"\text{west}", 0, "words"),
    (
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        1,
        "a matrix",
    ),
    (
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        r"\begin{pmatrix}1&2\\3&5\end{pmatrix}",
        0,
        "another matrix",
    ),
    ("$5$", "5", 1, "dollars around the mathematics"),
    ("5", "$5$", 1, "dollars around the answer"),
    ("5", r"\boxed{5}", 1, "an answer in a box"),
    ("5.0", r"So $x$ is \boxed{5}, not $6$.", 1, "an answer in a box"),
    (r"\text{not } $5$", "5", 0, "no formula is picked out of a box"),
    ("no idea ( maybe $5$", "5", 0, "no formula is picked out of a box"),
    ("(1,2)", "1<x<2", 1, "an interval for the inequality"),
    ("1<x<2", "(1,2)", 0, "an inequality for the interval or pair: the answer sets the form"),
    ("5", "", 0, "no answer"),
    (r"\foo", r"\bar", 0, "neither is read"),
    ("\0", "5", 0, "NUL"),
    ("\ud800", "5", 0, "half of a surrogate pair"),
    ("1/0", "5", 0, "division by zero"),
]
LATEX_RESPONSES = [
    ("The answer is $5$.", "5", 0, "no box"),
    ("", "5", 0, "nothing"),
    ("", "", 0, "nothing"),
    (r"\boxed{}", "", 0, "nothing"),
    (r"\boxed{5} No: \boxed{\frac{6}{1}}", "6", 1, "the last box"),
    (r"\boxed{5} No: \boxed{\frac{6}{1}}", "5", 0, "the last box only"),
    (r"\boxed{5}, \boxed{6}", "5, 6", 0, "the last box only, however near"),
    (r"\boxed{5}, then \boxed{\frac{1}{2", "5", 0, "the last box is cut off"),
    (r"\boxed{5}, in \boxed{}", "5.0", 1, "an empty box is passed over"),
    (r"\boxed{\boxed{5}}", "5", 1, "a box in a box"),
    (
        r"\boxed{6}. The final answer is $5$. I hope it is correct.",
        "5",
        0,
        "sentences outside do not count",
    ),
    (r"\boxed{" + "5" * MILLION + "}", "5", 0, "a million digits"),
]
LATEX_TABLE = [(boxed(inside), *rest) for inside, *rest in LATEX] + LATEX_RESPONSES
TOWER = "9^{9^{9^{9}}}"


@needs_math_verify
def test_the_table_of_latex():
    assert len(LATEX_TABLE) >= 40 and len({row[:2] for row in LATEX_TABLE}) == len(LATEX_TABLE)
    verdicts = verify_math_batch([row[0] for row in LATEX_TABLE], [row[1] for row in LATEX_TABLE])
    wrong = [
        (r[-80:], a, v, why)
        for (r, a, v, why), verdict in zip(LATEX_TABLE, verdicts)
        if verdict != v
    ]
    assert not wrong, wrong
    assert {type(verdict) for verdict in verdicts} == {float}


@needs_math_verify
def test_a_tower_ends_and_the_next_is_judged(monkeypatch):
    """Twice in a row, in a thread: the process is killed, the one that takes its place knows nothing of it."""
    monkeypatch.setattr(verifiers, "SECONDS", 1.0)
    said, seconds = [], []

    def work():
        for _ in range(2):
            begin = time.perf_counter()
            said.append(verify_math(boxed(TOWER), "1"))
            seconds.append(time.perf_counter() - begin)
            monkeypatch.setattr(
                verifiers, "SECONDS", 20.0
            )  # a slow machine may take its time for a right one
            said.append(verify_math(boxed("1/2"), "0.5"))
            monkeypatch.setattr(verifiers, "SECONDS", 1.0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    assert said == [0, 1, 0, 1] and min(seconds) >= 1


@needs_math_verify
def test_hostile_latex_ends(monkeypatch):
    """Each costs its time-out at most, and the batch goes on."""
    monkeypatch.setattr(verifiers, "SECONDS", 1.0)
    variables = r" \\ ".join(
        " & ".join(f"x_{{{12 * i + j}}}" for i in range(12)) for j in range(12)
    )
    hostile = [
        TOWER,
        "{" * 400 + "5" + "}" * 400,
        rf"\det\begin{{pmatrix}}{variables}\end{{pmatrix}}",
        "99999999!",
    ]
    begin = time.perf_counter()
    assert verify_math_batch([boxed(inside) for inside in [*hostile, "6"]], ["6"] * 5) == [
        0,
        0,
        0,
        0,
        1,
    ]
    assert time.perf_counter() - begin < 60


@needs_math_verify
def test_memory_is_bounded():
    """A process that wants the machine's memory gets MemoryError instead."""
    resource = pytest.importorskip("resource")
    assert verify_math(boxed("0.5"), "1/2") == 1
    workers = [worker for worker in verifiers.POOL.places.queue if worker]
    assert workers
    if hasattr(resource, "prlimit"):
        for worker in workers:
            assert resource.prlimit(worker.process.pid, resource.RLIMIT_AS) == (
                verifiers.MEMORY,
                verifiers.MEMORY,
            )


@needs_math_verify
def test_many_threads_at_once():
    rows = [row for row in LATEX_TABLE if len(row[0]) < 200]
    with ThreadPoolExecutor(8) as threads:
        verdicts = [*threads.map(lambda row: verify_math(row[0], row[1]), rows)]
    assert verdicts == [row[2] for row in rows]
    assert (
        sum(worker is not None for worker in verifiers.POOL.places.queue)
        <= verifiers.POOL.places.maxsize
    )


def test_a_batch_asks_once_and_not_for_what_is_plain(monkeypatch):
    asked = []

    def ask(verdict, nothing, pair):
        asked.append(pair)
        return True

    monkeypatch.setattr(verifiers, "_ask", ask)
    monkeypatch.setattr(verifiers, "_installed", lambda: None)
    responses = [boxed("1/2"), boxed("0.5"), boxed(" 1/2 "), "none", boxed("7"), boxed("1/2")]
    assert verify_math_batch(responses, ["0.5", "0.5", "0.5", "0.5", "7", "0.6"]) == [
        1,
        1,
        1,
        0,
        1,
        1,
    ]
    assert sorted(asked) == [("1/2", "0.5"), ("1/2", "0.6")]
    assert verify_math_batch([], []) == []
    with pytest.raises(ValueError):
        verify_math_batch([boxed("5")], ["5", "6"])


@needs_math_verify
def test_a_worker_that_was_killed_while_idle_costs_no_verdict():
    assert verify_math(boxed("1/2"), "0.5") == 1
    for one in verifiers.POOL.places.queue:
        if one:
            one.process.kill()
            one.process.wait()
    assert verify_math(boxed("1/2"), "0.5") == 1


@needs_math_verify
def test_a_worker_that_owes_an_answer_is_not_asked_again(monkeypatch):
    """Its late answer would be taken for the next one's: the tower's 0 for a right answer."""
    verdicts = []
    monkeypatch.setattr(verifiers, "SECONDS", 0.001)
    verdicts.append(verify_math(boxed("x^2+2x+1"), "(x+1)^2"))
    monkeypatch.setattr(verifiers, "SECONDS", 20.0)
    verdicts += [
        verify_math(boxed("2"), "3"),
        verify_math(boxed("(x+1)(x-1)"), "x^2-1"),
        verify_math(boxed("2"), "3"),
    ]
    assert verdicts == [0, 0, 1, 0]


@needs_math_verify
def test_the_signals_of_a_run_do_not_reach_a_verdict():
    """Ctrl-C goes to every process of a terminal, and a cluster's SIGTERM to every one of a job."""
    assert verify_math(boxed("1/2"), "0.5") == 1
    workers = {worker for worker in verifiers.POOL.places.queue if worker}
    for one in workers:
        one.process.send_signal(signal.SIGINT)
        one.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert verify_math(boxed("1/4"), "0.25") == 1
    assert workers == {worker for worker in verifiers.POOL.places.queue if worker}


def _pids():
    return [worker.process.pid for worker in verifiers.POOL.places.queue if worker]


def _verdicts(queue):
    queue.put((verify_math_batch([boxed("1/2"), boxed("1/2")], ["0.5", "0.6"]), _pids()))


@needs_math_verify
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork_as_in_a_dataloader():
    """The daemon that DataLoader forks may have no children of multiprocessing; and it must not use its parent's."""
    assert verify_math(boxed("1/2"), "0.5") == 1
    before = _pids()
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    child = fork.Process(target=_verdicts, args=(queue,), daemon=True)
    with verifiers.POOL.places.mutex:  # which would stay locked in the child for good
        child.start()
    verdicts, pids = queue.get(timeout=100)
    assert verdicts == [1, 0] and pids and not {*pids} & {*before}
    child.join()
    assert verify_math(boxed("1/2"), "0.5") == 1
    assert before == _pids()


@needs_math_verify
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("end", ["pass", "import os; os.kill(os.getpid(), 9)"])
def test_workers_end_with_their_process(end):
    code = (
        "from maxrl import verifiers; verifiers.verify_math(r'\\boxed{1/2}', '0.5');"
        f"print(*[w.process.pid for w in verifiers.POOL.places.queue if w], flush=True); {end}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.stderr == "" and done.stdout.split()
    for pid in map(int, done.stdout.split()):
        for _ in range(100):
            if not _runs(pid):
                break
            time.sleep(0.1)
        assert not _runs(pid)


def _runs(pid):
    """Whether a process is there and no zombie, which it stays where nobody adopts orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_math_verify_a_sentence_before_any_work(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(verifiers, "_ask", lambda *pair: pytest.fail("worked"))
    verifiers._installed.cache_clear()
    for response in (boxed("5"), boxed("6"), "none"):
        with pytest.raises(UsageError, match="pip install math-verify"):
            verify_math(response, "5")


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """installed(text) makes text the math-verify of new workers."""

    def install(text):
        (tmp_path / "math_verify.py").write_text(text)

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(verifiers.POOL, "queues", {})
    monkeypatch.setattr(verifiers, "_installed", lambda: None)
    yield install
    verifiers.POOL.end()


def test_what_others_print_is_no_answer(installed):
    true, noisy = "lambda *args, **kwargs: True", "lambda *args, **kwargs: print('no')"
    installed(f"verify = LatexExtractionConfig = {true}\nparse = {noisy}")
    assert verify_math_batch([boxed("5"), boxed("7")], ["6", "6"]) == [1, 1]


BROKEN = {
    "antlr4 is of another version": "raise ImportError('antlr4 is of another version')",
    "has no attribute": "",
    "1/2 and 0.5 different": "parse = verify = LatexExtractionConfig = lambda *args, **kwargs: None",
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_installation_is_no_wrong_answer(installed, said):
    """A worker without a working math-verify would call every answer wrong, and a run learn nothing, in silence."""
    installed(BROKEN[said])
    with pytest.raises(UsageError, match=f"{said}.*pip install math-verify"):
        verify_math(boxed("1/2"), "0.5")
    assert _pids() == []


# A math-verify whose verify() does what MISHAP says, the first time or always.
MISHAP = """
import os, pathlib, signal, time
parse = lambda text, *args, **kwargs: text
LatexExtractionConfig = lambda **kwargs: None
def verify(gold, box, **kwargs):
    marker = pathlib.Path(__file__).with_name("marker")
    if "7" in box and not ({once} and marker.exists()):
        marker.touch()
        {mishap}
    return True
"""
KILLED, STOPPED, HOPELESS = (
    "os.kill(os.getpid(), signal.SIGKILL)",
    "os.kill(os.getpid(), signal.SIGSTOP)",
    "while True: pass",
)


@pytest.mark.parametrize(
    "mishap, once, verdict, counts",
    [
        (KILLED, True, 1, (0, 1)),
        (STOPPED, True, 1, (0, 1)),
        (KILLED, False, 0, (0, 2)),
        (
            "time.sleep(0.5)",
            False,
            1,
            (0, 0),
        ),  # the machine does something else meanwhile: that is no CPU time
        (HOPELESS, True, 0, (1, 0)),  # too slow once is too slow always: not asked again
    ],
    ids=["killed", "stopped", "killed twice", "waits", "hopeless"],
)
def test_a_verdict_does_not_depend_on_what_else_the_machine_does(
    installed, monkeypatch, mishap, once, verdict, counts
):
    installed(MISHAP.format(mishap=mishap, once=once))
    assert verify_math(boxed("5"), "6") == 1  # a worker is ready
    verifiers.take_counts()
    monkeypatch.setattr(verifiers, "SECONDS", 0.2)
    monkeypatch.setattr(sandbox, "WALL", 0.3 if mishap == STOPPED else 60.0)
    start = verifiers.POOL.start

    def started():
        monkeypatch.setattr(sandbox, "WALL", 60.0)
        return start()

    monkeypatch.setattr(verifiers.POOL, "start", started)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        assert verify_math(boxed("7"), "6") == verdict
    assert tuple(verifiers.take_counts().values()) == counts
    assert len({str(warning.message) for warning in said}) == any(counts), "said, once"
    assert verifiers.take_counts() == {"rewards/verifier_timeouts": 0, "rewards/verifier_deaths": 0}


def test_a_process_that_dies_while_it_starts_is_started_again(installed, tmp_path):
    """And where that one dies too, nobody is told to install what is installed."""
    once = "import os, pathlib; m = pathlib.Path(__file__).with_name('m'); m.exists() or (m.touch(), os._exit(1))\n"
    installed(once + MISHAP.format(mishap="pass", once=False))
    assert verify_math(boxed("5"), "6") == 1
    verifiers.POOL.end()
    installed("import os; os._exit(1)")
    with pytest.raises(UsageError, match="died while it started") as caught:
        verify_math(boxed("5"), "6")
    assert "pip" not in str(caught.value) and _pids() == []


@needs_math_verify
def test_the_published_verdict_is_math_verify_s():
    """On some of the responses of verdicts.py, and a few more: math_metric as the published code calls it."""
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
    rows += [("", "5"), ("5", ""), ("none", "none"), (r"\boxed{", "5"), ("9" * 5000, "9" * 5000)]
    found = verify_published_batch(*zip(*rows))
    wrong = [(row, verdict) for row, verdict in zip(rows, found) if verdict != oracle(*row)]
    assert not wrong and {*found} == {0.0, 1.0}


@needs_math_verify
def test_no_box_is_needed_for_the_published_verdict():
    for response, boxed_one, published in (
        ("So the answer is 42.", 0, 1),
        ("#### 42", 0, 1),
        ("Therefore she earns 42 dollars.", 0, 1),
        (r"\boxed{19}, or rather \boxed{42}", 1, 0),
        (r"\boxed{42}", 1, 1),
    ):
        assert (verify_math(response, "42"), verify_published(response, "42")) == (
            boxed_one,
            published,
        ), response
    same = [
        read_published(text)
        for text in ("It is 0.50.", r"\boxed{\frac12}", r"so $\frac{2}{4}$", r"\boxed{50\%}")
    ]
    assert (
        {*same} == {"0.5"}
        and read_published("0 apples") == "0"
        and read_published("no idea") is None
    )


@needs_math_verify
def test_math_verify_itself_fails_in_a_thread():
    """Why it has processes of its own: its time-out is a signal, and signals belong to the main thread."""
    import math_verify

    said = []

    def work():
        said.append(verifiers._compare("1/2", "0.5"))
        try:
            said.append(math_verify.parse(r"$\frac{1}{2}$"))
        except ValueError as error:
            said.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said[0] is True and isinstance(said[1], ValueError)


@needs_math_verify
def test_broken_latex_raises_nothing(monkeypatch):
    monkeypatch.setattr(verifiers, "SECONDS", 2.0)
    rng, rows = random.Random(1), [row for row in LATEX_TABLE if len(row[0]) < 100]
    responses, answers = [], []
    for _ in range(60):
        response, answer, *_ = rng.choice(rows)
        here = rng.randrange(len(response) + 1)
        responses.append(response[:here] + rng.choice(SPICE) + response[here + rng.randrange(3) :])
        answers.append(answer)
    assert {*verify_math_batch(responses, answers)} == {0.0, 1.0}


@pytest.mark.parametrize("said", ["0", "two", "", "-1"])
def test_an_environment_that_says_no_number_of_processes(monkeypatch, said):
    monkeypatch.setattr(verifiers.POOL, "queues", {})
    monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
    assert verifiers.POOL.places.maxsize >= 1
