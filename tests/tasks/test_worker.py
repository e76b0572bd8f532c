"""The processes that work on other people's input: whatever happens to one of them, a request
gets its own answer or an exception, and the next request is answered. No limit depends on what
else the machine does."""

import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from maxrl.learning.config import Config
from maxrl.learning.prompt_order import Batches, prefetched
from maxrl.run import setup
from maxrl.system import sandbox
from maxrl.system.errors import UsageError
from maxrl.system.sandbox import Died, Pool, SandboxError, TooSlow
from maxrl.tasks import load_task
from tests import ROOT
from tests.helpers.started import python

WORK = """
import os, signal, time
from pathlib import Path

def once(number):
    marker = Path(__file__).with_name("marker")
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), number)

def work(what, *rest):
    if what == "spin":
        while True:
            pass
    if what == "power":  # in C, which no exception interrupts
        return 9 ** 9 ** 9 ** 9
    if what == "memory":
        return "a" * 10**10
    if what == "some":
        return [len(bytes(2**28))]
    if what == "raise":
        raise KeyError("two\\nlines")
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "half":
        os.write(1, b"1" * 20_000)
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "killed once":
        once(signal.SIGKILL)
    if what == "stopped once":
        once(signal.SIGSTOP)
    if what == "wait":
        time.sleep(0.5)
    if what == "print":
        print("no answer")
    return [os.getpid() if what == "pid" else what, *rest]
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """pool(text): a pool of two workers that run the text as a module, by default WORK."""

    def make(text=WORK):
        (tmp_path / "echo_work.py").write_text(text)
        pools.append(Pool("echo", "echo_work", (["ready"], ["ready"]), size=2))
        return pools[-1]

    pools = []
    monkeypatch.syspath_prepend(str(tmp_path))
    yield make
    for one in pools:
        one.forget()


def workers(pool):
    return [worker for worker in pool.places.queue if worker]


ANSWERED = {
    "killed once": [Died],
    "stopped once": [Died],
    "wait": [],  # the machine does something else meanwhile: that is no CPU time
    "print": [],
    "a" * 2_000_000: [],
}


@pytest.mark.parametrize("what", ANSWERED, ids=lambda what: what[:9])
def test_answered(what, pool, monkeypatch):
    """A request whose process dies is repeated once, and a process that stands still counts as
    dead."""
    monkeypatch.setattr(sandbox, "WAIT", 2.0 if what == "stopped once" else 60.0)
    pool = pool()
    assert pool.ask(0.2 if what == "wait" else 20.0, what, 1) == [what, 1]
    assert pool.faults == ANSWERED[what]
    assert pool.ask(20.0, "next") == ["next"]


UNANSWERED = {
    "spin": (TooSlow, "more than 0.2 seconds of CPU time", [TooSlow]),
    "power": (TooSlow, "more than 0.2 seconds of CPU time", [TooSlow]),
    "memory": (SandboxError, "MemoryError", [SandboxError]),
    "raise": (SandboxError, r"KeyError: 'two\\nlines'", [SandboxError]),
    "killed": (Died, "died", [Died, Died]),
    "half": (Died, "stood still", [Died, Died]),
}


@pytest.mark.parametrize("what", UNANSWERED)
def test_unanswered(what, pool, monkeypatch):
    """The next request gets its own answer, not one that was owed before."""
    error, said, faults = UNANSWERED[what]
    monkeypatch.setattr(sandbox, "WAIT", 2.0 if what == "half" else 60.0)
    pool = pool()
    with pytest.raises(error, match=said):
        pool.ask(0.2, what)
    assert pool.faults == faults
    assert pool.ask(20.0, "next", 2) == ["next", 2]


def test_the_memory_of_libraries_is_not_that_of_the_work(pool):
    """A CUDA build of torch maps more than the limit when it is imported."""
    pool = pool("import mmap\nlarge = mmap.mmap(-1, 3 << 30, prot=mmap.PROT_READ)\n" + WORK)
    assert pool.ask(20.0, "some") == [2**28]
    with pytest.raises(SandboxError, match="MemoryError"):
        pool.ask(20.0, "memory")


def test_the_worker_of_math_verify_imports_no_torch():
    pytest.importorskip("math_verify")
    worker = sandbox.Worker("maxrl.tasks.latex")
    assert worker.ask(60.0, "boxed", "1/2", "0.5")
    mapped = Path(f"/proc/{worker.process.pid}/maps").read_text()
    worker.end()
    assert "libtorch" not in mapped and "_multiarray" not in mapped


def test_a_worker_that_is_stopped_or_killed_while_idle(pool, monkeypatch):
    """A request of 500,000 characters is more than a socket holds: sending it does not wait for
    ever either."""
    monkeypatch.setattr(sandbox, "WAIT", 2.0)
    pool = pool()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        pool.ask(20.0, "first")
        (worker,) = workers(pool)
        worker.process.send_signal(number)
        assert pool.ask(20.0, "a" * 500_000) == ["a" * 500_000]


def test_signals_of_a_run_do_not_reach_it(pool):
    """Ctrl-C goes to every process of a terminal, and a cluster's SIGTERM to every process of a
    job."""
    pool = pool()
    pid = pool.ask(20.0, "pid")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(pid[0], number)
    time.sleep(0.2)
    assert pool.ask(20.0, "pid") == pid
    assert pool.faults == []


def test_several_threads(pool):
    """Each gets its own answers, from no more processes than the pool has."""
    pool = pool()
    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(lambda i: pool.ask(20.0, "pid", i), range(40))]
    assert [i for _, i in found] == [*range(40)]
    assert len({pid for pid, _ in found}) <= 2


def test_after_a_fork(pool):
    """A daemon, as DataLoader forks them, starts workers of its own, whatever its parent was
    doing."""
    pool = pool()
    before = pool.ask(20.0, "pid")
    fork = multiprocessing.get_context("fork")
    said = fork.Queue()
    child = fork.Process(target=lambda: said.put(pool.ask(20.0, "pid")), daemon=True)
    with pool.places.mutex:  # which would stay locked in the child for good
        child.start()
    assert said.get(timeout=100) != before
    assert pool.ask(20.0, "pid") == before
    child.join()


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_workers_end_with_their_process(end, tmp_path):
    (tmp_path / "echo_work.py").write_text(WORK)
    code = (
        f"import os, sys; sys.path.append({str(tmp_path)!r}); "
        "from maxrl.system.sandbox import Worker; "
        f"print(Worker('echo_work').ask(20, 'pid')[0], flush=True); {end}"
    )
    done = python("-c", code, cwd=ROOT, timeout=100)
    (pid,) = done.stdout.split()
    deadline = time.monotonic() + 60
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert done.stderr == ""
    assert not running(pid)


def running(pid):
    """Whether a process is there and no zombie, which it stays where nobody adopts orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "text, said",
    [
        ("raise ImportError('another version')", "the process died"),
        ("def work(what): import no_such_package", "No module named 'no_such_package'"),
        ("def work(what): return 'wrong'", "it gives 'wrong' instead of"),
    ],
)
def test_a_broken_installation(text, said, pool):
    """Without a test a worker that cannot work would call every answer wrong, and a run would
    learn nothing."""
    pool = pool(text)
    with pytest.raises(UsageError, match=f"echo does not work .*{said}.*pip install -U echo"):
        pool.ask(20.0, "first")
    assert workers(pool) == []


