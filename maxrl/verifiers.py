r"""Verifiers: is the answer in the last \boxed{...} of a response the right one? 1.0 or 0.0 for any text at all.

verify_number compares exact rational numbers (GSM8K), verify_math LaTeX, by math-verify (competition problems).
verify_published is the verdict of the paper's code, for both: math-verify on the whole response, without any box.
"""

import functools
import importlib.util
import os
import re
import threading
import unicodedata
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

from maxrl.errors import UsageError
from maxrl.io.sandbox import Died, Pool, TooSlow, Worker, serve

LONGEST_BOX = (
    10_000  # characters; no answer is longer, and it bounds the work after the box is found
)
MOST_DIGITS = (
    500  # of one number; below every limit that Python can be given for reading an integer
)

# Possessive (*+, ++) stand only single characters: groups are matched wrongly by Python 3.11.2 (cpython#106052). Each of the
# groups below can read a text in one way only, so that giving back costs linear time.
BOX = re.compile(r"\\boxed(?![A-Za-z])\s*+(\{)?")
EMPTY_BOX = re.compile(
    r"\\boxed\s*+\{(?:[\s~.…]|\\[ ,;:!]|\\(?:q?quad|[lc]?dots)(?![A-Za-z])|(?:\\text)?\{\s*+\})*\}"
)
BARE = re.compile(r"-?(?:[0-9]++(?:[.,][0-9]++)*|\.[0-9]++)")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{...} of a text, or None: there is none, or the last one is cut off.

    Last is the \boxed that opens last, so of nested ones the inner. One with nothing to read in it (blanks, LaTeX spaces,
    dots, {} and \text{}) is passed over: writers repeat "in \boxed{}" from the question. One whose brace is not closed
    within LONGEST_BOX characters is cut off: no earlier box is taken in its place. Without a brace, what is in the box is the
    number that follows, \boxed 18, and nothing else. \{ and \} are no braces. \fbox is no box; \\boxed, escaped once too
    often, is one. The time is linear.
    """
    text = EMPTY_BOX.sub(" ", text)
    last = max(BOX.finditer(text), key=re.Match.start, default=None)
    if last is None:
        return None
    if last[1] is None:
        number = BARE.match(text, last.end())
        return number and number[0]
    inside = text[last.end() : last.end() + LONGEST_BOX + 1]
    depth = 1
    for brace in BRACE.finditer(inside):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return inside[: brace.start()]
    return None


# --- numbers ---------------------------------------------------------------------------------------------------------

LETTER = "A-Za-zÀ-ÖØ-öø-ÿ"
DECIMAL = re.compile(r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+")
RUN = r"(?:(?<!\.)\.)?[0-9]++(?:[.,][0-9]++)*(?![.,]?[0-9])"  # a run of digits is never read as a shorter one
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
SCALES |= {"mn": 10**6, "bn": 10**9, "lakh": 10**5, "crore": 10**7}
LETTER_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}
NUMBER = re.compile(
    rf"(?<![{LETTER}])([-+] ?)?(?:([0-9]++) (?={RUN} ?/ ?{RUN}))?({RUN})(?: ?/ ?({RUN}))?"
    rf"(?:[ -]?((?i:{'|'.join(SCALES)})(?=s?(?![{LETTER}]))|[{''.join(LETTER_SCALES)}](?![{LETTER}]))s?)?"
    rf"(?:-(?=[{LETTER}]))?"  # 18-year-old
)
GAP = re.compile(  # what may stand around a number; a hyphen and a slash only as in half-hour and miles/hour
    rf"(?:[{LETTER} .,;:'\"’“”()\[\]≈]|(?<=[{LETTER}])-(?=[{LETTER}])|/ ?(?=[{LETTER}]))*"
)
SEPARATES = re.compile(rf"[{LETTER},;]")
WORD = re.compile(rf"[{LETTER}]+")
# Words that change the value of a number beside them, and letters that stand for a number.
CHANGES = (
    {scale + end for scale in SCALES for end in ("", "s", "th", "ths")}
    | {*LETTER_SCALES}
    | {*"einxyz"}
)
CHANGES |= {"half", "halves", "quarter", "twice", "double", "triple", "thrice", "quadruple", "pi"}
CHANGES |= {
    "third",
    "thirds",
    "fifths",
    "sixths",
    "sevenths",
    "eighths",
    "ninths",
    "tenths",
    "twelfths",
}  # not: fifth grade
CHANGES |= {"not", "minus", "negative", "plus"}
POWERS = re.compile(
    rf" ?(?:squared|cubed|scores?)(?![{LETTER}])", re.IGNORECASE
)  # directly behind it: 5 feet squared is 5

PART = r"\s*(?:\{\s*(-?[0-9.,]+)\s*\}|%s)"
REWRITE = [  # in this order; whatever LaTeX is left over makes a text unreadable
    (r"\{,\}|(?<=[0-9]),?\\[,!](?=[0-9]{3})", ","),  # 1{,}000  1\,000  1,\!000
    (r"\\[dtc]?frac" + PART % "([0-9])" + PART % "([0-9])", r" \1\2/\3\4 "),
    (
        r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf|normal)|[mh]box|operatorname|underline|rm|bf)(?![A-Za-z])",
        " ",
    ),
    (r"\\(?:left|right|displaystyle|q?quad|approx)(?![A-Za-z])|\\[ ,;:!()\[\]\\]|~", " "),
    (r"\^\s*+(?:\{\s*+)?\\(?:circ|degree)(?![A-Za-z])(?:\s*+\})?|\\degree(?![A-Za-z])|°", " "),
    (r"\\?[$%£€¥₹¢]|\\(?:pounds|euro)(?![A-Za-z])", " "),
    (r"\s+", " "),
    (
        rf"(?<=[{LETTER}])( ?\}}? ?)(?:\^ ?\{{? ?-?[123] ?\}}?|[²³])",
        r"\1 ",
    ),  # square feet: an exponent of the unit
    (r"[{}\s]+", " "),
]
SIGNS = str.maketrans(
    {"−": "-", "–": "-", "\u2010": "-", "\u2011": "-", "⁄": "/", "\u2009": r"\,", "\u202f": r"\,"}
)


def _rewritten(text: str, rules) -> str:
    for pattern, to in rules:
        text = re.sub(pattern, to, text)
    return text


def _decimal(run: str) -> Fraction | None:
    return (
        Fraction(run.replace(",", ""))
        if len(run) <= MOST_DIGITS and DECIMAL.fullmatch(run)
        else None
    )


def _value(match: re.Match) -> Fraction | None:
    """The value of a match of NUMBER; None for 1/0, 1,23 and what may be a mixed number or a product, 2 3/2."""
    sign, whole, above, below, scale = match.groups()
    parts = [_decimal(run) for run in (above, below, whole) if run]
    if None in parts or (below and parts[1] == 0) or (whole and parts[0] >= parts[1]):
        return None
    value = parts[0] / parts[1] if below else parts[0]
    value += parts[2] if whole else 0
    if scale:
        value *= LETTER_SCALES.get(scale) or SCALES[scale.lower()]
    return -value if sign and sign[0] == "-" else value


def read_number(text: str) -> Fraction | None:
    r"""The one number that a text commits to, exactly, or None.

    1. Where an = stands, only what follows the last one counts (3 \times 4 = 12 is 12); after <=, >=, != nothing does.
    2. A number is digits with an optional sign, decimals (3.50, .5, 5.), thousands separated as in 1,234 1{,}234 1\,234
       or by a thin space, fractions 3/4 \frac{3}{4} \frac34 ½ and mixed ones 1 1/2 with a proper fraction. What could
       also be read otherwise is unreadable: 1,23 0,500 1.234,5 12,34,567 1/0 2 3/2, and more than MOST_DIGITS digits.
    3. hundred, thousand (k), million (M, mn), billion (B, bn), trillion directly after it multiply it. A dozen is a unit,
       and 5% is 5: GSM8K asks for dozens and for percentages.
    4. Around it may stand words, which are not read, with hyphens and unit exponents (5 ft^2, 5 miles/hour), currency
       signs, degrees, brackets, . , ; : and quotation marks. A word that changes the value (CHANGES, POWERS: 2 and a half, not
       2, 2 squared) and every other sign or LaTeX command make the text unreadable: + * \times ^ ! \sqrt \pi < 5:30. Nothing
       is computed.
    5. Several numbers are one only where they are equal and a word, comma or semicolon parts them: $18 or 18.00 dollars.
    """
    before, _, text = text.rpartition("=")
    if len(text) > LONGEST_BOX or before.rstrip().endswith(("<", ">", "!", r"\not")):
        return None
    # ½ is \frac{1}{2}, so that 5½ is a mixed number
    text = re.sub(
        "[¼-¾⅐-⅞]",
        lambda c: re.sub("(.)⁄(.)", r"\\frac{\1}{\2}", unicodedata.normalize("NFKC", c[0])),
        text,
    )
    text = text.translate(SIGNS)
    text = _rewritten(text, REWRITE)
    values = {_value(match) for match in NUMBER.finditer(text)}
    gaps = NUMBER.sub("\n", text).split("\n")  # of its own the text has no line ends left
    readable = all(GAP.fullmatch(gap) for gap in gaps) and all(
        SEPARATES.search(gap) for gap in gaps[1:-1]
    )
    words = {word if len(word) == 1 else word.lower() for gap in gaps for word in WORD.findall(gap)}
    changed = words & CHANGES or any(POWERS.match(gap) for gap in gaps[1:])
    return values.pop() if len(values) == 1 and readable and not changed else None


def verify_number(response: str, answer: str | float) -> float:
    r"""1.0 where read_number finds the same number in the last \boxed{...} of the response and in the answer, else 0.0.

    Numbers outside the box do not count, and an answer that is no number is matched by nothing.
    """
    gold = read_number(str(answer))
    return float(gold is not None and final_number(response) == gold)


def final_number(response: str) -> Fraction | None:
    r"""The number in the last \boxed{...} of a response (read_number), or None."""
    box = last_boxed(response)
    return None if box is None else read_number(box)


# --- LaTeX -----------------------------------------------------------------------------------------------------------
# math-verify ends its own work by SIGALRM, which exists in the main thread only and cannot interrupt one long operation
# of C. Here it works in processes of its own (Unix), see maxrl/io/sandbox.py.

SECONDS = 5.0  # of CPU time for one comparison, 0.02 as a rule
MEMORY = 1 << 30  # bytes of address space of one process
_COUNTS = {"timeouts": 0, "deaths": 0}
_COUNTING = threading.Lock()
_READ: dict[
    str, str | None
] = {}  # what was read in the responses of the last verify_published_batch


def _not_ready(worker: Worker) -> UsageError:
    if worker.said:
        return UsageError(f"math-verify does not work ({worker.said}): pip install math-verify")
    return UsageError(
        "the process of math-verify died while it started, and so did the next one (exit code "
        f"{worker.process.returncode}): is the machine out of memory?"
    )


def _cores() -> int:
    """The cores that this process may call its own."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    sharing = os.environ.get("LOCAL_WORLD_SIZE", "")  # torchrun's processes
    cores //= max(int(sharing), 1) if sharing.isdecimal() else 1
    return min(max(cores, 1), 16)


