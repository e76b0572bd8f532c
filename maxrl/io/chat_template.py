"""Chat templates: the Jinja text of a checkpoint that turns messages into a prompt.

A template is a program that comes with a checkpoint. Jinja's immutable sandbox keeps it away from
Python, but bounds neither its time nor its memory ({% set s = s ~ s %}, 10 ** 10 ** 9), so it is
rendered in a process with limits (maxrl/io/sandbox.py). The language is that of transformers.
Jinja comes with torch.
"""

import functools
import json
import re
from datetime import datetime

from maxrl.io.sandbox import Pool, SandboxError

date = ""  # what templates print as the present time, in ISO format; "" is the present one
CHARACTERS = 10_000_000  # the longest text that a template may write
SECONDS = 10.0  # of CPU time for one rendering, which usually takes 0.0002
POOL = Pool("jinja2", __name__, (["{{ messages }}", {"messages": "a"}, "2026-01-01"], "a"))


def render(template: str, **variables: object) -> str:
    """Return the text that a template makes of `messages` and whatever else it reads.

    The variables are what JSON can hold. Raises ValueError, with one sentence, if the template
    raises an error, exceeds a limit or needs an underscored attribute.
    """
    import jinja2

    if [int(n) for n in re.findall("[0-9]+", jinja2.__version__)[:3]] < [3, 1, 6]:
        raise ValueError(
            f"jinja2 {jinja2.__version__} has known holes in its sandbox: pip install -U jinja2"
        )
    try:
        return POOL.ask(SECONDS, template, variables, date or datetime.now().isoformat())
    except (SandboxError, TypeError, RecursionError) as error:
        raise ValueError(f"the chat template cannot be rendered: {error}") from None


def work(template: str, variables: dict, now: str) -> str:
    """Render within the sandbox's process."""
    strftime = datetime.fromisoformat(now).strftime
    usual = {"tools": None, "documents": None, "strftime_now": strftime}
    text = compiled(template).render(usual | variables)
    if len(text) > CHARACTERS:
        raise ValueError(f"it writes more than {CHARACTERS:,} characters")
    text.encode()  # raises for half of a surrogate pair, which no tokenizer takes
    return text


@functools.lru_cache(maxsize=8)
def compiled(template: str):
    """Return the template in an environment with what transformers gives it."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks for transformers what the model wrote; it changes no text."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(template)
