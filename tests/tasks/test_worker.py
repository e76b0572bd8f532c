"""A process that stands still ends a request, however long that is; what works is asked again elsewhere."""

import os
import signal
import threading

import pytest

from maxrl.io import sandbox
from maxrl.io.sandbox import Died, Worker

ECHO = """
import os, signal, sys

def _work():
    print("ready", flush=True)
    for line in sys.stdin:
        if "half" in line:  # an answer that fills the pipe and has no end
            os.write(1, b"1" * 20_000)
            os.kill(os.getpid(), signal.SIGSTOP)
        print(len(line), flush=True)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start(): a worker, for which a second of standing still is too much once it runs; none is there for more than 10 s."""
    (tmp_path / "echo_worker.py").write_text(ECHO)
    monkeypatch.syspath_prepend(str(tmp_path))
    started, late = [], []

    def kill(process):
        late.append(process.pid)
        process.kill()

    def start():
        monkeypatch.setattr(sandbox, "WALL", 60.0)
        started.append(Worker("echo_worker"))
        monkeypatch.setattr(sandbox, "WALL", 0.1)
        timer = threading.Timer(10, kill, [started[-1].process])
        timer.start()
        timers.append(timer)
        return started[-1]

    timers = []
    yield start
    for timer in timers:
        timer.cancel()
    for one in started:
        one.end()
    assert not late, "it hung"


@pytest.mark.parametrize("length", [10, 150_000])
def test_a_process_that_is_stopped(start, length):
    """150,000 characters are more than a pipe holds: the write must not wait for it either."""
    pool, died = sandbox.Pool("echo_worker", ValueError), []
    pool.start = start
    first = start()
    pool.places.get()
    pool.places.put(first)
    os.kill(first.process.pid, signal.SIGSTOP)
    assert pool.ask(10.0, "a" * length, died=lambda: died.append(1)) == length + 11
    assert died == [1] and not first.alive


def test_half_an_answer(start):
    """The pipe has something to read, but no line."""
    one = start()
    with pytest.raises(Died):
        one.ask(10.0, "half")
    assert not one.alive


def test_long_ones_arrive_whole(start):
    one = start()
    assert [one.ask(10.0, "a" * length) for length in (4096, 2_000_000, 1)] == [4107, 2_000_011, 12]
