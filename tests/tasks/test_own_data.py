"""A user's own data and reward functions through train.py, eval.py and sample.py: `train.py prompts`."""

import json
import math
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from runs import metrics, refused
from started import started

from maxrl.advantages import ADVANTAGES
from maxrl.errors import UsageError
from maxrl.rollouts import with_verdict
from maxrl.run.logger import Logger
from maxrl.sampling.sampler import noise
from maxrl.tasks import load_task


def test_train_on_ones_own_data(own, shell):
    code, said = shell("train.py", *own, "--reward", "rewards.py:correct", "--eval-every", 2, "--eval-samples", 4,
                       "--eval-k", "1,4", "--eval-prompts", 8, "--out", "run")  # fmt: skip
    assert code == 0, said
    assert "train: left out 1 of 25 prompts, longer than --max-prompt 80 tokens" in said
    rows = metrics("run")
    assert (
        rows[0]["rewards/correct/mean"] == pytest.approx(rows[0]["reward"])
        and rows[0]["rewards/groups_left_out"] == 0
    )
    assert "eval/pass@4" in rows[1] and rows[1]["rewards/correct/mean"] == pytest.approx(
        rows[1]["reward"]
    )
    Path("mine.jsonl").write_text(
        "".join(Path("mine.jsonl").read_text().splitlines(keepends=True)[4:])
    )
    code, said = shell(
        "eval.py",
        "run",
        "--samples",
        4,
        "--k",
        "1,4",
        "--prompts",
        5,
        "--reward",
        "rewards.py:correct",
    )
    assert code == 0 and "the first 5 of 21 prompts x 4 samples" in said, said
    code, said = shell(
        "sample.py", "run", "--prompts", 1, "--split", "train", "--reward", "rewards.py:correct"
    )
    assert code == 0 and "--- response" in said, said


def test_weights_and_several_functions(own, shell):
    """The reward is the weighted sum of those with a verdict; each is logged by its name."""
    code, said = shell("train.py", *own, "--estimator", "rloo", "--reward", "rewards.py:correct", "--reward",
                       "rewards.py:short", "--reward-weights", "1,0.5", "--out", "run")  # fmt: skip
    assert code == 0, said
    assert {"rewards/correct/mean", "rewards/correct/std", "rewards/short/mean"} <= set(
        metrics("run")[0]
    )
    assert metrics("run")[0]["rewards/short/mean"] == 1


def test_groups_without_a_verdict_leave_the_step(own, shell):
    """`some` has none for the first rollout of the step: one of four groups is left out, and not in the normaliser."""
    code, said = shell("train.py", *own, "--reward", "rewards.py:some", "--out", "run")
    assert code == 0, said
    row = metrics("run")[0]
    assert row["rewards/groups_left_out"] == 1 and row["reward"] == pytest.approx(0.5)
    assert said.count("warning: groups are left out") == 1 and "--no-verdict rollout" in said
    assert row["tokens"] < row["completions/mean_length"] * 16 and row["grad_norm"] > 0
    code, said = shell("train.py", *own, "--reward", "rewards.py:none", "--out", "nothing")
    assert code == 0, said
    assert [row["rewards/groups_left_out"] for row in metrics("nothing")] == [4, 4] and metrics(
        "nothing"
    )[0]["grad_norm"] == 0


def test_fractional_rewards_are_allowed_explicitly(own, shell):
    code, said = shell("train.py", *own, "--reward", "rewards.py:half", "--out", "no")
    assert (
        code == 2
        and "a reward of 0.5 but takes rewards in {0, 1}" in said
        and "or --allow-fractional true" in said
    )
    code, said = shell(
        "train.py",
        *own,
        "--reward",
        "rewards.py:half",
        "--allow-fractional",
        "true",
        "--out",
        "run",
    )
    assert code == 0 and metrics("run")[0]["reward"] == pytest.approx(0.25), said
    assert (
        shell(
            "train.py", *own, "--reward", "rewards.py:half", "--estimator", "grpo", "--out", "grpo"
        )[0]
        == 0
    )


