"""What a chat template writes, for the process of maxrl/models/chat_template.py.

Jinja's immutable sandbox keeps a template away from Python, as in transformers, but bounds neither
its time nor its memory, which the process does. The language is that of transformers. Jinja comes
with torch, which is not imported here, so that the process starts at once.
"""

import functools
import json
import re
from datetime import datetime

# What templates print as the present time: a prompt is the same whenever a run goes on or is
# evaluated.
NOW = datetime(2025, 1, 1)


def work(template: str, variables: dict) -> str:
    """Return the text that a template makes of `messages` and whatever else it reads."""
    import jinja2

    if [int(n) for n in re.findall("[0-9]+", jinja2.__version__)[:3]] < [3, 1, 6]:
        raise ValueError(f"jinja2 {jinja2.__version__} has known holes in its sandbox")
    usual = {"tools": None, "documents": None, "strftime_now": NOW.strftime}
    text = compiled(template).render(usual | variables)
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
