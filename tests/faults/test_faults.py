"""What may end a run: signals, locks, full disks, prompts, dead ranks and workers.

test_torture.py kills runs at every moment; here each fault has its own small proof.
"""

import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from safetensors import SafetensorError

from maxrl.learning.policy import SequencePolicy
from maxrl.learning.prompt_order import prefetched
from maxrl.run import cli, directory
from maxrl.system.errors import RunError, UsageError
from maxrl.system.files import read_json
from maxrl.tasks import Task
from tests import ROOT
from tests.helpers.runs import at_call, column, metrics, passed, refused, same_runs
from tests.helpers.started import Forked, ended, start, torchrun, two_ranks, until


@pytest.fixture(autouse=True)
def default_handlers(handlers):
    for number in directory.SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", directory.SIGNALS)
def test_a_signal_finishes_the_step_and_saves(recorded, shell, monkeypatch, number):
    """Code 75, a checkpoint of that step, and from there the same bytes as without the signal."""
    with monkeypatch.context() as patch:
        interrupt = at_call(3, lambda _: os.kill(os.getpid(), number))
        patch.setattr(SequencePolicy, "backward", interrupt)
        code, said = shell(*recorded.command)
    assert code == directory.STOPPED == 75
    assert "saved run/step-000003; the same command with --resume auto continues" in said
    assert "the last checkpoint" not in said
    assert Path("run/latest").read_text() == "step-000003\n"
    assert len(metrics("run")) == 3
    assert signal.getsignal(number) == signal.SIG_DFL, "the handlers are given back"
    passed(shell(*recorded.command))
    same_runs("run", recorded.path)
    assert read_json("run/recipe.json")["step"] == 3


