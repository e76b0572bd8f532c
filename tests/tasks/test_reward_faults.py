"""What becomes of a run whose reward function fails: exit code, sentence, what is saved, and that
the run goes on from its checkpoint once the function is mended. test_rewards.py has all faults."""

from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.runs import column, metrics, passed, refused, weights
from tests.helpers.started import Forked, ended, two_ranks

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")

# The first call is right, so that there is a checkpoint; the second fails. The file mended.txt
# mends all of them.
FAULTS = """
import os, time
from pathlib import Path

calls = 0
RANK = os.environ.get("RANK", "0")

def second():
    global calls
    calls += 1
    return calls >= 2 and not Path("mended.txt").exists()

def right(completions):
    return [float(i % 2) for i in range(len(completions))]

def raises(completions):
    return 1 / 0 if second() else right(completions)

class Mute(Exception):
    def __str__(self):
        raise ValueError

def mute(completions):
    if second():
        raise Mute
    return right(completions)

def none(completions):
    return [None] * len(completions) if second() else right(completions)

def hangs(completions):
    if second():
        sum(range(10**13))  # in C, which keeps Python's lock: no other thread runs
    return right(completions)

def raises_on_rank_1(completions):
    return 1 / 0 if second() and RANK == "1" else right(completions)

def raises_then_sleeps_on_rank_1(completions):
    if second() and RANK == "1":
        return 1 / 0 if calls == 2 else time.sleep(10_000)
    return right(completions)
"""
SHORT = "--prompts 4 --rollouts 4 --steps 4 --save-every 1 --max-response 8 --lr 1e-5"


@pytest.fixture
def faults(in_a_directory_of_its_own):
    """faults.py in the directory of the test, where every run is."""
    Path("faults.py").write_text(FAULTS)


@pytest.fixture
def run(faults, shell):
    """run(reward, words...): the result of a run in ./run with this reward function."""

    def run(reward, *words):
        options = ("tiny", *SHORT.split(), "--reward", reward, "--out", "run", *words)
        return shell("train.py", *options)

    return run


def newest(run):
    return Path(run, "latest").read_text().strip()


def batches(run):
    """How many batches of failed calls are kept."""
    return len(list(Path(run).glob("reward_error_*")))


def test_stop(run):
    """Code 2, one sentence, the batch, and the checkpoint of the step before, from which the run
    goes on with the function mended."""
    file = "run/reward_error_raises_rank0.jsonl"
    refused(run("faults.py:raises"), "the reward function raises raised ZeroDivisionError", file)
    assert Path(file).exists()
    assert newest("run") == "step-000001"
    assert len(metrics("run")) == 1
    Path("mended.txt").touch()
    passed(run("faults.py:raises", "--resume", "yes"))
    assert column("run", "step") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "fault, errors", [("raises", "drop"), ("mute", "drop"), ("none", "stop"), ("none", "drop")]
)
def test_groups_are_left_out(fault, errors, run):
    """Under "drop" the run goes on without the groups of a call that failed. A function without a
    verdict is no fault: its groups are left out under both settings."""
    decay = ("--weight-decay", 0.1, "--lr", 0.001)
    said = passed(run(f"faults.py:{fault}", "--reward-errors", errors, *decay))
    assert column("run", "rewards/groups_left_out") == [0, 4, 4, 4]
    failed = float(fault != "none")
    assert column("run", "rewards/failed_calls") == [0, failed, failed, failed]
    assert batches("run") == failed
    assert column("run", "grad_norm")[1:] == [0, 0, 0]
    # Momentum and weight decay do not move the weights either.
    assert weights("run/step-000001") == weights("run/step-000004")
    assert (f"warning: the reward function {fault}" in said) == failed
    # The way to keep such groups is named where it helps.
    assert ("--no-verdict" in said) == (fault == "none")


@pytest.mark.parametrize("result", ["1 / 0", "[None] * len(completions)"])
def test_no_step_has_a_verdict(result, run):
    """The run does not end as if it had learned, nor does it when it is resumed."""
    Path("never.py").write_text(f"def never(completions):\n    return {result}\n")
    for again in ([], ["--resume", "yes"]):
        refused(run("never.py:never", "--reward-errors", "drop", *again))
        assert newest("run") == "step-000004"


@pytest.fixture
def separate(faults, warm, mazes):
    """The recipe of processes that do not know `tiny`."""
    data = ("--task.size", 7, "--task.directory", mazes)
    rest = ("--device", "cpu", "--eval-every", 0)
    return ["maze9_laptop", *SHORT.split(), "--init", warm, *data, *rest]


def test_a_function_that_hangs(separate):
    """With --reward-timeout the run ends with the stack, also under "drop", and keeps its
    checkpoint."""
    limits = ["--reward-errors", "drop", "--reward-timeout", 1]
    arguments = ("--reward", "faults.py:hangs", *limits, "--out", "run")
    code, said = ended(Forked(ROOT / "train.py", *separate, *arguments))
    assert code == 1
    assert "most recent call first" in said
    assert "in hangs" in said
    assert newest("run") == "step-000001"
    assert batches("run") == 0


CASES = {
    "raises_on_rank_1": ["--reward-errors", "stop"],
    "raises_then_sleeps_on_rank_1": ["--reward-errors", "drop", "--reward-timeout", 1],
}
SAID = ["raised ZeroDivisionError", "in raises_then_sleeps_on_rank_1"]


def test_one_of_two_ranks_fails(separate):
    """The other rank waits for it in a sum. Both must end, with what is said of it, not after the
    hour of the process group."""
    started = []
    for name, options in CASES.items():
        own = ("--reward", f"faults.py:{name}", *options, "--out", name)
        started.append(two_ranks(ROOT / "train.py", *separate, *own))
    for name, ranks, words in zip(CASES, started, SAID):
        (one, _), (two, said) = map(ended, ranks)
        assert one != 0 != two
        assert words in said
        assert newest(name).startswith("step-00000")
        assert Path(name, f"reward_error_{name}_rank1.jsonl").exists()
    dropped = "raises_then_sleeps_on_rank_1"
    assert column(dropped, "rewards/failed_calls") == [0, 1]
    assert column(dropped, "rewards/groups_left_out") == [0, 2]