def test_a_function_that_fails(own, shell):
    code, said = shell("train.py", *own, "--reward", "rewards.py:broken", "--out", "run")
    assert (
        code == 2
        and "train.py: the reward function broken returned 1 rewards for 16" in said
        and "Traceback" not in said
    )
    assert len(list(Path("run").glob("reward_error_broken*.jsonl"))) == 1
    with pytest.warns(UserWarning, match="the groups of this call are left out"):
        code, said = shell(
            "train.py",
            *own,
            "--reward",
            "rewards.py:broken",
            "--reward-errors",
            "drop",
            "--out",
            "drop",
        )
    assert code == 0 and metrics("drop")[0]["rewards/failed_calls"] == 1, said


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--reward", "rewards.py:nothing"], ["has no function or class nothing"]),
        (["--reward", "rewards"], ["not written"]),
        (
            ["--reward", "rewards.py:correct", "--reward-weights", "1,2"],
            ["1 reward functions and 2 weights"],
        ),
        (["--reward-errors", "ignore"], ["stop, drop"]),
    ],
)
def test_refusals(own, shell, arguments, words):
    refused(shell("train.py", *own, "--out", "no", *arguments), *words)


def test_a_model_is_missing(own, shell):
    """It was a traceback from within the tokenizers library."""
    at = own.index("--init")
    for options in (own[:at] + own[at + 2 :], ["prompts", "--task", "reverse_text"]):
        said = shell("train.py", *options, "--reward", "rewards.py:correct", "--out", "no")
        refused(said, "name a checkpoint or a hub id with --init")


def test_cut_responses_in_the_evaluation(own, dice, shell):
    """--zero-reward-at-limit counts them as failures wherever pass@k is measured: DONE comes once in four tokens, so that
    27 responses in 64 are cut at 3."""
    own[own.index("--init") + 1] = dice
    Path("rewards.py").write_text("def one(completions): return [1.0 for _ in completions]")
    own = [*own, "--reward", "rewards.py:one", "--max-response", 3, "--eval-every", 2, "--eval-prompts", 6, "--eval-samples", 4,
           "--eval-k", "1,4", "--estimator", "rloo"]  # fmt: skip
    code, said = shell("train.py", *own, "--out", "run", "--zero-reward-at-limit", "true")
    assert code == 0, said
    row = metrics("run")[1]
    counts = (
        (noise(0, 0, range(6), 4, 3) < 0.25).any(-1).sum(1)
    )  # DONE is what the vocabulary begins with
    assert (
        0 < row["completions/clipped_ratio"] < 1
        and row["reward"] == 1 - row["completions/clipped_ratio"]
    )
    assert row["eval/pass@1"] == pytest.approx(counts.sum().item() / 24) and 0 < counts.sum() < 24
    ask = (
        "--samples",
        4,
        "--k",
        1,
        "--prompts",
        6,
        "--split",
        "validation",
        "--reward",
        "rewards.py:one",
        "--json",
    )
    assert shell("eval.py", "run", *ask, "own.json")[0] == 0
    assert json.loads(Path("own.json").read_text())["checkpoints"][0]["counts"] == counts.tolist()
    assert (
        shell("train.py", *own, "--out", "other")[0] == 0
        and metrics("other")[1]["eval/pass@1"] == 1
    )


def test_a_task_without_rewards(own, shell):
    code, said = shell("train.py", *own, "--out", "no")
    assert (
        code == 2
        and "judges nothing by itself: name a reward function with --reward" in said
        and "Traceback" not in said
    )


def test_with_verdict():
    class Chosen:
        def select(self, kept):
            return kept.tolist()

    rewards = torch.tensor([[1.0, 0], [math.nan, math.nan], [0, 0]])
    kept, left = with_verdict(Chosen(), rewards)
    assert kept == [True, False, True] and left.tolist() == [[1, 0], [0, 0]]


