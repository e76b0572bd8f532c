"""How a rank or a single process ends: at once, and with all that the user has open."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from started import ended, free_port, start, torchrun


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


LAUNCHER = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "rank.py"])
while not os.path.exists("begun"):
    time.sleep(0.01)
"""
RANK = """
import os, time
import maxrl
launcher = os.getppid()
open("begun", "w")
while os.getppid() == launcher:
    time.sleep(0.01)
from maxrl.parallel import distributed
distributed.setup("cpu")
"""


def test_a_rank_whose_launcher_died_before_it_began(in_a_directory_of_its_own):
    """It neither waits for the launcher nor joins the next one on the same port."""
    Path("rank.py").write_text(RANK)
    elastic = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
    store = torch.distributed.TCPStore("localhost", free_port(), is_master=True)
    env = elastic | alone | {"MASTER_PORT": str(store.port)}
    # The rank has the launcher's output, which ends with both of them.
    code, said = ended(start("-c", LAUNCHER, env=env), 60)
    assert code == 0 and "RunError" in said, said


FORK = """
import os
from maxrl.parallel import distributed
rank = os.fork()
if rank == 0:
    distributed.end_with_launcher()
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]))
"""


def test_a_rank_that_was_forked():
    """A notebook, which has imported maxrl, is the launcher of the ranks that it forks."""
    env = os.environ | {"TORCHELASTIC_RUN_ID": "none"}
    subprocess.run([sys.executable, "-c", FORK], env=env, cwd=ROOT, check=True)


@pytest.mark.parametrize("script", ["train.py", "eval.py", "sample.py"])
def test_scripts_note_the_launcher_before_they_import_torch(script, tmp_path):
    """That takes seconds, in which the launcher may die."""
    (tmp_path / "torch.py").write_text("import sys; sys.exit('maxrl' in sys.modules)")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    assert subprocess.run([sys.executable, ROOT / script], env=env).returncode == 1


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
    {ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (code, words)
    assert (tmp_path / "late").exists() == (ending == "pass")
    if "at_once" not in ending:
        assert (tmp_path / "log").read_text() == "kept" and done.stdout == "bye\n"
    else:
        assert not done.stdout


@pytest.mark.parametrize(
    "line, said",
    [
        ('print("line", i)', ("line 0\n141\n", "")),
        ('raise BrokenPipeError("of a worker")', ("1\n", "of a worker")),
    ],
)
def test_a_reader_that_has_seen_enough(line, said, tmp_path):
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
    assert done.stdout == said[0] and bool(done.stderr) == bool(said[1]) and said[1] in done.stderr


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
