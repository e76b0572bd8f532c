"""`train.py RUN/recipe.json` repeats a run from its own record."""

import json
from pathlib import Path

import pytest
from runs import refused, timeless, weights


@pytest.fixture
def first(shell, warm):
    """A run of two steps, whose recipe.json is repeated."""
    options = "--steps 2 --prompts 4 --rollouts 4 --eval-every 1 --eval-prompts 4 --out runs/first"
    code, said = shell("train.py", "tiny", "--init", warm, *options.split())
    assert code == 0, said
    return Path("runs/first")


def test_a_repeated_run_is_the_same_to_the_last_bit(first, shell):
    """Also from the recipe of its checkpoint, and a repeated run can be repeated."""
    for recipe, out in (
        (first, "runs/first-again"),
        (first / "step-000002", "runs/step-000002-again"),
        (Path("runs/first-again"), "runs/first-again-again"),
    ):
        code, said = shell("train.py", recipe / "recipe.json")
        assert code == 0, said
        assert weights(out) == weights(first) and timeless(out) == timeless(first)
    again = shell("train.py", first / "recipe.json")
    refused(again, "runs/first-again already holds a run")


def test_options_change_the_recipe_that_is_repeated(first, shell):
    """For the run, --help and --dry-run."""
    file = first / "recipe.json"
    code, said = shell("train.py", file, "--lr", 0.01, "--eval-k", "1,2", "--out", "other")
    assert code == 0 and weights("other") != weights(first), said
    old, new = (
        json.loads(Path(run, "recipe.json").read_text())["config"] for run in (first, "other")
    )
    assert new == old | {"lr": 0.01, "eval_k": [1, 2], "out": "other"}
    assert "--seed 0 " in shell("train.py", file, "--help")[1]
    assert "peak" in shell("train.py", file, "--dry-run")[1]


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "recipe.json is not JSON"),
        ("[1]", "recipe.json is [1], not an object"),
        ('{"some": "file"}', "recipe.json holds no recipe"),
        ('{"config": {"lr": "fast"}}', "--lr cannot be 'fast'"),
        ('{"config": {"eval_k": [1, "2"]}}', "--eval-k cannot be [1, '2']"),
        ('{"config": {"prompts": 0}}', "--prompts 0 must be above 0"),
        (
            '{"config": {"schedule": "square"}}',
            "--schedule square is not one of constant",
        ),
        (None, "far/recipe.json"),
    ],
)
def test_a_file_that_is_no_recipe(shell, text, words):
    if text:
        Path("far").mkdir()
        Path("far/recipe.json").write_text(text)
    refused(shell("train.py", "far/recipe.json"), words)


def test_code_that_a_recipe_names_is_run_where_the_command_names_it(own, shell):
    assert shell("train.py", *own, "--reward", "rewards.py:correct", "--out", "mine")[0] == 0
    again = ("train.py", "mine/recipe.json")
    refused(shell(*again), "names code that would be run", "--reward rewards.py:correct")
    code, said = shell(*again, "--reward", "rewards.py:correct")
    assert code == 0 and weights("runs/mine-again") == weights("mine")
