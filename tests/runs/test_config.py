"""The command line: types come from the fields, mistakes are named."""

import dataclasses
import re

import pytest

from maxrl.config import ELSEWHERE, Config, with_overrides
from maxrl.errors import UsageError
from maxrl.io.arguments import dashed, refuse_blanks
from maxrl.recipes import RECIPES
from maxrl.run import sampling_options
from maxrl.run.command_line import help_of


def parsed(*arguments):
    return with_overrides(Config(), list(arguments))


@pytest.mark.parametrize(
    "arguments, name, value",
    [
        (["--prompts", "8"], "prompts", 8),
        (["--prompts=8"], "prompts", 8),
        (["--steps", "1e5"], "steps", 100_000),
        (["--lr", "3e-5"], "lr", 3e-5),
        (["--betas", "0.9,0.95"], "betas", (0.9, 0.95)),
        (["--eval-k", "1,2,4"], "eval_k", (1, 2, 4)),
        (["--eval_k", "1"], "eval_k", (1,)),
        (["--zero-reward-at-limit", "true"], "zero_reward_at_limit", True),
        (["--zero-reward-at-limit"], "zero_reward_at_limit", True),
        (["--zero-reward-at-limit", "FALSE"], "zero_reward_at_limit", False),
        (["--resume"], "resume", "yes"),
        (["--resume", "auto"], "resume", "auto"),
        (["--seed", "1", "--seed", "2"], "seed", 2),
        (["--task.size", "9"], "task_options", {"size": 9}),
        (
            ["--task.size", "9", "--task.share", "0.5", "--task.plain"],
            "task_options",
            {"size": 9, "share": 0.5, "plain": True},
        ),
        (["--estimator.order=4"], "estimator_options", {"order": 4}),
        (["--estimator.allow-fractional", "true"], "estimator_options", {"allow_fractional": True}),
        (["--out", "a=b"], "out", "a=b"),
        (["--out=a=b"], "out", "a=b"),
    ],
)
def test_types_come_from_the_fields(arguments, name, value):
    changed = parsed(*arguments)
    assert getattr(changed, name) == value and type(getattr(changed, name)) is type(value)
    untouched = [f.name for f in dataclasses.fields(Config) if f.name != name]
    assert all(getattr(changed, n) == getattr(Config(), n) for n in untouched)


def test_options_are_added_to_the_recipes_own():
    """--task.directory must not make a recipe forget its size; and the recipe itself stays as it is."""
    recipe = Config(task_options={"size": 9})
    assert with_overrides(recipe, ["--task.directory", "x"]).task_options == {
        "size": 9,
        "directory": "x",
    }
    assert recipe.task_options == {"size": 9}


def test_names_of_other_trainers_lead_to_options():
    assert {dashed(f.name) for f in dataclasses.fields(Config)} >= set(ELSEWHERE.values())
    assert not {f.name for f in dataclasses.fields(Config)} & set(ELSEWHERE)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--prompts", "many"], "--prompts many cannot be read: expected int"),
        (["--prompts", "1.5"], "--prompts 1.5 cannot be read: expected int"),
        (["--steps", "1.5e0"], "cannot be read: expected int"),
        (["--lr", "fast"], "--lr fast cannot be read: expected float"),
        (["--betas", "0.9;0.95"], "expected numbers separated by commas"),
        (["--eval-k", "1", "8"], "--eval-k 1 8: a list is written with commas, --eval-k 1,8"),
        (
            ["--reward", "a.py:f", "b.py:g", "--lr", "1"],
            "a list is written with commas, --reward a.py:f,b.py:g",
        ),
        (["--zero-reward-at-limit", "yes"], "expected true or false"),
        (["--prompts"], "--prompts needs a value"),
        (["--prompts", "--lr", "1"], "--prompts needs a value"),
        (["8"], "'8' stands where an option was expected"),
        (["--prompt", "8"], "--prompt is not an option; did you mean --prompts"),
        (
            ["--num-generations", "8"],
            "--num-generations is not an option; did you mean --rollouts? (",
        ),
        (["--learning_rate", "1"], "--learning_rate is not an option; did you mean --lr? ("),
        (["--model", "x"], "--model is not an option"),
        (["--task_options", "x"], "is not an option"),
        (["--optimizer.lr", "x"], "--optimizer.lr is not an option"),
        (["--prompts", "0"], "--prompts 0 must be above 0"),
        (["--lr", "-1"], "--lr -1.0 must not be negative"),
        (["--lr", "nan"], "--lr nan must be finite"),
        (["--lr", "-inf"], "--lr -inf must be finite"),
        (["--temperature", "0.9"], "the estimators are biased"),
        (["--top-p", "0.95"], "the estimators are biased"),
        (["--eval-temperature", "-1"], "--eval-temperature -1.0"),
        (["--eval-temperature", "nan"], "--eval-temperature nan"),
        (["--eval-top-p", "0"], "--eval-top-p 0.0 is no distribution"),
        (["--eval-top-p", "1.5"], "top-p lies in (0, 1]"),
        (["--aggregation", "mean"], "--aggregation mean is not one of sequence, token, constant"),
        (["--schedule", "linear"], "--schedule linear is not one of constant, cosine"),
        (["--betas", "0.9"], "--betas takes two numbers"),
        (["--eval-every", "1", "--eval-k", "0,8"], "--eval-k 0 must be at least 1"),
        (["--eval-every", "1", "--eval-prompts", "0"], "--eval-prompts 0 must be above 0"),
        (
            ["--eval-every", "1", "--eval-k", "128"],
            "--eval-k 128 needs at least as many --eval-samples, not 64",
        ),
    ],
)
def test_mistakes_are_named(arguments, words):
    with pytest.raises(UsageError) as error:
        parsed(*arguments)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_the_paper_s_language_model_recipes():
    """Tables 5 and 6: validation at temperature 0.6 and top-p 0.95; the published scripts clip POLARIS at 0.3."""
    for name, recipe in RECIPES.items():
        cfg = recipe()
        paper = name.startswith(("gsm8k_smollm2", "polaris_"))
        assert (cfg.eval_temperature, cfg.eval_top_p) == ((0.6, 0.95) if paper else (1, 1)), name
        assert (cfg.max_grad_norm == 0.3) == name.startswith("polaris_"), name


