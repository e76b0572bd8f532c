"""The user's own functions and classes, by name."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from maxrl.errors import UsageError

used = False  # whether any was imported: it may have threads, open files and plans for the end


def imported(spec: str, option: str) -> Callable:
    """The user's function or class that "package.module:name" or "FILE.py:name" names; UsageError where there is none."""
    global used
    where, _, name = spec.rpartition(":")
    if not (where and name):
        raise UsageError(f"{option} {spec} is not written package.module:name or FILE.py:name")
    used = True
    try:
        if where.endswith(".py"):
            module_spec = importlib.util.spec_from_file_location(f"user_{Path(where).stem}", where)
            module = importlib.util.module_from_spec(module_spec)
            sys.modules[module_spec.name] = module  # dataclasses and pickle look there
            module_spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
    except (Exception, SystemExit) as error:  # whatever the file does when it is run
        raise UsageError(f"{option} {spec} cannot be imported: {type(error).__name__}: {error}") from None
    found = getattr(module, name, None)
    if not callable(found):
        near = difflib.get_close_matches(name, [n for n in dir(module) if callable(getattr(module, n))], n=1)
        raise UsageError(f"{option} {spec}: {where} has no function or class {name}"
                         + (f"; did you mean {near[0]}?" if near else ""))
    return found
