"""What is refused: commands with one sentence and exit code 2, and calls with an error that says
it. What a reward function or a task does wrong in a run is in test_reward_faults.py and
test_task_faults.py."""

from pathlib import Path

import pytest

from maxrl.system.errors import UsageError
from maxrl.tasks import TASKS, load_task
from tests.helpers.runs import refused
from tests.helpers.tables import each

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
MINE = """
import torch
from maxrl.advantages import estimator
from maxrl.learning.config import Config

def short(rewards):
    return rewards[:, 1:]

def broken(rewards):
    return {}["nothing"]

@estimator(takes="binary", group=True)
def guarded(rewards):
    return rewards

def half():
    return Config(prompts=4.5)

def asks(what):
    return Config()

def leaves():
    raise SystemExit

def nothing():
    pass

number = 3
"""
# OWN trains on a data set of one's own, JUDGED with a reward function, NEW leaves the data to the
# recipe; MODEL has no recipe.
COMMANDS = """
train.py OWN --reward rewards.py:nothing | has no function or class nothing
train.py OWN --reward rewards | is none of accuracy_reward, published_reward, format_reward
train.py OWN --reward rewards.py:half --reward-weights 1,2 | 1 reward functions and 2
train.py OWN --reward-errors ignore | stop, drop
train.py OWN --no-verdict token | group, rollout
train.py OWN | judges nothing by itself: name a reward function with --reward
train.py OWN --estimator supervised --rollouts 1 --eval-every 1 | judges nothing by itself
train.py OWN --reward rewards.py:half | (--thresholds true)
train.py JUDGED --estimator maxrl_centered --thresholds true | is exact for 0 and 1 alone
train.py JUDGED --estimator rloo --thresholds true | rloo takes any reward
train.py JUDGED --estimator tailrl --thresholds true | tailrl takes any reward
train.py JUDGED --estimator mine.py:guarded --thresholds true | --thresholds
train.py JUDGED --estimator mine.py:root | mine.py has no function or class root
train.py JUDGED --estimator mine.py:short --estimator.pover 1 | takes no option 'pover'
train.py JUDGED --estimator mine.py:short | must return finite advantages of the rewards' shape
train.py JUDGED --estimator mine.py:broken | the estimator mine.py:broken raised KeyError: 'nothing'
train.py JUDGED --estimator mine.py:guarded --rollouts 1 | needs at least 2 rollouts
train.py JUDGED --no-verdict rollout ORDER | which maxrl_order with order does not take
train.py JUDGED --no-verdict rollout --estimator pkpo --estimator.k 2 | with k does not take
train.py JUDGED --no-verdict rollout --estimator differential_smoothing | with mean_log_probs does
train.py prompts --task.train mine.jsonl | name a checkpoint or a hub id with --init
train.py prompts --task countdown | name a checkpoint or a hub id with --init
train.py OWN --reward mine | is not written
train.py OWN --reward mine.py: | is not written
train.py OWN --reward mine.py:number | has no function or class number
train.py OWN --reward none.py:f | cannot be imported: FileNotFoundError
train.py OWN --reward no.such.module:f | cannot be imported: ModuleNotFoundError
train.py OWN --reward broken.py:f | cannot be imported: SyntaxError
train.py OWN --reward leaving.py:f | cannot be imported: SystemExit
train.py OWN --reward-timeout -1 | --reward-timeout
train.py OWN --reward-timeout nan | --reward-timeout
train.py OWN --reward-timeout 1e10 | --reward-timeout
train.py NEW maze9_laptop --task.sise 9 | task maze takes no option 'sise'; did you mean size
train.py NEW maze9_laptop --task.split test | task maze takes no option 'split'; its arguments are
train.py NEW maze9_laptop --task.size x | task maze:
train.py NEW prompts | or a data set of the hub: --task.train FILE
train.py NEW prompts --task.name x | task prompts takes no option 'name'; its arguments are
train.py NEW prompts --task.train bad.jsonl | task prompts: bad.jsonl, line 2
train.py NEW prompts --task math --task.train olympiad | no set 'olympiad'; use polaris
train.py NEW prompts --task math --task.train mine.jsonl --task.verdict a | published, got 'a'
train.py NEW glyphs --task.augment no | true or false, got 12 and 'no'
train.py NEW glyphs --task.colour 1 | colour
data/maze/prepare.py --workers 0 --out made | --workers
data/maze/prepare.py --train -1 --out made | --train
data/maze/prepare.py --train x --out made | --train
data/maze/prepare.py --size 3 --out made | --size
results/images/glyphs.py --classes 1 --out made | --classes
results/images/glyphs.py --size 3 --out made | --size
results/images/glyphs.py --train 0 --out made | --train
results/images/glyphs.py --seed -1 --out made | --seed
train.py mine.py:half | --prompts cannot be 4.5
train.py mine.py:asks | the recipe mine.py:asks raised TypeError
train.py mine.py:leaves | the recipe mine.py:leaves raised SystemExit
train.py mine.py:nothing | the recipe mine.py:nothing returned None
train.py glyphs --init x --lora-rank 2 | --lora-rank 2 means nothing to a classifier
eval.py MODEL --task math --max-prompt -1 | --max-prompt -1 must not be negative
eval.py MODEL --task math --max-response 0 | --max-response 0 must be above 0
eval.py MODEL --task math --split test --task.test aime | there is no set 'aime'; use polaris
eval.py MODEL --task math --reward-weights a | --reward-weights: 'a' cannot be read
eval.py MODEL --task prompts --task.test mine.jsonl | name a reward function with --reward
eval.py MODEL --task UP --max-response 4 --reward rewards.py:no | no function or class no
eval.py MODEL --task UP --max-response 126 | leave out longer prompts with --max-prompt
eval.py MODEL --task UP --max-response 4 --max-prompt 2 | no test prompts are left
eval.py MODEL MATH --max-response 4 | has no chat template
eval.py MODEL MATH --max-response 4 --max-prompt 9 | has no chat template
sample.py MODEL MATH --split test --max-response 4 | has no chat template
sample.py MODEL MATH --split test --max-response 4 --max-prompt 9 | has no chat template
train.py NEW prompts MATH | has no chat template
sample.py MODEL --task math --max-prompt -1 | --max-prompt -1 must not be negative
sample.py MODEL --task math --max-response 0 | --max-response 0 must be above 0
sample.py MODEL | does not say what it was trained on: name it with --task
sample.py MODEL --task UP | does not say how long its responses may be: set --max-response
"""


