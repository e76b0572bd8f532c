"""Errors that end a program with one sentence."""

# What code of the user's may raise. Its sys.exit() would end a run as if it were complete.
FAULTS = (Exception, SystemExit)


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
