"""A user's own data and reward functions through train.py, eval.py and sample.py: `train.py
prompts`."""

import json
import re
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from runs import metrics, refused

from maxrl.advantages import ADVANTAGES
from maxrl.errors import UsageError
from maxrl.sampling.sampler import noise
from maxrl.tasks import load_task


def test_train_on_ones_own_data(own, shell):
    """Training, evaluation in between, and a look at the run afterwards."""
    evaluated = ("--eval-every", 2, "--eval-samples", 4, "--eval-k", "1,4", "--eval-prompts", 8)
    ask = ("train.py", *own, "--reward", "rewards.py:correct", *evaluated)
    code, said = shell(*ask, "--out", "run")
    assert code == 0, said
    assert "train: left out 1 of 25 prompts, longer than --max-prompt 80 tokens" in said
    first, second = metrics("run")
    assert first["rewards/groups_left_out"] == 0 and "eval/pass@4" in second
    for row in (first, second):
        assert row["rewards/correct/mean"] == pytest.approx(row["reward"])
    # As the run's last lines have the commands.
    for script, few in {"sample": [], "eval": ["--k", "1,4", "--prompts", 5]}.items():
        words = re.search(rf"python -m maxrl {script} (.*)", said)[1].split()
        code, answer = shell(f"{script}.py", *words, "--samples", 4, *few)
        assert code == 0 and "run" in words, answer


@pytest.mark.parametrize("steps, warned", [(9, False), (10, True)])
def test_a_run_without_a_success_says_so(own, shell, steps, warned):
    Path("rewards.py").write_text("def never(completions):\n    return [0.0] * len(completions)\n")
    code, said = shell("train.py", *own, "--reward", "rewards.py:never", "--steps", steps)
    assert code == 0 and said.count("warning: no response of the last ten steps") == warned, said


def test_groups_without_a_verdict_leave_the_step(own, shell):
    """`some` has none for the first rollout of the step: one of four groups is left out, and not in
    the normaliser."""
    code, said = shell("train.py", *own, "--reward", "rewards.py:some", "--out", "run")
    assert code == 0, said
    row = metrics("run")[0]
    assert row["rewards/groups_left_out"] == 1 and row["reward"] == pytest.approx(0.5)
    assert row["tokens"] < row["completions/mean_length"] * 16 and row["grad_norm"] > 0


def test_fractional_rewards_are_allowed_explicitly(own, shell):
    ask = ("train.py", *own, "--reward", "rewards.py:half", "--out")
    code, said = shell(*ask, "no")
    assert code == 2 and "a reward of 0.5 but takes {0, 1}" in said
    assert "or --allow-fractional true" in said
    code, said = shell(*ask, "run", "--allow-fractional", "true")
    assert code == 0 and metrics("run")[0]["reward"] == pytest.approx(0.25), said
    assert shell(*ask, "grpo", "--estimator", "grpo")[0] == 0


THREE_OF_FOUR = """
def some(completions):
    return [None if i % 4 == 3 else float(i % 2) for i in range(len(completions))]

def rare(completions):
    return [1.0 if i == 5 else None for i in range(len(completions))]
"""


def test_rollouts_without_a_verdict_leave_the_step(own, shell):
    """One rollout of each group has none: with --no-verdict rollout the run learns from the other
    three. Evaluation counts such prompts and leaves them out. A run without any verdict is no
    success."""
    Path("some.py").write_text(THREE_OF_FOUR)
    ask = ("train.py", *own, "--reward", "some.py:some", "--no-verdict", "rollout")
    evaluated = ("--eval-every", 2, "--eval-samples", 4, "--eval-k", "1")
    code, said = shell(*ask, *evaluated, "--out", "run")
    assert code == 0, said
    first, second = metrics("run")
    assert first["rewards/rollouts_left_out"] == 4 and first["rewards/groups_left_out"] == 0
    assert first["reward"] == pytest.approx(1 / 3) and first["grad_norm"] > 0
    assert second["eval/pass@1"] is None and second["eval/groups_left_out"] == 24
    rare = ("train.py", *own, "--reward", "some.py:rare", "--no-verdict", "rollout")
    assert shell(*rare, "--out", "rare")[0] == 2
    assert metrics("rare")[0]["rewards/groups_left_out"] == 4
    fixed = ("--estimator", "maxrl_order", "--estimator.order", 3, "--out", "no")
    refused(shell(*ask, *fixed), "which maxrl_order with order does not take")


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("--reward rewards.py:nothing", "has no function or class nothing"),
        ("--reward rewards", "not written"),
        ("--reward rewards.py:half --reward-weights 1,2", "1 reward functions and 2"),
        ("--reward-errors ignore", "stop, drop"),
        ("--no-verdict token", "group, rollout"),
        ("", "judges nothing by itself: name a reward function with --reward"),
    ],
)
def test_refusals(own, shell, arguments, words):
    refused(shell("train.py", *own, "--out", "no", *arguments.split()), words)


