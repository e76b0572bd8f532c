"""Chat templates: the Jinja text of a checkpoint that turns messages into a prompt.

A template is a program that comes with a checkpoint, so it runs in a process of its own, with
limits on CPU time and memory (maxrl/system/sandbox.py).
"""

from maxrl.system.sandbox import Pool, SandboxError

SECONDS = 5.0  # of CPU time for one prompt, which usually takes less than a millisecond
POOL = Pool("jinja2", "maxrl.system.templates", (["{{ 1 + 1 }}", {}], "2"))


def render(template: str, **variables: object) -> str:
    """Return the text that a template makes of `messages` and whatever else it reads.

    Raises ValueError, with one sentence, if the template raises an error, needs an underscored
    attribute, more than SECONDS of CPU time or more memory than a process has, and for messages
    that JSON cannot hold. UsageError if jinja2 does not work.
    """
    try:
        return POOL.ask(SECONDS, template, variables)
    except (SandboxError, TypeError, ValueError) as error:
        raise ValueError(f"the chat template cannot be rendered: {error}") from None
