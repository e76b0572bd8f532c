"""Command lines: argparse, with the conventions that all scripts share."""

import argparse
import contextlib
import difflib
import math
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from maxrl.system.errors import UsageError


def parse(kind: type, text: str) -> object:
    """Return the value that `text` has as a field of type `kind`.

    kind  bool, int, float, str, or tuple[type, ...] for a list with commas

    Raises argparse.ArgumentTypeError, which argparse reports together with the option's name.
    """
    wanted = "true or false" if kind is bool else kind.__name__
    try:
        if typing.get_origin(kind) is tuple:
            item = typing.get_args(kind)[0]
            wanted = f"{item.__name__} values separated by commas"
            return tuple(map(item, text.split(",")))
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read: expected {wanted}") from None


class Parser(argparse.ArgumentParser):
    """An argparse parser whose mistakes are UsageErrors; an unknown option names the nearest ones.

    inner  prefixes of options whose names are not known here: with ("task",) any `--task.NAME
           VALUE` is accepted, and its text is the result's attribute "task.NAME"
    read   turns a type and a text into a value, see `parse`
    other  names of other programs for options, and what it is called here ("--lr") or why not
    """

    def __init__(
        self,
        prog: str,
        inner: Sequence[str] = (),
        read: Callable[[type, str], object] = parse,
        other: Mapping[str, str] = types.MappingProxyType({}),
        **options,
    ):
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, allow_abbrev=False, formatter_class=form, **options)
        self.inner = inner
        self.read = read
        self.other = other

    def parse_options(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options; raise UsageError for a mistake."""
        for option in dict.fromkeys(word.partition("=")[0] for word in arguments):
            prefix, _, name = option.removeprefix("--").partition(".")
            if name and prefix in self.inner and option.startswith("--"):
                kind = partial(self.read, str)
                self.add_argument(option, dest=option[2:], type=kind, nargs="?", const="true")
        found, unknown = self.parse_known_args(arguments)
        if unknown:
            self.refuse(unknown[0].partition("=")[0])
        return found

    def refuse(self, option: str) -> NoReturn:
        """Raise the UsageError for a word that is no option."""
        options = [*self._option_string_actions, *(f"--{prefix}.NAME" for prefix in self.inner)]
        name = dashed(option).lstrip("-")
        lists = "lists are written with commas, and --help lists all options"
        hint = near(name, (known.lstrip("-") for known in options), lists, "--")
        said = self.other.get(name.replace("-", "_"), "")
        # An option of another program may be one that this program does not have either.
        first, *_ = re.split("[ ,]", said)
        if said and (first in options or not first.startswith("--")):
            hint = f"it is {said}" if first in options else said
        raise UsageError(f"{option} is not an option; {hint}")

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError, where argparse would print its usage and exit."""
        raise UsageError(message.removeprefix("argument "))


def near(name: str, known: Iterable[str], otherwise: str = "", mark: str = "") -> str:
    """Return "did you mean A or B?" for known names that are like `name`, or else `otherwise`.

    mark  what names are written with
    """
    found = difflib.get_close_matches(name, [*known], n=3, cutoff=0.6)
    return f"did you mean {mark}{f' or {mark}'.join(found)}?" if found else otherwise


def asks(value: Any, usual: object) -> bool:
    """Return whether the value of an option asks for something else than its `usual` one.

    None and an empty list ask for nothing, but None turns a switch off that is usually on. 0 and
    False are values like any other.
    """
    if value is None:
        return usual is True
    nothing = usual is None and not isinstance(value, bool | int | float) and not value
    return not nothing and bool(value != usual)


def dashed(name: str) -> str:
    """Return a field's name as an option has it."""
    return name.replace("_", "-")


def counted(number: int, noun: str) -> str:
    """Return "1 prompt" or "2 prompts"."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def typed(value) -> str:
    """Return a value as the command line takes it; None is empty."""
    if isinstance(value, tuple):
        return ",".join(map(typed, value))
    text = "" if value is None else str(value)
    return text.lower() if isinstance(value, bool) else text


def check_least(name: str, value: float | None, least: int | None, most: float = math.inf):
    """Raise UsageError if an option's number is below `least` or above `most`.

    An option or a bound that is None is not checked.
    """
    if value is None:
        return
    if value > most:
        raise UsageError(f"--{dashed(name)} {value} must be at most {most}")
    if least is not None and not value >= least:
        wish = f"be at least {least}" if least else "not be negative"
        raise UsageError(f"--{dashed(name)} {value} must {wish}")


def check_output(file: Path, mark: str):
    """Raise UsageError if `file` exists without `mark` in it, so that somebody else wrote it."""
    if file.exists() and not (file.is_file() and mark.encode() in file.read_bytes()):
        raise UsageError(f"{file} exists and is none of ours: name another file, or remove it")


def name_and_path(text: str) -> tuple[str, str]:
    """Return name and path of `[NAME=]PATH`, where the name is the directory's if none is given.

    A path that exists may contain "=".
    """
    name, equals, path = text.partition("=")
    return (name, path) if equals and not Path(text).exists() else (Path(text).name, text)


def grid_runs(path: str) -> list[Path]:
    """Return the runs of a grid's folder; none for a run, though runs are below it."""
    if Path(path, "recipe.json").exists():
        return []
    # Without an option of several values there is one run.
    files = sorted(Path(path).glob("*=*/recipe.json")) or Path(path).glob("run/recipe.json")
    return [file.parent for file in files]


def runs_named(words: Iterable[str]) -> list[tuple[str, str]]:
    """Return name and path of every run of words `[NAME=]PATH`; a path may be a grid's folder.

    Its runs are called OPTION=VALUE-OPTION=VALUE. Those that differ in the seed alone have one
    name, without `estimator=`; NAME stands before it, and of several grids the folder's. Paths
    that end alike, and have no NAME, are called by the whole of them.
    """
    found = []
    asked = [(word, *name_and_path(word)) for word in words]
    ends = Counter(name for word, name, path in set(asked) if path == word)
    several = sum(bool(grid_runs(path)) for _, _, path in asked) > 1
    for word, name, path in asked:
        if path == word and ends[name] > 1:
            name = word
        runs = grid_runs(path)
        if not runs:
            found.append((name, path))
        for run in runs:
            # A value may have a dash in it: 1e-4.
            parts = re.split(r"-(?=[A-Za-z0-9_.]+=)", run.name)
            kept = [part.removeprefix("estimator=") for part in parts if part[:5] != "seed="]
            given = [name] if name != Path(path).name or not kept or several else []
            found.append(("-".join(given + kept), str(run)))
    return found


def guess(text: str) -> object:
    """Return a text as true or false, int or float if it looks like one: not 007 or 2024_25."""
    number = re.fullmatch(r"-?(?:0|[1-9][0-9]*)?(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|-?inf|nan", text)
    for kind in (bool, int, float) if number else (bool,):
        with contextlib.suppress(argparse.ArgumentTypeError):
            return parse(kind, text)
    return text


def as_type(kind: type, value: Any) -> object:
    """Return a value in type `kind`, 8.0 as the int 8, 1 as the float 1.0; else TypeError."""
    # Options of a script may be None.
    if isinstance(kind, types.UnionType):
        for one in typing.get_args(kind):
            with contextlib.suppress(TypeError):
                return as_type(one, value)
    several = typing.get_origin(kind) is tuple
    # One number is a list of one.
    if several and type(value) is int:
        value = (value,)
    if several and isinstance(value, tuple | list):
        item = typing.get_args(kind)[0]
        return tuple(as_type(item, part) for part in value)
    # Numbers of numpy and torch, and texts of an enumeration.
    if getattr(value, "shape", None) == ():
        value = value.item()
    value = getattr(value, "value", value)
    if kind is str and isinstance(value, Path):
        value = str(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    # Neither numpy nor torch has longer ones.
    if type(value) is int and abs(value) >= 2**63:
        raise TypeError
    if kind is float and type(value) is int:
        value = float(value)
    if kind is float and not math.isfinite(value) or type(value) is not kind:
        raise TypeError
    return value
