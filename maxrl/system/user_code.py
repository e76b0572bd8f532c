"""The user's own functions and classes, imported by name."""

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from maxrl.system.errors import FAULTS, UsageError
from maxrl.system.files import checksum

used = False  # whether any was imported: it may have threads, open files and exit handlers


@dataclass
class File:
    """A file that is run where this is unpickled, as in a loader's worker that is no fork."""

    path: Path

    def __reduce__(self):
        return execute, (self.path,)


files: dict[str, File] = {}  # of the modules that execute() has made, by their names


def execute(file: Path) -> ModuleType:
    """Return a file as a module; it is run once, however many of its functions are named, and again
    after it was changed."""
    about = file.stat()
    return run_file(file, about.st_mtime_ns, about.st_size)


@functools.cache
def run_file(file: Path, *version: int) -> ModuleType:
    # Another process calls it the same, and another file of this name is called otherwise.
    name = f"user_{file.stem}_{zlib.crc32(os.fsencode(file))}"
    files[name] = File(file)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look there
    with own_settings():
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """What a module sets at its top is meant for itself: the directory, autograd, the dtype."""
    dtype = torch.get_default_dtype()
    try:
        with contextlib.chdir("."), torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        torch.set_default_dtype(dtype)


def checksums(specs: Iterable[str]) -> dict[str, str]:
    """Return the checksum of the file of each "package.module:name" or "FILE.py:name" among specs,
    and of what was imported from beside it.

    The modules have been imported. A function of a notebook has no file.
    """
    files = {}
    for where in {spec.rpartition(":")[0] for spec in specs}:
        file = getattr(sys.modules.get(where), "__file__", None) or where
        if os.path.isfile(file):
            files[where] = Path(file).resolve()
    folders = {file.parent for file in files.values()}
    # A stub among them may answer anything.
    modules = [module for module in [*sys.modules.values()] if type(module) is ModuleType]
    imported = {vars(module).get("__file__") or "" for module in modules} - {""}
    for file in sorted({Path(file).resolve() for file in imported} - {*files.values()}):
        if file.parent in folders and file.is_file():
            files[str(file)] = file
    return {where: checksum(file) for where, file in files.items()}


def located(address: str) -> str:
    """Return an address with the whole path of its file, which may be written in several ways, so
    that equal texts name one thing."""
    file, _, name = address.rpartition(":")
    return f"{os.path.realpath(file)}:{name}" if file.endswith(".py") else address


def import_object(spec: str, option: str) -> Callable:
    """Return the function or class that "package.module:name" or "FILE.py:name" names.

    option   the option that named it, for the UsageError if there is no such thing
    """
    global used
    where, _, name = spec.rpartition(":")
    if not (where and name):
        raise UsageError(f"{option} {spec} is not written package.module:name or FILE.py:name")
    used = True
    try:
        if where.endswith(".py"):
            module = execute(Path(where).resolve())
        else:
            with own_settings():
                module = importlib.import_module(where)
    except FAULTS as error:
        raise UsageError(
            f"{option} {spec} cannot be imported: {type(error).__name__}: {error}"
        ) from None
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(f"{option} {spec}: {where} has no function or class {name}")
    return found
