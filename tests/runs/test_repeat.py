"""`train.py RUN/recipe.json`: the same run again, from what it has recorded of itself."""

import json
import re
from pathlib import Path

import pytest
from runs import metrics, refused, weights

FIRST = ("--steps", 2, "--prompts", 4, "--rollouts", 4)


def numbers(run) -> list[dict]:
    """metrics.jsonl without what the machine's load decides."""
    timed = re.compile("seconds|_per_second|memory")
    return [
        {key: value for key, value in row.items() if not timed.search(key)} for row in metrics(run)
    ]


@pytest.fixture
def first(shell, warm):
    """A run of two steps, whose recipe.json is repeated."""
    code, said = shell(
        "train.py",
        "tiny",
        "--init",
        warm,
        *FIRST,
        "--eval-every",
        1,
        "--eval-prompts",
        4,
        "--resume",
        "auto",
        "--out",
        "runs/first",
    )
    assert code == 0 and "repeats" not in said, said
    return Path("runs/first")


def test_a_repeated_run_is_the_same_to_the_last_bit(first, shell):
    """Also from the recipe of its checkpoint, and a repeated run can be repeated."""
    for recipe, out in (
        (first, "runs/first-again"),
        (first / "step-000002", "runs/step-000002-again"),
        (Path("runs/first-again"), "runs/first-again-again"),
    ):
        code, said = shell("train.py", recipe / "recipe.json")
        assert (
            code == 0 and f"repeats  {recipe}/recipe.json: nothing differs that is recorded" in said
        ), said
        assert weights(out) == weights(first) and numbers(out) == numbers(first)
    code, said = shell("train.py", first / "recipe.json")
    assert code == 2 and "runs/first-again already holds a run" in said


def test_what_differs_is_said(first, shell):
    file = first / "recipe.json"
    said = shell("train.py", file, "--lr", 0.01, "--eval-k", "1,2", "--out", "other")[1]
    assert "recipe.json: --lr 0.01 instead of 0.0007, --eval-k [1, 2] instead of [1, 4]\n" in said
    assert weights("other") != weights(first)
    record = json.loads(file.read_text())
    record |= {"torch": "2.0", "examples": 5, "data": {"train": "something"}}
    Path("odd").mkdir()
    Path("odd/recipe.json").write_text(json.dumps(record | {"data": "somebody's"}))
    assert "instead of 2.0" in shell("train.py", "odd/recipe.json", "--steps", 1)[1]
    file.write_text(json.dumps(record))
    said = shell("train.py", file, "--steps", 1, "--out", "third")[1]
    assert re.search(
        r"torch \S+ instead of 2.0, examples 96 instead of 5, other train data of the same name, --steps 1 ",
        said,
    )
    assert (
        "--seed 0 " in shell("train.py", file, "--help")[1]
        and "peak" in shell("train.py", file, "--dry-run")[1]
    )


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "recipe.json is not JSON"),
        ("[1]", "recipe.json is [1], not an object"),
        ('{"some": "file"}', "recipe.json holds no recipe"),
        (
            '{"config": {"lr": "fast"}}',
            "recipe.json has lr = 'fast', which is no value of this field",
        ),
        ('{"config": {"prompts": 0}}', "--prompts 0 must be above 0"),
        ('{"config": {"schedule": "square"}}', "--schedule square is not one of constant, cosine"),
        (None, "there is no file far/recipe.json"),
    ],
)
def test_a_file_that_is_no_recipe(shell, text, words):
    if text:
        Path("far").mkdir()
        Path("far/recipe.json").write_text(text)
    refused(shell("train.py", "far/recipe.json"), words)


def test_code_that_a_recipe_names_is_run_where_the_command_names_it(own, shell):  # noqa: F811
    assert shell("train.py", *own, "--reward", "rewards.py:correct", "--out", "mine")[0] == 0
    again = ("train.py", "mine/recipe.json")
    refused(
        shell(*again),
        "names code that would be run: --reward rewards.py:correct says that you trust it",
    )
    code, said = shell(*again, "--reward", "rewards.py:correct")
    assert code == 0 and "nothing differs" in said and weights("runs/mine-again") == weights("mine")
