r"""Verifiers: is the answer in the last \boxed{...} of a response the right one?

verify_number compares exact rational numbers (GSM8K), and verify_math_batch compares LaTeX by
math-verify (competition problems). verify_published_batch is the verdict of the paper's code for
both: math-verify on the whole response, without any box. Each gives 1.0 or 0.0 for any text at
all.
"""

import re
import unicodedata
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction

from maxrl.system import distributed
from maxrl.system.sandbox import Pool, SandboxError, TooSlow
from maxrl.system.tables import as_text

LONGEST_BOX = 10_000  # characters: no answer is longer, and it bounds the work on a box
MOST_DIGITS = 500  # of a number, below every limit that Python may have for reading integers

# The patterns take linear time. A possessive quantifier (*+, ++) repeats single characters only,
# because Python 3.11.2 matches possessive groups wrongly (cpython#106052); every other group can
# read a text in one way only.
BOX = re.compile(r"\\boxed(?![A-Za-z])\s*+(\{)?")
EMPTY_BOX = re.compile(
    r"\\boxed\s*+\{(?:[\s~.…]|\\[ ,;:!]|\\(?:q?quad|[lc]?dots)(?![A-Za-z])|(?:\\text)?\{\s*+\})*\}"
)
BARE = re.compile(r"-?(?:[0-9]++(?:[.,][0-9]++)*|\.[0-9]++)")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# Not of amounts of money: no blank within, beside the dollars, and no digit behind them.
FORMULA = re.compile(r"\$(?!\s)([^$]+)(?<!\s)\$(?!\d)")
# What stands between the answers of one reference.
ENUMERATED = re.compile(r"\$?\s*(?:[,;]|(?:[,;]\s*)?(?:and|or)\b)\s*\$?$")


