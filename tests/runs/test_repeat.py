"""`train.py RUN/recipe.json` repeats a run from its own record."""

import shutil
from pathlib import Path

import pytest

from maxrl.system.files import read_json
from tests.helpers.runs import passed, refused, same_runs, weights
from tests.helpers.tables import each


@pytest.fixture
def first(shell, recorded):
    """The run whose recipe.json is repeated."""
    shutil.copytree(recorded.path, "runs/first")
    return Path("runs/first")


@pytest.mark.parametrize("recipe, out", [("first", "first"), ("first/step-000004", "step-000004")])
def test_a_repeated_run_is_the_same_to_the_last_bit(first, shell, recipe, out):
    """Also from the recipe of its checkpoint, and a repeated run can be repeated."""
    again = ("train.py", f"runs/{recipe}/recipe.json")
    passed(shell(*again))
    same_runs(f"runs/{out}-again", first)
    refused(shell(*again), f"runs/{out}-again already holds a run")
    passed(shell("train.py", f"runs/{out}-again/recipe.json"))
    same_runs(f"runs/{out}-again-again", first)


def test_options_change_the_recipe_that_is_repeated(first, shell):
    """For the run, --help and --dry-run."""
    file = first / "recipe.json"
    passed(shell("train.py", file, "--lr", 0.01, "--eval-k", "1,2", "--out", "other"))
    assert weights("other") != weights(first)
    old = read_json(file)["config"]
    new = read_json("other/recipe.json")["config"]
    changed = {"lr": 0.01, "eval_k": [1, 2], "out": "other"}
    assert new == old | changed | {"resume": "no"}
    assert "--seed 0 " in shell("train.py", file, "--help")[1]
    assert "peak" in shell("train.py", file, "--dry-run")[1]


NO_RECIPES = """
{ | recipe.json is not JSON
[1] | recipe.json is [1], not an object
{"some": "file"} | recipe.json holds no recipe
{"config": {"lr": "fast"}} | --lr cannot be 'fast'
{"config": {"eval_k": [1, "2"]}} | --eval-k cannot be [1, '2']
{"config": {"prompts": 0}} | --prompts 0 must be above 0
{"config": {"schedule": "square"}} | --schedule square is not one of constant
"""


@each("text, words", NO_RECIPES)
def test_a_file_that_is_no_recipe(shell, text, words):
    Path("far").mkdir()
    Path("far/recipe.json").write_text(text)
    refused(shell("train.py", "far/recipe.json"), words)


def test_code_that_a_recipe_names_is_run_where_the_command_names_it(own, shell):
    passed(shell("train.py", *own, "--reward", "rewards.py:correct", "--out", "mine"))
    again = ("train.py", "mine/recipe.json")
    refused(shell(*again), "names code that would be run", "--reward rewards.py:correct")
    passed(shell(*again, "--reward", "rewards.py:correct"))
    assert weights("runs/mine-again") == weights("mine")