def test_a_model_is_missing(own, shell):
    """It was a traceback from within the tokenizers library."""
    at = own.index("--init")
    for options in (
        own[:at] + own[at + 2 :],
        ["prompts", "--task", f"{ROOT}/results/texts/tasks.py:ReverseText"],
    ):
        said = shell("train.py", *options, "--reward", "rewards.py:correct", "--out", "no")
        refused(said, "name a checkpoint or a hub id with --init")


def test_cut_responses_in_the_evaluation(own, dice, shell):
    """--zero-reward-at-limit counts them as failures wherever pass@k is measured: DONE comes
    once in four tokens, so that 27 responses in 64 are cut at 3."""
    own[own.index("--init") + 1] = dice
    Path("rewards.py").write_text("def one(completions): return [1.0 for _ in completions]")
    reward = ("--reward", "rewards.py:one")
    evaluated = ("--eval-every", 2, "--eval-prompts", 6, "--eval-samples", 4, "--eval-k", "1,4")
    ask = ("train.py", *own, *reward, "--max-response", 3, *evaluated, "--estimator", "rloo")
    code, said = shell(*ask, "--out", "run", "--zero-reward-at-limit", "true")
    assert code == 0, said
    row = metrics("run")[1]
    # DONE is what the vocabulary begins with.
    counts = (noise(0, 0, range(6), 4, 3) < 0.25).any(-1).sum(1)
    assert 0 < row["completions/clipped_ratio"] < 1 and 0 < counts.sum() < 24
    assert row["reward"] == 1 - row["completions/clipped_ratio"]
    assert row["eval/pass@1"] == pytest.approx(counts.sum().item() / 24)
    few = ("--samples", 4, "--k", 1, "--prompts", 6, "--split", "validation")
    assert shell("eval.py", "run", *few, *reward, "--json", "own.json")[0] == 0
    assert json.loads(Path("own.json").read_text())["checkpoints"][0]["counts"] == counts.tolist()
    assert shell(*ask, "--out", "other")[0] == 0
    assert metrics("other")[1]["eval/pass@1"] == 1


def test_a_mended_command_is_not_blocked(own, shell):
    """A run that ended in its first step has left a directory, in which the mended command starts
    anew; a run with finished steps but no checkpoint repeats them."""
    code, said = shell("train.py", *own, "--reward", "rewards.py:broken", "--out", "run")
    assert code == 2 and "train.py: the reward function broken" in said
    mended = ("--reward", "rewards.py:half", "--allow-fractional", "true", "--out", "run")
    code, said = shell("train.py", *own, *mended, "--resume", "auto")
    assert code == 0 and len(metrics("run")) == 2, said
    late = (
        "n = []\ndef late(completions):\n    n.append(1)\n"
        "    return [0.0] * len(completions) if len(n) < 2 else 1 / 0\n"
    )
    Path("late.py").write_text(late)
    ask = ("train.py", *own, "--reward", "late.py:late", "--out", "late")
    assert shell(*ask)[0] == 2 and len(metrics("late")) == 1
    refused(shell(*ask), "late already holds a run")
    Path("late.py").write_text(late.replace("1 / 0", "[1.0] * len(completions)"))
    code, said = shell(*ask, "--resume", "auto")
    assert code == 0 and len(metrics("late")) == 2, said


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


def test_look_at_ones_own_run(own, shell):
    """Code must be trusted by name, with the words that the sentence prints."""
    Path("mine.py").write_text(
        "from maxrl.tasks.prompts import Prompts\nclass Mine(Prompts):\n    pass\n"
    )
    mine = ("--task", "mine.py:Mine", "--reward", "rewards.py:correct")
    assert shell("train.py", *own[:3], *own[7:], *mine, "--out", "run")[0] == 0
    look = ("sample.py", "run", "--samples", 2, "--max-prompt", 80)
    code, said = shell(*look)
    assert code == 2 and f"add {' '.join(mine)} if" in said, said
    code, said = shell(*look, *mine)
    assert code == 0 and said.count("of 2 rollouts are right") == 2, said


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["maze", "sise", 9], "unexpected keyword argument 'sise'"),
        (["prompts", "train", "bad.jsonl"], "task prompts: bad.jsonl, line 2 "),
        (["prompts"], "or a data set of the hub: --task.train FILE"),
        (["maze", "size", 8], "odd number"),
        (["maze", "split", "x"], "multiple values for keyword argument 'split'"),
        (["prompts", "name", "x"], "unexpected keyword argument 'name'"),
    ],
)
def test_mistakes_in_a_tasks_options(in_a_directory_of_its_own, arguments, words):
    Path("bad.jsonl").write_text('{"prompt": "a"}\nnot JSON\n')
    task, *rest = arguments
    with pytest.raises(UsageError) as error:
        load_task(task, "train", **dict(zip(rest[::2], rest[1::2])))
    assert words in str(error.value)


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

