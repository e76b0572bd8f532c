"""Reverse a text letter by letter: a smoke test in which right and wrong are plain to see.

The texts are made-up words, and the splits share none of them.
"""

import random
import re
from dataclasses import dataclass

from maxrl.tasks.base import Example, Generated

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
REQUEST = (
    "Reverse this text letter by letter and put the result within <reversed_text></reversed_text>:"
)


def verify(text: str, response: str) -> float:
    """1.0 if the last <reversed_text> of the response, or all of it, is the text reversed."""
    tagged = re.findall(r"<reversed_text>([^<]*)</reversed_text>", response)
    return float((tagged[-1] if tagged else response).strip() == text[::-1].strip())


@dataclass(eq=False)
class ReverseText(Generated):
    """Texts of `words` words of `syllables` syllables.

    With `plain`, prompts are letters of the task's own vocabulary (a blank is "_"), for a model
    trained from scratch.
    """

    split: str = "train"
    size: int = 10_000
    words: int = 2
    syllables: int = 2
    seed: int = 0
    plain: bool = False

    def __post_init__(self) -> None:
        if min(self.size, self.words, self.syllables) < 1:
            raise ValueError("size, words and syllables must be at least 1")
        if self.plain:
            special = ("<pad>", "<bos>", "<eos>", "<unk>", "reversed", "_")
            self.vocabulary = (*special, *CONSONANTS, *VOWELS)
            self.stop_tokens = ("<eos>",)

    def draw(self, rng: random.Random) -> tuple[str, str]:
        text = " ".join(
            "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(self.syllables))
            for _ in range(self.words)
        )
        return text, text

    def example(self, text: str) -> Example:
        answer = text[::-1]
        columns = {"text": text, "answer": answer}
        if self.plain:
            prompt = " ".join(text.replace(" ", "_"))
            letters = " ".join(answer.replace(" ", "_"))
            return Example(f"<bos> {prompt} reversed", f"{letters} <eos>", columns)
        message = {"role": "user", "content": f"{REQUEST}\n{text}"}
        return Example([message], f"<reversed_text>{answer}</reversed_text>", columns)

    def verify(self, response: str, example: Example) -> float:
        if self.plain:
            response = response.removesuffix("<eos>").replace(" ", "").replace("_", " ")
        return verify(example.columns["text"], response)
