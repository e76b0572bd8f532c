"""A task with a mistake in it: a sentence and the batch, as for reward functions (test_reward_faults.py), never a traceback."""

import json
import warnings
from pathlib import Path

import pytest

# Each is right in the first step, so that there is a checkpoint.
FAULTS = """
import numpy as np
from maxrl.tasks import Example, Task

class Right(Task):
    vocabulary = ("UP",)

    def __init__(self, split):
        self.calls = 0
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return Example("UP " * index + "UP", "DONE")
    def verify(self, response, example):
        return float(len(response) % 2)
    def rewards(self, examples, rollouts):
        self.calls += 1
        return super().rewards(examples, rollouts) if self.calls == 1 else self.wrong(examples, rollouts)
    def wrong(self, examples, rollouts):
        return super().rewards(examples, rollouts)

class Raises(Right):
    def wrong(self, examples, rollouts):
        return 1 / 0

class Silent(Right):
    def verify(self, response, example):
        return None if self.calls > 1 else 1.0

class Text(Right):
    def verify(self, response, example):
        return "right" if self.calls > 1 else 1.0

class NaN(Right):
    def verify(self, response, example):
        return float("nan") if self.calls > 1 else 1.0

class Short(Right):
    def verify_all(self, responses, examples):
        return [1.0] * (len(responses) - (self.calls > 1))

class Shape(Right):
    def wrong(self, examples, rollouts):
        return Task.rewards(self, examples, rollouts).flatten()

class List(Right):
    def wrong(self, examples, rollouts):
        return Task.rewards(self, examples, rollouts).tolist()

class Missing(Right):
    vocabulary = ()
    def __getitem__(self, index):
        return super().__getitem__({}[index] if index == 5 else index)

class Late(Missing):
    vocabulary = ("UP",)

class Endless(Right):
    vocabulary = ()
    def __len__(self):
        return 10**12

class Unjudged(Right):
    def verify(self, response, example):
        return response[0]
"""
SAID = {"Raises": "Raises raised ZeroDivisionError: division by zero", "Silent": "Silent raised", "Text": "Text raised",
        "NaN": "NaN gave a reward that is not a finite number", "Short": "Short raised RuntimeError",
        "Shape": "Shape gave Tensor (16,) for 4 prompts with 4 responses each", "List": "List gave list"}
BEFORE = {"Missing": "example 5 of the task Missing raised KeyError: 5", "Late": "the task Late raised KeyError: 5",
          "Endless": "says that it has 1,000,000,000,000 examples", "Unjudged": "raised IndexError: string index out of range"}


@pytest.fixture
def run(warm, shell):
    Path("faults.py").write_text(FAULTS)

    def run(name, *options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            code, said = shell("train.py", "tiny", "--init", warm, "--task", f"faults.py:{name}", "--prompts", 4,
                               "--rollouts", 4, "--steps", 2, "--save-every", 1, "--max-response", 4, "--out", name,
                               *options)  # fmt: skip
        assert "Traceback" not in said
        return code, " ".join([said, *(str(w.message) for w in caught)])

    return run


@pytest.mark.parametrize("name", SAID)
def test_a_verdict_that_is_none(name, run):
    code, said = run(name)
    assert code == 2 and f"the task {SAID[name]}" in said and Path(name, "latest").read_text() == "step-000001\n"
    rows = [json.loads(line) for line in Path(name, f"reward_error_{name}_rank0.jsonl").read_text().splitlines()]
    assert len(rows) == 16 and {"prompts", "completions", "answers", "error"} <= rows[0].keys()


def test_dropped(run):
    """NaN left every group out without a word; now they are counted."""
    code, said = run("NaN", "--reward-errors", "drop")
    assert code == 0 and "the groups of this call are left out" in said
    rows = [json.loads(line) for line in Path("NaN/metrics.jsonl").read_text().splitlines()]
    assert [row["rewards/groups_left_out"] for row in rows] == [0, 4]
    assert [row["rewards/failed_calls"] for row in rows] == [0, 1]


@pytest.mark.parametrize("name", BEFORE)
def test_examples_and_verdicts_that_fail(name, run):
    code, said = run(name, "--workers", 1 if name == "Late" else 0)
    assert code == 2 and BEFORE[name] in said
    assert "faults.py, line" in said or name in ("Endless", "Unjudged")