@estimator(takes="binary", group=True)
def guarded(rewards):
    return rewards

def recipe():
    "Ours, shorter."
    sizes = {"prompts": 4, "rollouts": 4, "steps": 1, "max_prompt": 80, "max_response": 20}
    return Config(task="prompts", precision="float32", **sizes)

def half():
    return Config(prompts=4.5)

def asks(what):
    return recipe()

def leaves():
    raise SystemExit

def nothing():
    pass
"""


@pytest.fixture
def mine(own):
    """mine.py with estimators and recipes."""
    Path("mine.py").write_text(ESTIMATORS)
    return own


def test_an_estimator_of_ones_own(mine, shell):
    ask = ("train.py", *mine, "--reward", "rewards.py:correct")
    code, said = shell(*ask, "--estimator", "mine.py:root", "--estimator.power", 0.25)
    assert code == 0, said
    recipe = json.loads(Path("runs/prompts-root/recipe.json").read_text())["config"]
    assert recipe["estimator"] == "mine.py:root" and recipe["estimator_options"] == {"power": 0.25}
    A = ADVANTAGES["mine.py:root"](torch.tensor([[1.0, 0, 0, 0]]), power=1)
    torch.testing.assert_close(A, ADVANTAGES["maxrl"](torch.tensor([[1.0, 0, 0, 0]])))
    # A checkpoint's recipe is nobody's command.
    Path("mine.py").write_text("raise SystemExit('run by eval.py')")
    few = ("--samples", 2, "--max-prompt", 80, "--reward", "rewards.py:correct")
    assert shell("eval.py", "runs/prompts-root", *few, "--k", "1,2", "--prompts", 2)[0] == 0
    assert shell("sample.py", "runs/prompts-root", *few)[0] == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("mine.py:root --estimator.pover 1", "mine.py:root takes no option 'pover'"),
        ("mine.py:short", "mine.py:short must return finite advantages of the rewards' shape"),
        ("mine.py:broken", "the estimator mine.py:broken raised KeyError: 'nothing'"),
        ("mine.py:nobody", "--estimator mine.py:nobody: mine.py has no function or class nobody"),
        ("mine.py:guarded --rollouts 1", "needs at least 2 rollouts"),
    ],
)
def test_mistakes_in_an_estimator(mine, shell, arguments, words):
    ask = ("train.py", *mine, "--reward", "rewards.py:correct", "--out", "no")
    refused(shell(*ask, "--estimator", *arguments.split()), words)


def test_supervised_on_ones_own_answers(own, shell):
    """Without any reward function. A number is its text; no answer is nothing to learn."""
    rows = [json.loads(line) for line in Path("mine.jsonl").read_text().splitlines()]
    ask = ("train.py", *own, "--estimator", "supervised", "--rollouts", 1)
    for answer, expected in ((7, 0), (0, 0), (None, 2)):
        text = "".join(json.dumps(row | {"answer": answer}) + "\n" for row in rows)
        Path("mine.jsonl").write_text(text)
        code, said = shell(*ask, "--out", f"run{answer}")
        assert code == expected and (not code or "no answer to learn from: " in said), said
    refused(shell(*ask, "--eval-every", 1, "--out", "no"), "judges nothing by itself")


def test_a_recipe_of_ones_own(mine, warm, shell):
    ask = ("--init", warm, "--task.train", "mine.jsonl", "--reward", "rewards.py:correct")
    code, said = shell("train.py", "mine.py:recipe", *ask)
    assert code == 0, said
    recipe = json.loads(Path("runs/recipe-maxrl/recipe.json").read_text())["recipe"]
    assert recipe == "mine.py:recipe"
    assert "Ours, shorter." in shell("train.py", "mine.py:recipe", "--help")[1]


@pytest.mark.parametrize(
    "name, words",
    [
        ("mine.py:half", "--prompts cannot be 4.5"),
        ("mine.py:asks", "the recipe mine.py:asks raised TypeError"),
        ("mine.py:leaves", "the recipe mine.py:leaves raised SystemExit"),
        ("mine.py:nothing", "the recipe mine.py:nothing returned None"),
        ("maze9_labtop", "no recipe is called 'maze9_labtop'"),
    ],
)
def test_mistakes_in_a_recipe(mine, shell, name, words):
    refused(shell("train.py", name), words)
