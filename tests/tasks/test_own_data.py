"""A user's own data, reward functions, estimators and recipes through train.py, eval.py and
sample.py: `train.py prompts`. test_refused.py has what is refused."""

from pathlib import Path

import pytest

from maxrl.sampling.sampler import noise
from maxrl.system.files import read_json
from tests.helpers.runs import metrics, passed, refused
from tests.helpers.tables import each

EVALUATED = ("--eval-every", 2, "--eval-samples", 4, "--eval-k", "1,4")
LOOK = ("--samples", 2, "--max-prompt", 80)


@pytest.fixture
def train(own, shell):
    """train(words...): the output of a run on mine.jsonl that ends well."""

    def run(*words):
        said = passed(shell("train.py", *own, *words))
        return said

    return run


def test_cut_responses_in_the_evaluation(train, dice, shell):
    """--zero-reward-at-limit counts them as failures wherever pass@k is measured: DONE comes
    once in four tokens, so that 27 responses in 64 are cut at 3."""
    Path("rewards.py").write_text("def one(completions): return [1.0 for _ in completions]")
    reward = ("--reward", "rewards.py:one")
    ask = (*reward, "--init", dice, "--max-response", 3, *EVALUATED, "--eval-prompts", 6)
    words = ("--estimator", "rloo", "--out", "run", "--zero-reward-at-limit", "true")
    left_out = "train: left out 1 of 25 prompts, longer than --max-prompt 80 tokens"
    assert left_out in train(*ask, *words)
    row = metrics("run")[1]
    # DONE is what the vocabulary begins with.
    counts = (noise(0, 0, range(6), 4, 3) < 0.25).any(-1).sum(1)
    assert 0 < counts.sum() < 24
    assert 0 < row["completions/clipped_ratio"] < 1
    assert row["reward"] == 1 - row["completions/clipped_ratio"]
    assert row["eval/pass@1"] == pytest.approx(counts.sum().item() / 24)
    few = ("--samples", 4, "--k", 1, "--prompts", 6, "--split", "validation")
    passed(shell("eval.py", "run", *few, *reward, "--json", "own.json"))
    assert read_json("own.json")["checkpoints"][0]["counts"] == counts.tolist()
    train(*ask, "--estimator", "rloo", "--out", "other")
    assert metrics("other")[1]["eval/pass@1"] == 1


PAIR = ("--reward", "rewards.py:never,rewards.py:never")
SUMS = """
| reward of 2
--estimator grpo | the reward is 2,
--reward-weights 1,0 | None
--reward-weights .5,.5 --estimator grpo | None
--reward-weights .5,.2 --thresholds true | the reward is 0.7
--reward-weights 1,.2 --estimator tailrl | the reward is 1.2
--reward-weights 1,.2 --estimator pkpo --estimator.k 2 --thresholds true | the reward is 1.2
--estimator maxrl_rare --reward-weights 1,2 | reward of 3
"""


@each("words, warned", SUMS)
def test_a_sum_that_is_no_success_is_named_at_the_start(words, warned, train):
    """Or one that the estimator refuses, although no response here satisfies any function."""
    Path("rewards.py").write_text("def never(completions):\n    return [0.0] * len(completions)\n")
    said = train(*PAIR, *words.split(), "--steps", 1)
    assert ("warning" in said) == (warned in said) == (warned != "None")


def test_a_mended_command_is_not_blocked(own, train, shell):
    """A run that ended in its first step has left a directory, in which the mended command starts
    anew. For a run with finished steps but no checkpoint see tests/runs."""
    refused(shell("train.py", *own, "--reward", "rewards.py:broken", "--out", "run"), "broken")
    mended = ("--reward", "rewards.py:half", "--thresholds", "true", "--out", "run")
    train(*mended, "--resume", "auto")
    assert len(metrics("run")) == 2


MINE = """
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
"""


def test_ones_own_task(train, shell):
    """Its file is run once, however many things of it are named, and the end of a run makes no
    split once more. A look at the run needs the words that the sentence prints."""
    Path("mine.py").write_text(MINE)
    mine = ("--task", "mine.py:Mine", "--reward", "mine.py:one,./mine.py:two")
    train(*mine, "--eval-every", 1, "--eval-k", "1,2", "--eval-samples", 2, "--out", "run")
    assert Path("said").read_text() == "run train validation "
    refused(shell("sample.py", "run", *LOOK), f"add {' '.join(mine)} if you trust it")
    said = passed(shell("sample.py", "run", *LOOK, *mine))
    assert said.count("of 2 rollouts are right") == 2


OURS = """
import torch
from maxrl.learning.config import Config

def root(rewards, power=0.5):
    mean = rewards.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, (rewards - mean) / mean**power, 0.0)

def recipe():
    "Ours, shorter."
    sizes = {"prompts": 4, "rollouts": 4, "steps": 1, "max_prompt": 80, "max_response": 20}
    return Config(task="prompts", precision="float32", **sizes)
"""


def test_an_estimator_of_ones_own(train, shell):
    Path("mine.py").write_text(OURS)
    reward = ("--reward", "rewards.py:correct")
    train(*reward, "--estimator", "mine.py:root", "--estimator.power", 0.25)
    config = read_json("runs/prompts-root/recipe.json")["config"]
    assert config["estimator"] == "mine.py:root"
    assert config["estimator_options"] == {"power": 0.25}
    # A checkpoint's recipe is nobody's command.
    Path("mine.py").write_text("raise SystemExit('run by eval.py')")
    run = ("runs/prompts-root", *LOOK, *reward)
    passed(shell("eval.py", *run, "--k", "1,2", "--prompts", 2))
    passed(shell("sample.py", *run))


def test_a_recipe_of_ones_own(own, warm, shell):
    Path("mine.py").write_text(OURS)
    ask = ("--init", warm, "--task.train", "mine.jsonl", "--reward", "rewards.py:correct")
    passed(shell("train.py", "mine.py:recipe", *ask))
    assert read_json("runs/recipe-maxrl/recipe.json")["recipe"] == "mine.py:recipe"
    assert "Ours, shorter." in shell("train.py", "mine.py:recipe", "--help")[1]


def test_supervised_on_ones_own_answers(own, shell):
    """Without any reward function; what lacks an answer is in test_references.py."""
    passed(shell("train.py", *own, "--estimator", "supervised", "--rollouts", 1))
