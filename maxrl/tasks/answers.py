r"""What a text says: the last \boxed{...} of a response, its number, the answer in a reference."""

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
DISPLAY = re.compile(
    r"(?<!\\)\\[()\[\]]|\\(?:begin|end)\{(?:equation|displaymath|math|align|gather)\*?\}"
)
# Not of amounts of money: no blank within, beside the dollars, and no digit behind them. Behind a
# number stands its unit.
FORMULA = re.compile(r"\$\$([^$]+)\$\$|(?<![0-9])(?<![0-9] )\$(?!\s)([^$]+)(?<!\s)\$(?!\d)")
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
    r"∅|\\varnothing(?![A-Za-z])": r"\\emptyset ",
    r"(?<=[0-9])\{,\}(?=[0-9])(?![0-9]{3}(?![0-9]))": ".",
    r"^\s*[-−]?[1-9][0-9]{0,2}(?: [0-9]{3})+\s*$": lambda groups: groups[0].replace(" ", ""),
}
# Applied in this order; LaTeX that is left over makes a text unreadable.
REWRITE = {
    # 5 \times 10^{-3}
    r"(?<=[0-9]) ?(?:\\times|\\cdot|[×x*]) ?10 ?\^ ?\{? ?(-?[0-9]{1,3})(?![0-9]) ?\}?": r"e\1",
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


# ----------------------------------------- references ---------------------------------------------

# What stands before a number with words, or between a number and its unit.
UNIT = re.compile(
    rf"(?<![{LETTER}0-9)}}\\])[{LETTER}]{{2,}}"
    rf"|(?<=[0-9])(?:[{LETTER}]{{4,}}|(?:st|nd|rd|th|[mbt]n|eV|Hz|Pa|[kMGmcnµμ][gmsJNWVALl])(?![{LETTER}]))"
    rf"|(?:(?<=[ ~{{,°])[dghlmsu]|(?<=[ ~{{,°0-9])[ACFHJKLNTVWÅ]|circ ?\}}?[CF])(?![{LETTER}])"
    r"|(?<=[0-9.])[eE](?=[-+]?[0-9])|[0-9] +[0-9]+ ?/|[0-9],?\\[,!;: ][0-9]|[0-9] ?[x×*] ?10 ?\^"
    r"|[¼-¾⅐-⅞€£¥₹¢Ω]|\\(?:Omega|(?:text)?degree)"
    r"|(?:\$ ?[0-9.,]+ ?[kmb]|[0-9][KMB])(?![A-Za-z])|[A-Z]\\?\$ ?[0-9]"
)
# What stands around an answer.
FRAME = {
    **UNSEEN,
    r"(?is)^.*\b(?:ans|answers?|results?|solutions?)\b[*\s]*"
    r"(?:is|are|[:=]|[-–—](?=\s))[*:\s]*(?=\S)": "",
    r"(?i)^(?:the )?(?:correct )?(?:option|choice) (?=\(?[A-Z]\)?$)": "",
    r"^[*`\s]+": "",
    r"(?<!\.)(?<!\\right)\.(?=[$}*`\s]*$)|(?:\\newline|\\\\)\s*$": "",
    r"[*`\s]+$": "",
}
# An unknown, a sign with two sides or another answer before the last =.
UNKNOWN = re.compile(
    r"\\(?!(?:[dtc]?frac|sqrt|times|cdot|div|left|right|log|ln|sin|cos|tan|circ|binom|gcd|lcm|max|min"
    rf"|pi|{STYLES})(?![A-Za-z]))[A-Za-z]+"
    r"|(?<![A-Za-z\\])(?:[A-Za-z](?![A-Za-z(])|(?:[A-Z]{2,}|[x-z]+)(?![A-Za-z]))"
    r"|[<>!:]$|(?<![{\\]),(?![0-9]|[^()]{0,99}\))|;|\b(?:and|or)\b"
)
# Indices and arguments belong to a name, as in a_{n+1} or f(2).
ARGUMENT = re.compile(r"_(?:\w|\{[^{}]*\})|(?<=[A-Za-z}'])(?:\([^()]*\)|\[[^][]*\])")
OPERATION = re.compile(
    r"[-+*/^,;|0-9]|\\(?:[dtc]?frac|sqrt|times|cdot|div|pm)(?![A-Za-z])"
    r"|(?<![A-Za-z\\])(?:[x-z]{2,}|abc?|bc)(?![A-Za-z])"
)
CLOSED = "[b-df-hj-np-tv-z]"
WORDS = re.compile(
    rf"(?!.*(?<![{LETTER}])(?i:{COUNTS})(?![{LETTER}]))"
    rf"(?=.*(?:[{LETTER}]{{4}}|[A-Z][{LETTER}]|\b(?:no|odd|{CLOSED}[aeiou]{CLOSED})\b))"
    rf"[{LETTER}'’-]+(?: [{LETTER}'’-]+){{0,2}}"
)
# A word beside something else, to math-verify variables; numbers in words, and those of programs.
WORD = r"(?!(?:and|or)\b)[^\W\d_]{2,}(?:\^\{?[23]\}?)?[.,:;!?]*"
UNCLEAR = re.compile(
    rf"(?<!\S){WORD}(?=\s+\S)|(?<=\S\s){WORD}(?!\S)|^(?:\\\w+\{{)?(?i:{COUNTS})\}}?$"
    rf"|(?i:(?:{COUNTS}|[0-9])[-‐-―](?:{COUNTS}|{PARTS}|first|second|quarter|halve)s?(?![a-z]))"
    r"|0[xXbBoO][0-9A-Fa-f]|\b(?i:binary|octal|hex|hexadecimal)\b|[0-9]\.[0-9]+\.[0-9]"
    # Groups of digits, dates, telephone numbers, ranges, and feet; mixed numbers, or two.
    r"|^[-−+(]*[0-9]++\)?(?:[- ‐-―][0-9]++)+$|^[0-9]++/[0-9]++/[0-9]++$|[0-9] ?['′’] ?[0-9]"
    r"|[0-9] and (?:[0-9]+ ?/|\\[dtc]?frac|[¼-¾⅐-⅞])"
    r"|[0-9]_[0-9]{3}|(?<![0-9])[0-9]{1,2},[0-9]{2},[0-9]{3}(?![0-9])"
    r"|[0-9][. ][0-9]{3},[0-9]|(?<![0-9.,/])[0-9]{1,3}(?: [0-9]{3})+(?![0-9./])"
)
# A choice and its value, as (A) 5: the right response may be either. A time of the day.
CHOICE = re.compile(
    r"[( ]*(?:[A-Za-z] ?[).:]+|[0-9]\)) +(?:\w|\\(?:sqrt|pi)(?![a-z]))"
    r"|(?i:[0-9:. ]+[ap]\.?m\b)"
)
# One thousand or one, beside a currency of those who group digits with points.
POINTED = re.compile(
    r"(?:€|\bEUR|R\\?\$|\b(?i:kr|rp)\.?)(?: |\\,|~)*[0-9]{1,3}\.[0-9]{3}(?![0-9])"
    r"|(?<![0-9.,])[0-9]{1,3}\.[0-9]{3}(?: |\\,|~)*\\?(?:€|(?i:eur(?:os?)?|kr)\b)"
)


def placed(text: str) -> list[tuple[str, int, int]]:
    """Return the boxes of a text, or else its formulas, in their order with their places.

    None of the boxes counts if the last one is not closed.
    """
    boxes = [*BOX.finditer(text)]
    ends = [*(box.start() for box in boxes[1:]), len(text)]
    found = []
    for box, end in zip(boxes, ends):
        if (inside := last_boxed(text[box.start() : end])) is not None:
            found.append((inside, box.start(), text.index(inside, box.end()) + len(inside) + 1))
    formulas = [(formula[1] or formula[2], *formula.span()) for formula in FORMULA.finditer(text)]
    return formulas if last_boxed(text) is None else found


def answer_in(text: str) -> str:
    """Return the answer in a reference, "" for a sentence without one.

    This is the last box, or else what follows GSM8K's ####, and in this the last formula in dollars
    or displayed; several of them in an enumeration are one answer. See result() for the rest.
    """
    text = rewritten(text, UNSEEN)
    if not last_boxed(text):
        text = DISPLAY.sub("$$", text.rpartition("####")[2]).strip()
    found: list[str] = []
    name = ""
    last = 0
    for answer, start, end in placed(text):
        before = answer.rpartition("=")[0].strip()
        # x = 3 and 4 are answers to one question; in a sentence, a = 3 and x = 4 are not.
        alike = not name or before in ("", name) or text.startswith("$")
        joined = alike and ENUMERATED.fullmatch(text[last:start])
        name = before or (name if joined else "")
        found = [*found, answer] if joined else [answer]
        last = end
    return result(", ".join(map(result, found)) or text)


def result(text: str) -> str:
    r"""Return what an answer comes to, "" for a sentence without one.

    - "The answer is", a period at the end and bold type do not count.
    - Of a calculation it is what follows the last =, but x = 5 and x + y = 5 stay as they are.
    - A number with words or a unit is the number, as in 18 dollars or 5 N. So are mixed numbers and
      those with an exponent, which math-verify reads as products.
    """
    text = rewritten(text, FRAME)
    before, equals, after = text.rpartition("=")
    last = before.rpartition("=")[2]
    # No calculation comes to an unknown: 5 = x.
    if equals and not (UNKNOWN.search(last) or OPERATION.search(last) and UNKNOWN.search(after)):
        text = after.strip()
    # Nothing says which of several equations is the answer; two bounds are one set.
    sides = [part for part in SEVERAL.split(text) if "=" in part or BOUND.search(part)]
    both = BOUND.search(text) and re.search(r"\band\b", text)
    if len(sides) > 1 and (both or any(map(unnamed, sides))):
        return ""
    if unnamed(text):
        return text
    plain = plainly(text)
    # No formula is picked out of words.
    number = read_number(text) if UNIT.search(text) and not FORMULA.search(text) else None
    choice = CHOICE.match(plain) or POINTED.search(text)
    if number is not None and not choice:
        return str(number)
    unclear = choice or UNCLEAR.search(text)
    return "" if unclear and not words(text) else text


def unnamed(text: str) -> str:
    """Return an equation in unknowns without its last side, which is no answer: x + y = 5, 2x = 6.
    "" if another side is a name, as x, f(2) or P(A)."""
    before = ARGUMENT.sub("", text).rpartition("=")[0]
    return before if all(map(OPERATION.search, before.split("="))) else ""


def number_in(answer: str) -> Fraction | None:
    """Return the number that an answer is, as answer_in() gives it, or None.
    A letter that is left beside a number is an unknown, and an equation is no number."""
    value = plainly(answer.rpartition("=")[2])
    unknown = unnamed(answer) or re.search(f"[{LETTER}]", value)
    return None if unknown else read_number(answer)


def words(text: str) -> str:
    """Return the words of an answer without any number or formula in small letters, or "".
    They are three at most, one of four letters, with a capital or short as yes: ab is a product."""
    said = plainly(text).strip()
    return said.lower() if WORDS.fullmatch(said) else ""