def test_what_was_measured_on_a_laptop_names_its_precision():
    """Results in float32 stay what they are on a CPU on which `auto` would take bfloat16."""
    assert {name for name, recipe in RECIPES.items() if recipe().precision == "float32"} >= {
        "maze9_laptop_sft", "maze9_laptop", "images_laptop", "gsm8k_laptop_sft", "gsm8k_laptop"}  # fmt: skip


def test_every_field_has_its_sentence():
    for f in dataclasses.fields(Config):
        assert f.metadata["help"].endswith("."), f.name
    options = [f.name for f in dataclasses.fields(Config) if f.type is not dict]
    said = help_of(Config()) + help_of(Config(task="images"))
    assert all(f"--{name.replace('_', '-')} " in said for name in options)


def test_help_can_be_typed_as_it_is_printed():
    """Every value of a recipe's help, given back to the recipe, is the recipe: groups, choices and inner options too."""
    for name in ("maze17", "imagenet", "prompts"):
        recipe = RECIPES[name]()
        said = help_of(recipe)
        pairs = [words.split() for words in re.findall(r"^  (--\S+ \S+)(?:   |$)", said, re.M)]
        twice = (
            "--gpus",
            "--mean-response",
            "--bench",
            *(("--steps", "--warmup-steps") if recipe.epochs else ()),
        )
        back = with_overrides(
            recipe, [word for pair in pairs if pair[0] not in twice for word in pair]
        )
        assert len(pairs) > 35 and back == dataclasses.replace(
            recipe, task_options=back.task_options
        )
        assert recipe.task_options.items() <= back.task_options.items()
        assert all(
            f"\n{group}:\n" in said for group in ("what is learned", "the optimizer", "the machine")
        )
        assert "One of constant, cosine." in said and "maxrl_order" in said and "subset_sum" in said
        assert (
            "--dry-run" in said and "--gpus 1" in said and max(map(len, said.splitlines())) <= 128
        )
        assert (
            ("--max-response" in said) == (name != "imagenet") == ("--sync-batch-norm" not in said)
        )
    assert "--task.size 17" in help_of(RECIPES["maze17"]())


def test_what_follows_a_list_may_be_a_checkpoint():
    """`eval.py --k 1,8 Qwen/Qwen3-1.7B` was refused as a list with blanks."""
    for words in (
        "--k 1,8 Qwen/Qwen3-1.7B",
        "--k 1 gpt2",
        "--estimators maxrl,grpo org/model",
        "--reward a.py:f org/model",
    ):
        refuse_blanks(words.split(), sampling_options.ITEMS)
    for words, mended in {
        "--k 1 8 gpt2": "--k 1,8",
        "--estimators maxrl grpo": "--estimators maxrl,grpo",
        "--reward-weights 1 0.5": "--reward-weights 1,0.5",
        "--reward a.py:f b:g": "--reward a.py:f,b:g",
    }.items():
        with pytest.raises(UsageError, match=f"a list is written with commas, {mended}$"):
            refuse_blanks(words.split(), sampling_options.ITEMS)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipes_first_line_is_a_sentence(name):
    """It is what `train.py --help` lists."""
    assert RECIPES[name].__doc__.splitlines()[0].endswith(".")
