"""Tables of verdicts, tests/tasks/tables/*.tsv: a response (or what stands in its box) and the
answer, or a maze and a response; the verdict and why."""

from pathlib import Path

# Of what texts with mistakes in them are made.
PIECES = (
    "\\boxed{|\\boxed|{|}|\\|$|\\$|%|\\%|,|{,}|\\,|.|-|−|+|/|=|0|1|18|999|1,234| |\n|\0|\ud800|½"
    "|é|π|\\frac|\\frac{1}{2}|\\text{|thousand|k|e|dollars|and|:|(|)|\u2009|٣|^|_|<|!|²|^2"
    "|^\\circ|~|x|\\pi"
)
SPICE = PIECES.split("|")
TABLES = Path(__file__).resolve().parents[1] / "tasks/tables"


def boxed(inside: str) -> str:
    return rf"So the answer is $\boxed{{{inside}}}$."


def table(name: str) -> list[tuple[str, str, int]]:
    """(response, answer, verdict) of both tables of a verifier, with what no text file shows."""
    boxes = [(boxed(inside), *rest) for inside, *rest in rows(name)]
    return boxes + rows("number_responses" if name == "numbers" else "latex_responses")


def rows(name: str) -> list[tuple[str, str, int]]:
    found = []
    for line in (TABLES / f"{name}.tsv").read_text().splitlines()[1:]:
        text, answer, verdict, _ = line.split("\t")
        found.append((text, answer, int(verdict)))
    return found