SUMS = """
from dataclasses import dataclass
from maxrl.tasks import Example, Task

@dataclass
class Row:
    answer: int

class Sums(Task):
    vocabulary = ("<bos>", "<pad>", "<eos>", "SUM")
    shift = SHIFT
    broken = None
    def __init__(self, split, broken=False):
        self.rows = [Row(i + self.shift) for i in range(4)]
        self.broken = (lambda: 0) if broken else None
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return Example("SUM", self.rows[index].answer)
"""


@pytest.fixture
def kinds(tmp_path, monkeypatch, mazes):
    """Tasks of every kind that a command may name; two of the files have one name."""
    for folder, shift in (("a", 0), ("b", 10)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sums.py").write_text(SUMS.replace("SHIFT", str(shift)))
    (tmp_path / "sums_of_a_package.py").write_text(SUMS.replace("SHIFT", "20"))
    monkeypatch.syspath_prepend(str(tmp_path))
    first = f"{tmp_path}/a/sums.py:Sums"
    cfg = Config(task=first, model={"hidden_size": 1}, max_prompt=8)
    return [
        load_task("maze", "train", size=7, directory=str(mazes)),
        load_task("tests.helpers.tiny:Up", "train"),
        load_task("sums_of_a_package:Sums", "train"),
        load_task(first, "train"),
        load_task(f"{tmp_path}/b/sums.py:Sums", "train"),
        setup.load(cfg, "train"),  # behind a filter of long prompts
    ]


PLAN = [([1, 3], None), ([2, 0], None)]


def made(batches):
    every = map(batches.__getitem__, range(len(PLAN)))
    return [[(example.prompt, str(example.answer)) for example in batch] for batch in every]


@pytest.mark.parametrize("name", ["forkserver", "spawn"])
def test_batches_of_a_process_that_knows_nothing(kinds, name):
    """It makes what this process makes. Such processes are usual on Linux since Python 3.14, and on
    macOS: a run with them is in repository/test_macos.py."""
    with ProcessPoolExecutor(1, multiprocessing.get_context(name)) as pool:
        for task in kinds:
            batches = Batches(task, PLAN)
            assert pool.submit(made, batches).result() == made(batches)


def test_a_task_that_no_other_process_can_get(tmp_path):
    (tmp_path / "sums.py").write_text(SUMS.replace("SHIFT", "0"))
    task = load_task(f"{tmp_path}/sums.py:Sums", "train", broken=True)
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        with pytest.raises(UsageError, match="--workers 0"):
            list(prefetched(task, [([0], None)], workers=1))
    finally:
        multiprocessing.set_start_method(before, force=True)
