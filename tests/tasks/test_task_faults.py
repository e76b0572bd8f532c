"""A task with a mistake in it: a sentence and the batch, as for reward functions
(test_reward_faults.py), never a traceback."""

import json
from pathlib import Path

import pytest

from maxrl.learning.config import Config
from maxrl.models.tokenizer import Tokenizer
from maxrl.run.setup import check_templates
from maxrl.system.errors import UsageError
from maxrl.tasks import load_task, verifiers
from maxrl.tasks.base import FilteredTask, prompt_lengths
from maxrl.tasks.maze import VOCABULARY
from maxrl.tasks.rewards import probe
from tests.helpers import tiny
from tests.helpers.runs import column, passed, refused
from tests.helpers.tables import each

# Each is right in the first step, so that there is a checkpoint.
FAULTS = """
import sys
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
        first = self.calls == 1
        return (super().rewards if first else self.wrong)(examples, rollouts)
    def wrong(self, examples, rollouts):
        return super().rewards(examples, rollouts)

class Raises(Right):
    def wrong(self, examples, rollouts):
        return 1 / 0

class Text(Right):
    def verify(self, response, example):
        return "right" if self.calls > 1 else 1.0

class Silent(Right):
    def verify(self, response, example):
        return None if self.calls > 1 else 1.0

class NaN(Right):
    def verify(self, response, example):
        return float("nan") if self.calls > 1 else 1.0

class Short(Right):
    def verify_all(self, responses, examples):
        return [1.0] * (len(responses) - (self.calls > 1))

class Shape(Right):
    def wrong(self, examples, rollouts):
        return Task.rewards(self, examples, rollouts).flatten()

class Missing(Right):
    vocabulary = ()
    def __getitem__(self, index):
        return super().__getitem__({}[index] if index == 5 else index)

class Late(Missing):
    vocabulary = ("UP",)

class Unjudged(Right):
    rewards = Task.rewards  # the probe before the first step leaves out a task with its own
    def verify(self, response, example):
        return response[0]

class Long(Right):
    def __getitem__(self, index):
        return super().__getitem__(200 if index == 5 else index)

class Empty(Right):
    def __getitem__(self, index):
        return {}[index]

class Unlike(Right):
    def __getitem__(self, index):
        return ("UP", "DONE")

class Letter(Right):
    stop_tokens = ("e")

class Words(Right):
    def __getitem__(self, index):
        return Example([], "DONE")

class Unmade(Right):
    def __init__(self, split):
        raise RuntimeError("no database")

class Whole(Right):
    verify = Task.verify

def leaves(*arguments):
    sys.exit()

class Len(Right):
    __len__ = leaves

class Item(Right):
    __getitem__ = leaves

class Batch(Right):
    batch = leaves

class Final(Right):
    final = leaves

class Show(Right):
    show = leaves

def estimate(rewards):
    sys.exit(0)

"""
SIZES = "--prompts 4 --rollouts 4 --steps 2 --save-every 1 --max-response 4"
KEYS = {"prompts", "completions", "error"}
# What is wrong from the second step on, and what is said of it.
SAID = {
    "Raises": "Raises raised ZeroDivisionError: division by zero",
    "Text": "Text returned 'right' for completion 0",
    "Silent": "Silent returned a reward that is not a finite number",
    "NaN": "NaN returned nan for completion 0",
    "Short": "Short returned 15 rewards for 16 completions",
    "Shape": "instead of a tensor of shape (4, 4)",
}


@pytest.fixture
def faults(in_a_directory_of_its_own):
    Path("faults.py").write_text(FAULTS)


@pytest.fixture
def run(faults, dice, shell):
    """run(name, ...): a run of two steps, (exit code, what it said)."""

    def run(name, *options):
        ask = ("tiny", *SIZES.split(), "--init", dice, "--task", f"faults.py:{name}", "--out", name)
        return shell("train.py", *ask, *options)

    return run


@pytest.mark.parametrize("name", SAID)
def test_a_verdict_that_is_none(name, run):
    refused(run(name), f"the task {name} ", SAID[name])
    assert Path(name, "latest").read_text() == "step-000001\n"
    lines = Path(name, f"reward_error_{name}_rank0.jsonl").read_text().splitlines()
    assert len(lines) == 16
    assert json.loads(lines[0]).keys() >= KEYS


