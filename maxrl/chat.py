"""Chat templates: the jinja text of a checkpoint that turns messages into a prompt, rendered as transformers does.

A template comes with a checkpoint, so it is somebody else's program. jinja's immutable sandbox keeps it away from Python;
bounded here are what it writes, the lines it runs (an endless loop, a recursive macro) and products and powers of constants.
jinja itself bounds range(). Not bounded: memory that one step of a template asks for by other ways, such as the doubling
`ns.s ~ ns.s` or the filter center(10 ** 9). jinja2 comes with torch.
"""

import functools
import json
import re
import sys
from datetime import datetime

CHARACTERS, LINES = 10_000_000, 1_000_000  # what a template may write and run
NAME = "<template>"  # jinja's file name for a template's code


class _TooMuch(Exception):
    pass


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

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context, operator, left, right):
            sizes = [value if isinstance(value, int) else len(value) for value in (left, right)
                     if isinstance(value, (int, str, list, tuple))]
            if len(sizes) == 2 and (abs(sizes[0] * sizes[1]) > CHARACTERS if operator == "*" else abs(sizes[1]) > 64):
                raise _TooMuch(f"{operator} of {sizes[0]} and {sizes[1]}")
            return super().call_binop(context, operator, left, right)

    class Namespace(jinja2.utils.Namespace):
        """No underscored attributes, which could reach Python's own (as transformers has it)."""

        def __init__(*args, **kwargs):  # noqa: N805 (so that a template may say namespace(self=...))
            self, *args = args
            attributes = dict(*args, **kwargs)
            for name in attributes:
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(self, attributes)

        def __setitem__(self, name, value):
            Namespace.check(name)
            super().__setitem__(name, value)

        @staticmethod
        def check(name):
            if str(name).startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace takes no attribute {name!r}")

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now, "namespace": Namespace}
    return environment.from_string(template)


def _raise_exception(message):
    from jinja2 import TemplateError
    raise TemplateError(message)


def _strftime_now(form):
    return datetime.now().strftime(form)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(template: str, messages: list[dict], add_generation_prompt: bool, **variables) -> str:
    """The text of a chat; ValueError, in one sentence, for whatever the template does not like or does too much of."""
    import jinja2
    if [int(n) for n in re.findall("[0-9]+", jinja2.__version__)[:3]] < [3, 1, 6]:
        raise ValueError(f"jinja2 {jinja2.__version__} has known holes in its sandbox: pip install -U jinja2")
    lines = 0

    def count(frame, event, argument):  # the tracer of the template's own code, not of what it calls
        nonlocal lines
        if frame.f_code.co_filename != NAME:
            return None
        lines += event == "line"
        if lines > LINES:
            raise _TooMuch("an endless loop")
        return count

    before = sys.gettrace()
    try:
        stream = compiled(template).generate(messages=messages, tools=None, documents=None,
                                             add_generation_prompt=add_generation_prompt, **variables)
        sys.settrace(count)
        return _joined(stream)
    except _TooMuch as error:
        raise ValueError(f"the chat template does too much: {error}") from None
    except (Exception, RecursionError) as error:  # it runs somebody else's program: anything may come out of it
        said = " ".join(str(error).split())[:300]
        raise ValueError(f"the chat template does not take these messages: {type(error).__name__}: {said}") from None
    finally:
        sys.settrace(before)


def _joined(stream) -> str:
    parts, written = [], 0
    for part in stream:
        parts.append(part)
        written += len(part)
        if written > CHARACTERS:
            raise _TooMuch(f"more than {CHARACTERS} characters")
    return "".join(parts)
