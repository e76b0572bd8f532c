"""Nothing is lost: signals, locks, full disks, damaged checkpoints, gradients that are no numbers, ranks that die.

tests/faults/torture.py kills runs at every moment; here each fault has its own small proof.
"""

import ctypes
import json
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from runs import SHORT, metrics, refused, timeless, weights
from safetensors import SafetensorError

from data.maze import prepare
from maxrl import checkpoint
from maxrl.errors import RunError
from maxrl.io import files
from maxrl.io.sandbox import Worker
from maxrl.io.tokenizer import Tokenizer
from maxrl.parallel import distributed
from maxrl.policy import SequencePolicy
from maxrl.prompt_order import prefetched
from maxrl.run import cli, directory
from maxrl.run.logger import past
from maxrl.tasks import Task


@pytest.fixture(autouse=True)
def handlers():
    """As they are by default, whatever started the tests has made of them; what a test changes ends with it."""
    before = {number: signal.getsignal(number) for number in directory.SIGNALS}
    for number in directory.SIGNALS:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(warm):
    """Five steps that save after every second."""
    return ("train.py", *SHORT, "--init", warm, "--save-every", 2)


def at_call(number, act):
    """SequencePolicy.backward that acts at its call of this number, the first is 1."""
    calls, backward = [], SequencePolicy.backward

    def patched(self, *arguments):
        calls.append(1)
        result = backward(self, *arguments)
        if len(calls) == number:
            act(self)
        return result

    return patched


@pytest.mark.parametrize("number", directory.SIGNALS)
def test_a_signal_finishes_the_step_and_saves(run, shell, monkeypatch, number):
    """Exit code 75, a checkpoint of the step in which it came, and from there the same bytes as without it."""
    shell(*run, "--out", "whole")
    signal.signal(number, signal.SIG_DFL)
    with monkeypatch.context() as patch:
        patch.setattr(
            SequencePolicy, "backward", at_call(3, lambda _: os.kill(os.getpid(), number))
        )
        code, said = shell(*run, "--out", "cut")
    assert code == directory.STOPPED == 75, said
    assert Path("cut/latest").read_text() == "step-000003\n" and len(metrics("cut")) == 3
    assert signal.getsignal(number) == signal.SIG_DFL, "the handlers are given back"
    assert shell(*run, "--out", "cut", "--resume", "auto")[0] == 0
    assert weights("cut") == weights("whole") and timeless("cut") == timeless("whole")
    recipe = json.loads(Path("cut/recipe.json").read_text())
    assert recipe["step"] == 3 and "--resume auto" in recipe["command"]
    assert [start["step"] for start in recipe["earlier"]] == [0] and "--resume" not in recipe[
        "earlier"
    ][0]["command"]


def test_what_is_ignored_stays_ignored(run, shell, monkeypatch):
    """A shell starts what runs in its background so that Ctrl-C does not reach it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(
        SequencePolicy, "backward", at_call(3, lambda _: os.kill(os.getpid(), signal.SIGINT))
    )
    assert shell(*run, "--out", "run")[0] == 0 and len(metrics("run")) == 5


def test_a_signal_in_the_last_step_is_no_interruption(run, shell, monkeypatch):
    monkeypatch.setattr(
        SequencePolicy, "backward", at_call(5, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    )
    assert shell(*run, "--out", "run")[0] == 0


def test_a_second_signal_ends_at_once(run, shell, monkeypatch):
    """But not one within a second: torchrun hands on what the terminal has sent to the ranks already."""
    ended, now = [], [0.0]

    def signals(_):
        for at in (1000.0, 1000.5, 1002.0):
            now[0] = at
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # lets the handler run
            ended.append((at, list(codes)))

    codes = []
    monkeypatch.setattr(directory.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(directory.os, "_exit", codes.append)
    monkeypatch.setattr(SequencePolicy, "backward", at_call(1, signals))
    shell(*run, "--out", "run")
    assert ended == [(1000.0, []), (1000.5, []), (1002.0, [128 + signal.SIGINT])]


def start(*arguments, **options):
    environment = (
        os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | options.pop("env", {})
    )
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
        **options,
    )


def ended(process, seconds=300):
    """Exit code and what was said, of a process that ends by itself."""
    try:
        said = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(
            process.pid, signal.SIGKILL
        )  # what it has forked too, which would keep the pipe open
        pytest.fail(f"still running after {seconds} s: {process.communicate()[0]}")
    return process.returncode, said


def until(true, process, seconds=300):
    end = time.monotonic() + seconds
    while not true():
        if process.poll() is not None or time.monotonic() > end:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(process.communicate()[0])
        time.sleep(0.02)


def steps(run="run"):
    file = Path(run) / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def endless(mazes):
    """A supervised run of a recipe that every process knows."""
    return [ROOT / "train.py", "maze9_laptop_sft", "--task.size", 7, "--task.directory", mazes, "--prompts", 8,
            "--max-response", 20, "--eval-every", 0, "--stop-at-pass", 0, "--precision", "float32", "--device", "cpu",
            "--out", "run"]  # fmt: skip


FORKING = """
import multiprocessing as mp
import os, time

