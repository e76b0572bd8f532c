"""Lives of train.py for torture.py: forked from a process that has imported it already, and killed inside a write.

What a killed process leaves behind is what its system calls had done, so `install` hooks the calls of the standard library
that change a disk, files below Python's buffers (a write of theirs is a write to the kernel). In a life the hooks number the
calls below its run directory, its write steps, note each in a file and send SIGKILL before, in the middle of or after one.
A failure of the power takes more: what was written to a file and not yet flushed by fsync is gone too.
"""

import atexit
import builtins
import contextlib
import faulthandler
import io
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch

ROOT = Path(__file__).resolve().parents[2]
OPEN, WRITE, TRUNCATE = io.open, os.write, os.truncate
TWO_PATHS = ("rename", "replace")  # calls of os
CALLS = (
    *TWO_PATHS,
    "mkdir",
    "rmdir",
    "unlink",
    "remove",
    "truncate",
    "fsync",
    "fdatasync",
    "ftruncate",
)


@dataclass
class Life:
    """What happens at the write steps of this process."""

    run: str  # the run directory; steps elsewhere do not count
    notes: int  # descriptor of the file that gets a line [call, path] before each step
    when: str = ""  # the kill: before, half (a write of the first half of the bytes), after, power (before, see above)
    at: int = 0  # number of the step; the first is 1
    count: int = 0
    loose: dict[str, int] = field(
        default_factory=dict
    )  # files that were not flushed: how many of their bytes are safe

    def step(self, name: str, path: str, call, half=None, source: str | None = None):
        """call(), unless the life ends here. path: what changes, below the run directory; source: what is renamed to it."""
        self.count += 1
        WRITE(self.notes, (json.dumps([name, path]) + "\n").encode())
        if self.count == self.at:
            if self.when == "half" and half:
                half()
            if self.when == "after":
                with contextlib.suppress(OSError):  # mkdir(exist_ok=True)
                    call()
            if self.when == "power":
                for file, size in self.loose.items():
                    TRUNCATE(os.path.join(self.run, file), size)
            os.kill(os.getpid(), signal.SIGKILL)
        if (
            name in ("open", "write", "os.write", "truncate", "save_file")
            and path not in self.loose
        ):
            whole = os.path.join(self.run, path)
            self.loose[path] = (
                os.path.getsize(whole) if name != "save_file" and os.path.exists(whole) else 0
            )
        result = call()
        if name in ("fsync", "fdatasync", "unlink", "remove"):
            self.loose.pop(path, None)
        if source is not None:  # of a file, or of a directory with all that is in it
            self.loose = {
                path + f.removeprefix(source) if f"{f}/".startswith(f"{source}/") else f: size
                for f, size in self.loose.items()
                if f != path
            }
        return result

    def inside(self, path, dir_fd=None) -> str | None:
        """The part of a path (or descriptor) below the run directory, None outside it."""
        if isinstance(path, int) or dir_fd is not None:
            folder = os.readlink(f"/proc/self/fd/{path if dir_fd is None else dir_fd}")
            path = folder if dir_fd is None else os.path.join(folder, path)
        path = os.path.abspath(os.fsdecode(path))
        return (
            path.removeprefix(self.run).lstrip("/")
            if f"{path}/".startswith(f"{self.run}/")
            else None
        )


life: Life | None = None  # of this process; None in the one that forks