def test_a_mended_command_is_not_blocked(own, shell):
    """The directory of a run that failed in its first step is used again; after that it holds a run."""
    code, said = shell("train.py", *own, "--reward", "rewards.py:broken", "--out", "run")
    assert code == 2 and said.strip().splitlines()[-1].startswith(
        "train.py: the reward function broken"
    )
    code, said = shell("train.py", *own, "--reward", "rewards.py:half", "--out", "run")
    assert code == 2 and "0.5" in said
    code, said = shell("train.py", *own, "--reward", "rewards.py:half", "--allow-fractional", "true", "--out", "run",
                       "--resume", "auto")  # fmt: skip
    assert (
        code == 0
        and len(metrics("run")) == 2
        and len(list(Path("run").glob("reward_error_broken*"))) == 1
    ), said

    late = "n = []\ndef late(completions):\n    n.append(1)\n    return [0.0] * len(completions) if len(n) < 2 else 1 / 0\n"
    Path("late.py").write_text(late)
    ask = ("train.py", *own, "--reward", "late.py:late", "--out", "late")
    assert shell(*ask)[0] == 2 and len(metrics("late")) == 1
    refused(
        shell(*ask),
        "late already holds a run",
        "--resume auto",
        "--out DIR",
    )
    Path("late.py").write_text(late.replace("1 / 0", "[1.0] * len(completions)"))
    code, said = shell(*ask, "--resume", "auto")
    assert code == 0 and len(metrics("late")) == 2, said


def test_what_a_run_says(own, shell):
    """Six lines at its start, steps as lines where there is no terminal, and the next command."""
    ask = (
        "train.py",
        *own,
        "--reward",
        "rewards.py:correct",
        "--precision",
        "auto",
        "--device",
        "cpu",
        "--out",
        "run",
    )
    only = [*ask[:4], *ask[8:]]  # no validation and no test file
    code, said = shell(*only)
    lines = said.splitlines()
    start = next(
        i
        for i, line in enumerate(lines)
        if line.startswith("prompts maxrl: 2 steps of 4 prompts x 4 rollouts")
    )
    assert code == 0 and "\r" not in said and [line[:10].split()[0] for line in lines[start + 1 : start + 6]] == [
        "model", "device", "prompts", "rewards", "writes"], said  # fmt: skip
    for words in ("float32", "24 of prompts", "rewards.py:correct", "writes   run", "parameters from"):
        assert words in "\n".join(lines[start : start + 6]), words
    steps = [line for line in lines if line.startswith("step ")]
    assert (
        steps[0].startswith("step 1/2  reward ")
        and "unsolved" in steps[0]
        and steps[0].endswith(" left")
    )
    assert steps[-1].startswith("step 2/2")
    assert lines[-2:] == [
        "the last checkpoint is run/step-000002",
        "  report   python -m maxrl.report run",
    ]
    code, said = shell(*only, "--resume", "auto")
    assert code == 0 and "resumes after step 2" in said and len(metrics("run")) == 2


def test_ones_own_file_is_run_once(own, shell):
    """However many things of it are named; and the end of a run makes no split once more."""
    Path("mine.py").write_text("""
from maxrl.tasks.prompts import Prompts
open("said", "a").write("run ")
class Mine(Prompts):
    def __init__(self, split, **files):
        open("said", "a").write(split + " ")
        super().__init__(split, **files)
def one(completions):
    return [1.0] * len(completions)
def two(completions):
    return [0.0] * len(completions)
""")
    own = (*own, "--task", "mine.py:Mine", "--reward", "mine.py:one,./mine.py:two")
    evaluated = ("--eval-every", 1, "--eval-k", "1,2", "--eval-samples", 2)
    code, said = shell("train.py", *own, *evaluated, "--out", "run")
    assert code == 0 and Path("said").read_text() == "run train validation ", said


def test_most_responses_are_cut(own, shell):
    """Said once, with the option that mends it; a warm-up shows no reward, and says no such thing."""
    said = shell(
        "train.py", *own, "--reward", "rewards.py:correct", "--max-response", 1, "--out", "run"
    )[1]
    assert min(row["completions/clipped_ratio"] for row in metrics("run")) > 0.5
    assert said.count("warning: most responses are cut") == 1
    said = shell("train.py", "tiny_sft", "--steps", 2, "--out", "warm")[1]
    assert "are cut" not in said and "step 2/2  loss" in said and "unsolved" not in said


@pytest.mark.parametrize("options, zero", [
    ((), True), (("--estimator", "rloo"), True), (("--estimator", "maxrl_centered"), False),
    (("--entropy-bonus", 0.1), False)])  # fmt: skip
