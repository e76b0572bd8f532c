"""Work on other people's input in a process of its own: it can be killed from any thread and holds its memory to a limit.

Such a process is started as a program, not by multiprocessing: that would import the caller's script, torch and all, again in
each, and refuses inside a DataLoader's worker.
"""

import atexit
import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from select import PIPE_BUF

STARTING = 60.0  # seconds of CPU time for the imports of a new process, one as a rule
WALL = 60.0  # seconds on the clock in which a process must answer or work, or it is taken for dead: it may be stopped


class TooSlow(Exception):
    """A request has used up the CPU time that it had: it would do so again."""


class Died(Exception):
    """The process has ended over a request, or stood still: that may have nothing to do with the request."""


class Worker:
    """A process that runs `_work` of a module, which calls `serve`; `said` is its first line, "ready" where all is well."""

    def __init__(self, module: str):
        code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import _work; _work()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.said = self._exchange().decode().strip()
        if self.said != "ready":
            self.end()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def _exchange(self, line: bytes = b"") -> bytes:
        """Writes a line, if there is one, and reads the next. It has no end where the process ends, or takes nothing,
        says nothing and does next to nothing for WALL seconds: others may have the machine, and how much it does in all is
        limited by CPU time. No step waits for longer: a pipe holds 64 KiB, and a process that is stopped empties none."""
        writing = self.process.stdin.fileno()
        reading = self.process.stdout.fileno()
        left = memoryview(line)
        said = b""
        worked = cpu_seconds(self.process.pid)
        with selectors.DefaultSelector() as pipes:
            pipes.register(reading, selectors.EVENT_READ)
            if left:
                pipes.register(writing, selectors.EVENT_WRITE)
            while not said.endswith(b"\n"):
                ready = [key.fd for key, _ in pipes.select(WALL)]
                if not ready:
                    before = worked
                    worked = cpu_seconds(self.process.pid)
                    if worked - before < 0.1:
                        break
                if writing in ready:
                    try:
                        left = left[
                            os.write(writing, left[:PIPE_BUF]) :
                        ]  # so much goes into a pipe that is ready
                    except BrokenPipeError:  # it has ended, and may have said something before
                        left = left[:0]
                    if not left:
                        pipes.unregister(writing)
                if reading in ready:
                    part = os.read(reading, 2**16)
                    said += part
                    if not part:
                        break
        return said

    def ask(self, seconds: float, *arguments):
        """What the process makes of the arguments, JSON both. TooSlow where that takes it more than `seconds` of CPU time,
        which do not go by while others have the machine; Died where it ends otherwise, or stands still. It is killed then:
        asked again it would give the answer that it owes."""
        said = b""
        try:
            said = self._exchange(json.dumps([seconds, *arguments]).encode() + b"\n")
        finally:
            if not said.endswith(b"\n"):
                self.end()
        if said.endswith(b"\n"):
            return json.loads(said)
        raise TooSlow if self.process.returncode == -signal.SIGPROF else Died

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used; 0 where the system does not say it (in /proc, as Linux does)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13])) / os.sysconf(
                "SC_CLK_TCK"
            )
    except (OSError, ValueError):
        return 0.0


class Pool:
    """The processes that run `_work` of a module, at most size() of them. They start when they are needed, and stay.

    error(worker): what is raised over a worker that started and is not ready; `said` is "" if it died twice
    """

    def __init__(
        self, module: str, error: Callable[[Worker], Exception], size: Callable[[], int] = lambda: 1
    ):
        self.module = module
        self.error = error
        self.size = size
        self.queues: dict[
            int, queue.LifoQueue
        ] = {}  # by process: a fork gets its own, whatever its parent was doing
        atexit.register(self.end)

    @property
    def places(self) -> queue.LifoQueue:
        """A worker each, or None where none runs; the last used comes first, so few are started."""
        if os.getpid() not in self.queues:
            places = queue.LifoQueue(self.size())
            for _ in range(places.maxsize):
                places.put(None)
            self.queues.setdefault(os.getpid(), places)
        return self.queues[os.getpid()]

    def start(self) -> Worker:
        """A worker that is ready. One that dies before it says anything is started once more."""
        worker = Worker(self.module)
        if not worker.said:
            worker = Worker(self.module)
        if worker.said != "ready":
            raise self.error(worker)
        return worker

    def ask(self, seconds: float, *arguments, died: Callable = lambda: None):
        """What a worker makes of the arguments. Where it dies over them, died() is called and a new one is asked, once: the
        system kills whom it likes. TooSlow and Died as in Worker.ask."""
        places = self.places
        worker = places.get()
        try:
            for again in (True, False):
                if not (worker and worker.alive):
                    worker = self.start()
                try:
                    return worker.ask(seconds, *arguments)
                except Died:
                    died()
                    if not again:
                        raise
        finally:
            places.put(worker if worker and worker.alive else None)

    def end(self):
        """End the workers of this process."""
        places = self.queues.pop(os.getpid(), None)
        while places and not places.empty():
            if worker := places.get():
                worker.end()


def serve(compute: Callable, memory: int, ready: Callable[[], str]):
    """The life of such a process: until its input ends, which it does when the process that started it has gone. memory:
    bytes of address space, where the system has such a limit."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(name, signal.SIG_IGN)  # meant for the run, which may want to finish its step
    answers = sys.stdout
    sys.stdout = sys.stderr  # nobody else's print is an answer
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.setitimer(signal.ITIMER_PROF, STARTING)
    try:
        said = ready()
    except Exception as error:  # said aloud: a worker that is never right would look like a policy that is never right
        said = f"{type(error).__name__}: {error}".replace("\n", " ")
    print(said, file=answers, flush=True)
    signal.setitimer(signal.ITIMER_PROF, 0)
    for line in sys.stdin:
        seconds, *arguments = json.loads(line)
        signal.setitimer(
            signal.ITIMER_PROF, seconds
        )  # CPU time; its signal ends the process, also within C and if nobody is
        print(json.dumps(compute(*arguments)), file=answers, flush=True)  # left to kill it
        signal.setitimer(signal.ITIMER_PROF, 0)
