"""The command line of train.py: types come from the fields of Config."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from maxrl.learning.config import Config
from maxrl.run.command_line import help_of, read_recipe
from maxrl.run.recipes import RECIPES
from maxrl.tasks import TASKS
from tests.helpers.command_lines import with_overrides
from tests.helpers.tables import each

# Words, the field that they change, and its value.
CHANGES = """
--prompts 8 | prompts | 8
--prompts=8 | prompts | 8
--lr 3e-5 | lr | 3e-5
--entropy-bonus -0.1 | entropy_bonus | -0.1
--betas 0.9,0.95 | betas | (0.9, 0.95)
--eval-k 1 | eval_k | (1,)
--rollouts 8 | rollouts | (8,)
--rollouts 8,8,16 | rollouts | (8, 8, 16)
--reward a.py:f --reward b:g,c:h | reward | ("a.py:f", "b:g", "c:h")
--zero-reward-at-limit true | zero_reward_at_limit | True
--zero-reward-at-limit | zero_reward_at_limit | True
--zero-reward-at-limit FALSE | zero_reward_at_limit | False
--resume | resume | "yes"
--resume auto | resume | "auto"
--seed 1 --seed 2 | seed | 2
--task.size 9 --task.at-once | task_options | {"size": 9, "at_once": True}
--task.share 0.5 | task_options | {"share": 0.5}
--estimator.order=4 | estimator_options | {"order": 4}
--out=a=b | out | "a=b"
"""


@each("arguments, name, text", CHANGES)
def test_types_come_from_the_fields(arguments, name, text):
    """A value has its field's type, and no other field changes."""
    value = ast.literal_eval(text)
    changed = with_overrides(Config(), arguments.split())
    assert changed == dataclasses.replace(Config(), **{name: value})
    assert type(getattr(changed, name)) is type(value)


FITTING = """
8 | (1, 8)
7 | (1,)
100 | (1, 8, 64)
8 --eval-k 2,4 | (2, 4)
"""


@each("words, ks", FITTING)
def test_fewer_samples_keep_the_values_of_k_that_fit(words, ks):
    assert str(with_overrides(Config(), ["--eval-samples", *words.split()]).eval_k) == ks


TASK = """
from pathlib import Path
class Mine:
    def __init__(self, split, file: Path | str = "", name: "str" = "", n: int = 0, other=None): ...
"""
# An option of this task or of another one, and its value.
TYPED = """
mine.py:Mine file 2025 | "2025"
mine.py:Mine file 1e3 | "1e3"
mine.py:Mine name 1_000 | "1_000"
mine.py:Mine name nan | "nan"
mine.py:Mine n 9 | 9
mine.py:Mine other 9 | 9
prompts train 2025 | "2025"
prompts validation true | "true"
gsm8k directory 007 | "007"
math system true | "true"
maze size 9 | 9
maze sise 9 | 9
"""


@each("words, value", TYPED)
def test_texts_and_paths_of_a_task_are_what_was_typed(words, value, in_a_directory_of_its_own):
    Path("mine.py").write_text(TASK)
    task, name, text = words.split()
    options = with_overrides(Config(), ["--task", task, f"--task.{name}", text]).task_options
    assert options == {name: ast.literal_eval(value)}
    made = f"def mine():\n    return Config(task={task!r})\n"
    recipe = f"from maxrl.learning.config import Config\n{made}"
    Path("recipes.py").write_text(recipe)
    _, cfg = read_recipe(["recipes.py:mine", f"--task.{name}", text], "")
    assert cfg.task_options == options


def test_options_are_added_to_the_recipes_own():
    """--task.directory does not make a recipe forget its size, and the recipe itself stays."""
    recipe = Config(task_options={"size": 9})
    changed = with_overrides(recipe, ["--task.directory", "x"])
    assert changed.task_options == {"size": 9, "directory": "x"}
    assert recipe.task_options == {"size": 9}


def test_the_paper_s_language_model_recipes():
    """Tables 5 and 6 evaluate at temperature 0.6, top-p 0.95; published POLARIS clips at 0.3."""
    for name, recipe in RECIPES.items():
        cfg = recipe()
        paper = name.startswith(("gsm8k_smollm2", "polaris_"))
        assert (cfg.eval_temperature, cfg.eval_top_p) == ((0.6, 0.95) if paper else (1, 1)), name
        assert (cfg.max_grad_norm == 0.3) == name.startswith("polaris_"), name


def test_what_was_measured_on_a_laptop_names_its_precision():
    """Their results do not change on a CPU on which `auto` would take bfloat16."""
    laptop = {name for name in RECIPES if "laptop" in name}
    assert {name for name in RECIPES if RECIPES[name]().precision == "float32"} >= laptop


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_sentence(name):
    """It is what `train.py --help` lists."""
    assert RECIPES[name].__doc__.splitlines()[0].endswith(".")


@pytest.mark.parametrize("name", ["maze17", "imagenet", "prompts"])
def test_help_can_be_typed_as_it_is_printed(name):
    """Every value that a recipe's --help shows, given back to the recipe, is the recipe."""
    recipe = RECIPES[name]()
    said = help_of(recipe)
    options = re.findall(r"^ +(--\S+) \[?([^\s\]]+)\]?(?: |$)", said, re.M)
    twice = ("--gpus", *(("--steps", "--warmup-steps") if recipe.epochs else ()))
    words = [f"{key}={value}" for key, value in options if key not in twice and value != '""']
    back = with_overrides(recipe, words)
    assert len(words) > 35 and back == dataclasses.replace(recipe, task_options=back.task_options)
    assert recipe.task_options.items() <= back.task_options.items()
    assert "the machine:" in said and "--dry-run" in said and ", ".join(TASKS) in said
