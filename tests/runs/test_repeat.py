"""`train.py RUN/recipe.json` repeats a run from its own record."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from maxrl.advantages import ADVANTAGES
from maxrl.system.files import read_json
from tests.helpers.runs import SHORT, passed, refused, same_runs, weights
from tests.helpers.tables import each


@pytest.fixture
def first(shell, recorded):
    """The run whose recipe.json is repeated."""
    shutil.copytree(recorded.path, "runs/first")
    return Path("runs/first")


def test_a_repeated_run_is_the_same_to_the_last_bit(first, shell):
    """A repeated run can be repeated, here from the recipe of its checkpoint."""
    again = ("train.py", "runs/first/recipe.json")
    passed(shell(*again))
    same_runs("runs/first-again", first)
    refused(shell(*again), "runs/first-again already holds a run")
    passed(shell("train.py", "runs/first-again/step-000004/recipe.json"))
    same_runs("runs/step-000004-again", first)


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


KINDS = {"reward": "right", "task": "Mine", "estimator": "half"}


def test_a_start_that_trains_nothing_leaves_the_record(first, shell, recorded):
    """The last start that trained has made what is there: its command, ranks and code."""
    shutil.copytree(first, "run")
    before = Path("run/recipe.json").read_bytes()
    passed(shell(*recorded.command, "--show-every", 3))
    assert Path("run/recipe.json").read_bytes() == before


OWN_CODE = """
from tests.helpers.tiny import Ragged
class Mine(Ragged):
    pass
def right(completions):
    return [float(i % 2) for i in range(len(completions))]
def half(rewards):
    return rewards - rewards.mean(1, keepdim=True)
"""


@pytest.mark.parametrize("kind", ["file", "module"])
def test_code_that_has_changed_is_named_at_a_resume(warm, shell, monkeypatch, kind):
    """Once, a reward function, a task or an estimator of the user's own, in a file or a module: the
    run goes on, and its metrics are of two codes. A file that was only touched is the same."""
    monkeypatch.syspath_prepend(os.getcwd())
    files = {name: Path(f"{kind}_{name}.py") for name in KINDS}
    text = dict.fromkeys(KINDS, OWN_CODE)
    options = []

    def write(name):
        files[name].write_text(text[name])
        # As in a process of its own.
        sys.modules.pop(files[name].stem, None)
        ADVANTAGES.pop(f"{files[name].stem}:half", None)

    for name, what in KINDS.items():
        write(name)
        where = files[name] if kind == "file" else files[name].stem
        options += [f"--{name}", f"{where}:{what}"]
    run = ("train.py", *SHORT, "--init", warm, "--save-every", 1, *options)
    passed(shell(*run, "--steps", 1, "--out", "run"))
    for step, changed in enumerate([*KINDS, ""], 2):
        if changed:
            text[changed] += "x = 1\n"
        for name in KINDS:
            write(name)
        said = passed(shell(*run, "--out", "run", "--steps", step, "--resume"))
        named = [line for line in said.splitlines() if "has changed" in line]
        assert len(named) == bool(changed)
        assert all(files[changed].stem in line for line in named)
