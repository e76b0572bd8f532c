r"""What a text says: the last \boxed{...} of a response, and the number in it."""

import re
import unicodedata
from fractions import Fraction

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


# ------------------------------------------ numbers -----------------------------------------------

LETTER = "A-Za-zÀ-ÖØ-öø-ÿµμ"
DECIMAL = re.compile(r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+")
# A run of digits, which is never read as a shorter one.
RUN = r"(?:(?<!\.)\.)?[0-9]++(?:[.,][0-9]++)*(?![.,]?[0-9])"
# Powers of ten.
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SCALES |= {"mn": 6, "bn": 9, "tn": 12, "lakh": 5, "crore": 7}
LETTER_SCALES = {"k": 3, "K": 3, "M": 6, "B": 9}
# Sign, whole part, numerator, denominator or exponent, and scale, of which a letter follows the
# digits at once (5 K are kelvins); the hyphen at the end is that of 18-year-old.
NUMBER = re.compile(
    rf"(?<![{LETTER}])([-+](?! )|(?<![{LETTER}] )[-+] )?(?:([0-9]++) (?={RUN} ?/ ?{RUN}))?({RUN})"
    rf"(?: ?/ ?({RUN})|[eE]([-+]?[0-9]{{1,3}})(?![0-9]))?"
    rf"(?:[ -]?((?i:{'|'.join(SCALES)})(?=s?(?![{LETTER}]))"
    rf"|(?<=[0-9])[{''.join(LETTER_SCALES)}](?![{LETTER}]))s?)?"
    rf"(?:-(?=[{LETTER}]))?"
)
# What may stand around a number: hyphen and slash only as in half-hour and miles/hour.
GAP = re.compile(
    rf"(?:[{LETTER} .,;:'\"’“”()\[\]≈]|(?<=[{LETTER}])[-*·](?=[{LETTER}])|/ ?(?=\(?[{LETTER}]))*"
)
SEPARATES = re.compile(
    r"(?i:\b(?:or|is|are|equals)\b)|^ ?[,;] ?$"
    rf"|[{LETTER}](?<!\bof)(?<!\btimes)(?<!\bthan)(?<!\bto)(?<!\bby)(?<!\bper)(?<!\bover) ?\( ?$"
)
# (1,100) may be a pair, but (1{,}100), (1\,100) and ($1,100) are not; 0.333... has more digits.
UNSURE = re.compile(
    r"[([] ?[-+]? ?[0-9]{1,3}(?:,[1-9][0-9]{2})+ ?[])][ .]*$|[0-9]\.[0-9]+ ?\.\."
    r"|x[0-9.,]+ ?(?:T|MM|mil)(?![-A-Za-z])"
)
NO_PAIR = {r"\{,\}|,?\\!|\\[,;: ](?=[0-9])": "", r"\\?[$£€¥₹] ?(?=[0-9])": "x"}
SEVERAL = re.compile(r"[,;]|\b(?:and|or)\b")
BOUND = re.compile(r"[<>≤≥]|\\[lg](?:eq?|t)(?![A-Za-z])")
COUNTS = (
    "(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen"
    "|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|million|billion|dozen|half)"
)
PARTS = (
    "(?:third|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]+teen|[a-z]+tie|hundred|thousand"
    "|million|billion|trillion)th)"
)
MONTHS = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
# What changes the value of a number beside it, and letters for numbers; not "fifth", a grade.
CHANGES = re.compile(
    rf"(?<![{LETTER}])(?:(?i:(?:{'|'.join(SCALES)})(?:s|ths?)?"
    rf"|{PARTS}s|{PARTS} of|(?:an?|one) {PARTS}|third|half|quarter|halves"
    r"|halved|twice|thrice|(?:double|triple|quadruple)d?|tens|pi|not|minus|plus|negative|negation"
    r"|below zero|in debt|(?:loss|debt|deficit) of|BCE?|at (?:most|least)|inverse|root"
    r"|or (?:more|less|fewer|greater|higher|lower|over|above|under|below)"
    r"|s (?:square|cube|half)|(?:square|cube|reciprocal|opposite|complement) of|log|logarithm|ln|lg"
    r"|sqrt|(?:arc|a)?(?:sin|cos|tan)h?|(?:co)?(?:sine|tangent)|exp|factorial"
    r"|absolute value|floor|ceiling|rounded|choose|to the power|base|binary|octal|hex|hexadecimal"
    r"|mod|modulo|multiplied|divided"
    rf"|(?:times|by|over|point) (?:{COUNTS}))"
    rf"|{MONTHS}|[kMBein]|[x-z]+|abc?|bc|[A-Za-z]\()(?![{LETTER}])"
)
# These change it directly behind it only: 5 feet squared is 5, and so are 5 fifth graders.
POWERS = re.compile(
    rf"(?: ?(?i:squared|cubed|scores?|{PARTS}(?![ -]grade))|[abfjoq-rt-w])(?![{LETTER}])"
)
# And these directly before it only: 5 cookies left over are 5.
BEFORE = re.compile(r"\b(?<!left )(?i:than|under|below|over|above|up to|percent of) *$")
PART = r"\s*(?:\{\s*(-?[0-9.,]+)\s*\}|%s)"
STYLES = r"text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf|normal)|[mh]box|operatorname|underline|rm|bf"
# Characters that nobody sees: format characters, blanks of other kinds, which are LaTeX's thin one
# here, and what JSON or Python reads in \frac, \boxed, \text, \neq, \rho or \vec.
UNSEEN = {
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]": "",
    "[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]": r"\\,",
    "\a(?=[a-z])": r"\\a",
    "\b(?=[a-z])": r"\\b",
    "\f(?=[a-z])": r"\\f",
    "\v(?=[a-z])": r"\\v",
    "\n(?=(?:eq|e|eg|u|ot|abla|ewline|leq|geq|mid)(?![A-Za-z]))": r"\\n",
    "\r(?=(?:ho|ight|angle|ceil|floor|vert|brace|m)(?![a-z]))": r"\\r",
    "\t(?=(?:ext[a-z]*|imes|heta|frac|anh?|au|o|op|riangle|ilde)(?![A-Za-z]))": r"\\t",
    # What LaTeX and math-verify have another name for, and a decimal comma.
    "[⁻⁺]?[⁰¹²³⁴-⁹]+": lambda power: f"^{{{unicodedata.normalize('NFKC', power[0])}}}",
    r"√ ?([0-9]+|\w)": r"\\sqrt{\1}",
    "∞": r"\\infty ",
    r"(?<![A-Za-z\\])(?<![A-Za-z]{2} )pi(?! ?[A-Za-z]{2}|[A-Za-z])": r"\\pi ",
    # Type and colour.
    r"^\s*\\(?:boldsymbol|bm|(?:text)?color\s*\{[^{}]*\})\s*\{([^{}]*)\}"
    r"(?=\s*(?:=|\\in(?![A-Za-z])|$))": r"\1",
    r"\\(?:boldsymbol|bm|emph|text(?:tt|sf|sc))(?![A-Za-z])|\\(?:text)?color\s*\{[^{}]*\}": "",
    r"\\(?:[Ll]arge|LARGE|[Hh]uge|normalsize)(?![A-Za-z])": "",
    r"∅|\\varnothing(?![A-Za-z])": r"\\emptyset ",
    r"(?<=[0-9])\{,\}(?=[0-9])(?![0-9]{3}(?![0-9]))": ".",
    r"^\s*[-−]?[1-9][0-9]{0,2}(?: [0-9]{3})+\s*$": lambda groups: groups[0].replace(" ", ""),
}
# Applied in this order; LaTeX that is left over makes a text unreadable.
REWRITE = {
    # 5 \times 10^{-3}
    r"(?<=[0-9]) ?(?:\\times|\\cdot|[×x*]) ?10 ?\^ ?\{? ?([-+]?[0-9]{1,3})(?![0-9]) ?\}?": r"e\1",
    # 3^{\text{rd}}
    r"(?<=[0-9]) ?\^ ?\{? ?(?:\\text ?\{ ?(?:st|nd|rd|th)|th)(?![A-Za-z])": " ",
    # 1{,}000  1\,000  1,\!000
    r"\{,\}|(?<=[0-9])(?:,?\\[,!]|\\[;: ](?=[0-9]{3}(?![0-9])))(?=[0-9]{3})": ",",
    r"\\[dtc]?frac" + PART % "([0-9])" + PART % "([0-9])": r" \1\2/\3\4 ",
    rf"\\(?:{STYLES})(?![A-Za-z])": " ",
    r"\\(?:left|right|displaystyle|q?quad|approx|newline)(?![A-Za-z])|\\[ ,;:!()\[\]\\]|~": " ",
    r"\^\s*+(?:\{\s*+)?\\(?:circ|degree)(?![A-Za-z])(?:\s*+\})?": " ",
    r"°|\\(?:text)?degree(?![A-Za-z])|\\mu(?= *\{)|[kM]?\}? ?(?:[ΩΩ]|\\Omega(?![A-Za-z]))": " ",
    # £5m and $5 K are no length and no temperature.
    r"(?<=[$£€¥₹])([0-9.,]+) ?[mb](?![A-Za-z])": lambda amount: amount[0].upper(),
    r"(?<=[$£€¥₹])([0-9.,]+) (?=[kKMB](?![A-Za-z]))": r"\1",
    r"([-+])\\?[$£€¥₹] ?(?=[.0-9])": r"\1",
    r"\\?[$%£€¥₹¢]|\\(?:pounds|euro)(?![A-Za-z])": " ",
    r"\s+": " ",
    # The exponent of a unit, as of square feet.
    rf"(?<=[{LETTER}])( ?\}}? ?)\^ ?\{{? ?-?[123] ?\}}?": r"\1 ",
    r"[{}\s]+": " ",
}
SIGNS = str.maketrans("−–\u2010\u2011⁄", "----/")


