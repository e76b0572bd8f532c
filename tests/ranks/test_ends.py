"""How a rank or a single process ends: at once, and with all that the user has open."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from maxrl.run import cli
from maxrl.system import distributed
from maxrl.tasks import verifiers
from tests import ROOT
from tests.helpers.runs import passed
from tests.helpers.started import Forked, ended, free_port, python, start, two_ranks, until

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")


def test_a_rank_ends_without_closing_the_interpreter_down():
    """Threads of torch's that were left ended finished ranks by SIGABRT there."""
    code = """
import atexit, os
from maxrl.system import distributed
from maxrl.run import cli
atexit.register(os.abort)
distributed.setup("cpu")
print("done")
cli.cleanup()
"""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = python("-c", code, env=alone, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


MINE = """
import atexit, threading, time
log = open("log", "w")
log.write("kept")
def late():
    time.sleep(0.2)
    open("late", "w").close()
def begin():
    threading.Thread(target=late).start()
def rewards():
    atexit.register(print, "bye")
"""


# What ends a script; its code and what it says.
ENDINGS = {
    "pass": (0, ""),
    "cli.leave(3)": (3, ""),
    "raise SystemExit(2)": (2, ""),
    "raise SystemExit('no such data')": (1, "no such data\n"),
    "raise KeyboardInterrupt": (130, ""),
    "cli.leave(4, at_once=True)": (4, ""),
}
FORKS = """
import os, sys
from maxrl.run import cli
from maxrl.system.user_code import import_object
for ending in sys.argv[1:]:
    if not os.fork():
        os.mkdir(ending)
        os.chdir(ending)
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), number)
        with cli.script("x.py"):
            import_object("../mine.py:rewards", "--reward")()
            if ending == "pass":
                import_object("../mine.py:begin", "--reward")()
            print("begun")
            exec(ending)
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_what_the_users_code_has_open_is_kept(tmp_path):
    """Its lines that are not on disk yet and its plans for the end, unless that is at once; after a
    good one its threads too. What it says in an exit is said."""
    (tmp_path / "mine.py").write_text(MINE)
    done = python("-c", FORKS, *ENDINGS, cwd=tmp_path)
    assert done.stdout.split() == [str(code) for code, _ in ENDINGS.values()], done.stderr
    for ending, (_, words) in ENDINGS.items():
        kept = "at_once" not in ending
        said = [(tmp_path / ending / name).read_text() for name in ("err", "out", "log")]
        assert said == [words, "begun\nbye\n" if kept else "begun\n", "kept" if kept else ""]
        assert (tmp_path / ending / "late").exists() == (ending == "pass")


LINES = """
from maxrl.run import cli
with cli.script("x.py", OSError):
    for i in range(100_000):
        print("line", i)
"""


def test_a_reader_that_has_seen_enough():
    """`sample.py RUN | head -1` ends without a word, as other programs do."""
    command = f"{sys.executable} -c '{LINES}' | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("line 0\n141\n", "")


def test_other_pipes_that_break_are_errors(capfd):
    with pytest.raises(SystemExit, match="1"), cli.script("x.py", OSError):
        raise BrokenPipeError("of a worker")
    assert "of a worker" in capfd.readouterr().err


SCRIPT = """
import os, sys, time, torch
from maxrl.system import distributed

class Slow(torch.Tensor):
    def __del__(self):
        time.sleep(0.01)

child = os.fork()
os.environ["RANK"] = str(int(child > 0))
distributed.setup("cpu")
held = distributed.data_parallel(torch.nn.Linear(2, 2))
sys.setswitchinterval(1000)
for _ in range(8):
    torch.distributed.all_reduce(torch.zeros(1000).as_subclass(Slow), async_op=True)
distributed.leave()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_gloo_is_done_before_the_interpreter_ends():
    """Tensors that its threads release late do not abort a rank or keep it waiting."""
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    passed(ended(start("-c", SCRIPT, env=group), 60))


RANK = """
from maxrl.system import distributed
from maxrl.run import cli
with cli.script("x.py"):
    distributed.setup("cpu")
    print("met", distributed.gathered([1.0]).sum())
"""


LEFT_OVER = RANK.replace("with cli", "distributed.WAIT = 0.2\nwith cli")


def test_a_rank_that_nobody_joins_says_so():
    """WORLD_SIZE and the others are left over from an earlier launch: an hour without a word."""
    Path("left.py").write_text(LEFT_OVER)
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    process = Forked("left.py", env=group | {"RANK": "0"})
    until(lambda: "unset these variables" in Path(process.said).read_text(), process, 60)
    os.killpg(process.pid, signal.SIGKILL)
    # The ranks that meet say nothing, however slow the machine is.
    Path("met.py").write_text(RANK.replace("with cli", "distributed.WAIT = 3600\nwith cli"))
    for rank in two_ranks("met.py"):
        assert ended(rank) == (0, "met 2.0\n")


@pytest.mark.parametrize("value", ["", "auto", "2x", "-1", "0", " ", "1.0"])
@pytest.mark.parametrize("name", ["LOCAL_WORLD_SIZE", "LOCAL_RANK"])
def test_variables_that_a_launcher_left_without_a_number(name, value, monkeypatch):
    """They count as absent, in the scripts and for the verifiers' processes."""
    monkeypatch.setenv(name, value)
    assert distributed.launched(name, 1) in (1, 0)
    alone = verifiers._processes()
    monkeypatch.delenv(name)
    assert verifiers._processes() == alone >= 1
    monkeypatch.setenv(name, "3")
    assert distributed.launched(name, 1) == 3


# tasks of a node, cores that the job has on it, what is found
BOUND = [(8, 64, 8), (1, 64, 1), (8, 8, 1), (0, 0, 1)]


@pytest.mark.parametrize("tasks, given, processes", BOUND)
def test_processes_of_a_rank(tasks, given, processes, monkeypatch):
    """Eight ranks that see eight cores: each has them to itself if Slurm has started each rank and
    bound it to a part of the job's.
    """
    monkeypatch.setattr(distributed, "cores", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", str(tasks))
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", str(given))
    assert verifiers._processes() == processes
