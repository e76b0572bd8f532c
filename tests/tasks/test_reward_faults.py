"""What becomes of a run whose reward function fails, for every fault and setting: exit code, sentence, what is saved, and that
the run goes on from its checkpoint once the function is mended."""

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")

# The first call is right, so that there is a checkpoint; the second fails. The file mended.txt mends all of them.
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

def wrong_length(completions):
    return right(completions)[: -1 if second() else None]

def nan(completions):
    return [float("nan")] * len(completions) if second() else right(completions)

def text(completions):
    return "right" if second() else right(completions)

def none(completions):
    return [None] * len(completions) if second() else right(completions)

def sleeps(completions):
    if second():
        Path(f"asleep{os.getpid()}").touch()
        time.sleep(10_000)
    return right(completions)

def raises_on_rank_1(completions):
    return 1 / 0 if second() and RANK == "1" else right(completions)

def raises_then_sleeps_on_rank_1(completions):
    if second() and RANK == "1":
        return 1 / 0 if calls == 2 else time.sleep(10_000)
    return right(completions)
"""
SAID = {"raises": "raised ZeroDivisionError", "wrong_length": "returned 15 rewards for 16 completions",
        "nan": "returned nan for completion 0", "text": "returned str instead of a list of numbers"}  # fmt: skip
SHORT = [
    "--prompts",
    4,
    "--rollouts",
    4,
    "--steps",
    4,
    "--save-every",
    1,
    "--max-response",
    8,
    "--lr",
    1e-5,
]


@pytest.fixture
def faults(in_a_directory_of_its_own):
    """faults.py in the directory of the test, where every run is."""
    Path("faults.py").write_text(FAULTS)


@pytest.fixture(scope="module")
def table():
    """Rows (fault, setting, exit code, what it said, what is saved, resumed); printed at the end."""
    rows = []
    yield rows
    print(f"\n{'fault':30} {'setting':34} {'code':>4}  {'what it said':58} {'saved':34} resumed")
    for fault, setting, code, said, saved, resumed in rows:
        print(f"{fault:30} {setting:34} {code:>4}  {said[:58]:58} {saved:34} {resumed}")


def steps(run) -> list[dict]:
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def saved(run) -> str:
    errors = len(list(Path(run).glob("reward_error_*.jsonl")))
    return f"{Path(run, 'latest').read_text().strip()}, {errors} batch{'es' * (errors != 1)}"


def resume(shell, arguments, run) -> str:
    """The same command with the function mended: all steps are there, each once."""
    Path("mended.txt").touch()
    code, said = shell("train.py", *arguments, "--out", run, "--resume", "yes")
    Path("mended.txt").unlink()
    assert code == 0, said
    assert [row["step"] for row in steps(run)] == list(range(len(steps(run)))) and len(
        steps(run)
    ) == 4
    return "yes"


@pytest.mark.parametrize("errors", ["stop", "drop"])
@pytest.mark.parametrize("fault", [*SAID, "none"])
def test_faults(fault, errors, faults, shell, table):
    """stop: code 2, one sentence, the batch and the checkpoint of the step before; drop: the run goes on without these groups.
    A function without a verdict is no fault: its groups are left out under both."""
    arguments = ["tiny", *SHORT, "--reward", f"faults.py:{fault}", "--reward-errors", errors]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code, said = shell("train.py", *arguments, "--out", "run")
    said = " ".join([line for line in said.splitlines() if "reward function" in line]
                    + [str(w.message) for w in caught if "reward function" in str(w.message)])  # fmt: skip
    if fault != "none":
        assert SAID[fault] in said and "run/reward_error_" in said and "Traceback" not in said
        rows = [
            json.loads(line)
            for line in next(Path("run").glob("reward_error_*")).read_text().splitlines()
        ]
        assert len(rows) == 16 and {"prompts", "completions", "error"} <= rows[0].keys()
    if errors == "stop" and fault != "none":
        held = saved("run")
        assert code == 2 and held == "step-000001, 1 batch" and len(steps("run")) == 1
        resumed = resume(shell, arguments, "run")
    else:
        assert code == 0 and len(steps("run")) == 4
        assert [row["rewards/groups_left_out"] for row in steps("run")] == [0, 4, 4, 4]
        assert [row["rewards/failed_calls"] for row in steps("run")] == [0] + [
            float(fault != "none")
        ] * 3
        held, resumed = saved("run"), "not needed"
    table.append((fault, f"--reward-errors {errors}", code, said.partition(fault + " ")[2] or "(no sentence: counted)",
                  held, resumed))  # fmt: skip


def start(ranks: int, warm, mazes, run: str, *arguments):
    """train.py in processes of its own, on two ranks by torchrun."""
    program = [
        sys.executable,
        *["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks] * (ranks > 1),
    ]
    command = [*program, ROOT / "train.py", *separate(warm, mazes), *arguments, "--out", run]
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})  # fmt: skip


def separate(warm, mazes):
    """The recipe of processes that do not know `tiny`."""
    return ["maze9_laptop", *SHORT, "--init", warm, "--task.size", 7, "--task.directory", mazes, "--device", "cpu",
            "--eval-every", 0]  # fmt: skip


def ended(process, seconds=300) -> tuple[int, str]:
    try:
        said = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        pytest.fail(f"it hangs: {process.communicate()[0]}")
    return process.returncode, said


def test_a_function_that_sleeps_for_ever(faults, warm, mazes, shell, table):
    """With --reward-timeout the run ends with the stack, under both settings; without, it waits until it is killed. From its
    checkpoint it goes on in all cases."""
    options = ("stop", 1), ("drop", 1), ("stop", 0)
    arguments = {(errors, timeout): ["--reward", "faults.py:sleeps", "--reward-errors", errors, "--reward-timeout", timeout]
                 for errors, timeout in options}  # fmt: skip
    processes = {
        key: start(1, warm, mazes, f"run-{key[0]}-{key[1]}", *arguments[key]) for key in options
    }
    ends = {}
    for (errors, timeout), process in processes.items():
        if timeout:
            code, said = ended(process)
            assert (
                code == 1
                and "the reward function sleeps took longer than --reward-timeout 1 seconds" in said
            )
            assert (
                "in sleeps" in said
                and f"its batch is in run-{errors}-{timeout}/reward_error_sleeps_rank0.jsonl"
                in said
            )
            ends[errors, timeout] = (
                code,
                "took longer than --reward-timeout 1 seconds, and the stack",
            )
        else:
            deadline = time.monotonic() + 300
            while not Path(f"asleep{process.pid}").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            assert process.poll() is None, "it waits for its function"
            process.kill()
            ends[errors, timeout] = ended(process)[0], "(nothing: it waits until it is killed)"
    # Not before all have ended: resume() mends the function of every run that is still on its way.
    for (errors, timeout), (code, sentence) in ends.items():
        run = f"run-{errors}-{timeout}"
        held = saved(run)
        assert held.startswith("step-000001")
        resumed = resume(shell, [*separate(warm, mazes), *arguments[errors, timeout]], run)
        table.append(
            (
                "sleeps",
                f"--reward-errors {errors}, timeout {timeout or 'none'}",
                code,
                sentence,
                held,
                resumed,
            )
        )


def test_one_of_two_ranks_fails(faults, warm, mazes, table):
    """The other rank waits for it in a sum. Both must end, with its sentence, and not after the hour of the process group."""
    begin = time.monotonic()
    cases = {"raises_on_rank_1": ["--reward-errors", "stop"],
             "raises_then_sleeps_on_rank_1": ["--reward-errors", "drop", "--reward-timeout", 1]}  # fmt: skip
    processes = {
        name: start(2, warm, mazes, name, "--reward", f"faults.py:{name}", *cases[name])
        for name in cases
    }
    said = {}
    for name, process in processes.items():
        code, said[name] = ended(process)
        assert code != 0
        words = (
            "raised ZeroDivisionError"
            if "then" not in name
            else "took longer than --reward-timeout 1 seconds"
        )
        assert words in said[name], said[name]
        held = saved(name)
        assert (
            held.startswith("step-00000")
            and Path(name, f"reward_error_{name}_rank1.jsonl").exists()
        )
        table.append((name, " ".join(map(str, cases[name])), code, words, held, "as on one rank"))
    rows = steps("raises_then_sleeps_on_rank_1")
    assert [row["rewards/failed_calls"] for row in rows] == [0, 1] and rows[1][
        "rewards/groups_left_out"
    ] == 2
    print(f"\nboth ended after {time.monotonic() - begin:.0f} s, imports included")
