"""Lives of train.py for torture.py: forked from a process that has imported it, and killed.

What a killed process leaves behind is what its system calls have done. So `install` hooks the
calls of the standard library that change a disk. In a life, the hooks number the calls below its
run directory, its write steps, note each in a file, and send SIGKILL before, halfway through or
after one of them. A power failure takes more: what was written and not yet flushed by fsync.
"""

import atexit
import builtins
import contextlib
import io
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
OPEN, TRUNCATE = io.open, os.truncate
TWO_PATHS = ("rename", "replace")  # calls of os
CALLS = (*TWO_PATHS, "mkdir", "rmdir", "unlink", "remove", "fsync")


@dataclass
class Life:
    """What happens at the write steps of this process."""

    run: str  # the run directory; steps elsewhere do not count
    notes: int  # descriptor of the file that gets a line before each step
    when: str = ""  # the kill: before, half (half of a write), after, or power (before, see above)
    at: int = 0  # the number of its step, from 1
    count: int = 0
    # Files that were not flushed, and how many of their bytes are safe.
    loose: dict[str, int] = field(default_factory=dict)

    def step(self, name: str, path: str, call, half=None, source: str | None = None):
        """call(), unless the life ends here.

        path is what changes below the run directory, and source what is renamed to it.
        """
        self.count += 1
        os.write(self.notes, f"{name}\n".encode())
        if self.count == self.at:
            self.end(call, half)
        if name in ("open", "write", "truncate", "save_file") and path not in self.loose:
            whole = os.path.join(self.run, path)
            kept = name != "save_file" and os.path.exists(whole)
            self.loose[path] = os.path.getsize(whole) if kept else 0
        result = call()
        if name in ("fsync", "unlink", "remove"):
            self.loose.pop(path, None)
        if source is not None:
            # A file, or a directory with everything in it, has a new name.
            self.loose = {
                path + f.removeprefix(source) if f"{f}/".startswith(f"{source}/") else f: size
                for f, size in self.loose.items()
                if f != path
            }
        return result

    def end(self, call, half):
        """SIGKILL before, in or after a step."""
        if self.when == "half" and half:
            half()
        if self.when == "after":
            with contextlib.suppress(OSError):
                call()
        if self.when == "power":
            for file, size in self.loose.items():
                TRUNCATE(os.path.join(self.run, file), size)
        os.kill(os.getpid(), signal.SIGKILL)

    def inside(self, path, dir_fd=None) -> str | None:
        """The part of a path or descriptor below the run directory; None outside it."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        path = os.path.abspath(os.fsdecode(path))
        if not f"{path}/".startswith(f"{self.run}/"):
            return None
        return path.removeprefix(self.run).lstrip("/")


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
    """Set the hooks, which do nothing until `life` is set; before train imports save_file."""
    for name in CALLS:
        setattr(os, name, hooked(name, getattr(os, name)))
    builtins.open = io.open = hooked_open
    hooked_save_file.function = safetensors.torch.save_file
    safetensors.torch.save_file = hooked_save_file


def fork(folder: Path, arguments: list[str], environment: dict, when: str, at: int) -> int:
    """Start a life, `python train.py ARGUMENTS` in `folder`; the process id.

    Its write steps are noted in folder/steps.RANK, and folder/said gets what it says.
    """
    global life
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        atexit._clear()  # the exit functions of the parent
        os.chdir(folder)
        # Temporary files that a killed life leaves behind go with those of all trials.
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder.parents[1])
        said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ.update(environment)
        steps = f"steps.{environment.get('RANK', 0)}"
        notes = os.open(steps, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        sys.argv = [str(ROOT / "train.py"), *arguments]
        life = Life(str(folder.resolve() / "run"), notes, when, at)
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
