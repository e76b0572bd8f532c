"""The command line of train.py: types come from the fields of Config, and mistakes are named."""

import dataclasses
import re

import pytest
from command_lines import with_overrides

from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.recipes import RECIPES
from maxrl.run.command_line import help_of


def parsed(*arguments):
    return with_overrides(Config(), list(arguments))


@pytest.mark.parametrize(
    "arguments, name, value",
    [
        ("--prompts 8", "prompts", 8),
        ("--prompts=8", "prompts", 8),
        ("--lr 3e-5", "lr", 3e-5),
        ("--entropy-bonus -0.1", "entropy_bonus", -0.1),
        ("--betas 0.9,0.95", "betas", (0.9, 0.95)),
        ("--eval-k 1", "eval_k", (1,)),
        ("--rollouts 8", "rollouts", (8,)),
        ("--rollouts 8,8,16", "rollouts", (8, 8, 16)),
        ("--reward a.py:f --reward b:g,c:h", "reward", ("a.py:f", "b:g", "c:h")),
        ("--zero-reward-at-limit true", "zero_reward_at_limit", True),
        ("--zero-reward-at-limit", "zero_reward_at_limit", True),
        ("--zero-reward-at-limit FALSE", "zero_reward_at_limit", False),
        ("--resume", "resume", "yes"),
        ("--resume auto", "resume", "auto"),
        ("--seed 1 --seed 2", "seed", 2),
        (
            "--task.size 9 --task.share 0.5 --task.at-once",
            "task_options",
            {"size": 9, "share": 0.5, "at_once": True},
        ),
        ("--estimator.order=4", "estimator_options", {"order": 4}),
        ("--out=a=b", "out", "a=b"),
    ],
)
def test_types_come_from_the_fields(arguments, name, value):
    """A value has its field's type, and no other field changes."""
    changed = parsed(*arguments.split())
    assert changed == dataclasses.replace(Config(), **{name: value})
    assert type(getattr(changed, name)) is type(value)


def test_options_are_added_to_the_recipes_own():
    """--task.directory does not make a recipe forget its size, and the recipe itself stays."""
    recipe = Config(task_options={"size": 9})
    changed = with_overrides(recipe, ["--task.directory", "x"])
    assert changed.task_options == {"size": 9, "directory": "x"}
    assert recipe.task_options == {"size": 9}


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("--prompts many", "--prompts: 'many' cannot be read: expected int"),
        ("--lr fast", "--lr: 'fast' cannot be read: expected float"),
        ("--betas 0.9;0.95", "expected float values separated by commas"),
        ("--eval-k 1 8", "8 is not an option; lists are written with commas"),
        ("--zero-reward-at-limit yes", "expected true or false"),
        ("--prompts", "--prompts: expected one argument"),
        ("--prompts --lr 1", "--prompts: expected one argument"),
        ("8", "8 is not an option"),
        ("--prompt 8", "--prompt is not an option; did you mean --prompts"),
        ("--eval_k 1", "did you mean --eval-k"),
        ("--config run.yaml", "RUN/recipe.json"),
        ("--early-stopping 3", "did you mean --stop-at-pass?"),
        ("--model x", "--model is not an option"),
        ("--task_options x", "is not an option"),
        ("--optimizer.lr x", "--optimizer.lr is not an option"),
        ("--prompts 0", "--prompts 0 must be above 0"),
        ("--rollouts 8,0", "--rollouts 0 must be above 0"),
        ("--rollouts 1e1,2", "expected int values separated by commas"),
        ("--steps 9223372036854775807", "--steps 9223372036854775807 must be at most"),
        ("--eval-samples 2147483648", "--eval-samples 2147483648 must be at most"),
        ("--prompts 99999999", "--prompts 99999999 must be at most"),
        ("--lr -1", "--lr -1.0 must not be negative"),
        ("--lr nan", "--lr nan must be finite"),
        ("--lr inf", "--lr inf must be finite"),
        ("--clip nan,0.2", "--clip cannot be (nan, 0.2)"),
        ("--temperature 0.9", "--temperature is not an option"),
        ("--top-p=0.95", "--top-p is not an option"),
        ("--eval-temperature -1", "--eval-temperature -1.0"),
        ("--eval-top-p 1.5", "--eval-top-p 1.5 must be at most 1"),
        ("--aggregation mean", "--aggregation mean is not one of sequence, token, constant"),
        ("--betas 0.9", "--betas takes two numbers"),
        ("--momentum 1", "--momentum 1.0 must lie in [0, 1)"),
        ("--beta 0.1", "--beta 0.1 needs --init"),
        ("--lora-alpha 1", "--lora-alpha means nothing without --lora-rank"),
        ("--lora-projections q_proj", "--lora-projections means nothing without --lora-rank"),
        ("--eval-k 0,8", "--eval-k 0 must be above 0"),
        ("--eval-every 1 --eval-prompts 0", "--eval-prompts 0 must be above 0"),
        ("--eval-every 1 --eval-k 128", "needs at least as many --eval-samples"),
    ],
)
def test_mistakes_are_named(arguments, words):
    """Each one ends in one sentence, before any work."""
    with pytest.raises(UsageError) as error:
        parsed(*arguments.split())
    assert words in str(error.value) and "\n" not in str(error.value)


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
    assert "the machine:" in said and "--dry-run" in said and "images, gsm8k, math" in said
