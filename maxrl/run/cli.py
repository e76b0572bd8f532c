"""How the scripts begin and end."""

import contextlib
import errno
import multiprocessing
import os
import re
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

import torch.distributed as dist
from tqdm import tqdm

from maxrl.advantages.registry import RewardError
from maxrl.sampling.cuda import out_of_memory
from maxrl.sampling.prompts import PromptError
from maxrl.system import distributed, user_code
from maxrl.system.errors import RunError, UsageError, describe_error, escape_output

# tqdm's own lock spans processes, and one that is killed might keep it.
tqdm.set_lock(threading.RLock())
# The exit code of a program whose files could not be written (EX_IOERR of sysexits.h).
DISK_FULL = 74
# What a training run can change if memory runs out.
LESS_MEMORY = (
    "lower --micro-batch-tokens or --kv-memory-gb, or use --gradient-checkpointing true; "
    "of images, lower --prompts"
)


@contextlib.contextmanager
def script(program: str, *sentences: type[Exception], memory: str = "") -> Iterator[None]:
    """Run a script in this context: errors end it with one sentence and an exit code.

    Only an unexpected exception prints a traceback, with exit code 1.

    sentences  further exceptions whose text suffices
    memory     what to change if memory runs out
    """
    escape_output()
    never_fail("stderr")
    try:
        with warnings.catch_warnings():
            # In one line, like everything else that is said, and without a line of our source.
            warnings.showwarning = lambda message, *where: say(f"warning: {message}")
            yield
    except KeyboardInterrupt:
        leave(128 + signal.SIGINT)
    except SystemExit as end:
        # A sys.exit() in the user's code would look as if the run were complete.
        if user_code.used and not end.code:
            refuse(program, RunError(f"your code {describe_error(end)}"))
        if isinstance(end.code, str):
            say(end.code)
            leave(1)
        leave(end.code or 0)
    except BrokenPipeError as error:
        # Other pipes than the output's, such as a tracker's, break as well.
        if reader_has_gone():
            leave(128 + signal.SIGPIPE, at_once=True)
        crashed(error)
    except Exception as error:
        if isinstance(error, (UsageError, *sentences)):
            refuse(program, error)
        if isinstance(error, (RewardError, PromptError)):
            refuse(program, RunError(str(error)))
        if disk_full(error):
            again = ", then use --resume auto" if program == "train.py" else ""
            full = f"{error}: free some space{again}"
            refuse(program, RunError(full, DISK_FULL))
        if memory and isinstance(error, RuntimeError) and out_of_memory(error):
            refuse(program, RunError(f"out of memory ({str(error).split('.')[0]}): {memory}"))
        crashed(error)
    cleanup()


def disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk is full, or that a file may not grow any more."""
    number = getattr(error, "errno", None)
    # safetensors has an exception of its own, which holds the number in its text.
    said = re.search(r"os error (\d+)", str(error))
    if said:
        number = int(said[1])
    return number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reader_has_gone() -> bool:
    """Whether nobody reads the output any more, as in `sample.py RUN | head`."""
    output = select.poll()
    # Without any event asked for, poll() reports errors alone.
    output.register(sys.stdout.fileno(), 0)
    return bool(output.poll(0))


def crashed(error: Exception) -> NoReturn:
    """End with the traceback of an unexpected error; code 1."""
    try:
        traceback.print_exception(error)
    # torch may raise once more meanwhile, when it hears that a worker of a loader has died.
    finally:
        leave(1)


def say(sentence: str):
    """Print a sentence for people, above a progress bar if there is one."""
    tqdm.write(sentence, sys.stderr)
    sys.stderr.flush()


def warn(sentence: str):
    """Warn on the main rank alone."""
    if distributed.rank() == 0:
        warnings.warn(sentence, stacklevel=3)


def cleanup():
    """End a rank that has done its work; a single process ends by itself."""
    if dist.is_initialized():
        dist.destroy_process_group()
        # Threads of torch may abort a rank during the shutdown of the interpreter.
        leave(0, at_once=True)


def refuse(program: str, error: Exception) -> NoReturn:
    """End with one sentence and the exit code of the error, 2 if it has none."""
    # All ranks raise the same UsageError. The launcher ends the others after the first one.
    if distributed.launched("LOCAL_RANK", 0) and not isinstance(error, RunError):
        time.sleep(2)
    say(f"{program}: {error}")
    leave(getattr(error, "code", UsageError.code))


def leave(code: int, at_once: bool = False, spared: Collection = ()) -> NoReturn:
    """Exit without waiting for anybody, and kill the processes that were started here.

    The interpreter is not shut down if `at_once` is true, on several ranks (closing the process
    group would wait for the others), and while a thread of the user's is running.

    spared  processes and threads that are left alone
    """
    for child in multiprocessing.active_children():
        if child not in spared:
            # torch has a handler that raises an error for every worker of a loader that is killed.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child.kill()
    own = {threading.main_thread(), *spared}
    running = {thread for thread in threading.enumerate() if not thread.daemon}
    if at_once or running - own or dist.is_initialized():
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        end(code)
    sys.exit(code)


# Tests, which run scripts in their own process, replace this.
end = os._exit


def unfailing(method: Callable) -> Callable:
    """Return a stream's method that is silent where it would raise OSError."""

    def call(*given: str):
        with contextlib.suppress(OSError):
            return method(*given)
        return None

    return call


def never_fail(name: str):
    """Keep a program running if its "stdout" or "stderr" cannot be written to.

    The disk may be full, or nobody reads it any more.
    """
    # A stream that was closed when the program started is None.
    stream: Any = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115
    stream.write = unfailing(stream.write)
    stream.flush = unfailing(stream.flush)
    setattr(sys, name, stream)
