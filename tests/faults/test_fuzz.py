"""Arbitrary texts, files and arguments work, or are refused in one sentence."""

import json
from functools import partial

import torch
from hostile import NUMBERS, TEXTS, VALUES, many, nested, sentence
from hypothesis import given
from hypothesis import strategies as st
from pictures import CORRIDOR, OPEN

import eval as evaluation
import sample
from data import text_sets as converter
from maxrl.advantages import ADVANTAGES
from maxrl.checkpoint import recorded
from maxrl.config import Config, holds
from maxrl.errors import UsageError
from maxrl.io import chat_template
from maxrl.io.files import DataError
from maxrl.recipes import RECIPES
from maxrl.run.command_line import with_overrides
from maxrl.tasks import load_task
from maxrl.tasks.maze import draw, verify
from maxrl.tasks.rows import read_rows


def test_mazes():
    """Prompts and responses with any token anywhere; a picture is ASCII and says the verdict."""
    tokens = "DONE UP RIGHT WALL PATH GOAL START NEWLINE GRID_END"
    words = ["", "\n", "\x1b[31m", *tokens.split(" ")]

    @many(400)
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
        picture = draw(prompt, response, False)
        assert picture.isascii() and "\x1b" not in picture
        assert picture.splitlines()[-1].startswith("right" if verdict else "wrong")
        draw(prompt, response, True)

    fuzz()
    for long in ("RIGHT " * 100_000, "x" * 10**6, "DONE" * 10**5):
        for pair in ((OPEN, long), (f"GRID_START {long} GRID_END", "DONE")):
            assert verify(*pair) in (0.0, 1.0)


ROWS = [
    b'{"prompt": "a", "answer": "1"}',
    b'{"prompt": [{"role": "user", "content": "b"}]}',
    b'{"problem": "a", "answer": 2.0}',
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"prompt": NaN}',
    b'{"prompt": "a", "prompt": 3}',
    b'{"prompt": "\\ud800"}',
    b"9" * 5000,
    b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}",
    b"null",
    b"[]",
    b"3",
    b'"a"',
    b"\xff\xfe",
    b"\0",
    b"",
    b" ",
    b"PAR1",
    b'{"prompt": "' + b"a" * 10**6 + b'"}',
    json.dumps({"prompt": "a", "deep": nested(200)}).encode(),
    b'{"prompt": [{"role": "user", "content": 3}]}',
    b'{"prompt": [[]]}',
    b"\xef\xbb\xbf{}",
]


