"""The small tasks of results/texts: verdicts, generated instances, and their recipes."""

from pathlib import Path

import pytest

from maxrl.tasks import load_task
from maxrl.tasks.base import Example
from tests import ROOT
from tests.helpers.runs import passed

SMALL = ROOT / "results/texts/tasks.py"


WRONG = ["10", "5 5 5", "7 7", "3 3 4", "", "5 5 <pad>", "5 take 5", "٥ ٥"] + ["5 " * 100_000]


def test_subset_sum_verdicts():
    """Numbers 5 5 3 7 1, target 10: a number may be used as often as it is listed and no more."""
    example = Example("", "", {"numbers": [5, 5, 3, 7, 1], "target": 10})
    task = load_task(f"{SMALL}:SubsetSum", "test")
    assert all(task.verify(response, example) == 1 for response in ("5 5 <eos>", "7 3"))
    assert [response for response in WRONG if task.verify(response, example) != 0] == []


@pytest.mark.parametrize("name", ["ReverseText", "SubsetSum"])
def test_generated_tasks(name):
    """The answer is right, the seed decides, and the splits share no instance."""
    seen = set()
    for split in ("train", "validation", "test"):
        task = load_task(f"{SMALL}:{name}", split, size=200)
        instances = set()
        for example in (task[i] for i in range(200)):
            assert task.verify(example.answer, example) == 1
            assert task.verify("", example) == 0
            assert set(f"{example.prompt} {example.answer}".split()) <= set(task.vocabulary)
            instances.add(str(example.columns | {"answer": ""}))
        assert len(instances) > 100
        assert not seen & instances
        seen |= instances
        assert load_task(f"{SMALL}:{name}", split)[17] == task[17]
    assert load_task(f"{SMALL}:{name}", "test", seed=1)[17].columns != task[17].columns


@pytest.mark.parametrize(
    "name, task", [("subset_sum", "SubsetSum"), ("reverse_text", "ReverseText")]
)
def test_the_small_tasks_train(shell, name, task):
    """The recipes of the study: a warm-up, RL from it, and a look at the run."""
    Path("results").symlink_to(ROOT / "results")
    recipe = f"results/texts/tasks.py:{name}"
    few = "--prompts 2 --eval-every 0"
    for words in (f"{recipe}_sft --steps 2 --stop-at-pass 0", f"{recipe} --steps 1 --rollouts 4"):
        passed(shell("train.py", *words.split(), *few.split()))
    look = f"runs/{name}-maxrl --task results/texts/tasks.py:{task} --prompts 1"
    said = passed(shell("sample.py", *look.split()))
    assert "of 32 rollouts are right" in said