POOL = Pool("maxrl.verifiers", _not_ready, _cores)


def _work():
    """The life of a worker."""
    verdicts = {"boxed": _compare, "published": _published, "readable": _readable}
    serve(
        lambda verdict, *texts: verdicts[verdict](*texts),
        MEMORY,
        lambda: "ready" if _compare("1/2", "0.5") else "it finds 1/2 and 0.5 different",
    )


def _compare(box: str, gold: str) -> bool:
    import math_verify

    latex = math_verify.LatexExtractionConfig(boxed_match_priority=0)
    sides = [
        # first_match: the box as a whole or nothing, never some formula found inside an unreadable one
        math_verify.parse(
            rf"\boxed{{{text}}}", [latex], extraction_mode="first_match", parsing_timeout=None
        )
        for text in (gold, box)
    ]
    return bool(math_verify.verify(*sides, timeout_seconds=None))


def _readable(gold: str) -> bool:
    import math_verify

    latex = math_verify.LatexExtractionConfig(boxed_match_priority=0)
    # no_fallback: a value, where for _compare the text alone would do
    return bool(
        math_verify.parse(
            rf"\boxed{{{gold}}}", [latex], fallback_mode="no_fallback", parsing_timeout=None
        )
    )


def _published(response: str, answer: str) -> tuple[bool, str | None]:
    r"""math_verify.metric.math_metric as the published code calls it, with the answer in a box, but for the limits on its time;
    and what it has read in the response, a number by its value, as a majority vote counts it."""
    import math_verify

    latex = math_verify.LatexExtractionConfig()
    read = math_verify.parse(
        response, (math_verify.ExprExtractionConfig(), latex), parsing_timeout=None
    )
    gold = math_verify.parse(rf"\boxed{{{answer}}}", (latex,), parsing_timeout=None)
    try:
        texts = [
            str(value) for value in (*gold, *read)
        ]  # math_metric does it too; a number of 4,300 digits cannot be written
        right = bool(gold) and bool(math_verify.verify(gold, read, 6, timeout_seconds=None))
        if read and getattr(read[0], "is_number", False):
            value = str(read[0].doit().evalf(30))
            return right, value.rstrip("0").rstrip(
                "."
            ) if "." in value and "e" not in value else value
        return right, texts[len(gold)] if read else None
    except Exception:
        return False, None


