"""How the scripts begin and end."""

import atexit
import contextlib
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch.distributed as dist
from tqdm import tqdm

from maxrl.errors import RunError, UsageError
from maxrl.io import user_code
from maxrl.parallel.distributed import rank
from maxrl.registry import RewardError
from maxrl.sampling.memory import out_of_memory
from maxrl.sampling.prompts import PromptError
from maxrl.tasks.base import fault

# What a training run can change when memory runs out.
LESS_MEMORY = "lower --micro-batch-tokens, --wave-rows or --kv-memory-gb, or use --gradient-checkpointing true"


@contextlib.contextmanager
def script(program: str, *sentences: type[Exception], memory: str = ""):
    """The life of a script: what ends it is said in a sentence and an exit code, a traceback is for what nobody expected.

    sentences  further exceptions whose text says it all
    memory     what to change where memory runs out
    """
    try:
        yield
    except BrokenPipeError:
        if reader_has_gone():
            leave(128 + signal.SIGPIPE, at_once=True)
        crashed(program)
    except (UsageError, *sentences) as error:
        refuse(program, error)
    except (RewardError, PromptError) as error:
        refuse(
            program,
            RunError(str(error).replace("allow_fractional=True", "--allow-fractional true")),
        )
    except SystemExit as said:  # by argparse, or by the user's code in words
        if isinstance(said.code, str):
            say(said.code)
            leave(1)
        if user_code.used and not said.code:  # it would look as if all were done
            refuse(program, RunError(f"your code {fault(said)}"))
        leave(said.code or 0)
    except KeyboardInterrupt:  # before a loop that finishes its step
        leave(130)
    except Exception as error:
        if memory and isinstance(error, RuntimeError) and out_of_memory(error):
            refuse(program, RunError(f"out of memory ({str(error).split('.')[0]}): {memory}"))
        crashed(program)
    cleanup()


def reader_has_gone() -> bool:
    """Whether who reads has seen enough, as in `sample.py RUN | head`."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # nothing but errors, of which a pipe has one kind
    return bool(output.poll(0))


def started(script: str) -> list[str]:
    """The words that start a script: python train.py in a clone, maxrl train where the package is installed."""
    clone = Path(__file__).resolve().parents[2]
    return (
        ["python", script] if (clone / script).exists() else ["maxrl", script.removesuffix(".py")]
    )


def say(sentence: str):
    """To people."""
    print(sentence, file=sys.stderr)


def cleanup():
    """The last line of a script. A rank ends here and now: threads of torch's that still run while the interpreter shuts
    down may end it by SIGABRT, its work done."""
    if dist.is_initialized():
        dist.destroy_process_group()
        leave(0, at_once=True)
    # What the user's code has open or running ends as Python ends it.
    if not user_code.used:
        leave(0)


def refuse(program: str, error: UsageError | FileNotFoundError):
    """End with one sentence and the error's exit code. Of ranks that would all say the same the first one speaks."""
    try:
        if os.environ.get("LOCAL_RANK", "0") != "0" and not isinstance(error, RunError):
            time.sleep(
                2
            )  # where all ranks would say the same the launcher has ended this one by then
        close_bars()
        say(f"{program}: {error}")
    finally:
        leave(getattr(error, "code", 2))


def close_bars():
    """Bars that are open would be drawn once more at the end, below the sentence that says why."""
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.leave = False
        bar.close()


def crashed(program: str):
    """End after an exception that nobody expected: with its traceback, or a sentence where another rank was the first."""
    error = sys.exception()
    try:
        close_bars()
        if (
            isinstance(error, dist.DistError)
            or isinstance(error, RuntimeError)
            and "gloo" in str(error)
        ):
            time.sleep(2)  # the launcher may have ended this one by then
            say(
                f"{program}: rank {rank()} lost another one, whose message says why ({str(error)[:99]})"
            )
        else:
            traceback.print_exc()
    finally:  # also where torch says meanwhile, in its handler of SIGCHLD, that a loader's worker has died
        leave(1)


def leave(code: int, at_once: bool = False):
    """Exit, and wait for nobody: the processes that were started here are killed. On several ranks, and where a thread of the
    user's goes on, without any farewell: destroying the group would wait for the ranks that still work."""
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # torch's would raise an error for every worker that is killed
    for child in multiprocessing.active_children():
        child.kill()
    threads = [t for t in threading.enumerate() if not (t.daemon or t is threading.main_thread())]
    farewell = not (at_once or threads or dist.is_initialized())
    if farewell and user_code.used:
        sys.exit(code)
    end(code, farewell)


def end(code: int, farewell: bool):
    """End the process; with a farewell, after what has been registered for its end. Torch is not taken apart piece by piece,
    which costs half a second."""
    with contextlib.suppress(Exception):  # of the user's
        if farewell:
            atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class Unfailing:
    """A stream that people read: where it cannot be written to (a full disk, a reader that has gone), it is silent."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self.stream.write(text)
        return len(text)

    def flush(self):
        with contextlib.suppress(OSError):
            self.stream.flush()


def never_fail():
    """What a program says on its standard streams must not end its work; those that were closed get a place to go to."""
    while (
        free := os.open(os.devnull, os.O_RDWR)
    ) <= 2:  # of 0, 1 and 2 those that are free, which no file of ours may get
        pass
    os.close(free)
    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), Unfailing):
            setattr(sys, name, Unfailing(stream or open(os.devnull, "w")))  # noqa: SIM115 (as long as all of it)
