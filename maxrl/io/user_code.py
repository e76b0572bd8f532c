"""The user's own functions and classes, by name."""

import difflib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from maxrl.errors import FAULTS, UsageError

used = False  # whether any was imported: it may have threads, open files and plans for the end


@functools.cache
def executed(file: Path) -> ModuleType:
    """A file as a module, which is run once, however many things in it are named."""
    spec = importlib.util.spec_from_file_location(f"user_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    return module


def imported(spec: str, option: str) -> Callable:
    """The user's function or class that "package.module:name" or "FILE.py:name" names; UsageError where there is none."""
    global used
    where, _, name = spec.rpartition(":")
    if not (where and name):
        raise UsageError(f"{option} {spec} is not written package.module:name or FILE.py:name")
    used = True
    try:
        if where.endswith(".py"):
            module = executed(Path(where).resolve())
        else:
            module = importlib.import_module(where)
    except FAULTS as error:  # whatever the file does when it is run
        raise UsageError(
            f"{option} {spec} cannot be imported: {type(error).__name__}: {error}"
        ) from None
    found = getattr(module, name, None)
    if not callable(found):
        near = difflib.get_close_matches(
            name, [n for n in dir(module) if callable(getattr(module, n))], n=1
        )
        raise UsageError(
            f"{option} {spec}: {where} has no function or class {name}"
            + (f"; did you mean {near[0]}?" if near else "")
        )
    return found