def test_dropped(run):
    """The groups of a failed call are left out, and counted."""
    said = passed(run("NaN", "--reward-errors", "drop"))
    assert "is left out" in said
    assert column("NaN", "rewards/groups_left_out") == [0, 4]
    assert column("NaN", "rewards/failed_calls") == [0, 1]


class Words:
    def encode_prompt(self, prompt):
        return prompt.split()


def test_rewards_of_its_own_need_no_verdicts_on_texts(faults):
    """The probe before the first step does not ask verify() of such a task."""
    task = load_task("faults.py:Whole", "train")
    probe(task)
    probe(FilteredTask(task, Words(), 100))


def test_a_missing_package_is_named_before_any_sampling(monkeypatch, tmp_path):
    """Under --reward-errors drop, too. The probe judges a boxed response, for which a task of
    formulas asks math-verify."""
    data = tmp_path / "mine.jsonl"
    data.write_text(json.dumps({"problem": "x + x?", "answer": "2x"}))
    task = load_task("math", "train", train=str(data))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "math_verify.py").write_text("raise ImportError('not here')")
    verifiers.POOL.forget()
    with pytest.raises(UsageError, match="not here.*pip install -U math-verify"):
        probe(task, "drop")
    verifiers.POOL.forget()


# An exit would end the run with code 0, as if all had been done. Prompts are counted before the
# first step, also with a vocabulary; a model from scratch lacks its sizes or the words of a task.
COMMANDS = """
train.py TRAIN --task faults.py:Long | a prompt of 201 tokens
train.py prompts --task faults.py:Raises | no model | --init
train.py tiny --prompts 4 --task faults.py:Missing | vocabulary | --init
train.py TRAIN --task faults.py:Empty | example 0 of the task Empty raised KeyError: 0 | py, line
train.py TRAIN --task faults.py:Unlike | example 0 of the task Unlike is ('UP', 'DONE'): __getitem__
train.py TRAIN --task faults.py:Letter | task faults.py:Letter: stop_tokens = 'e' must be a list
train.py TRAIN --task faults.py:Words | example 0 of the task Words: a message must have a role and
train.py TRAIN --task faults.py:Unmade | Unmade raised RuntimeError: no database | faults.py, line
train.py TRAIN --task faults.py:Missing | example 5 of the task Missing raised KeyError: 5 | line
train.py TRAIN --task faults.py:Late --workers 1 | the task Late raised KeyError: 5 | line
train.py TRAIN --task faults.py:Unjudged | raised IndexError: string index out of range | py, line
train.py TRAIN --task faults.py:Len | task faults.py:Len raised SystemExit | py, line
train.py TRAIN --task faults.py:Item | example 0 of the task Item raised SystemExit | py, line
train.py TRAIN --task faults.py:Batch --workers 1 --max-prompt 99 | raised SystemExit | py, line
train.py TRAIN --estimator faults.py:estimate | faults.py:estimate raised SystemExit: 0
eval.py LOOK --task faults.py:Late --k 1 | example 5 of the task Late raised KeyError: 5 | line
eval.py LOOK --task faults.py:Final --k 1 | your code raised SystemExit | py, line
sample.py LOOK --task faults.py:Show | your code raised SystemExit | py, line
"""


@each("row", COMMANDS)
def test_code_that_exits_or_raises_says_so(row, faults, dice, shell):
    command, *words = row
    names = {
        "TRAIN": ["tiny", *SIZES.split(), "--init", dice],
        "LOOK": [dice, "--samples", 4, "--max-response", 4],
    }
    given = [word for name in command.split() for word in names.get(name, [name])]
    refused(shell(*given), *words)


class Many(tiny.Up):
    """A million prompts, of which the first alone may be read."""

    equally_long = True
    vocabulary = ()

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        assert index == 0
        return super().__getitem__(index)


def test_of_a_million_equally_long_prompts_one_is_read():
    """To count its tokens, and to see whether it fits the chat template of a model."""
    assert prompt_lengths(Many("train"), Words()) == [4] * 10**6
    words = Tokenizer.from_vocabulary(VOCABULARY)
    assert not [*check_templates(Config(), Many("train"), words)]


@pytest.mark.parametrize("name", ["Final", "Show"])
def test_what_is_only_looked_at_does_not_end_a_run(name, run):
    passed(run(name, "--show-every", 1))
    assert Path(name, "samples.jsonl").exists()
