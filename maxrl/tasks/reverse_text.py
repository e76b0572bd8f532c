"""Reverse a text letter by letter: a smoke test in which right and wrong are plain to see.

The texts are made-up words, and the splits share none (see `drawn`).
"""

import re

from maxrl.tasks.base import Example, Generated, check_split

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"


def verify(text: str, response: str) -> float:
    """1.0 when the last <reversed_text>...</reversed_text>, or the whole response where there is none, is the text reversed."""
    tagged = re.findall(r"<reversed_text>([^<]*)</reversed_text>", response)
    return float((tagged[-1] if tagged else response).strip() == text[::-1].strip())


class ReverseText(Generated):
    """`words` words of `syllables` syllables. `plain` prompts are letters of the task's own vocabulary (a blank is "_"), for
    a model trained from scratch.
    """

    def __init__(
        self,
        split: str = "train",
        size: int = 10_000,
        words: int = 2,
        syllables: int = 2,
        seed: int = 0,
        plain: bool = False,
    ):
        check_split(split)
        if not 1 <= words <= 1000 or not 1 <= syllables <= 100 or size < 1:
            raise ValueError(
                f"reverse_text takes 1 to 1000 words of 1 to 100 syllables, size of at least 1; not words "
                f"{words}, syllables {syllables}, size {size}"
            )
        self.split = split
        self.size = size
        self.words = words
        self.syllables = syllables
        self.seed = seed
        self.plain = plain
        if plain:
            self.vocabulary = (
                "<pad>",
                "<bos>",
                "<eos>",
                "<unk>",
                "reversed",
                "_",
                *CONSONANTS,
                *VOWELS,
            )
            self.stop_tokens = ("<eos>",)

    def example(self, text: str) -> Example:
        columns = {"text": text, "answer": text[::-1]}
        if self.plain:
            letters, answer = (" ".join(t.replace(" ", "_")) for t in (text, text[::-1]))
            return Example(f"<bos> {letters} reversed", f"{answer} <eos>", columns)
        request = "Reverse this text letter by letter and put the result within <reversed_text></reversed_text>:"
        return Example(
            [{"role": "user", "content": f"{request}\n{text}"}],
            f"<reversed_text>{text[::-1]}</reversed_text>",
            columns,
        )

    def draw(self, rng):
        words = (
            "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(self.syllables))
            for _ in range(self.words)
        )
        text = " ".join(words)
        return text, text

    def verify(self, response: str, example: Example) -> float:
        if self.plain:
            response = response.removesuffix("<eos>").replace(" ", "").replace("_", " ")
        return verify(example.columns["text"], response)