def _ask(verdict: str, nothing, pair: tuple[str, str]):
    """What a worker finds of a response or box and an answer; `nothing` where it takes too long, or its process dies twice."""
    try:
        return POOL.ask(SECONDS, verdict, *pair, died=lambda: _count("deaths"))
    except TooSlow:
        _count("timeouts")
    except Died:
        pass
    return nothing


def _count(what: str):
    with _COUNTING:
        _COUNTS[what] += 1
    warnings.warn(
        f"math-verify took more than {SECONDS:g} seconds of CPU time over a comparison, which then counts as unequal"
        if what == "timeouts"
        else "a process of math-verify died; its comparison is made once more, by another, and "
        "counts as unequal where that dies too: is the machine out of memory?",
        stacklevel=2,
    )  # said once


def take_counts() -> dict[str, float]:
    """How many comparisons took too long, and how many processes died over one, since the last call; by metric."""
    with _COUNTING:
        counts = {f"rewards/verifier_{what}": float(count) for what, count in _COUNTS.items()}
        _COUNTS.update(dict.fromkeys(_COUNTS, 0))
    return counts


@functools.cache
def _installed():
    if importlib.util.find_spec("math_verify") is None:
        raise UsageError("this verdict needs math-verify: pip install math-verify")


def _found(verdict: str, nothing, pairs: list[tuple[str, str]]) -> dict:
    """_ask of each pair, by pair, several at a time. UsageError without math-verify."""
    _installed()
    with ThreadPoolExecutor(
        POOL.places.maxsize
    ) as threads:  # starts no more of them than there are pairs
        return dict(zip(pairs, threads.map(functools.partial(_ask, verdict, nothing), pairs)))


