"""Work on other people's input in separate processes with limits on CPU time and memory.

A process can be killed at any time and from any thread, also in the middle of a long operation in
C. The processes are started by `subprocess`, because those of `multiprocessing` would import the
caller's script, and with it torch, and may not be started by a daemon such as a worker of a
DataLoader. Requests and answers are lines of JSON.
"""

import contextlib
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxrl.system.errors import UsageError, one_line

MEMORY = 1 << 30  # bytes of address space for the work, beside what a new process has
STARTING = 60.0  # seconds of CPU time for the first request, which imports the libraries
WAIT = 300.0  # seconds on the clock, far more than the CPU time, for a process that stands still

PROGRAM = """
import sys
sys.path[:] = {path!r}
from maxrl.system.sandbox import serve
from {module} import work
serve(work)
"""


class SandboxError(Exception):
    """A request without an answer, such as one for which the work raised an exception."""


class TooSlow(SandboxError):
    """The request used up its CPU time. It would do so again."""


class Died(SandboxError):
    """The process ended or stood still, which may have nothing to do with the request."""


class Worker:
    """A process that answers requests with the function `work` of a module."""

    def __init__(self, module: str):
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(WAIT)
        self.answers = self.socket.makefile("rb")
        program = PROGRAM.format(path=sys.path, module=module)
        with theirs:
            end = theirs.fileno()
            command = [sys.executable, "-c", program]
            self.process = subprocess.Popen(
                command, stdin=end, stdout=end, stderr=subprocess.DEVNULL
            )

    def ask(self, seconds: float, *arguments: object) -> Any:
        """Return work(*arguments), where arguments and result are what JSON can hold.

        Raises TooSlow after `seconds` of CPU time, which do not pass while other processes use the
        machine. Raises Died if there is no answer for another reason, and SandboxError if the work
        raised an exception.
        """
        request = json.dumps([seconds, *arguments]) + "\n"
        answer = b""
        try:
            self.socket.sendall(request.encode())
            answer = self.answers.readline()
        except OSError:
            pass
        finally:
            # A worker that still owes an answer would give it to the next request.
            if not answer.endswith(b"\n"):
                self.end()
        if self.process.returncode == -signal.SIGPROF:
            raise TooSlow(f"more than {seconds:g} seconds of CPU time")
        if not answer.endswith(b"\n"):
            raise Died("the process died, or stood still")
        result, error = json.loads(answer)
        if error:
            raise SandboxError(error)
        return result

    def end(self):
        self.process.kill()
        self.process.wait()
        self.socket.close()


@dataclass(eq=False)
class Pool:
    """At most `size` workers, which start when they are needed and end with this process."""

    package: str  # that the work needs, for error messages
    module: str  # has the function `work`
    test: tuple[list, object]  # arguments and result of what every new worker must answer rightly
    size: int = 1

    def __post_init__(self):
        self.faults: list[type[SandboxError]] = []  # since somebody took them
        self.forget()
        # After a fork two processes would read from the same sockets.
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Drop all workers, which end when nobody else holds their sockets."""
        # The worker used last comes first, so that few are started.
        self.places: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(self.size):
            self.places.put(None)

    def start(self) -> Worker:
        """Return a new worker that has passed the test; UsageError if two of them have not."""
        arguments, expected = self.test
        for _ in range(2):
            worker = Worker(self.module)
            try:
                found = worker.ask(STARTING, *arguments)
                if found == expected:
                    return worker
                said = f"it gives {found!r} instead of {expected!r} for {arguments}"
            except SandboxError as error:
                said = str(error)
            worker.end()
        raise UsageError(
            f"{self.package} does not work ({said}): pip install -U {self.package}, or see whether "
            "the machine is out of memory"
        )

    def ask(self, seconds: float, *arguments: object) -> Any:
        """Return what a worker makes of the arguments, see Worker.ask.

        A second worker is asked if the first one dies: a system that runs out of memory kills any
        process. May be called by several threads.
        """
        worker = self.places.get()
        try:
            for last in (False, True):
                if worker is None or worker.process.poll() is not None:
                    worker = self.start()
                try:
                    return worker.ask(seconds, *arguments)
                except SandboxError as error:
                    self.faults.append(type(error))
                    if last or not isinstance(error, Died):
                        raise
        finally:
            self.places.put(worker)


def serve(work: Callable):
    """Answer requests with `work` until the process that asks has gone."""
    # These signals are meant for the run, which may want to finish its step.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError, ValueError):  # macOS has no such limit
        # Libraries that were imported may hold several GiB of it already, without using them.
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # What a library prints is not an answer.
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        seconds, *arguments = json.loads(line)
        # The timer's signal ends the process, also within C and if nobody is left to kill it.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        result = None
        error = ""
        try:
            result = work(*arguments)
        except Exception as raised:  # whatever other people's input leads to
            error = f"{type(raised).__name__}: {one_line(raised)}"
        print(json.dumps([result, error]), file=answers, flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
