"""The recipes by name: those of the paper, those of a reduced scale, and a user's own."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from maxrl.learning.config import Config
from maxrl.run.recipes.laptop import (
    countdown_laptop,
    countdown_laptop_sft,
    gsm8k_laptop,
    gsm8k_laptop_sft,
    maze9_laptop,
    maze9_laptop_sft,
)
from maxrl.run.recipes.paper import (
    gsm8k_smollm2,
    gsm8k_smollm2_135m,
    gsm8k_smollm2_135m_sft,
    imagenet,
    maze17,
    maze17_sft,
    polaris_qwen3_1_7b,
    polaris_qwen3_4b,
    prompts,
)
from maxrl.system.arguments import near
from maxrl.system.errors import UsageError, blaming, refusing
from maxrl.system.files import read_json
from maxrl.system.user_code import import_object

RECIPES: dict[str, Callable[[], Config]] = {
    recipe.__name__: recipe
    for recipe in (
        maze17_sft,
        maze17,
        maze9_laptop_sft,
        maze9_laptop,
        imagenet,
        gsm8k_smollm2,
        gsm8k_smollm2_135m_sft,
        gsm8k_smollm2_135m,
        polaris_qwen3_1_7b,
        polaris_qwen3_4b,
        gsm8k_laptop_sft,
        gsm8k_laptop,
        countdown_laptop_sft,
        countdown_laptop,
        prompts,
    )
}


def is_record(recipe: str) -> bool:
    """Return whether a recipe is what a run has recorded, RUN/recipe.json."""
    return Path(recipe).name == "recipe.json"


def read_record(directory: str | Path) -> dict:
    """Return the recipe in recipe.json of a run or checkpoint, by the fields of Config.

    A field that it lacks has its default. FileNotFoundError without the file, ValueError if it
    holds no recipe.
    """
    file = Path(directory) / "recipe.json"
    recipe = read_json(file).get("config")
    if not isinstance(recipe, dict):
        raise ValueError(f"{file} holds no recipe")
    default = Config().to_dict()
    return default | {name: value for name, value in recipe.items() if name in default}


def recipe_of_run(file: str) -> Config:
    """Return the recipe in a run's recipe.json, for a new run in another directory."""
    with refusing("", OSError, ValueError):
        fields = read_record(Path(file).parent)
    return replace(Config(**fields), out="", resume="no")


def find_recipe(name: str) -> tuple[Config, str]:
    """Return a recipe's Config and what is to be said of it.

    name  of RECIPES, FILE.py:NAME for a recipe of the user's own, or RUN/recipe.json
    """
    if is_record(name):
        return recipe_of_run(name), name
    recipe = import_object(name, "recipe") if ":" in name else RECIPES.get(name)
    if recipe is None:
        there = f"there are {', '.join(RECIPES)}, FILE.py:NAME or RUN/recipe.json"
        raise UsageError(f"no recipe is called {name!r}; {near(name, RECIPES, there)}")
    with blaming(f"the recipe {name}"):
        cfg = recipe()
    if not isinstance(cfg, Config):
        raise UsageError(f"the recipe {name} returned {cfg!r:.40}: it must return a Config")
    return cfg, inspect.getdoc(recipe) or name
