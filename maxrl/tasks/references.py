"""The answer in a reference: the last box, formula or number, without what stands around it."""

import re
from fractions import Fraction

from maxrl.tasks.answers import (
    BOUND,
    BOX,
    CHANGES,
    COUNTS,
    LETTER,
    PARTS,
    POWERS,
    SEVERAL,
    STYLES,
    UNSEEN,
    last_boxed,
    plainly,
    read_number,
    rewritten,
)

DISPLAY = re.compile(
    r"(?<!\\)\\[()\[\]]|\\(?:begin|end)\{(?:equation|displaymath|math|align|gather)\*?\}"
)
# Not of amounts of money: no blank within, beside the dollars, and no digit behind them. Behind a
# number stands its unit.
FORMULA = re.compile(r"\$\$([^$]+)\$\$|(?<![0-9])(?<![0-9] )\$(?!\s)([^$]+)(?<!\s)\$(?!\d)")
# What stands between the answers of one reference.
ENUMERATED = re.compile(r"\$?\s*(?:[,;]|(?:[,;]\s*)?(?:and|or)\b)\s*\$?$")
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
    # 0.5 (50%) is no product.
    r"|^[-+]?\\?\$?(?:[0-9][0-9.,/]*|\\[dtc]?frac(?:[0-9]{2}|\{[0-9]+\}\{[0-9]+\}))\\?%? +"
    r"\(\\?\$?[0-9][0-9./]*(?: [0-9]+/[0-9]+)?\\?%?\)$"
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
    # AB^2 is a power, whose exponent plainly() takes for that of a unit.
    said = "" if "^" in rewritten(text, UNSEEN) else plainly(text).strip()
    return said.lower() if WORDS.fullmatch(said) else ""


# Words at the end, within \text or without, of a unit or of what changes the value before them.
TAIL = re.compile(
    rf"(?:\\(?:{STYLES})\s*\{{([^{{}}0-9]*[A-Za-z]{{2}}[^{{}}0-9]*)\}}(?:\^\{{?[23]\}}?)?"
    r"|(?<=[\s~])([A-Za-z]{2,}(?:[ .]+[A-Za-z]{2,})*))[.\s]*$"
)
# Words that belong to the value.
APART = re.compile(r"[,;]|\b(?:and|or|except|excluding|without|if|when|where)\b")
VALUE = re.compile(r"(?:[0-9})\]]|\\pi)(?:[\s~]|\\[,;:! ])*$")


def value(box: str) -> str:
    r"""Return result(box), of 4\sqrt{3} \text{ square units} without the unit; "" if the words
    change the value, as in 12\pi \text{ million}, which math-verify leaves out."""
    found = TAIL.search(box, max(len(box) - 100, 0))
    words = " " + (found[1] or found[2] or "").strip() if found else ""
    if not found or not words.strip() or not VALUE.search(box[: found.start()]):
        return result(box)
    if CHANGES.search(words) or POWERS.match(words):
        return ""
    return result(box if APART.search(words) else box[: found.start()])
