r"""Subset sum: choose among listed numbers some that add up to a target; a number may be used as often as it occurs.

The splits share no instance, that is, no multiset of numbers with its target (see `drawn`).
"""

import re
from collections import Counter

from maxrl.tasks.base import Example, Generated, check_split
from maxrl.verifiers import last_boxed

NUMBERS = r"\s*[0-9]{1,12}(?:[\s,+]+[0-9]{1,12})*\s*"


def chosen(response: str) -> list[int] | None:
    r"""The numbers of the last \boxed{...}, or of the whole response where there is none; None where it is no such list."""
    box = last_boxed(response)
    text = response if box is None else box
    return [int(n) for n in re.findall("[0-9]+", text)] if re.fullmatch(NUMBERS, text) else None


def verify(numbers: list[int], target: int, response: str, elements: int = 0) -> float:
    """1.0 when the response chooses some of the numbers, none more often than it occurs, that add up to the target."""
    picked = chosen(response)
    return float(
        picked is not None
        and sum(picked) == target
        and Counter(picked) <= Counter(numbers)
        and elements in (0, len(picked))
    )


class SubsetSum(Generated):
    r"""`elements` numbers are to be chosen, or any (0). `plain` prompts are a few words of the task's own vocabulary, for a
    model trained from scratch, answered by numbers alone; otherwise they ask for a \boxed{} list in words.
    """

    def __init__(
        self,
        split: str = "train",
        size: int = 10_000,
        numbers: int = 6,
        largest: int = 20,
        elements: int = 0,
        seed: int = 0,
        plain: bool = False,
    ):
        check_split(split)
        if (
            not 1 <= numbers <= 64
            or not 1 <= largest <= 10**6
            or not 0 <= elements <= numbers
            or size < 1
        ):
            raise ValueError(
                f"subset_sum takes 1 to 64 numbers up to 10**6, elements among them, size of at least 1; not "
                f"numbers {numbers}, largest {largest}, elements {elements}, size {size}"
            )
        self.split = split
        self.size = size
        self.numbers = numbers
        self.largest = largest
        self.elements = elements
        self.seed = seed
        self.plain = plain
        if plain and largest * numbers > 10_000:
            raise ValueError(
                f"a plain subset_sum has a word for every sum, up to 10,000, not {largest * numbers}"
            )
        if plain:
            words = (str(n) for n in range(1, largest * numbers + 1))
            self.vocabulary = ("<pad>", "<bos>", "<eos>", "<unk>", "target", "take", *words)
            self.stop_tokens = ("<eos>",)

    def draw(self, rng):
        numbers = [rng.randint(1, self.largest) for _ in range(self.numbers)]
        subset = rng.sample(numbers, self.elements or rng.randint(1, self.numbers))
        return f"{sorted(numbers)} {sum(subset)}", (numbers, subset)

    def example(self, parts: tuple[list[int], list[int]]) -> Example:
        numbers, subset = parts
        listed = " ".join(map(str, numbers))
        target = sum(subset)
        how_many = f"exactly {self.elements}" if self.elements else "some"
        answer = " ".join(map(str, subset))
        columns = {"numbers": numbers, "target": target, "answer": answer}
        if self.plain:
            take = f" take {self.elements}" if self.elements else ""
            return Example(f"<bos> {listed} target {target}{take}", f"{answer} <eos>", columns)
        text = (
            f"Numbers: {listed}\nTarget: {target}\nChoose {how_many} of the numbers that add up to the target. A number "
            "may be used as often as it is listed. Put the numbers that you choose, separated by commas, within \\boxed{}."
        )
        return Example(
            [{"role": "user", "content": text}],
            f"\\boxed{{{', '.join(map(str, subset))}}}",
            columns,
        )

    def verify(self, response: str, example: Example) -> float:
        columns = example.columns
        return verify(
            columns["numbers"], columns["target"], response.removesuffix("<eos>"), self.elements
        )
