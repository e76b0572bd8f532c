"""Errors that end a program with one sentence."""

import io
import sys
import traceback
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager

# What code of the user's may raise. Its sys.exit() would end a run as if it were complete, and a
# request that is cancelled raises no Exception.
FAULTS = (Exception, SystemExit, CancelledError, BaseExceptionGroup)


class UsageError(Exception):
    """A mistake in what the user asked for, with one sentence for the console.

    All ranks of a run raise it, and only the first one prints it.
    """

    code = 2  # the exit code of the process

    def __init__(self, sentence: str, code: int = code):
        super().__init__(sentence)
        self.code = code


class RunError(UsageError):
    """A failure on one rank, which prints it."""


def escape_output():
    """Let every program print what its terminal cannot encode as an escape."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def refusing(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise UsageError for such an error, with its text behind `what`."""
    try:
        yield
    except kinds as error:
        said = error.args[0] if isinstance(error, KeyError) else error
        raise UsageError(f"{what}{said}") from None


@contextmanager
def blaming(what: str, *known: type[Exception]) -> Iterator[None]:
    """Raise UsageError, which names `what`, for a failure of other people's code.

    known  errors that say enough
    """
    try:
        yield
    except FAULTS as error:
        if isinstance(error, (UsageError, *known)):
            raise
        raise UsageError(f"{what} {describe_error(error)}") from None


def describe_error(error: BaseException) -> str:
    """Say in part of a sentence what other people's code has raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    try:
        said = one_line(error)
    except Exception:  # of its __str__, which is other people's code too
        said = "without a text"
    return f"raised {type(error).__name__}: {said} ({last.filename}, line {last.lineno})"


def one_line(error: BaseException) -> str:
    """Return the beginning of an error's message without line breaks, or else its class."""
    words = str(error).split()
    text = " ".join(words)
    return text[:300] or type(error).__name__
