"""Arbitrary texts, files and arguments work, or are refused in one sentence."""

import json
from dataclasses import fields
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eval as evaluation
import sample
from maxrl.advantages import ADVANTAGES
from maxrl.learning.config import Config
from maxrl.models import chat_template
from maxrl.run.recipes import RECIPES, recipe_of_run
from maxrl.system.arguments import as_type
from maxrl.system.errors import UsageError
from maxrl.tasks.maze import draw, verify
from tests.helpers.command_lines import with_overrides
from tests.helpers.hostile import NUMBERS, TEXTS, VALUES, many, sentence
from tests.helpers.pictures import CORRIDOR, OPEN


def test_mazes():
    """Prompts and responses with any token anywhere; a picture is ASCII and says the verdict."""
    tokens = "DONE UP RIGHT WALL PATH GOAL START NEWLINE GRID_END"
    words = ["", "\n", "\x1b[31m", *tokens.split(" ")]

    @many(200)
    @given(
        st.sampled_from([CORRIDOR, OPEN]) | st.text(),
        st.randoms(use_true_random=False),
        st.text(max_size=20),
    )
    def fuzz(prompt, rng, text):
        tokens = prompt.split(" ")
        for _ in range(rng.randrange(4)):
            tokens[rng.randrange(len(tokens))] = rng.choice([*words, text])
        response = " ".join(rng.choice([*words, text]) for _ in range(rng.randrange(9)))
        prompt = " ".join(tokens)
        verdict = verify(prompt, response)
        assert verdict in (0.0, 1.0)
        picture = draw(prompt, response)
        assert picture.isascii() and "\x1b" not in picture
        assert picture.splitlines()[-1].startswith("right" if verdict else "wrong")

    fuzz()


@pytest.mark.parametrize("long", ["RIGHT " * 100_000, "x" * 10**6, "DONE" * 10**5], ids=len)
def test_long_mazes(long):
    assert verify(OPEN, long) == 0
    assert verify(f"GRID_START {long} GRID_END", "DONE") == 0


ODD = "--task.size --task. --estimator.order -- --- --= --model= --gpus -h --lr= x --a.b.c --top-p"
NAMES = [f"--{name.replace('_', '-')}" for name in Config.__dataclass_fields__] + ODD.split(" ")
VALUE = st.sampled_from(
    [*map(str, NUMBERS), *TEXTS, "true", "1,2", "yes", "cpu", "grpo", "1_0", "1e5", "٣", ",", "-"]
)
ARGUMENTS = st.lists(
    st.one_of(st.sampled_from(NAMES), VALUE, st.text(max_size=6).filter(str.isprintable)),
    max_size=5,
)


def test_the_command_line():
    """train.py's options as lists of words, and eval.py's and sample.py's."""

    @many(400)
    @given(ARGUMENTS, st.sampled_from(sorted(RECIPES)))
    def fuzz(arguments, recipe):
        made = sentence(arguments, lambda: with_overrides(RECIPES[recipe](), arguments), UsageError)
        assert made is None or json.loads(json.dumps(made.to_dict()))

    fuzz()


def test_the_other_scripts_arguments(tmp_path, monkeypatch, capsys):
    """argparse itself ends with code 2 and its own words."""
    monkeypatch.chdir(tmp_path)
    options = (
        "--samples --k --prompts --split --task --task.size --top-p --seed --json --plot --against "
        "--temperature --workers"
    )
    first = ARGUMENTS.map(lambda words: words[0] if words else "runs/none")
    words = st.one_of(st.sampled_from(options.split(" ")), first).filter(str.isprintable)

    @many(150)
    @given(st.lists(words, max_size=6))
    def fuzz(arguments):
        for script in (evaluation, sample):
            try:
                sentence(arguments, lambda: script.read_arguments(arguments), UsageError, OSError)
            except SystemExit as end:
                assert end.code in (0, 2)

    fuzz()
    assert "Traceback" not in capsys.readouterr().err


def test_recipe_json(tmp_path):
    """A recipe.json gives every field of Config its own type, or one sentence."""
    names = sorted(Config.__dataclass_fields__)

    @many(250)
    @given(
        st.dictionaries(st.one_of(st.sampled_from(names), st.text(max_size=5)), VALUES, max_size=4)
        | VALUES,
        st.booleans(),
    )
    def fuzz(value, within):
        (tmp_path / "recipe.json").write_text(json.dumps({"config": value} if within else value))
        found = sentence(value, lambda: recipe_of_run(str(tmp_path / "recipe.json")), UsageError)
        if found is not None:
            for f in fields(Config):
                kept = getattr(found, f.name)
                again = as_type(f.type, kept)
                assert again == kept and type(again) is type(kept), f.name

    fuzz()


# Parts of templates, some of which do harm.
PIECES = """{{
}}
{%
%}
for i in range(99)
endfor
if
endif
messages
[0]
.content
|
1
attr('x')
''.__class__
.__mro__
cycler.__init__.__globals__
raise_exception('x')
self
loop
set ns = namespace(a=1)
ns.a
~
macro f(x)
f(f)
endmacro
range(10 ** 12)
'{0.__class__}'.format(1)
| map('x')
| list
(
)
#}
{#
generation
include '/etc/passwd'
dict(a=1)
joiner
| join
break"""
PIECE = st.sampled_from(PIECES.split("\n"))
TEMPLATES = st.one_of(
    st.lists(PIECE, max_size=8).map(" ".join),
    st.text(max_size=20),
    PIECE.map("{{{{ messages {} }}}}".format),
    PIECE.map("{{{{ {} }}}}".format),
)
CONTENTS = ["", "{{ 7 * 7 }}", "{% for %}", "{{ ''.__class__ }}", "\0", "a" * 9999, "\ud800"]


def rendered(template, content):
    messages = [{"role": "user", "content": content}]
    return chat_template.render(
        template, messages=messages, add_generation_prompt=True, bos_token="<s>"
    )


@many(150)
@given(TEMPLATES, st.sampled_from(CONTENTS))
def test_chat_templates(template, content):
    """Templates of pieces that do harm, for messages of any text: rendered or refused."""
    text = sentence(template, lambda: rendered(template, content), ValueError)
    assert "root:" not in (text or ""), "the content of /etc/passwd"


@pytest.mark.parametrize("content", CONTENTS[:-1])
def test_messages_are_data(content):
    """Also where they look like jinja."""
    assert rendered("{{ messages[0].content }}", content) == content


def test_estimators_options():
    """--estimator.NAME VALUE of any kind: an exception that train.py turns into a sentence."""
    for name, estimator in ADVANTAGES.items():
        for option in [*getattr(estimator, "known", ()), "order", "k", "ddof", "x"]:
            for value in [*NUMBERS, True, "a", None, []]:
                use = partial(estimator, torch.ones(2, 4), **{option: value})
                sentence((name, option, value), use, KeyError, ValueError, TypeError)
