"""Runs that tests start: as processes, or as much of one as a logger needs."""

import os
import signal
import socket
import subprocess
import sys
import time
import types

import pytest

from maxrl import config
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
        closing=lambda opened: opened,
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


def torchrun(script, *arguments, **options) -> subprocess.Popen:
    """Start a script on two ranks."""
    two = "-m torch.distributed.run --standalone --nproc-per-node 2"
    return start(*two.split(), script, *arguments, **options)


def fail(process, why: str):
    """Kill a process with those that it has forked, which would keep the pipe open."""
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail(f"{why}: {process.communicate()[0]}")


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
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
