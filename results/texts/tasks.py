"""The two tasks of this study and the recipes of their models, which are trained from scratch.

    python train.py results/texts/tasks.py:subset_sum_sft
    python train.py results/texts/tasks.py:subset_sum --estimator grpo

Runs from when these were tasks of the package are evaluated with
`--task results/texts/tasks.py:SubsetSum` or `ReverseText`.
"""

import itertools
import random
import zlib
from collections import Counter
from dataclasses import replace

import numpy as np

from maxrl.learning.config import Config
from maxrl.run.recipes.laptop import LAPTOP_RL, after, maze9_laptop_sft
from maxrl.tasks.base import Example, Task

FILE = "results/texts/tasks.py"
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
SHARES = {"train": range(90), "validation": range(90, 95), "test": range(95, 100)}
NUMBERS = 5
LARGEST = 10
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"


class Generated(Task):
    """A task of `size` examples, each a function of seed, split and index alone.

    The splits share no example, because the checksum of a text decides where an example belongs.
    """

    stop_tokens = ("<eos>",)

    def __init__(self, split: str = "train", size: int = 10_000, seed: int = 0):
        self.split = split
        self.size = size
        self.seed = seed

    def draw(self, rng: random.Random) -> tuple[str, Example]:
        """Return a text that identifies an example, and the example."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Example:
        rng = random.Random(f"{self.seed} {self.split} {index}")
        while True:
            key, example = self.draw(rng)
            if zlib.crc32(key.encode()) % 100 in SHARES[self.split]:
                return example


class SubsetSum(Generated):
    """Choose some of five numbers that add up to a target, each as often as it is listed."""

    vocabulary = (*SPECIAL, "target", "take", *map(str, range(1, LARGEST * NUMBERS + 1)))

    def draw(self, rng: random.Random) -> tuple[str, Example]:
        numbers = [rng.randint(1, LARGEST) for _ in range(NUMBERS)]
        subset = rng.sample(numbers, rng.randint(1, NUMBERS))
        target = sum(subset)
        answer = " ".join(map(str, subset))
        prompt = f"<bos> {' '.join(map(str, numbers))} target {target}"
        columns = {"numbers": numbers, "target": target, "answer": answer}
        return f"{sorted(numbers)} {target}", Example(prompt, f"{answer} <eos>", columns)

    def verify(self, response: str, example: Example) -> float:
        words = response.removesuffix("<eos>").split()
        if not set(words) <= set(self.vocabulary[6:]):
            return 0.0
        chosen = list(map(int, words))
        listed = Counter(example.columns["numbers"])
        return float(Counter(chosen) <= listed and sum(chosen) == example.columns["target"])

    def guess(self, example: Example) -> float:
        """One of the 31 subsets at random, blind to the target."""
        subsets = itertools.product((0, 1), repeat=NUMBERS)
        sums = [np.dot(taken, example.columns["numbers"]) for taken in subsets]
        return sums.count(example.columns["target"]) / (len(sums) - 1)


class ReverseText(Generated):
    """Write two made-up words of two syllables backwards, letter by letter; "_" is a blank."""

    vocabulary = (*SPECIAL, "reversed", "_", *CONSONANTS, *VOWELS)

    def draw(self, rng: random.Random) -> tuple[str, Example]:
        words = []
        for _ in range(2):
            syllables = [rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(2)]
            words.append("".join(syllables))
        text = " ".join(words)
        prompt = " ".join("_".join(words))
        answer = " ".join("_".join(words)[::-1])
        columns = {"text": text, "answer": text[::-1]}
        return text, Example(f"<bos> {prompt} reversed", f"{answer} <eos>", columns)

    def verify(self, response: str, example: Example) -> float:
        letters = response.removesuffix("<eos>").replace(" ", "").replace("_", " ")
        return float(letters.strip() == example.columns["answer"])


def subset_sum_sft() -> Config:
    """Warm-up on subset sums, under a minute; every number is ours."""
    maze = maze9_laptop_sft()
    return replace(
        maze,
        task=f"{FILE}:SubsetSum",
        task_options={},
        model=maze.model | dict(vocab_size=64, max_position_embeddings=32),
        steps=600,
        max_response=8,
        eval_every=25,
        stop_at_pass=0.05,
    )


def subset_sum() -> Config:
    """Subset sums, MaxRL or GRPO in two minutes on a core; every number is ours."""
    return after(subset_sum_sft, **LAPTOP_RL, steps=200, lr=3e-4, eval_every=50)


def reverse_text_sft() -> Config:
    """Warm-up on reversed texts, under a minute; every number is ours."""
    maze = maze9_laptop_sft()
    return replace(
        maze,
        task=f"{FILE}:ReverseText",
        task_options={},
        model=maze.model | dict(max_position_embeddings=32),
        max_response=12,
        stop_at_pass=0.02,
    )


def reverse_text() -> Config:
    """Reversed texts, MaxRL or GRPO in a minute on a core; every number is ours."""
    return after(reverse_text_sft, **LAPTOP_RL, steps=120, lr=3e-4, eval_every=40)