def test_a_run_without_any_success(own, shell, options, zero):
    """Said once, after ten steps; that the gradient is exactly 0 only where the metrics say so."""
    Path("rewards.py").write_text("def wrong(completions):\n    return [0.0] * len(completions)\n")
    own += ["--reward", "rewards.py:wrong", "--steps", 12, "--out", "run"]
    code, said = shell("train.py", *own, *options)
    assert code == 0 and said.count("without a success") == 1, said
    assert {row["grad_norm"] == 0 for row in metrics("run")} == {zero} == {"exactly 0" in said}


def test_ten_steps_in_a_row(tmp_path, capsys):
    """Nine say nothing, nor nine after a success or a step without a verdict, nor a warm-up."""
    shares = [1.0] * 9 + [0.75] + [1.0] * 9 + [math.nan] + [1.0] * 9
    for folder, estimator, steps in (("a", "maxrl", shares), ("b", "supervised", [1.0] * 20)):
        (tmp_path / folder).mkdir()
        logger = Logger(started(tmp_path / folder, estimator=estimator), 0)
        for step, share in enumerate(steps):
            logger.log(step, {"frac_reward_zero_mean": share, "grad_norm": 0.0})
    assert "success" not in capsys.readouterr().err


def test_look_at_ones_own_run(own, shell):
    """sample.py falls back on the prompts there are; where code must be trusted it prints the whole command."""
    Path("mine.py").write_text(
        "from maxrl.tasks.prompts import Prompts\nclass Mine(Prompts):\n    pass\n"
    )
    only = [*own[:3], *own[7:], "--task", "mine.py:Mine", "--reward", "rewards.py:correct"]
    code, said = shell("train.py", *only, "--out", "run")
    assert code == 0, said
    code, said = shell("sample.py", "run", "--samples", 2, "--max-prompt", 80)
    whole = "python sample.py run --samples 2 --max-prompt 80 --task mine.py:Mine --reward rewards.py:correct"
    said = said.replace(f"{ROOT}/", "")  # in a test a script's name is its whole path
    assert code == 2 and said.strip().endswith(f"says that you trust it, as in {whole}"), said
    code, said = shell(*whole.split()[1:])
    assert (
        code == 0
        and "no validation prompts are named" in said
        and said.count("of 2 rollouts are right") == 2
    ), said


@pytest.mark.parametrize(
    "arguments, words, suffix",
    [
        (
            ["maze", "--task.sise", 9],
            "--task.sise is not an option of task maze; did you mean --task.size?",
            False,
        ),
        (
            ["prompts", "--task.zzz", 9],
            "--task.zzz is not an option of task prompts; it takes train, validation, test",
            False,
        ),
        (["prompts", "--task.train", "bad.jsonl"], "task prompts: bad.jsonl, line 2 ", False),
        (["prompts"], "or a data set of the hub: --task.train FILE", False),
        (["maze", "--task.size", 8], "odd number", True),
        (["maze", "--task.split", "x"], "--task.split is not an option: training takes", False),
        (
            ["prompts", "--task.name", "x"],
            "--task.name is not an option of task prompts; it",
            False,
        ),
    ],
)
def test_mistakes_in_a_tasks_options(in_a_directory_of_its_own, arguments, words, suffix):
    Path("bad.jsonl").write_text('{"prompt": "a"}\nnot JSON\n')
    task, *rest = arguments
    options = dict(zip((name.removeprefix("--task.") for name in rest[::2]), rest[1::2]))
    with pytest.raises(UsageError) as error:
        load_task(task, "train", **options)
    assert words in str(error.value) and ("--task.NAME VALUE" in str(error.value)) == suffix


ESTIMATORS = """
import torch
from maxrl.advantages import estimator
from maxrl.config import Config

def root(rewards, power=0.5):
    mean = rewards.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, (rewards - mean) / mean**power, 0.0)

def short(rewards):
    return rewards[:, 1:]

def broken(rewards):
    return {}["nothing"]

def loose(rewards, **options):
    return rewards

@estimator(takes="binary", group=True, name="mine.py: guarded")
def guarded(rewards):
    return rewards

def recipe():
    "Ours, shorter."
    return Config(task="prompts", prompts=4, rollouts=4, steps=1, max_prompt=80, max_response=20, precision="float32")

def no_recipe():
    return 3

def half():
    return Config(prompts=4.0)

def text():
    return Config(steps="7")

def unordered():
    return Config(model={"sizes": {1, 2}})
"""