def slow(completion):
    time.sleep(1000)

def stubborn(prompts, completions):  # a child that is waited for in vain is terminated
    with mp.get_context("fork").Pool(1) as pool:
        try:
            pool.map_async(slow, completions).get(timeout=0.1)
        except mp.TimeoutError:
            pass
    return [0.0] * len(completions)

def asked(prompts, completions):  # a signal to the whole group, in the middle of a reward call
    child = mp.get_context("fork").Process(target=time.sleep, args=(1.5,))
    child.start()
    if not os.path.exists("sent"):
        open("sent", "w").close()
        time.sleep(0.3)  # Python forgets what reaches a process before it has begun
        os.killpg(0, 15)
    child.join()
    return [float(child.exitcode == 0)] * len(completions)
"""


def test_processes_that_a_reward_function_forks(endless, warm, in_a_directory_of_its_own):
    """terminate() ends them, as in any other program; a signal to the whole group does not, for the run finishes its step."""
    Path("rewards.py").write_text(FORKING)
    rl = [endless[0], "maxrl", *endless[2:], "--init", warm, "--estimator", "rloo", "--rollouts", 2]
    rl[1] = "maze9_laptop"
    code, said = ended(start(*rl, "--steps", 2, "--reward", "rewards.py:stubborn"))
    assert code == 0 and steps() == 2, said
    Path("run").rename("before")
    code, said = ended(start(*rl, "--steps", 50, "--reward", "rewards.py:asked"))
    assert code == 75 and [row["reward"] for row in metrics("run")] == [1.0], said


def test_nobody_reads_what_it_says(endless, in_a_directory_of_its_own):
    """Ctrl-C ends the `tee` of `2>&1 | tee log` as well: the run saves all the same."""
    process = start(*endless, "--steps", 100_000)
    until(lambda: steps() >= 3, process)
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 75
    assert Path("run/latest").read_text() == f"step-{steps():06d}\n"


def port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_a_signal_to_one_of_two_ranks(endless, shell, in_a_directory_of_its_own):
    """Both end with code 75 after the same step, at most one after that in which it came; one process can go on."""
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port())}
    ranks = [
        start(*endless, "--steps", 100_000, env=group | {"RANK": r, "LOCAL_RANK": r}) for r in "01"
    ]
    until(lambda: steps() >= 3, ranks[0])
    ranks[1].send_signal(signal.SIGUSR1)
    before = steps()
    codes = [ended(rank)[0] for rank in ranks]
    assert codes == [75, 75]
    stopped = steps()
    assert stopped <= before + 2 and Path("run/latest").read_text() == f"step-{stopped:06d}\n"
    code, said = shell("train.py", *endless[1:], "--steps", stopped + 2, "--resume", "yes")
    assert code == 0 and "was saved by 2 ranks and goes on with 1" in said
    assert [row["step"] for row in metrics("run")] == list(range(stopped + 2))


def test_torchrun_hands_on_its_signal_and_a_dead_rank_ends_the_others(
    endless, in_a_directory_of_its_own
):
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        2,
        *endless,
        "--steps",
        100_000,
    ]
    process = start(*torchrun)
    until(lambda: steps() >= 3, process)
    process.terminate()
    code, said = ended(process)
    stopped = steps()
    assert code != 0 and said.count("SIGTERM: finishing this step, then saving") == 2
    assert Path("run/latest").read_text() == f"step-{stopped:06d}\n" and not files.first_problem(
        f"run/step-{stopped:06d}"
    )
    process = start(*torchrun, "--resume", "auto")
    until(lambda: steps() >= stopped + 2, process)
    main = int(Path("run/lock").read_text().split()[1])
    os.kill(main, signal.SIGKILL)
    code, said = ended(process, seconds=120)
    assert code != 0 and ("rank 1 lost another one" in said or "Signal 9 (SIGKILL)" in said)
    assert Path("run/lock").read_text().startswith(f"process {main} on "), (
        "of a rank that cannot give it back"
    )


def test_a_directory_in_use(run, shell):
    """A second run is refused with the name of the first; that of one that was killed is taken over."""
    Path("run").mkdir()
    hold = "from maxrl.run import directory as d; file = d.lock(d.Path('run')); print('held', flush=True); input()"
    holder = start("-c", hold, stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    refused(shell(*run, "--out", "run"), f"run is in use by process {holder.pid} on", "--out")
    assert [f.name for f in Path("run").iterdir()] == ["lock"]
    holder.kill()
    holder.communicate()
    code, said = shell(*run, "--out", "run", "--resume", "auto")
    assert (
        code == 0
        and f"taking over from process {holder.pid} on" in said
        and not Path("run/lock").exists()
    )


def test_a_refused_run_leaves_no_directory(run, shell):
    Path("mine").mkdir()
    refused(shell(*run, "--out", "mine/a/b", "--init", "nowhere"), "nowhere is neither")
    assert not list(Path("mine").iterdir())


def test_a_full_disk(endless, in_a_directory_of_its_own):
    """A limit on the size of files between those of the weights and of Adam's state: the save that meets it ends the run
    with a sentence and code 74, takes nothing with it, and the run goes on when there is room."""
    assert ended(start(*endless, "--steps", 4))[0] == 0
    os.rename("run", "whole")
    assert ended(start(*endless, "--steps", 2))[0] == 0
    limit = Path("run/step-000002/optimizer.safetensors").stat().st_size - 1

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    code, said = ended(start(*endless, "--steps", 4, "--resume", "auto", preexec_fn=limited))
    assert code == directory.DISK_FULL == 74, said
    assert (
        "run cannot be written to (File too large)" in said
        and "step-000002 is whole" in said
        and "Traceback" not in said
    )
    assert {f.name for f in Path("run").iterdir()} == {
        "recipe.json",
        "metrics.jsonl",
        "latest",
        "step-000002",
    }
    assert not files.first_problem("run/step-000002")
    assert ended(start(*endless, "--steps", 4, "--resume", "auto"))[0] == 0
    assert weights("run") == weights("whole") and timeless("run") == timeless("whole")


@pytest.mark.parametrize("where", ["on a full disk", "nowhere"])
def test_the_log(run, shell, monkeypatch, where):
    """`> log 2>&1` on a full disk, or `>&- 2>&-`: the run goes on, and its end and its refusals have their codes."""
    for name in ("stdout", "stderr"):
        stream = open("/dev/full", "w", buffering=1) if where == "on a full disk" else None  # noqa: SIM115
        monkeypatch.setattr(sys, name, stream)
    assert shell(*run, "--out", "run")[0] == 0 and len(metrics("run")) == 5
    assert shell(*run, "--out", "run")[0] == 2


SPEAKING = """
import os, sys
from maxrl.run.cli import never_fail
never_fail()
print("x" * 100_000)
print("x" * 100_000, file=sys.stderr)
os._exit(9) if open("file", "w").fileno() < 3 else None
"""


def test_what_cannot_be_said_changes_no_exit_code(in_a_directory_of_its_own):
    """Python itself ends with 120 where the rest of what was printed cannot be written; a file of ours is no place for it."""
    for redirected in (">/dev/full 2>&1", ">&- 2>&-", "<&- | true", "<&- >&- 2>&-"):
        command = f"set -o pipefail; \"{sys.executable}\" -c '{SPEAKING}' {redirected}"
        assert (
            subprocess.run(
                ["bash", "-c", command], env=os.environ | {"PYTHONPATH": str(ROOT)}
            ).returncode
            == 0
        ), redirected
        assert Path("file").stat().st_size == 0


def test_a_full_disk_and_the_tokenizer(tmp_path, monkeypatch):
    """The library's own save() raises an Exception without a number: the run would end with a traceback instead of code 74."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with pytest.raises(OSError) as error:
            Tokenizer.from_vocabulary(("<pad>", "<eos>", *map(str, range(100)))).save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert directory.disk_full(error.value) == "File too large" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["set_latest", "lock"])