@pytest.mark.usefixtures("recipe")
@each("command, words", COMMANDS)
def test_commands(command, words, own, dice, shell):
    Path("mine.py").write_text(MINE)
    Path("broken.py").write_text("def f(:\n")
    Path("leaving.py").write_text("import sys\nsys.exit(3)\n")
    Path("bad.jsonl").write_text('{"prompt": "a"}\nnot JSON\n')
    names = {
        "NEW": ["--init", dice, "--out", "no"],
        "OWN": [*own, "--out", "no"],
        "JUDGED": [*own, "--out", "no", "--reward", "rewards.py:correct"],
        "ORDER": ["--estimator", "maxrl_order", "--estimator.order", 3],
        "MODEL": [dice],
        "UP": ["tests.helpers.tiny:Up"],
        "MATH": ["--task", "math", "--task.train", "mine.jsonl", "--task.test", "mine.jsonl"],
    }
    script, *arguments = command.split()
    given = [word for name in arguments for word in names.get(name, [name])]
    refused(shell(script, *given), words)
    assert not Path("made").exists()


def test_no_model_is_loaded_for_prompts_that_nobody_judges(own, dice, shell, monkeypatch):
    monkeypatch.setattr("maxrl.run.build.policy_from", None)
    said = shell("eval.py", dice, "--task", "prompts", "--task.test", "mine.jsonl")
    refused(said, "name a reward function with --reward")


@pytest.mark.parametrize("task", TASKS)
def test_a_split_that_does_not_exist(task):
    with pytest.raises((UsageError, FileNotFoundError)):
        load_task(task, "dev")
