"""Chat templates: the jinja text of a checkpoint that turns messages into a prompt, rendered as transformers does.

A template comes with a checkpoint, so it is somebody else's program. jinja's immutable sandbox keeps it away from Python, but
bounds neither its time nor its memory ({% set s = s ~ s %}, center(10 ** 9), 10 ** 10 ** 9): it is rendered in a process of
its own (Unix), which is killed after SECONDS and has MEMORY. jinja2 comes with torch.
"""

import functools
import json
import re
from datetime import datetime

from maxrl.io.sandbox import Died, Pool, TooSlow, serve

CHARACTERS = 10_000_000  # what a template may write
SECONDS = 10.0  # of CPU time for one rendering, 0.0002 as a rule
MEMORY = 1 << 30  # bytes of address space
POOL = Pool(
    "maxrl.io.chat_template",
    lambda worker: ValueError(
        f"the process that renders chat templates does not start ({worker.said or 'it ended, twice'})"
    ),
)


@functools.lru_cache(maxsize=8)
def compiled(template: str):
    """The template in an environment with the settings, filters and functions that transformers gives it."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks for transformers what the model wrote; its text is as without it."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    class Namespace(jinja2.utils.Namespace):
        """No underscored attributes, which could reach Python's own (as transformers has it)."""

        def __init__(*args, **kwargs):  # noqa: N805 (so that a template may say namespace(self=...))
            self, *args = args
            jinja2.utils.Namespace.__init__(self)
            for name, value in dict(*args, **kwargs).items():
                self[name] = value

        def __setitem__(self, name, value):
            if str(name).startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace takes no attribute {name!r}")
            super().__setitem__(name, value)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    environment.globals |= {
        "raise_exception": _raise_exception,
        "namespace": Namespace,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    return environment.from_string(template)


def _raise_exception(message):
    from jinja2 import TemplateError

    raise TemplateError(message)


def render(template: str, **variables) -> str:
    """The text of a chat, from `messages` and what else a template reads; ValueError, in one sentence, for whatever the
    template does not like or does too much of."""
    import jinja2

    if [int(n) for n in re.findall("[0-9]+", jinja2.__version__)[:3]] < [3, 1, 6]:
        raise ValueError(
            f"jinja2 {jinja2.__version__} has known holes in its sandbox: pip install -U jinja2"
        )
    try:
        text, error = POOL.ask(SECONDS, template, variables)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"chat messages must be what JSON can hold: {error}") from None
    except TooSlow:
        raise ValueError(
            f"the chat template does too much: more than {SECONDS:g} seconds"
        ) from None
    except Died:
        raise ValueError(
            "the process that renders chat templates died, and so did the next one: is the machine out of memory, "
            "or is this template no good?"
        ) from None
    if error:
        raise ValueError(error)
    return text


def _work():
    """The life of the process that renders."""
    serve(_rendered, MEMORY, lambda: "ready")


def _rendered(template: str, variables: dict) -> tuple[str, str]:
    """The text, and what went wrong ("" = nothing)."""
    parts = []
    written = 0
    try:
        for part in compiled(template).generate(tools=None, documents=None, **variables):
            parts.append(part)
            written += len(part)
            if written > CHARACTERS:
                return "", f"the chat template does too much: more than {CHARACTERS} characters"
        text = "".join(parts)
        text.encode()  # a template may write half of a surrogate pair, which no tokenizer takes
        return text, ""
    except MemoryError:
        return "", f"the chat template does too much: more than {MEMORY:,} bytes"
    except Exception as error:  # it runs somebody else's program: anything may come out of it
        said = " ".join(str(error).split())[:300]
        return "", f"the chat template does not take these messages: {type(error).__name__}: {said}"