class Raw(io.FileIO):
    """A file whose every write to the kernel is a step."""

    def write(self, data):
        data = memoryview(data).cast("B")
        return life.step(
            "write",
            life.inside(self.fileno()),
            lambda: io.FileIO.write(self, data),
            lambda: io.FileIO.write(self, data[: len(data) // 2]),
        )

    def truncate(self, size=None):
        return life.step(
            "truncate", life.inside(self.fileno()), lambda: io.FileIO.truncate(self, size)
        )


def hooked_open(
    file,
    mode="r",
    buffering=-1,
    encoding=None,
    errors=None,
    newline=None,
    closefd=True,
    opener=None,
):
    path = life.inside(file) if life and set(mode) & set("wax+") else None
    if path is None:
        return OPEN(file, mode, buffering, encoding, errors, newline, closefd, opener)
    raw = life.step(
        "open", path, lambda: Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
    )
    if buffering == 0:
        return raw
    kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
    buffered = kind(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    return (
        buffered
        if "b" in mode
        else io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
    )


def hooked(name: str, function):
    """A call of os on a path, on two (what changes is the second), or on a descriptor."""

    def call(path, *arguments, **options):
        inside = source = None
        if life:
            inside = life.inside(path, options.get("dir_fd"))
            if name in TWO_PATHS:
                source, inside = inside, life.inside(arguments[0])
        if inside is None:
            return function(path, *arguments, **options)
        return life.step(name, inside, lambda: function(path, *arguments, **options), source=source)

    return call


def hooked_os_open(path, flags, mode=0o777, *, dir_fd=None):
    function = hooked_os_open.function
    inside = life.inside(path, dir_fd) if life and flags & (os.O_CREAT | os.O_TRUNC) else None
    if inside is None:
        return function(path, flags, mode, dir_fd=dir_fd)
    return life.step("os.open", inside, lambda: function(path, flags, mode, dir_fd=dir_fd))


def hooked_os_write(descriptor, data):
    inside = life.inside(descriptor) if life else None
    if inside is None:
        return WRITE(descriptor, data)
    return life.step(
        "os.write",
        inside,
        lambda: WRITE(descriptor, data),
        lambda: WRITE(descriptor, bytes(data)[: len(data) // 2]),
    )


def hooked_save_file(tensors, filename, *arguments, **options):
    """safetensors writes outside Python: half of its file is the whole one, cut."""

    def save():
        hooked_save_file.function(tensors, filename, *arguments, **options)

    def half():
        save()
        with OPEN(filename, "r+b") as file:
            file.truncate(os.path.getsize(filename) // 2)

    inside = life.inside(filename) if life else None
    return save() if inside is None else life.step("save_file", inside, save, half)


def install():
    """Hooks that do nothing until `life` is set; before train is imported, which takes save_file by name."""
    for name in CALLS:
        setattr(os, name, hooked(name, getattr(os, name)))
    hooked_os_open.function, os.open, os.write = os.open, hooked_os_open, hooked_os_write
    builtins.open = io.open = hooked_open
    hooked_save_file.function, safetensors.torch.save_file = (
        safetensors.torch.save_file,
        hooked_save_file,
    )


def fork(
    folder: Path, arguments: list[str], environment: dict[str, str], when: str = "", at: int = 0
) -> int:
    """Start a life, `python train.py ARGUMENTS --out run` in `folder`; the process id. Its write steps are noted in
    folder/steps.RANK and what it says is added to folder/said."""
    global life
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        atexit._clear()  # what the parent does at its end is not this process's to do
        enter(folder)
        faulthandler.register(signal.SIGUSR2)  # to see where it hangs
        os.environ.update(environment)
        notes = os.open(
            f"steps.{environment.get('RANK', 0)}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        )
        sys.argv = [str(ROOT / "train.py"), *arguments]
        life = Life(str(Path(folder).resolve() / "run"), notes, when, at)
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def enter(folder: Path):
    """Make it the working directory; what is said from here on is added to its file `said`, and what a killed life leaves in
    the directory for temporary files goes with those of all trials."""
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder.parents[1])
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)


def spawn(folder: Path, command: list[str]) -> int:
    """Start a program in `folder`, without hooks; its process id."""
    if pid := os.fork():
        return pid
    try:
        enter(folder)
        os.execve(command[0], command, os.environ | {"PYTHONPATH": str(ROOT)})
    finally:
        os._exit(1)
