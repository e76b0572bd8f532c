"""How a rank or a single process ends: at once, and with all that the user has open."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from tests import ROOT
from tests.helpers.started import ended, free_port, start, torchrun


def test_a_rank_ends_without_closing_the_interpreter_down():
    """Threads of torch's that were left ended finished ranks by SIGABRT there."""
    code = """
import atexit, os
from maxrl.parallel import distributed
from maxrl.run import cli
atexit.register(os.abort)
distributed.setup("cpu")
print("done")
cli.cleanup()
"""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | alone,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
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


@pytest.mark.parametrize(
    "ending, code, words",
    [
        ("pass", 0, ""),
        ("cli.leave(3)", 3, ""),
        ("raise SystemExit(2)", 2, ""),
        ("raise SystemExit('no such data')", 1, "no such data\n"),
        ("raise KeyboardInterrupt", 130, ""),
        ("cli.leave(4, at_once=True)", 4, ""),
    ],
)
def test_what_the_users_code_has_open_is_kept(ending, code, words, tmp_path):
    """Its lines that are not on disk yet and its plans for the end, unless that is at once; after a
    good one its threads too. What it says in an exit is said."""
    (tmp_path / "mine.py").write_text(MINE)
    script = f"""
from maxrl.run import cli
from maxrl.io.user_code import imported
with cli.script("x.py"):
    imported("mine.py:rewards", "--reward")()
    if {ending == "pass"}:
        imported("mine.py:begin", "--reward")()
    print("begun")
    {ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (code, words)
    assert (tmp_path / "late").exists() == (ending == "pass")
    if "at_once" not in ending:
        assert (tmp_path / "log").read_text() == "kept"
    assert done.stdout == ("begun\n" if "at_once" in ending else "begun\nbye\n")


@pytest.mark.parametrize(
    "line, printed, said",
    [
        ('print("line", i)', "line 0\n141\n", ""),
        ('raise BrokenPipeError("of a worker")', "1\n", "of a worker"),
    ],
)
def test_a_reader_that_has_seen_enough(line, printed, said, tmp_path):
    """`sample.py RUN | head -1` ends without a word, as other programs do.

    Other pipes that break are errors.
    """
    script = f"""
from maxrl.run import cli
with cli.script("x.py", OSError):
    for i in range(100_000):
        {line}
"""
    (tmp_path / "x.py").write_text(script)
    command = f"{sys.executable} x.py | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=os.environ.copy(),
        capture_output=True,
        text=True,
    )
    assert done.stdout == printed
    assert said in done.stderr
    assert bool(done.stderr) == bool(said)


SCRIPT = """
import sys, time, torch
from maxrl.parallel import distributed

class Slow(torch.Tensor):
    def __del__(self):
        time.sleep(0.01)

distributed.setup("cpu")
held = distributed.data_parallel(torch.nn.Linear(2, 2))
sys.setswitchinterval(1000)
for _ in range(8):
    torch.distributed.all_reduce(torch.zeros(1000).as_subclass(Slow), async_op=True)
distributed.leave()
"""


def test_gloo_is_done_before_the_interpreter_ends(in_a_directory_of_its_own):
    """Tensors that its threads release late do not abort a rank or keep it waiting."""
    Path("script.py").write_text(SCRIPT)
    code, said = ended(torchrun("script.py"), 60)
    assert code == 0, said


RANK = """
from maxrl.parallel import distributed
from maxrl.run import cli
with cli.script("x.py"):
    distributed.setup("cpu")
    print("met", distributed.gathered([1.0]).sum())
"""


def one_rank(number: int, launch: str, port: int, **more):
    """Start a rank as torchrun does, of a launch with this folder."""
    env = {"RANK": f"{number}", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "0"}
    env |= {"MASTER_PORT": f"{port}", "LOCAL_RANK": f"{number}"}
    env |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    env |= {"TORCHELASTIC_ERROR_FILE": f"/tmp/{launch}/attempt_0/{number}/error.json"}
    return start("-c", RANK, env=env | more)


@pytest.fixture
def store():
    """As torchrun has one for its ranks."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_ranks_of_two_launches_on_one_port(store):
    """The later one's are told which process to end; those of the first meet as if nothing were."""
    first = one_rank(0, "new", store.port)
    store.wait([f"{socket.gethostname()} 0"])
    code, said = ended(one_rank(1, "old", store.port), 60)
    assert code == 2
    assert "Traceback" not in said
    assert f"{store.port}" in said
    assert f" {first.pid}," in said
    for rank in (one_rank(1, "new", store.port), first):
        code, said = ended(rank, 60)
        assert (code, said) == (0, "met 2.0\n")


@pytest.mark.parametrize("missing", [{}, {"RANK": ""}])
def test_a_rank_without_a_launcher(missing):
    """It does not wait for the next one."""
    code, said = ended(one_rank(0, "old", free_port(), **missing), 60)
    assert code == 2
    assert "Traceback" not in said
