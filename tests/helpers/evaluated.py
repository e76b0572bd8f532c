"""What the tests of eval.py and sample.py share: options, judges, what `dice` throws."""

from pathlib import Path

import pytest

from maxrl.sampling.sampler import noise
from maxrl.system.files import read_json
from tests.helpers.runs import passed

FEW = ("--samples", 8, "--k", "1,4,8", "--prompts", 10, "--precision", "float32")
UP = (*FEW, "--task", "tests.helpers.tiny:Up", "--max-response", 6)


JUDGES = """
calls = []
def judge(prompts, completions):
    calls.append(1)
    return [None if len(calls) == 1 and i == 17 else 1.0 for i in range(len(prompts))]
def nobody(completions):
    return [None] * len(completions)
def up(completions):
    return [float(text[:2] == 'UP') for text in completions]
def half(completions):
    return [0.5] * len(completions)
"""


@pytest.fixture
def judges(in_a_directory_of_its_own):
    Path("judges.py").write_text(JUDGES)


@pytest.fixture
def evaluate(shell):
    """evaluate(words) -> what eval.py prints, and its results."""

    def run(*words):
        file = Path("out.json")
        file.unlink(missing_ok=True)
        said = passed(shell("eval.py", *words, "--json", file))
        return said, read_json(file)

    return run


def throws(indices, samples: int, chance: float, seed: int = 0) -> list[int]:
    """How many of the samples begin with UP where that has this chance.

    DONE and its like come before UP in the vocabulary, LEFT after it.
    """
    first = noise(seed, 0, indices, samples, 6)[:, :, 0]
    done = 0.25 if chance == 0.5 else 0.3
    return ((first >= done) & (first < done + chance)).sum(1).tolist()