@pytest.fixture
def mine(own, monkeypatch):
    """mine.py with estimators and recipes; what train.py registers of them is taken back."""
    Path("mine.py").write_text(ESTIMATORS)
    before = dict(ADVANTAGES)
    yield own
    ADVANTAGES.clear()
    ADVANTAGES.update(before)


def test_an_estimator_of_ones_own(mine, shell):
    ask = ("train.py", *mine, "--reward", "rewards.py:correct")
    code, said = shell(*ask, "--estimator", "mine.py:root", "--estimator.power", 0.25)
    assert code == 0, said
    recipe = json.loads(Path("runs/prompts-root/recipe.json").read_text())["config"]
    assert recipe["estimator"] == "mine.py:root" and recipe["estimator_options"] == {"power": 0.25}
    A = ADVANTAGES["mine.py:root"](torch.tensor([[1.0, 0, 0, 0]]), power=1)
    torch.testing.assert_close(A, ADVANTAGES["maxrl"](torch.tensor([[1.0, 0, 0, 0]])))
    Path("mine.py").write_text(
        "raise SystemExit('run by eval.py')"
    )  # a checkpoint's recipe is nobody's command
    few = (
        "--samples",
        2,
        "--k",
        "1,2",
        "--prompts",
        2,
        "--max-prompt",
        80,
        "--reward",
        "rewards.py:correct",
    )
    assert shell("eval.py", "runs/prompts-root", *few)[0] == 0
    assert shell("sample.py", "runs/prompts-root", "--samples", 2, *few[6:])[0] == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            ["mine.py:root", "--estimator.pover", 1],
            ["mine.py:root takes no option 'pover'", "use power"],
        ),
        (
            ["mine.py:short"],
            [
                "mine.py:short must return finite advantages of the rewards' shape (1, 4), not (1, 3)"
            ],
        ),
        (["mine.py:broken"], ["the estimator mine.py:broken raised KeyError: 'nothing'"]),
        (["mine.py:loose"], ["takes **options: name each of them"]),
        (
            ["mine.py:nobody"],
            ["--estimator mine.py:nobody: mine.py has no function or class nobody"],
        ),
        (["mine.py:guarded", "--rollouts", 1], ["needs at least 2 rollouts"]),
    ],
)
def test_mistakes_in_an_estimator(mine, shell, arguments, words):
    refused(
        shell(
            "train.py",
            *mine,
            "--reward",
            "rewards.py:correct",
            "--out",
            "no",
            "--estimator",
            *arguments,
        ),
        *words,
    )


def test_a_recipe_of_ones_own(mine, warm, shell):
    ask = ("--init", warm, "--task.train", "mine.jsonl", "--reward", "rewards.py:correct")
    code, said = shell("train.py", "mine.py:recipe", *ask)
    assert (
        code == 0
        and json.loads(Path("runs/recipe-maxrl/recipe.json").read_text())["recipe"]
        == "mine.py:recipe"
    ), said
    assert "Ours, shorter." in shell("train.py", "mine.py:recipe", "--help")[1]
    refused(
        shell("train.py", "mine.py:no_recipe"),
        "must be a function that returns a maxrl.config.Config, not int",
    )
    refused(shell("train.py", "mine.py:guarded"), "recipe mine.py:guarded raised TypeError")
    for name, words in {
        "half": "has prompts = 4.0, which is no value of this field",
        "text": "has steps = '7', which is no value of this field",
        "unordered": "raised TypeError: Object of type set is not JSON serializable",
    }.items():
        refused(shell("train.py", f"mine.py:{name}"), f"recipe mine.py:{name} {words}")
    refused(
        shell("train.py", "maze9_labtop"),
        "no recipe is called 'maze9_labtop'; did you mean maze9_laptop?",
    )
    refused(shell("train.py", "math"), "math is a task: train.py prompts --task math")
    refused(shell("train.py", "images"), "images is a task: train.py images_laptop --task images")