def verify_math_batch(responses: list[str], answers: list[str]) -> list[float]:
    r"""verify_math of each pair, several at a time: one worker process per core that this process may call its own.

    The workers start on first use and stay. Equal pairs are compared once, and a box that is the answer to the letter
    needs no worker. Works in any thread, after a fork, and in several threads at once. UsageError without math-verify.
    """
    pairs = []
    for response, answer in zip(responses, answers, strict=True):
        pairs.append(((last_boxed(response) or "").strip(), answer.strip()))
    verdicts = {(box, gold): box == gold != "" for box, gold in pairs}
    unsure = [
        (box, gold)
        for box, gold in verdicts
        if "" not in (box, gold) and box != gold and len(gold) <= LONGEST_BOX
    ]
    verdicts |= _found("boxed", False, unsure)
    return [float(verdicts[pair]) for pair in pairs]


def verify_math(response: str, answer: str) -> float:
    r"""1.0 where math-verify finds the last \boxed{...} of the response equal to the answer, LaTeX both, else 0.0.

    Equal is what math-verify calls so: 1/2, 0.5 and \frac12; (x+1)^2 and x^2+2x+1; sets in any order; x=5 and 5; 5\% and
    5; decimals to six places, but for an integer, which 6.0000001 is not. The answer may itself stand in a box or in dollars.
    A comparison that takes more than SECONDS of CPU time or MEMORY counts as unequal, however busy the machine is; its process
    is killed and replaced. One whose process dies is made once more.
    """
    return verify_math_batch([response], [answer])[0]


def readable_batch(answers: list[str]) -> list[bool]:
    r"""Whether math-verify reads a value in each answer, as verify_math gives it one to read: not in "", "B. 4" or "\frac{"."""
    found = _found(
        "readable", False, [(answer,) for answer in answers if len(answer) <= LONGEST_BOX]
    )
    return [found.get((answer,), False) for answer in answers]


def verify_published_batch(responses: list[str], answers: list[str]) -> list[float]:
    """verify_published of each pair, several at a time, as verify_math_batch."""
    pairs = list(zip(responses, answers, strict=True))
    nothing = False, None
    found = _found(
        "published", nothing, [pair for pair in dict.fromkeys(pairs) if len(pair[1]) <= LONGEST_BOX]
    )
    _READ.clear()
    for (response, _), (_, read) in found.items():
        _READ[response] = read
    return [float(found.get(pair, nothing)[0]) for pair in pairs]


def verify_published(response: str, answer: str) -> float:
    r"""1.0 where math-verify finds the answer, LaTeX, in the whole response, else 0.0: the verdict of the published code.

    That is math_metric with expressions and LaTeX as what may be read. No box is needed: "#### 42" and "she earns 18 dollars"
    are answers, boxes that stand close together are one set, and a box may lose against what follows "the final answer is".
    Limits as in verify_math, where the published code has seconds on the clock.
    """
    return verify_published_batch([response], [answer])[0]


def read_published(response: str) -> str | None:
    """The answer that verify_published reads in a response: numbers by their value, all else as math-verify writes it."""
    if response not in _READ:
        verify_published_batch([response], [""])
    return _READ.get(response)


SAME = [
    (r"\\(?:left|right)(?![A-Za-z])", ""),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"\\?\$|~|(?<!\\)\\[ ,;:!]", " "),
    (r"\s+", " "),
    (r" (?!\w)|(?<!\w) ", ""),
]


def normal_form(box: str) -> str:
    r"""A box's text without blanks (but between two words or numbers), dollars, \left and \right, \dfrac as \frac."""
    return _rewritten(box, SAME).removesuffix(".")
