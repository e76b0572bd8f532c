"""Work on other people's input in a process of its own: it can be killed from any thread and holds its memory to a limit.

Such a process is started as a program, not by multiprocessing: that would import the caller's script, torch and all, again in
each, and refuses inside a DataLoader's worker.
"""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import wait

STARTING = 120.0  # seconds for the imports of a new process, on a machine with other things to do


class Worker:
    """A process that runs `_work` of a module, which calls `serve`; `said` is its first line, "ready" where all is well."""

    def __init__(self, module: str):
        code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import _work; _work()"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        self.said = self._line(STARTING).decode().strip()
        if self.said != "ready":
            self.end()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def _line(self, seconds: float) -> bytes:
        return self.process.stdout.readline() if wait([self.process.stdout], seconds) else b""

    def ask(self, seconds: float, *arguments):
        """What the process makes of the arguments, JSON both; None where it dies over it or takes longer. Then it is killed:
        asked again it would give the answer that it owes."""
        line, said = json.dumps([seconds, *arguments]).encode() + b"\n", b""
        try:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(line)
                self.process.stdin.flush()
            said = self._line(seconds)
        finally:
            if not said.endswith(b"\n"):
                self.end()
        return json.loads(said) if said.endswith(b"\n") else None

    def end(self):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


def serve(compute: Callable, memory: int, ready: Callable[[], str]):
    """The life of such a process: until its input ends, which it does when the process that started it has gone. memory:
    bytes of address space, where the system has such a limit."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(name, signal.SIG_IGN)  # meant for the run, which may want to finish its step
    answers, sys.stdout = sys.stdout, sys.stderr  # nobody else's print is an answer
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        said = ready()
    except Exception as error:  # said aloud: a worker that is never right would look like a policy that is never right
        said = f"{type(error).__name__}: {error}".replace("\n", " ")
    print(said, file=answers, flush=True)
    for line in sys.stdin:
        seconds, *arguments = json.loads(line)
        signal.alarm(int(seconds) + 10)  # ends the process, should nobody be left to kill it
        print(json.dumps(compute(*arguments)), file=answers, flush=True)
        signal.alarm(0)