def rewritten(text: str, rules: dict) -> str:
    for pattern, to in rules.items():
        text = re.sub(pattern, to, text)
    return text


def plainly(text: str) -> str:
    """Return a text without LaTeX for numbers, units and words; what is left of it has others."""
    text = rewritten(text, UNSEEN)
    # 5½ becomes 5 1⁄2.
    text = re.sub("[¼-¾⅐-⅞]", lambda c: f" {unicodedata.normalize('NFKC', c[0])} ", text)
    return rewritten(text.translate(SIGNS), REWRITE)


def _decimal(run: str) -> Fraction:
    if len(run) > MOST_DIGITS or not DECIMAL.fullmatch(run):
        raise ValueError
    return Fraction(run.replace(",", ""))


def _value(match: re.Match) -> Fraction:
    """Return the value of a match of NUMBER; ValueError if it can be read in more than one way."""
    sign, whole, above, below, exponent, scale = match.groups()
    value = _decimal(above) * Fraction(10) ** int(exponent or 0)
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
        value *= 10 ** (LETTER_SCALES.get(scale) or SCALES[scale.lower()])
    return -value if sign and sign[0] == "-" else value


def read_number(text: str) -> Fraction | None:
    r"""Return the one number that a text commits to, exactly, or None.

    1. If there is an =, only what follows the last one counts (3 \times 4 = 12 is 12), and nothing
       after <=, >= or !=. Several equations (x = 5 or x = 6) are no number.
    2. A number is digits with an optional sign, decimals (3.50, .5, 5.), thousands separated as in
       1,234 1{,}234 1\,234 or by a thin space, fractions 3/4 \frac{3}{4} \frac34 ½, and mixed
       numbers 1 1/2 with a proper fraction; 5e-3 and 5 \times 10^{-3}. Not read is what could be
       something else (1,23 0,500 1.234,5 12,34,567 2 3/2), 1/0, and over MOST_DIGITS digits.
    3. hundred, thousand (k), million (M, mn), billion (B, bn) and trillion directly after a number
       multiply it. A dozen is a unit, and 5% is 5: GSM8K asks for dozens and for percentages.
    4. Around it may stand words, also with hyphens, units (5 ft^2, 5 miles/hour), currency signs,
       degrees, brackets, . , ; : and quotation marks. A word that changes the value (CHANGES,
       POWERS: "2 and a half", "2 squared") and every other sign or command of LaTeX make the text
       unreadable: + * \times ^ ! \sqrt \pi < 5:30. Nothing is computed.
    5. Several numbers count as one only if they are equal, with "or", "is", a comma or a bracket
       between them: $18 or 18.00 dollars, 18 dollars ($18.00), but not 5 feet and 5 inches.
    6. (1,100) and [1,100] may be a pair or an interval, and 0.333... has more digits.
    """
    sure = plainly(rewritten(rewritten(text[:LONGEST_BOX], UNSEEN), NO_PAIR)).rpartition("=")[2]
    if len(text) > LONGEST_BOX or UNSURE.search(sure):
        return None
    text = plainly(text)
    several = sum("=" in part for part in SEVERAL.split(text)) > 1
    before, _, text = text.rpartition("=")
    if several or before.rstrip().endswith(("<", ">", "!", r"\not")):
        return None
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
    changed = any(map(CHANGES.search, gaps)) or any(map(POWERS.match, gaps[1:]))
    changed |= any(map(BEFORE.search, gaps[:-1]))
    return values.pop() if readable and separated and not changed else None
