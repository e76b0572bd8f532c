"""The words of a command line: options, lists, names of files."""

import contextlib
import itertools
import os
import types
import typing
from pathlib import Path

from maxrl.errors import UsageError


def dashed(name: str) -> str:
    return name.replace("_", "-")


def check_least(name: str, value, least: int | None):
    """UsageError for an option's number below `least`, 0 or 1; None is no number, or no bound."""
    if None not in (value, least) and not value >= least:
        wish = "be at least 1" if least else "not be negative"
        raise UsageError(f"--{dashed(name)} {value} must {wish}")


def named(text: str) -> tuple[str, str]:
    """[NAME=]PATH as name and path. What exists is a path, whatever stands in its name; a name's own is its directory's."""
    name, equals, path = text.partition("=")
    return (name, path) if equals and not Path(text).exists() else (Path(text).name, text)


def refuse_blanks(arguments: list[str], lists: dict):
    """UsageError where one of the options `lists` is followed by several words: a list is written with commas. lists {option:
    what tells whether a word looks like another item of its list}; other words may follow, as checkpoints do."""
    for place, word in enumerate(arguments):
        if word.startswith("--") and (is_item := lists.get(dashed(word[2:]))):
            rest = list(
                itertools.takewhile(lambda w: not w.startswith("--"), arguments[place + 1 :])
            )
            values = rest[:1] + list(
                itertools.takewhile(lambda w: is_item(w) and not os.path.isdir(w), rest[1:])
            )
            if len(values) > 1:
                raise UsageError(
                    f"{word} {' '.join(values)}: a list is written with commas, {word} {','.join(values)}"
                )


def split_arguments(arguments: list[str]) -> list[tuple[str, str | None]]:
    """`--a 1 --b=2 --c` as [("a", "1"), ("b", "2"), ("c", None)]."""
    pairs = []
    for word in arguments:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            pairs.append((key, value if equals else None))
        elif pairs and pairs[-1][1] is None:
            pairs[-1] = (key, word)
        else:
            raise UsageError(
                f"{word!r} stands where an option was expected; options are written --name value"
            )
    return pairs


def parse(kind, key: str, text: str | None):
    """The value of `text` for a field of type `kind`; bare flags are true, and `--resume` alone is yes."""
    if text is None:
        if kind is bool:
            return True
        if key == "resume":
            return "yes"
        raise UsageError(f"--{key} needs a value")
    if isinstance(kind, types.UnionType):  # a number, or several with commas
        number, several = typing.get_args(kind)
        kind = several if "," in text else number
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if typing.get_origin(kind) is tuple:
            return tuple(typing.get_args(kind)[0](part) for part in text.split(","))
        if kind is int and "e" in text:  # 1e5
            return int(float(text)) if float(text).is_integer() else int(text)
        return kind(text)
    except (ValueError, KeyError):
        name = {bool: "true or false", tuple: "numbers separated by commas"}.get(
            typing.get_origin(kind) or kind, kind.__name__
        )
        raise UsageError(f"--{key} {text} cannot be read: expected {name}") from None


def guess(text: str | None):
    """An option of a task or estimator, whose types are not known here: true/false, int, float or text."""
    if text is None or text.lower() in ("true", "false"):
        return text is None or text.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
