"""Runs that tests start: as processes, or as much of one as a logger needs."""

import contextlib
import multiprocessing
import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import pytest

from maxrl.learning import config
from maxrl.run.directory import SIGNALS


@pytest.fixture
def handlers():
    """The handlers of signals after a test are those from before it."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def started(path, *, main=True, **options):
    """As much of a directory.Run as its logger needs."""
    return types.SimpleNamespace(
        cfg=config.Config(**options),
        recipe="",
        record={},
        resumed=None,
        past="",
        main=main,
        start=lambda step: path,
        ending=contextlib.ExitStack(),
    )


def start(*arguments, env=None, **options) -> subprocess.Popen:
    """Start Python with these arguments, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
        start_new_session=True,
        **options,
    )


def python(*words, env=None, **options) -> subprocess.CompletedProcess:
    """Python with these words, which has ended, and what it has said."""
    command = [sys.executable, *map(str, words)]
    known = {"env": os.environ | (env or {}), "capture_output": True, "text": True}
    return subprocess.run(command, **known | options)


def torchrun(script, *arguments, **options) -> subprocess.Popen:
    """Start a script on two ranks."""
    two = "-m torch.distributed.run --standalone --nproc-per-node 2"
    return start(*two.split(), script, *arguments, **options)


# The last one is what an optimizer's first step imports, for a second.
NURSERY = multiprocessing.get_context("forkserver")
NURSERY.set_forkserver_preload(["train", "tests.helpers.started", "torch._dynamo"])


class Forked(NURSERY.Process):
    """A script in a process group of its own, forked where torch is imported already; as much of a
    Popen as is asked here. It ends as our scripts do, without the interpreter's shutdown.
    """

    def __init__(self, *words, env=None):
        super().__init__()
        self.words = [*map(str, words)]
        self.env = os.environ | {"OMP_NUM_THREADS": "1"} | (env or {})
        self.folder = os.getcwd()
        self.said = tempfile.mkstemp()[1]
        self.start()

    def run(self):
        multiprocessing.set_start_method("fork", force=True)
        os.setsid()
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.env)
        for output in (1, 2):
            os.dup2(os.open(self.said, os.O_WRONLY | os.O_APPEND), output)
        sys.argv = self.words
        runpy.run_path(self.words[0], run_name="__main__")

    def poll(self):
        return self.exitcode

    returncode = property(poll)

    def communicate(self, timeout=None):
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired(self.words, timeout)
        return [Path(self.said).read_text()]


def two_ranks(*words) -> list[Forked]:
    """Start a script on two ranks without a launcher, which would end one with the other."""
    return ranks_of_nodes(1, 2, *words)


def ranks_of_nodes(nodes: int, local: int, *words) -> list[Forked]:
    """Start a script on so many ranks of each node, as a launcher numbers them."""
    group = {
        "WORLD_SIZE": str(nodes * local),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    started = []
    for number in range(nodes * local):
        place = {"RANK": str(number), "LOCAL_RANK": str(number % local)}
        started.append(Forked(*words, env=group | place))
    return started


def fail(process, why: str):
    """End a process with those that it has started, which would keep the pipe open."""
    # torchrun ends its ranks, which are in no group with it, if it can: within half a minute.
    for number, seconds in ((signal.SIGTERM, 40), (signal.SIGKILL, None)):
        with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
            os.killpg(process.pid, number)
            pytest.fail(f"{why}: {process.communicate(timeout=seconds)[0]}")


def ended(process, seconds=300) -> tuple[int, str]:
    """The exit code of a process that ends by itself, and what it has printed."""
    try:
        said = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        fail(process, f"still running after {seconds} s")
    return process.returncode, said


def until(true, process, seconds=300):
    """Wait until true() holds, while the process is running."""
    end = time.monotonic() + seconds
    while not true():
        if process.poll() is not None or time.monotonic() > end:
            fail(process, "it did not come so far")
        time.sleep(0.02)


def free_port() -> int:
    """One below those that the system gives to connections: of these, another test's could have it
    before the run listens."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("", port))
            return port
