"""Chat templates: the Jinja text of a checkpoint that turns messages into a prompt.

A template is a program that comes with a checkpoint. Jinja's immutable sandbox keeps it away from
Python, as in transformers, but bounds neither its time nor its memory. The language is that of
transformers. Jinja comes with torch.
"""

import functools
import json
import re
from datetime import datetime

date = ""  # what templates print as the present time, in ISO format; "" is the present one


def render(template: str, **variables: object) -> str:
    """Return the text that a template makes of `messages` and whatever else it reads.

    Raises ValueError, with one sentence, if the template raises an error or needs an underscored
    attribute.
    """
    import jinja2

    if [int(n) for n in re.findall("[0-9]+", jinja2.__version__)[:3]] < [3, 1, 6]:
        raise ValueError(
            f"jinja2 {jinja2.__version__} has known holes in its sandbox: pip install -U jinja2"
        )
    now = datetime.fromisoformat(date) if date else datetime.now()
    usual = {"tools": None, "documents": None, "strftime_now": now.strftime}
    try:
        text = compiled(template).render(usual | variables)
        text.encode()  # raises for half of a surrogate pair, which no tokenizer takes
        return text
    except Exception as error:  # whatever other people's input leads to
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise ValueError(f"the chat template cannot be rendered: {said}") from None


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