def test_a_signal_in_the_last_step_is_no_interruption(run, shell, monkeypatch):
    monkeypatch.setattr(
        SequencePolicy, "backward", at_call(5, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    )
    passed(shell(*run, "--out", "run"))


def test_a_second_signal_ends_at_once(run, shell, monkeypatch):
    """Code 128 + n; but not within a second, because torchrun forwards what it has received."""
    codes = []
    now = [0.0]

    def signals(_):
        for at in (1000.0, 1000.5, 1002.0):
            now[0] = at
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # the handler runs

    monkeypatch.setattr(directory.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(directory.os, "_exit", lambda code: codes.append((now[0], code)))
    monkeypatch.setattr(SequencePolicy, "backward", at_call(1, signals))
    shell(*run, "--out", "run")
    assert codes == [(1002.0, 128 + signal.SIGINT)]


def steps():
    file = Path("run/metrics.jsonl")
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def endless(mazes):
    """A supervised run of a recipe that every process knows."""
    options = "--prompts 8 --max-response 20 --eval-every 0 --stop-at-pass 0 --precision float32"
    task = ("--task.size", 7, "--task.directory", mazes, "--device", "cpu")
    return [ROOT / "train.py", "maze9_laptop_sft", *task, *options.split(), "--out", "run"]


FORKING = """
import multiprocessing as mp
import time

def slow(completion):
    time.sleep(1000)

def stubborn(prompts, completions):  # a child that is waited for in vain is terminated
    with mp.get_context("fork").Pool(1) as pool:
        try:
            pool.map_async(slow, completions).get(timeout=0.1)
        except mp.TimeoutError:
            pass
    return [0.0] * len(completions)
"""


def test_processes_that_a_reward_function_forks(run, shell):
    """terminate() ends them, although they inherit the handlers of the run."""
    Path("rewards.py").write_text(FORKING)
    own = "--reward rewards.py:stubborn --steps 2 --out run"
    passed(shell(*run, *own.split()))
    assert steps() == 2


def test_nobody_reads_what_it_says(endless, in_a_directory_of_its_own):
    """Ctrl-C also ends the `tee` of `2>&1 | tee log`, and the run is saved all the same."""
    process = start(*endless, "--steps", 100_000)
    until(lambda: steps() >= 3, process)
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 75
    assert Path("run/latest").read_text() == f"step-{steps():06d}\n"


def test_a_signal_to_one_of_two_ranks(endless, shell, in_a_directory_of_its_own):
    """Both ranks end with code 75 after the same step, and one process can resume the run."""
    ranks = two_ranks(*endless, "--steps", 100_000)
    until(lambda: steps() >= 3, ranks[0])
    os.kill(ranks[1].pid, signal.SIGUSR1)
    assert [ended(rank)[0] for rank in ranks] == [75, 75]
    stopped = steps()
    assert Path("run/latest").read_text() == f"step-{stopped:06d}\n"
    passed(shell("train.py", *endless[1:], "--steps", stopped + 2, "--resume", "yes"))
    assert column("run", "step") == list(range(stopped + 2))


def test_a_dead_rank_ends_the_others(endless, in_a_directory_of_its_own):
    """Under torchrun, whose own code is not 0."""
    process = torchrun(*endless, "--steps", 100_000)
    until(lambda: steps() >= 3, process)
    os.kill(int(Path("run/lock").read_text().split()[1]), signal.SIGKILL)
    code, said = ended(process, seconds=120)
    assert code != 0
    assert "Signal 9 (SIGKILL)" in said


HOLD = """
import time
from pathlib import Path
from maxrl.run.directory import lock
file = lock(Path("run"))
print("held", flush=True)
time.sleep(1000)
"""


def test_a_directory_in_use(run, shell):
    """A second run is refused with the process of the first; a killed run loses its lock."""
    Path("run").mkdir()
    Path("hold.py").write_text(HOLD)
    holder = Forked("hold.py")
    until(lambda: Path(holder.said).read_text() == "held\n", holder)
    refused(shell(*run, "--out", "run"), f"run is in use by process {holder.pid} on", "--out")
    holder.kill()
    holder.join()
    passed(shell(*run, "--out", "run"))
    assert not Path("run/lock").exists()


def test_a_full_disk(recorded, shell):
    """A save that meets a limit on the size of files ends the run with code 74 and a sentence.

    Nothing half-written stays, and the run resumes to the same bits when there is room.
    """
    later = shutil.ignore_patterns("step-000004", "step-000005")
    shutil.copytree(recorded.path, "run", ignore=later)
    # Between the sizes of the weights and of Adam's state.
    limit = (recorded.path / "step-000002/optimizer.safetensors").stat().st_size - 1
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        code, said = shell(*recorded.command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == cli.DISK_FULL == 74
    assert "Traceback" not in said
    assert [file.name for file in Path("run").glob("step-*")] == ["step-000002"]
    passed(shell(*recorded.command))
    same_runs("run", recorded.path)


def test_a_log_on_a_full_disk_ends_nothing(run, shell, monkeypatch):
    """The run goes on without its log, and keeps its exit codes."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, open("/dev/full", "w", buffering=1))  # noqa: SIM115
    passed(shell(*run, "--out", "run"))
    assert len(metrics("run")) == 5
    assert shell(*run, "--out", "run")[0] == 2


@pytest.mark.parametrize(
    "error, full",
    [
        (OSError(28, "No space left on device"), True),
        (SafetensorError("I/O error: No space left (os error 28)"), True),
        (OSError(13, "Permission denied"), False),
        (RuntimeError("anything"), False),
    ],
)
def test_what_a_full_disk_is(error, full):
    """By number, or by the text of safetensors; another error keeps its traceback."""
    assert cli.disk_full(error) == full


@pytest.mark.parametrize(
    "rank, error, waits",
    [("0", UsageError("all"), []), ("1", RunError("me"), []), ("1", UsageError("all"), [2])],
)
def test_what_the_ranks_say_at_the_end(capsys, monkeypatch, rank, error, waits):
    """The first rank prints what all ranks raise; a RunError is printed by its own rank."""
    waited = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(SystemExit) as end:
        cli.refuse("x", error)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"x: {error}\n"
    assert waited == waits


class Listening(Task):
    """Its batches say which process makes them, and whether it ignores signals."""

    def __len__(self):
        return 100

    def batch(self, indices, seeds=None):
        time.sleep(1000 * indices[0])
        ignored = [signal.getsignal(number) == signal.SIG_IGN for number in directory.SIGNALS]
        return os.getpid(), ignored


def test_workers_leave_signals_to_the_run():
    """A signal to the whole group must not end processes whose work the step waits for. They end
    with the batches, in the midst of one."""
    batches = prefetched(Listening(), [([i], None) for i in range(10)], workers=1)
    worker, ignored = next(batches)
    assert worker != os.getpid()
    assert all(ignored)
    batches.close()
    # A zombie would still take a signal.
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


CRASHING = """
import os, signal, sys, time
import torch
from maxrl.learning.prompt_order import prefetched
from maxrl.run import cli

class Task:
    def batch(self, indices, seeds=None):
        return torch.tensor(os.getpid())

def train(how):
    for worker in prefetched(Task(), [([0], None)] * 10000, workers=2):
        if how == "raise":
            raise RuntimeError("anything")
        os.kill(int(worker), signal.SIGKILL)
        time.sleep(0.2)

with cli.script("program"):
    train(sys.argv[1])
"""


@pytest.mark.parametrize("how, words", [("raise", "anything"), ("kill", "signal: Killed")])
def test_a_crash_ends_with_its_loader_workers(in_a_directory_of_its_own, how, words):
    """A traceback and code 1; also if a worker is killed, as by a system without memory."""
    Path("crashing.py").write_text(CRASHING)
    code, said = ended(Forked("crashing.py", how), seconds=100)
    assert code == 1
    assert "Traceback" in said
    assert words in said
