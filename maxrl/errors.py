"""Errors that end in one sentence."""

# What the code of others may raise: a sys.exit() in it would end a run as if it were done.
FAULTS = (Exception, SystemExit)


class UsageError(Exception):
    """A mistake in what the user asked for; its message is one sentence for the console, said once."""

    code = 2  # of the process that ends with it

    def __init__(self, sentence: str, code: int = code):
        super().__init__(sentence)
        self.code = code


class RunError(UsageError):
    """What went wrong on one rank of a run; that rank says it."""
