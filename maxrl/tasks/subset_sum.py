r"""Subset sum: choose some of the listed numbers that add up to a target.

A number may be used as often as it is listed. The splits share no instance, that is, no multiset of
numbers with its target.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass

from maxrl.tasks.base import Example, Generated
from maxrl.verifiers import last_boxed

NUMBERS = r"\s*[0-9]{1,12}(?:[\s,+]+[0-9]{1,12})*\s*"


def chosen(response: str) -> list[int] | None:
    r"""The numbers of the last \boxed{...}, or of the whole response if it has none.

    None if that is not a list of numbers.
    """
    box = last_boxed(response)
    text = response if box is None else box
    return [int(n) for n in re.findall("[0-9]+", text)] if re.fullmatch(NUMBERS, text) else None


def verify(numbers: list[int], target: int, response: str, elements: int = 0) -> float:
    """1.0 if the response chooses some of the numbers that add up to the target, else 0.0.

    elements: how many are to be chosen, 0 for any.
    """
    picked = chosen(response)
    return float(
        picked is not None
        and sum(picked) == target
        and Counter(picked) <= Counter(numbers)
        and elements in (0, len(picked))
    )


@dataclass(eq=False)
class SubsetSum(Generated):
    r"""Choose `elements` of `numbers` numbers, or any number of them (0).

    With `plain`, prompts are a few words of the task's own vocabulary, for a model trained from
    scratch, and answers are numbers alone. Otherwise prompts ask for a \boxed{} list in words.
    """

    split: str = "train"
    size: int = 10_000
    numbers: int = 6
    largest: int = 20
    elements: int = 0
    seed: int = 0
    plain: bool = False

    def __post_init__(self) -> None:
        if min(self.size, self.numbers, self.largest) < 1:
            raise ValueError("size, numbers and largest must be at least 1")
        if not 0 <= self.elements <= self.numbers:
            raise ValueError(f"elements must be 0 to {self.numbers}, got {self.elements}")
        if self.plain:
            sums = range(1, self.largest * self.numbers + 1)
            words = ("target", "take", *map(str, sums))
            self.vocabulary = ("<pad>", "<bos>", "<eos>", "<unk>", *words)
            self.stop_tokens = ("<eos>",)

    def draw(self, rng: random.Random) -> tuple[str, tuple[list[int], list[int]]]:
        numbers = [rng.randint(1, self.largest) for _ in range(self.numbers)]
        subset = rng.sample(numbers, self.elements or rng.randint(1, self.numbers))
        return f"{sorted(numbers)} {sum(subset)}", (numbers, subset)

    def example(self, parts: tuple[list[int], list[int]]) -> Example:
        numbers, subset = parts
        listed = " ".join(map(str, numbers))
        target = sum(subset)
        answer = " ".join(map(str, subset))
        columns = {"numbers": numbers, "target": target, "answer": answer}
        if self.plain:
            take = f" take {self.elements}" if self.elements else ""
            return Example(f"<bos> {listed} target {target}{take}", f"{answer} <eos>", columns)
        how_many = f"exactly {self.elements}" if self.elements else "some"
        text = (
            f"Numbers: {listed}\nTarget: {target}\nChoose {how_many} of the numbers that add up to "
            "the target. A number may be used as often as it is listed. Put the numbers that you "
            "choose, separated by commas, within \\boxed{}."
        )
        boxed = f"\\boxed{{{', '.join(map(str, subset))}}}"
        return Example([{"role": "user", "content": text}], boxed, columns)

    def verify(self, response: str, example: Example) -> float:
        columns = example.columns
        response = response.removesuffix("<eos>")
        return verify(columns["numbers"], columns["target"], response, self.elements)