def test_jsonl_files(tmp_path, capsys):
    """Lines of every kind and bytes of any value, for training and for the converters: file and
    line are named."""
    file = tmp_path / "x.jsonl"
    row = st.one_of(
        st.sampled_from(ROWS[:3]),
        st.sampled_from(ROWS),
        st.binary(max_size=20),
        st.dictionaries(st.sampled_from(["prompt", "problem", "answer"]), VALUES).map(
            lambda value: json.dumps(value).encode()
        ),
    )

    @many(200)
    @given(st.lists(row, max_size=4), st.integers(0, 60), st.binary(max_size=2))
    def fuzz(rows, here, extra):
        content = b"\n".join(rows)
        here = here if extra else len(content)
        file.write_bytes(content[:here] + extra + content[here:])

        def use():
            try:
                return read_rows(str(file), "train", {"prompt": (str, list)})[0]
            except ValueError as error:
                assert str(file) in str(error)
                assert any(
                    words in str(error)
                    for words in (
                        ", line ",
                        ", row ",
                        " is not ",
                        "holds no rows",
                        " cannot be read ",
                    )
                )
                raise

        for found in sentence(content[:60], use, ValueError) or ():
            assert found["prompt"] and isinstance(found["prompt"], (str, list))
            json.dumps(found, ensure_ascii=False).encode()
        sentence(content[:60], lambda: load_task("prompts", "train", train=str(file)), UsageError)
        sentence(
            content[:60],
            lambda: converter.read_source(converter.Source("s", ""), file, tmp_path),
            SystemExit,
            DataError,
        )

    fuzz()
    printed = capsys.readouterr().err
    assert "Traceback" not in printed and all(
        line.startswith("prepare.py: ") for line in printed.splitlines() if line
    )


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

    @many(800)
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
        "--gradient-norms --rollouts --estimators --temperature --workers"
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
    """recorded() gives every field of Config, of its own type, whatever the file holds."""
    names = sorted(Config.__dataclass_fields__)

    @many(250)
    @given(
        st.dictionaries(st.one_of(st.sampled_from(names), st.text(max_size=5)), VALUES, max_size=4)
        | VALUES,
        st.booleans(),
    )
    def fuzz(value, within):
        (tmp_path / "recipe.json").write_text(json.dumps({"config": value} if within else value))
        found = sentence(value, lambda: recorded(tmp_path), ValueError)
        assert (
            found is None
            or found.keys() == Config().to_dict().keys()
            and isinstance(found["task"], str)
        )

    fuzz()
    assert (
        holds(tuple[int, ...], [1, 2])
        and not holds(tuple[int, ...], [1, "2"])
        and not holds(tuple[int, ...], 1)
    )
    assert (
        holds(float, 1)
        and not holds(int, 1.0)
        and not holds(int, True)
        and not holds(float, "1")
        and not holds(str, None)
    )


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
* 10 ** 9
~
'a' * 10 ** 10
| center(10 ** 10)
macro f(x)
f(f)
endmacro
range(10 ** 12)
'{0.__class__}'.format(1)
| map('x')
| list
| tojson(indent=10**9)
(
)
#}
{#
generation
include '/etc/passwd'
dict(a=1)
joiner
lipsum(10 ** 9)
| join
break"""


def test_chat_templates(monkeypatch):
    """Templates of pieces that do harm, for messages of any text: rendered or refused, within
    SECONDS."""
    monkeypatch.setattr(chat_template, "SECONDS", 1.0)
    secret = "root:"
    options = {"add_generation_prompt": True, "bos_token": "<s>"}

    @many(250)
    @given(
        st.one_of(
            st.lists(st.sampled_from(PIECES.split("\n")), max_size=8).map(" ".join),
            st.text(max_size=20),
            st.sampled_from(PIECES.split("\n")).map("{{{{ messages {} }}}}".format),
            st.sampled_from(PIECES.split("\n")).map("{{{{ {} }}}}".format),
        ),
        st.sampled_from(["", "{{ 7 * 7 }}", "{% for %}", "\0", "a" * 9999, "</s>", "\ud800"]),
    )
    def fuzz(template, content):
        messages = [{"role": "user", "content": content}]
        text = sentence(
            template,
            lambda: chat_template.render(template, messages=messages, **options),
            ValueError,
        )
        assert (
            text is None
            or isinstance(text, str)
            and len(text) <= chat_template.CHARACTERS
            and secret not in text
        )
        assert messages == [{"role": "user", "content": content}]

    fuzz()
    for content in (
        "{{ 7 * 7 }}",
        "{% endfor %}",
        "{{ ''.__class__ }}",
    ):  # data, also where it looks like jinja
        assert (
            chat_template.render(
                "{{ messages[0].content }}", messages=[{"role": "user", "content": content}]
            )
            == content
        )


def test_estimators_options():
    """--estimator.NAME VALUE of any kind: an exception that train.py turns into a sentence."""
    for name, estimator in ADVANTAGES.items():
        for option in [*getattr(estimator, "known", ()), "order", "k", "ddof", "x"]:
            for value in [*NUMBERS, True, "a", None, []]:
                use = partial(estimator, torch.ones(2, 4), **{option: value})
                sentence((name, option, value), use, KeyError, ValueError, TypeError)