def last_boxed(text: str) -> str | None:
    r"""Return what stands in the last \boxed{...} of a text, or None if there is none.

    The last box is the one that opens last, so of nested boxes the inner one. \\boxed, escaped once
    too often, is a box, and \fbox is not; \{ and \} are not braces.

    - A box with nothing to read in it (blanks, LaTeX spaces, dots, {} and \text{}) is passed over,
      because writers repeat "in \boxed{}" from the question.
    - The result is None if the brace of the last box is not closed within LONGEST_BOX characters:
      the response was cut, and no earlier box takes its place.
    - Without a brace the box holds the number that follows, as in \boxed 18, and nothing else.
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


def last_formula(text: str) -> str:
    """Return the answer in a reference, "" for a sentence without one.

    This is the last box, or else what follows GSM8K's ####, and in this the last formula in
    dollars. Several of them in an enumeration are one answer.
    """
    if box := last_boxed(text):
        # An enumeration's earlier boxes end where its last box begins.
        before = text[: max(BOX.finditer(text), key=re.Match.start).start()]
        earlier = ENUMERATED.sub("", before)
        if earlier != before and earlier.endswith(f"{last_boxed(earlier)}}}"):
            return f"{last_formula(earlier)}, {box}"
        return box
    text = text.rpartition("####")[2].strip()
    found = name = ""
    end = 0
    for formula in FORMULA.finditer(text):
        joined = found and ENUMERATED.fullmatch(text[end : formula.start()])
        # a = 3 and x = 4 are no answers to one question.
        before, name = name, formula[1].rpartition("=")[0]
        found = f"{found}, {formula[1]}" if joined and name == before else formula[1]
        end = formula.end()
    if found:
        return found
    words = text.split()
    # math-verify would read letters as variables. A single word may be an answer, or its unit.
    plain = [word for word in words if len(word) > 1 and word.strip(".,:;!?").isalpha()]
    if len(plain) < 2:
        return text
    number = read_number(text)
    return "" if number is None else str(number)


# ------------------------------------------ numbers -----------------------------------------------

LETTER = "A-Za-zÀ-ÖØ-öø-ÿ"
DECIMAL = re.compile(r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+")
# A run of digits, which is never read as a shorter one.
RUN = r"(?:(?<!\.)\.)?[0-9]++(?:[.,][0-9]++)*(?![.,]?[0-9])"
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
SCALES |= {"mn": 10**6, "bn": 10**9, "lakh": 10**5, "crore": 10**7}
LETTER_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}
# Sign, whole part, numerator, denominator and scale; the hyphen at the end is that of 18-year-old.
NUMBER = re.compile(
    rf"(?<![{LETTER}])([-+] ?)?(?:([0-9]++) (?={RUN} ?/ ?{RUN}))?({RUN})(?: ?/ ?({RUN}))?"
    rf"(?:[ -]?((?i:{'|'.join(SCALES)})(?=s?(?![{LETTER}]))"
    rf"|[{''.join(LETTER_SCALES)}](?![{LETTER}]))s?)?"
    rf"(?:-(?=[{LETTER}]))?"
)
# What may stand around a number: hyphen and slash only as in half-hour and miles/hour.
GAP = re.compile(
    rf"(?:[{LETTER} .,;:'\"’“”()\[\]≈]|(?<=[{LETTER}])-(?=[{LETTER}])|/ ?(?=[{LETTER}]))*"
)
SEPARATES = re.compile(rf"[{LETTER},;]")
WORD = re.compile(rf"[{LETTER}]+")
# Words that change the value of a number beside them, and letters that stand for a number. Not
# "fifth" and the like, as in "fifth grade".
CHANGES = {scale + end for scale in SCALES for end in ("", "s", "th", "ths")}
CHANGES |= {*LETTER_SCALES, *"einxyz"}
CHANGES |= set(
    WORD.findall(
        "half halves quarter twice double triple thrice quadruple third thirds fifths sixths "
        "sevenths eighths ninths tenths twelfths pi not minus negative plus"
    )
)
# These change it directly behind it only: 5 feet squared is 5.
POWERS = re.compile(rf" ?(?:squared|cubed|scores?)(?![{LETTER}])", re.IGNORECASE)

PART = r"\s*(?:\{\s*(-?[0-9.,]+)\s*\}|%s)"
STYLES = r"text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf|normal)|[mh]box|operatorname|underline|rm|bf"
# Applied in this order; LaTeX that is left over makes a text unreadable.
REWRITE = [
    # 1{,}000  1\,000  1,\!000
    (r"\{,\}|(?<=[0-9]),?\\[,!](?=[0-9]{3})", ","),
    (r"\\[dtc]?frac" + PART % "([0-9])" + PART % "([0-9])", r" \1\2/\3\4 "),
    (rf"\\(?:{STYLES})(?![A-Za-z])", " "),
    (r"\\(?:left|right|displaystyle|q?quad|approx)(?![A-Za-z])|\\[ ,;:!()\[\]\\]|~", " "),
    (r"\^\s*+(?:\{\s*+)?\\(?:circ|degree)(?![A-Za-z])(?:\s*+\})?|\\degree(?![A-Za-z])|°", " "),
    (r"\\?[$%£€¥₹¢]|\\(?:pounds|euro)(?![A-Za-z])", " "),
    (r"\s+", " "),
    # The exponent of a unit, as of square feet.
    (rf"(?<=[{LETTER}])( ?\}}? ?)(?:\^ ?\{{? ?-?[123] ?\}}?|[²³])", r"\1 "),
    (r"[{}\s]+", " "),
]
SIGNS = str.maketrans("−–\u2010\u2011⁄", "----/") | {0x2009: r"\,", 0x202F: r"\,"}


def _rewritten(text: str, rules: list[tuple[str, str]]) -> str:
    for pattern, to in rules:
        text = re.sub(pattern, to, text)
    return text


def _decimal(run: str) -> Fraction:
    if len(run) > MOST_DIGITS or not DECIMAL.fullmatch(run):
        raise ValueError
    return Fraction(run.replace(",", ""))


def _value(match: re.Match) -> Fraction:
    """Return the value of a match of NUMBER; ValueError if it can be read in more than one way."""
    sign, whole, above, below, scale = match.groups()
    value = _decimal(above)
    if below:
        divisor = _decimal(below)
        if divisor == 0:
            raise ValueError
        value /= divisor
    if whole:
        # 2 3/2 may be a mixed number or a product.
        if value >= 1:
            raise ValueError
        value += _decimal(whole)
    if scale:
        value *= LETTER_SCALES.get(scale) or SCALES[scale.lower()]
    return -value if sign and sign[0] == "-" else value


def read_number(text: str) -> Fraction | None:
    r"""Return the one number that a text commits to, exactly, or None.

    1. If there is an =, only what follows the last one counts (3 \times 4 = 12 is 12), and nothing
       after <=, >= or !=.
    2. A number is digits with an optional sign, decimals (3.50, .5, 5.), thousands separated as in
       1,234 1{,}234 1\,234 or by a thin space, fractions 3/4 \frac{3}{4} \frac34 ½, and mixed
       numbers 1 1/2 with a proper fraction. Not read is what could mean something else (1,23 0,500
       1.234,5 12,34,567 2 3/2), 1/0, and more than MOST_DIGITS digits.
    3. hundred, thousand (k), million (M, mn), billion (B, bn) and trillion directly after a number
       multiply it. A dozen is a unit, and 5% is 5: GSM8K asks for dozens and for percentages.
    4. Around it may stand words, also with hyphens, units (5 ft^2, 5 miles/hour), currency signs,
       degrees, brackets, . , ; : and quotation marks. A word that changes the value (CHANGES,
       POWERS: "2 and a half", "2 squared") and every other sign or command of LaTeX make the text
       unreadable: + * \times ^ ! \sqrt \pi < 5:30. Nothing is computed.
    5. Several numbers count as one only if they are equal and a word, comma or semicolon stands
       between them: $18 or 18.00 dollars.
    """
    before, _, text = text.rpartition("=")
    if len(text) > LONGEST_BOX or before.rstrip().endswith(("<", ">", "!", r"\not")):
        return None
    # 5½ becomes 5 1⁄2.
    text = re.sub("[¼-¾⅐-⅞]", lambda c: f" {unicodedata.normalize('NFKC', c[0])} ", text)
    text = _rewritten(text.translate(SIGNS), REWRITE)
    try:
        values = {_value(match) for match in NUMBER.finditer(text)}
    except ValueError:
        return None
    if len(values) != 1:
        return None
    # Nothing else contains a line break: REWRITE has replaced them.
    gaps = NUMBER.sub("\n", text).split("\n")
    readable = all(GAP.fullmatch(gap) for gap in gaps)
    separated = all(SEPARATES.search(gap) for gap in gaps[1:-1])
    words = {word if len(word) == 1 else word.lower() for gap in gaps for word in WORD.findall(gap)}
    changed = words & CHANGES or any(POWERS.match(gap) for gap in gaps[1:])
    return values.pop() if readable and separated and not changed else None


def final_number(response: str) -> Fraction | None:
    r"""Return the number in the last \boxed{...} of a response, or None, see read_number."""
    box = last_boxed(response)
    return None if box is None else read_number(box)


def verify_number(response: str, answer: str | float) -> float:
    r"""Return 1.0 if the number in the last \boxed{...} of the response is that of the answer.

    Otherwise 0.0. Numbers outside the box do not count, and nothing matches an answer that is no
    number. Of GSM8K's worked answers the number behind #### counts.
    """
    text = as_text({"answer": answer}, "answer", "verify_number")
    gold = read_number(text.rpartition("####")[2])
    return float(gold is not None and final_number(response) == gold)


# ------------------------------------------- LaTeX ------------------------------------------------

SECONDS = 5.0  # of CPU time for one comparison, which usually takes 0.02


def _processes() -> int:
    """Return how many cores are this process's share, of which torchrun starts several."""
    ranks = max(distributed.launched("LOCAL_WORLD_SIZE", 1), 1)
    return min(max(distributed.cores() // ranks, 1), 16)


POOL = Pool("math-verify", "maxrl.tasks.latex", (["boxed", "1/2", "0.5"], True), _processes())


def _found(verdict: str, asked: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], bool]:
    """Return {texts: verdict} by a function of maxrl/tasks/latex.py, several at a time.

    The verdict is False if the answer is too long or there is no result.
    """

    def ask(texts: tuple[str, ...]) -> bool:
        try:
            return POOL.ask(SECONDS, verdict, *texts)
        except SandboxError as error:
            warnings.warn(
                f"math-verify has no result for a comparison ({error}), which counts as unequal",
                stacklevel=2,
            )
            return False

    short = [texts for texts in dict.fromkeys(asked) if len(texts[-1]) <= LONGEST_BOX]
    with ThreadPoolExecutor(POOL.size) as threads:
        found = list(threads.map(ask, short))
    return dict.fromkeys(asked, False) | dict(zip(short, found))


def take_counts() -> dict[str, float]:
    """Return how many comparisons took too long or failed otherwise since the last call."""
    faults = POOL.faults
    POOL.faults = []
    slow = faults.count(TooSlow)
    return {
        "rewards/verifier_timeouts": float(slow),
        "rewards/verifier_failures": float(len(faults) - slow),
    }


def verify_math_batch(responses: list[str], answers: list[str]) -> list[float]:
    r"""Return 1.0 where math-verify finds the last \boxed{...} of a response equal to its answer.

    Otherwise 0.0. Both are LaTeX, and the answer may itself stand in a box or in dollars. These are
    equal: 1/2, 0.5 and \frac12; (x+1)^2 and x^2+2x+1; sets in any order; x=5 and 5; 5\% and 5;
    decimals to six places, except that an integer is not 6.0000001. A period at the end of an
    answer does not count, and 1e-5 is .00001.

    A comparison that takes more than SECONDS of CPU time or more memory than a process has counts
    as unequal, however busy the machine is. If its process dies, it is repeated once. UsageError
    if math-verify does not work.

    There is one process for each core that this process may call its own. They start when they are
    needed and stay. Equal pairs are compared once, and a box that is the answer to the letter needs
    no comparison. Works in any thread, in several at once, and after a fork.
    """
    pairs = []
    for response, answer in zip(responses, answers, strict=True):
        box = (last_boxed(response) or "").strip()
        # To the letter, the answer may end in a period.
        pairs.append((box, box if box == answer.strip() else _plain(answer)))
    unsure = [(box, gold) for box, gold in pairs if box and gold and box != gold]
    verdicts = _found("boxed", unsure)
    return [float(verdicts.get(pair, pair[0] == pair[1] != "")) for pair in pairs]


def _plain(answer: str) -> str:
    """Return a reference without a period at its end; a number with an exponent in digits."""
    answer = answer.strip()
    # math-verify would read e as Euler's number.
    if re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?[eE][-+]?[0-9]{1,3}", answer):
        return f"{Decimal(answer):f}"
    return re.sub(r"(?<!\.)(?<!\\right)\.(?=[$}\s]*$)", "", answer)


def readable_batch(answers: list[str]) -> list[bool]:
    r"""Return whether math-verify reads a value in each answer: not in "", "B. 4" or "\frac{"."""
    golds = [(_plain(answer),) for answer in answers]
    found = _found("readable", golds)
    return [found[gold] for gold in golds]


def verify_published_batch(responses: list[str], answers: list[str]) -> list[float]:
    r"""Return 1.0 where math-verify finds the answer, LaTeX, in the whole response, otherwise 0.0.

    This is the verdict of the published code: math_metric with expressions and LaTeX. No box is
    needed: "#### 42" and "she earns 18 dollars" are answers, boxes that stand close together are
    one set, and a box may lose against what follows "the final answer is". Limits and the reading
    of answers are those of verify_math_batch; the published code limits the time on the clock.
    """
    pairs = list(zip(responses, map(_plain, answers), strict=True))
    found = _found("published", pairs)
    return [float(found[pair]) for pair in pairs]


SAME = [
    (r"\\(?:left|right)(?![A-Za-z])", ""),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"\\?\$|~|(?<!\\)\\[ ,;:!]", " "),
    (r"\s+", " "),
    (r" (?!\w)|(?<!\w) ", ""),
]


def normal_form(box: str) -> str:
    r"""Write the text of a box without \left, \right, dollars and needless blanks, \dfrac as \frac.

    A blank between two words or numbers stays.
    """
    return _rewritten(box, SAME).removesuffix(".")