def test_a_full_disk_before_the_first_step(run, shell, monkeypatch, where):
    shell(*run, "--out", "run")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint if where == "set_latest" else directory, where, full)
        code, said = shell(*run, "--out", "run", "--resume", "auto")
    assert (
        code == 74
        and "run cannot be written to (No space left on device)" in said
        and "step-000005 is whole" in said
    )
    assert not Path("run/lock").exists() and shell(*run, "--out", "run", "--resume", "auto")[0] == 0


def test_a_file_that_could_not_be_written_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(files, "flush", lambda _: {}["full"])
    with pytest.raises(KeyError):
        files.write_text(tmp_path / "a", "new")
    assert [f.name for f in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"


def test_an_error_of_the_network_is_no_damage(run, shell, monkeypatch):
    """A file that cannot be read now may be read the next time: nothing is renamed."""
    shell(*run, "--out", "run")

    def stale(*_):
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(files, "checksum", stale)
        code, said = shell(*run, "--out", "run", "--resume", "auto")
    assert code == 2 and "Stale file handle" in said and not list(Path("run").glob("*.damaged"))
    assert shell(*run, "--out", "run", "--resume", "auto")[0] == 0


def test_checkpoints_that_are_links(run, shell):
    """To another disk: what --keep removes is the link. To nothing: damaged."""
    shell(*run, "--out", "run", "--steps", 4)
    Path("run/step-000002").rename("elsewhere")
    Path("run/step-000002").symlink_to(Path("elsewhere").resolve())
    Path("run/step-000005").symlink_to("nowhere")
    assert shell(*run, "--out", "run", "--resume", "auto", "--keep", 1)[0] == 0
    assert {f.name for f in Path("run").glob("step-*")} == {"step-000005", "step-000005.damaged"}
    assert not files.first_problem("elsewhere")


def test_other_data_is_refused(run, shell, tmp_path):
    """The order of the prompts is a function of how many there are."""
    few = tmp_path / "few"
    counts = [
        "--size",
        "7",
        "--validation",
        "4",
        "--test",
        "4",
        "--workers",
        "1",
        "--out",
        str(few),
    ]
    prepare.main([*counts, "--train", "50"])
    own = (*run, "--out", "run", "--task.directory", few)
    assert shell(*own)[0] == 0
    prepare.main([*counts, "--train", "40", "--overwrite"])
    refused(shell(*own, "--resume", "auto"), "50 training examples, not 40: the data has changed")
    prepare.main([*counts, "--train", "50", "--seed", "1", "--overwrite"])
    refused(
        shell(*own, "--resume", "auto"),
        "run was started with other train data of the same name",
        "--out DIR",
    )
    prepare.main([*counts, "--train", "50", "--overwrite"])
    assert shell(*own, "--resume", "auto")[0] == 0


def test_other_rows_are_refused(run, shell):
    """Of a file of one's own, which has no checksums to be damaged: what was read is recorded."""
    Path("rewards.py").write_text("def one(completions): return [1.0 for _ in completions]")
    rows = [{"prompt": "UP " * n + "UP"} for n in range(4)]
    own = (
        *run,
        "--task",
        "prompts",
        "--reward",
        "rewards.py:one",
        "--task.train",
        "mine.jsonl",
        "--out",
        "run",
        "--steps",
        2,
    )
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        shell(*own)[0] == 0
        and len(json.loads(Path("run/recipe.json").read_text())["data"]["train"]) == 64
    )
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[::-1]))
    refused(
        shell(*own, "--resume", "auto", "--steps", 3),
        "run was started with other train data of the same name",
    )


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left (os error 28)"),
    ],
    ids=str,
)
def test_a_full_disk_by_another_name(run, shell, monkeypatch, error):
    def full(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        code, said = shell(*run, "--out", "run")
    assert code == 74 and "No space left" in said and "there is no checkpoint yet" in said
    assert not list(Path("run").glob("step-*"))
    assert shell(*run, "--out", "run", "--resume", "auto")[0] == 0


def test_other_errors_are_not_taken_for_a_full_disk(run, shell, monkeypatch):
    def broken(*_, **__):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(checkpoint, "save_file", broken)
    code, said = shell(*run, "--out", "run")
    assert code == 1 and "Traceback" in said and "Permission denied" in said


def flip(path, place=-1):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_passed_over(run, shell):
    shell(*run, "--out", "whole")
    shell(*run, "--out", "run")
    assert not files.first_problem("run/step-000005")
    flip(Path("run/step-000005/optimizer.safetensors"))
    Path("run/step-000004/state.json").unlink()
    problem = files.first_problem("run/step-000005")
    assert problem.startswith(
        "run/step-000005/optimizer.safetensors is damaged: it is not what its"
    )
    assert files.first_problem("run/step-000004") == "run/step-000004/state.json is missing"
    code, said = shell(*run, "--out", "run", "--resume", "yes")
    assert (
        code == 0
        and "going on from step-000002, what is damaged is now run/step-000005.damaged" in said
    )
    assert weights("run") == weights("whole") and timeless("run") == timeless("whole")
    assert Path("run/step-000004.damaged").is_dir() and not files.first_problem("run/step-000005")
    flip(Path("run/step-000005/optimizer.safetensors"))
    assert shell(*run, "--out", "run", "--resume", "yes")[0] == 0
    assert Path("run/step-000005.damaged_").is_dir() and weights("run") == weights("whole")


def test_damaged_weights_are_not_evaluated_or_built_on(run, shell):
    """safetensors alone would read them. What only resuming needs may be spoilt."""
    shell(*run, "--out", "run")
    flip(Path("run/step-000005/optimizer.safetensors"))
    ask = ("--samples", 1, "--k", 1, "--prompts", 1)
    assert shell("eval.py", "run", *ask)[0] == 0
    flip(Path("run/step-000005/model.safetensors"))
    for command in (
        ("eval.py", "run", *ask),
        ("sample.py", "run"),
        ("train.py", *SHORT, "--init", "run", "--out", "new"),
    ):
        refused(
            shell(*command),
            "run/step-000005/model.safetensors is damaged",
            "remove run/step-000005/checksums.json",
        )
    Path("run/step-000005/checksums.json").unlink()
    assert shell("eval.py", "run", *ask)[0] == 0


LATE = """
from maxrl.tasks import Example, Task

class Late(Task):
    vocabulary = ("UP",)  # not looked at in advance: such prompts are generated, by the million

    def __init__(self, split):
        pass
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return Example("UP " * (120 if index == 7 else 3) + "UP", "DONE")
    def verify(self, response, example):
        return 1.0
"""


def test_a_prompt_that_does_not_fit_ends_the_run_in_a_sentence(run, shell):
    """Before any work, the validation split's too; where the task has too many to look at, when it comes."""
    words = "a prompt of 121 tokens and a response of up to 20 exceed the model's 128 positions"
    Path("late.py").write_text(LATE)
    code, said = shell(*run, "--task", "late.py:Late", "--estimator", "rloo", "--out", "late")
    assert code == 2 and words in said and "Traceback" not in said
    Path("few.jsonl").write_text(json.dumps({"prompt": "UP", "answer": "DONE"}) + "\n")
    rows = [{"prompt": "UP " * n + "UP", "answer": "DONE"} for n in (1, 2, 3, 120)]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rewards.py").write_text("def one(completions): return [1.0 for _ in completions]")
    own = (
        *run,
        "--task",
        "prompts",
        "--reward",
        "rewards.py:one",
        "--task.validation",
        "mine.jsonl",
        "--out",
        "run",
    )
    for options in (
        ("--task.train", "mine.jsonl"),
        ("--task.train", "few.jsonl", "--eval-every", 1),
    ):
        refused(shell(*own, *options), words)
        assert not Path("run").exists()


def test_no_checkpoint_is_whole(run, shell):
    """Then nothing is begun anew in its place, and nothing is renamed."""
    shell(*run, "--out", "run")
    for step in (2, 4, 5):
        (Path(f"run/step-00000{step}") / "checksums.json").unlink()
    before = sorted(Path("run").rglob("*"))
    none = "run holds no checkpoint that is whole (run/step-000005/checksums.json is missing)"
    for resume, words in (("yes", none), ("auto", none), ("no", "already holds a run")):
        refused(shell(*run, "--out", "run", "--resume", resume), words)
        assert sorted(Path("run").rglob("*")) == before


def test_the_newest_checkpoint_counts_not_what_latest_says(run, shell):
    shell(*run, "--out", "run")
    for text in ("step-000002\n", "../../elsewhere", ""):
        Path("run/latest").write_text(text)
        assert shell(*run, "--out", "run", "--resume", "yes")[0] == 0
        assert Path("run/latest").read_text() == "step-000005\n" and len(metrics("run")) == 5


def test_a_spoilt_line_of_metrics_is_left_out(run, shell):
    shell(*run, "--out", "run")
    file = Path("run/metrics.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(
        lines[0] + b"\0" * 40 + b"\xff\n" + b"[1]\n" + b"{}\n" + b"".join(lines[1:]) + lines[0][:9]
    )
    with pytest.warns(UserWarning, match=r"metrics.jsonl, line [234], cannot be read") as said:
        assert shell(*run, "--out", "run", "--resume", "yes")[0] == 0
    assert len(said) == 3 and file.read_bytes().splitlines(keepends=True) == lines


LOSSES = {  # what becomes of the lines of steps 0 to 4, and what is said
    "cut in line 3": (lambda lines: [*lines[:2], lines[2][:20]], "lacked step 2 to 4, put back"),
    "gone": (None, "lacked step 0 to 4, put back"),
    "empty": (lambda lines: [], "lacked step 0 to 4, put back"),
    "doubled": (
        lambda lines: [line for line in lines for _ in range(2)],
        "twice or in another order",
    ),
    "reversed": (lambda lines: lines[::-1], "twice or in another order"),
    "changed": (
        lambda lines: [lines[0].replace(b"loss", b"lots"), *lines[1:]],
        "had another line for step 0, put right",
    ),
}


def test_metrics_come_back_from_the_checkpoint(run, shell):
    """Whatever was lost or changed of metrics.jsonl; where no copy has them the missing steps are named."""
    shell(*run, "--out", "run")
    file = Path("run/metrics.jsonl")
    whole = file.read_bytes()
    assert Path("run/step-000005/metrics.jsonl").read_bytes() == whole
    assert Path("run/step-000002/metrics.jsonl").read_bytes() == b"".join(
        whole.splitlines(keepends=True)[:2]
    )
    for what, (lose, words) in LOSSES.items():
        file.unlink() if lose is None else file.write_bytes(
            b"".join(lose(whole.splitlines(keepends=True)))
        )
        with pytest.warns(UserWarning, match=words) as said:
            assert past(file, Path("run/step-000005")) == whole.decode().splitlines(
                keepends=True
            ), what
        assert len(said) == 1, what
    shutil.rmtree("run/step-000005")
    shutil.rmtree("run/step-000004")
    file.write_bytes(whole.splitlines(keepends=True)[0])
    rewrite("run/step-000002", "metrics.jsonl", b"")
    with pytest.warns(UserWarning, match="lacks step 1, which no copy has"):
        assert shell(*run, "--out", "run", "--resume", "yes", "--steps", 3)[0] == 0
    assert [row["step"] for row in metrics("run")] == [0, 2]


def test_what_is_taken_away_while_it_runs(run, shell, monkeypatch):
    """metrics.jsonl or the whole directory: the checkpoint that is due is saved, with all steps."""
    for what, act in (
        ("file", lambda _: os.unlink("file/metrics.jsonl")),
        ("all", lambda _: os.rename("all", "elsewhere")),
    ):
        with (
            monkeypatch.context() as patch,
            pytest.warns(UserWarning, match="has been taken away: it is written anew"),
        ):
            patch.setattr(SequencePolicy, "backward", at_call(4, act))
            assert shell(*run, "--out", what)[0] == 0
        assert len(metrics(what)) == 5 and (Path(what) / "latest").read_text() == "step-000005\n"
        assert (
            not files.first_problem(f"{what}/step-000005")
            and shell(*run, "--out", what, "--resume", "yes")[0] == 0
        )


def rewrite(checkpoint, name, content):
    """A file with other bytes, of which the checksums are right."""
    folder = Path(checkpoint)
    (folder / name).write_bytes(content)
    sums = json.loads((folder / "checksums.json").read_text()) | {
        name: files.checksum(folder / name)
    }
    (folder / "checksums.json").write_text(files.json_text(sums))


def test_remains_of_a_killed_save_are_cleared(run, shell):
    shell(*run, "--out", "run")
    for name in ("step-000006.incomplete", "step-000001.removed"):
        (Path("run") / name).mkdir()
        (Path("run") / name / "file").touch()
    assert shell(*run, "--out", "run", "--resume", "yes")[0] == 0
    assert {f.name for f in Path("run").glob("step-*")} == {
        "step-000002",
        "step-000004",
        "step-000005",
    }


def test_keep(run, shell):
    assert shell(*run, "--out", "run", "--save-every", 1, "--keep", 2)[0] == 0
    assert {f.name for f in Path("run").glob("step-*")} == {"step-000004", "step-000005"}
    assert shell(*run, "--out", "all", "--save-every", 1)[0] == 0
    assert len(list(Path("all").glob("step-*"))) == 5
    assert shell(*run, "--out", "all", "--save-every", 1, "--resume", "auto", "--keep", 3)[0] == 0
    assert len(list(Path("all").glob("step-*"))) == 3, (
        "of a run that was killed before it could remove them"
    )


def test_nothing_is_removed_before_the_new_one_is_announced(run, shell, monkeypatch):
    def removing(old):
        assert Path("run/latest").read_text().strip() > old.name and not files.first_problem(
            checkpoint.find("run")
        )
        gone.append(old.name)

    gone = []
    monkeypatch.setattr(files, "remove", removing)
    shell(*run, "--out", "run", "--save-every", 1, "--keep", 1)
    assert gone[:1] == ["step-000001"] and "step-000004" in gone and "step-000005" not in gone


def test_checkpoints_by_the_clock(run, shell, monkeypatch):
    """The clock stands but in backward, where 40 seconds go by: every second step is a minute."""
    now = [0.0]
    monkeypatch.setattr(directory.time, "monotonic", lambda: now[0])
    backward = SequencePolicy.backward

    def slow(self, *arguments):
        now[0] += 40
        return backward(self, *arguments)

    monkeypatch.setattr(SequencePolicy, "backward", slow)
    shell(*run, "--out", "run", "--save-every", 0, "--save-every-minutes", 1)
    assert {f.name for f in Path("run").glob("step-*")} == {
        "step-000002",
        "step-000004",
        "step-000005",
    }


def spoil(policy):
    next(policy.model.parameters()).grad.fill_(float("nan"))


def test_an_update_that_is_not_finite_is_left_out(run, shell, monkeypatch):
    """The weights and Adam's state stay as they were, the batch is kept, the run goes on."""
    with monkeypatch.context() as patch:
        patch.setattr(SequencePolicy, "backward", at_call(2, spoil))
        code, said = shell(*run, "--out", "run", "--save-every", 1)
    assert code == 0 and "the gradient of step 1 is not finite, its update is left out" in said
    rows = metrics("run")
    assert [row["skipped_updates"] for row in rows] == [0, 1, 0, 0, 0] and rows[1][
        "grad_norm"
    ] is None
    one, two, three = (Path(f"run/step-00000{i}") for i in (1, 2, 3))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes() != (three / name).read_bytes()
    kept = [
        json.loads(line)
        for line in Path("run/not_finite_step000001_rank0.jsonl").read_text().splitlines()
    ]
    assert len(kept) == 16 and set(kept[0]) == {"prompt", "response", "reward", "advantage"}
    assert (
        kept[0]["prompt"].startswith("<bos> GRID_START")
        and len(list(Path("run").glob("not_finite*"))) == 1
    )


def test_the_count_of_such_steps_in_a_row_is_resumed(run, shell, monkeypatch):
    """Two before the checkpoint and one after it are three in a row."""
    spoiled = SequencePolicy.backward

    def always(self, *arguments):
        stats = spoiled(self, *arguments)
        spoil(self)
        return stats

    monkeypatch.setattr(SequencePolicy, "backward", always)
    assert shell(*run, "--out", "run", "--steps", 2, "--max-skipped", 3)[0] == 0
    code, said = shell(*run, "--out", "run", "--max-skipped", 3, "--resume", "auto")
    assert code == 2 and "3 steps in a row, up to step 2" in said and len(metrics("run")) == 2


def test_a_loss_that_is_not_finite_counts_too(run, shell, monkeypatch):
    def infinite(self, *arguments):
        return backward(self, *arguments) | {"loss": float("inf")}

    backward = SequencePolicy.backward
    monkeypatch.setattr(SequencePolicy, "backward", infinite)
    code, said = shell(*run, "--out", "run", "--max-skipped", 2)
    assert code == 2 and "2 steps in a row" in said


def test_a_run_repeated_is_the_same_bit_for_bit(run, shell):
    """Also under --deterministic, which on a CPU changes nothing."""
    for name, options in (("one", ()), ("two", ()), ("three", ("--deterministic", "true"))):
        assert shell(*run, "--out", name, *options)[0] == 0
        assert torch.are_deterministic_algorithms_enabled() == bool(options)
    distributed.setup("cpu")
    assert not torch.are_deterministic_algorithms_enabled()
    assert weights("one") == weights("two") == weights("three") and timeless("one") == timeless(
        "two"
    ) == timeless("three")


def test_what_the_ranks_say_at_the_end(capsys, monkeypatch):
    """A sentence that all ranks may say the first one says: the others wait to be ended by the launcher, and speak only if
    they are not, since then it is their own. One that happened to a rank is said by that at once."""
    waited = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    every, one = directory.UsageError("all"), RunError("me")
    for local, error, words in (("0", every, "all"), ("1", one, "me"), ("1", every, "all")):
        assert not waited
        monkeypatch.setenv("LOCAL_RANK", local)
        with pytest.raises(SystemExit) as end:
            cli.refuse("x", error)
        assert end.value.code == 2 and capsys.readouterr().err == f"x: {words}\n"
    assert waited == [2]
    with pytest.raises(SystemExit) as end:
        cli.refuse("x", RunError("disk", 74))
    assert end.value.code == 74


class Listening(Task):
    """Its batches say which process makes them, and what that does about each of directory.SIGNALS."""

    def __len__(self):
        return 100

    def batch(self, indices, seeds=None):
        return os.getpid(), [
            signal.getsignal(number) == signal.SIG_IGN for number in directory.SIGNALS
        ]


def test_workers_leave_signals_to_the_run(capfd):
    """What is sent to a whole group must not end those whose work the step waits for; SIGTERM to a worker alone ends it, or
    the exit of its run would wait for it for ever."""
    plan = [([0], None)] * 100
    assert next(prefetched(Listening(), plan)) == [os.getpid(), [False] * 3]
    run = directory.Run.__new__(directory.Run)
    run.process, run.signalled = os.getpid(), None
    run.last_signal = ctypes.c_double.from_buffer(mmap.mmap(-1, 8))
    signal.signal(signal.SIGTERM, run.on_signal)
    batches = prefetched(Listening(), plan, workers=1)
    worker, ignored = next(batches)
    assert worker != os.getpid() and ignored == [
        number != signal.SIGTERM for number in directory.SIGNALS
    ]
    for process in (os.getpid(), worker):
        os.kill(process, signal.SIGTERM)
    time.sleep(0.4)
    assert [next(batches)[0] for _ in range(10)] == [worker] * 10
    run.last_signal.value = 0  # long ago
    os.kill(worker, signal.SIGTERM)
    with pytest.raises(RuntimeError, match="exited unexpectedly|killed by signal"):
        list(batches)
    helper = Worker("maxrl.io.chat_template")
    helper.ask(60.0, "", {})
    for number in directory.SIGNALS:
        helper.process.send_signal(number)
    assert helper.ask(10.0, "{{ 1 + 1 }}", {}) == "2" and helper.process.poll() is None
    helper.end()


CRASHING = """
import os, signal, sys, time
import torch
from maxrl.parallel import distributed
from maxrl.prompt_order import prefetched
from maxrl.io.tokenizer import Tokenizer

class Task:
    def batch(self, indices, seeds=None):
        return torch.tensor(os.getpid())

def train(how):
    batches = prefetched(Task(), [([0], None)] * 10000, workers=2)
    for worker in batches:
        if how == "killed":
            os.kill(int(worker), signal.SIGKILL)
            time.sleep(0.2)
            continue
        try:
            raise RuntimeError("anything")
        except RuntimeError as error:  # its frames are in a cycle: the loader is not taken down before the exit
            keep = error
        raise keep

try:
    train(sys.argv[1])
except Exception:
    cli.crashed("program")
"""


def test_a_crash_ends_with_its_loader_workers(in_a_directory_of_its_own):
    """Also when one of them is killed for memory."""
    Path("crashing.py").write_text(CRASHING)
    processes = {how: start("crashing.py", how) for how in ("cycle", "killed")}
    for how, process in processes.items():
        code, said = ended(process, seconds=100)
        assert (
            code == 1 and ("anything" if how != "killed" else "killed by signal: Killed") in said
        ), (how, said)


def test_a_state_that_nobody_has_written(run, shell):
    """Whose checksums are right: a sentence. A checkpoint under the name of another one, too."""
    shell(*run, "--out", "run", "--steps", 2)
    state = json.loads(Path("run/step-000002/state.json").read_text())
    for content in (
        {"step": -5},
        {"step": "5"},
        {"step": 4.5},
        {"step": 4},
        {"reached": 1},
        {"skipped": None},
    ):
        rewrite("run/step-000002", "state.json", json.dumps(state | content).encode())
        refused(
            shell(*run, "--out", "run", "--resume", "yes"),
            "step-000002/state.json is not one that train.py has written",
        )
    rewrite("run/step-000002", "state.json", json.dumps(state).encode())
    Path("run/step-000006").symlink_to("step-000002")
    refused(
        shell(*run, "--out", "run", "--resume", "yes"),
        "step-000006/state.json is not one that train.py has written",
    )


def test_names_that_no_file_can_have(run, shell):
    """And a directory where a file should be."""
    refused(
        shell(*run, "--task", "prompts", "--task.train", "x" * 5000, "--reward", "r.py:f"),
        "File name too long",
    )
    Path("run/metrics.jsonl").mkdir(parents=True)
    refused(
        shell(*run, "--out", "run", "--resume", "auto"),
        "run/metrics.jsonl is a directory, not a file",
    )


@pytest.mark.parametrize("environment, words", [
    ({"WORLD_SIZE": "1"}, "no RANK: start with torchrun, or unset WORLD_SIZE"),
    ({"WORLD_SIZE": "1", "RANK": "0"}, "no MASTER_ADDR: start with torchrun"),
    ({"WORLD_SIZE": ""}, "WORLD_SIZE='', which is no number"),
    ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "x"}, "RANK=2, which must be below WORLD_SIZE=2"),
    ({"WORLD_SIZE": "2", "RANK": "x"}, "RANK='x', which is no number"),
    ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "rank 1 did not find the others at 127"),
])  # fmt: skip
def test_an_environment_that_is_none(run, shell, monkeypatch, environment, words):
    monkeypatch.setattr(distributed, "MEETING", timedelta(seconds=0.1))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    refused(shell(*run), words)


def test_no_rank_outlives_its_launcher(tmp_path, monkeypatch):
    """Killed, torchrun can tell nobody: the kernel does."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    reader, writer = os.pipe()
    launcher = os.fork()
    if not launcher:
        if not os.fork():  # a rank
            distributed.end_with_launcher()
            signal.signal(signal.SIGTERM, lambda *_: (os.write(writer, b"told"), os._exit(0)))
            os.write(writer, b"here")
            time.sleep(60)
            os._exit(1)
        time.sleep(60)
        os._exit(1)
    os.close(writer)
    assert os.read(reader, 4) == b"here"
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    assert os.read(reader, 4) == b"told"
