"""Shared by tests."""

import json
from pathlib import Path

import pytest

from maxrl.tasks import load_task

REWARDS = """
from maxrl.tasks.maze import verify

def correct(prompts, completions, answer, **columns):  # the end token is not part of a completion
    return [verify(p, c + " DONE") for p, c in zip(prompts, completions)]

def short(completions):
    return [None if i % 4 == 1 else 1.0 for i in range(len(completions))]

def half(completions):
    return [0.5 * (i % 2) for i in range(len(completions))]

def none(completions):
    return [None] * len(completions)

def some(prompts, completions):
    return [None if i == 0 else 1.0 - (i % 2) for i in range(len(completions))]

def broken(completions):
    return [1.0]
"""

OPTIONS = (
    "--task.train mine.jsonl --task.validation mine.jsonl --task.test mine.jsonl --prompts 4 "
    "--rollouts 4 --steps 2 --max-response 20 --max-prompt 80 --precision float32 --lr 1e-4"
)


@pytest.fixture
def own(warm, mazes, in_a_directory_of_its_own):
    """rewards.py, and mazes as a JSONL file with a prompt that is too long among them; the
    arguments of a short run."""
    task = load_task("maze", "train", size=7, directory=str(mazes))
    rows = [{"prompt": task[i].prompt, "answer": task[i].answer, "number": i} for i in range(24)]
    rows.insert(3, {"prompt": " ".join(["WALL"] * 99), "answer": "", "number": -1})
    Path("rewards.py").write_text(REWARDS)
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["prompts", *OPTIONS.split(), "--init", warm]
