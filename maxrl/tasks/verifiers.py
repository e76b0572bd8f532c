r"""Verifiers: is the answer in the last \boxed{...} of a response the right one?

verify_number compares exact rational numbers (GSM8K), and verify_math_batch compares LaTeX by
math-verify (competition problems). verify_published_batch is the verdict of the paper's code for
both: math-verify on the whole response, without any box. Each gives 1.0 or 0.0 for any text at
all, and reads a reference by answer_in().
"""

import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

from maxrl.system import distributed
from maxrl.system.sandbox import Pool, SandboxError
from maxrl.system.tables import as_text
from maxrl.tasks.answers import (
    LONGEST_BOX,
    UNSEEN,
    last_boxed,
    plainly,
    read_number,
    rewritten,
)
from maxrl.tasks.references import answer_in, number_in, value


def final_number(response: str) -> Fraction | None:
    r"""Return the number in the last \boxed{...} of a response, or None, see read_number."""
    return read_number(last_boxed(response) or "")


def verify_number(response: str, answer: str | float) -> float:
    r"""Return 1.0 if the number in the last \boxed{...} of the response is that of the answer.

    Otherwise 0.0. Numbers outside the box do not count, and nothing matches an answer that is no
    number, see answer_in(): of GSM8K's worked answers the number behind #### counts.
    """
    text = as_text({"answer": answer}, "answer", "verify_number")
    number = number_in(answer_in(text))
    if text and number is None:
        said = f"verify_number reads no number in the reference {text!r:.60}"
        warnings.warn(f"{said}: no response is right", stacklevel=2)
    return float(number is not None and final_number(response) == number)


# ------------------------------------------- LaTeX ------------------------------------------------

SECONDS = 5.0  # of CPU time for one comparison, which usually takes 0.02


def _processes() -> int:
    """Return how many cores are this process's share, of which torchrun starts several."""
    ranks = max(distributed.launched("LOCAL_WORLD_SIZE", 1), 1)
    cores = distributed.cores()
    # Slurm gives each task cores of its own, where it binds them.
    tasks = distributed.launched("SLURM_NTASKS_PER_NODE", 0)
    of_job = distributed.launched("SLURM_CPUS_ON_NODE", 0)
    if tasks == ranks and cores * ranks <= of_job:
        ranks = 1
    return min(max(cores // ranks, 1), 16)


POOL = Pool(
    "math-verify",
    "maxrl.tasks.latex",
    (["boxed", "1/2", "0.5"], True),
    _processes(),
)


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


def verify_math_batch(responses: list[str], answers: list[str]) -> list[float]:
    r"""Return 1.0 where math-verify finds the last \boxed{...} of a response equal to its answer.

    Otherwise 0.0. Both are LaTeX, and the answer may itself stand in a box or in dollars. These are
    equal: 1/2, 0.5 and \frac12; (x+1)^2 and x^2+2x+1; sets in any order; x=5 and 5; 5\% and 5;
    decimals to six places and digits, except that an integer is not 6.0000001. See result() for
    what else is one answer, such as 18 and 18 dollars.

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
        # What stands there to the letter is right, even if nothing can be read in it.
        gold = answer_in(answer)
        # Values of two names are not equal.
        number = None if "=" in gold and "=" in box else number_in(gold)
        right = box == answer.strip() or number is not None and number == read_number(box)
        pairs.append((box, box) if right or said(box) == said(gold) != "" else (value(box), gold))
    unsure = [(box, gold) for box, gold in pairs if box and gold and box != gold]
    verdicts = _found("boxed", unsure)
    return [float(verdicts.get(pair, pair[0] == pair[1] != "")) for pair in pairs]


def said(text: str) -> str:
    """Return what words and numbers say, as June 20; "" for anything else."""
    plain = " ".join(plainly(text).split())
    power = "^" in rewritten(text, UNSEEN)
    return plain if re.fullmatch(r"[A-Za-z][A-Za-z0-9 ,.'-]*", plain) and not power else ""


def readable_batch(answers: list[str]) -> list[bool]:
    r"""Return whether each answer has a value: "", "B. 4", "\frac{" and "two apples" have none."""
    golds = [answer_in(answer) for answer in answers]
    found = _found("readable", [(gold,) for gold in golds if number_in(gold) is None])
    return [found.get((gold,), True) for gold in golds]


def verify_published_batch(responses: list[str], answers: list[str]) -> list[float]:
    r"""Return 1.0 where math-verify finds the answer, LaTeX, in the whole response, otherwise 0.0.

    This is the verdict of the published code: math_metric with expressions and LaTeX. No box is
    needed: "#### 42" and "she earns 18 dollars" are answers, boxes that stand close together are
    one set, and a box may lose against what follows "the final answer is". Limits and the reading
    of answers are those of verify_math_batch; the published code limits the time on the clock.
    """
    pairs = list(zip(responses, map(answer_in, answers), strict=True))
    found = _found("published", pairs)
    return [float(found[pair]) for pair in pairs]


SAME = {
    r"\\(?:left|right)(?![A-Za-z])": "",
    r"\\[dtc]frac(?![A-Za-z])": r"\\frac",
    r"\\?\$|~|(?<!\\)\\[ ,;:!]": " ",
    r"\s+": " ",
    r" (?!\w)|(?<!\w) ": "",
}


def normal_form(box: str) -> str:
    r"""Write the text of a box without \left, \right, dollars and needless blanks, \dfrac as \frac.

    A blank between two words or numbers stays.
    """
    return rewritten(box, SAME).removesuffix(".")
