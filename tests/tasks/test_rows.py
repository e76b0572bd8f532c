"""Data sets of one's own: four kinds of files, the hub, TRL's columns, and damage."""

# ruff: noqa: F401 - the tables have expressions
import bz2
import datetime
import gzip
import json
import lzma
import re
import sys
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch

from maxrl.system.errors import UsageError
from maxrl.system.files import checksum
from maxrl.tasks import load_task, rows
from tests.helpers.tables import cells, each, put, write

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
ROWS = [
    {"prompt": "2 + 2 =", "solution": "4"},
    {"prompt": 'a "b",\nc \u00e9', "solution": "\\frac12"},
]
CHAT = [{"role": "user", "content": "Hi"}]


def prompts(data, split="train"):
    return load_task("prompts", split, **{split: data})


def columns(task):
    return [task[i].columns for i in range(len(task))]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "A.CSV", "a.parquet", "any name"])
def test_every_kind_of_file_gives_the_same_rows(name):
    """Other data of the same name has another checksum."""
    task = prompts(write(name, ROWS))
    assert columns(task) == ROWS
    assert task[1].prompt == ROWS[1]["prompt"]
    assert task[1].answer == "\\frac12"
    assert prompts(write(name, ROWS[:1])).digest not in ("", task.digest)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_messages_in_files_that_hold_them(name):
    assert prompts(write(name, [{"prompt": CHAT}]))[0].prompt == CHAT


# A line of a file, and what is read as prompt and answer.
NAMES = """
{"prompt": "p", "answer": "a", "solution": "s"} | "p" | a
{"prompt": [{"role":"user","content":"p"}], "solution": "s"} | [{"role":"user","content":"p"}] | s
{"problem": "p", "answer": 4} | "p" | 4
{"prompt": "p", "answer": 0, "solution": "s"} | "p" | 0
{"prompt": "p", "answer": "", "solution": "s"} | "p" | s
{"question": "p", "answer": null, "solution": "s"} | "p" | s
"""


@each("line, prompt, answer", NAMES)
def test_the_columns_of_trl(line, prompt, answer):
    """A row keeps its columns for the reward functions, whatever stands for the prompt."""
    Path("a.jsonl").write_text(line)
    example = prompts("a.jsonl")[0]
    assert example.prompt == json.loads(prompt)
    assert example.answer == answer
    assert json.loads(line).items() <= example.columns.items()


MESSAGES = [{"content": 'it\'s "4"', "role": "system"}, {"role": "user", "content": "{Hi}"}]
# Expressions.
AS_TEXT = """
json.dumps(MESSAGES)
json.dumps(MESSAGES, indent=2)
"  " + json.dumps(CHAT, separators=(",", ":"))
json.dumps(json.dumps(CHAT))
str(MESSAGES)
str(np.array(MESSAGES))
repr(np.array(MESSAGES))
str(tuple(MESSAGES))
str(CHAT[0])
str([{"from": "human", "value": "Hi"}])
str([{"role": "User", "content": "Hi"}])
str([{"name": "x"} | CHAT[0]]).replace("{", "{ ") + " "
"""
TEXTS = [
    "[INST] Is {'role': 'user'} JSON? [/INST]",
    "[1, 2]",
    str([{"name": "Ann", "role": "admin"}]),
    f"Is {CHAT} JSON?",
    "role: user",
    "{}",
    '{"from": "user", "to": "x"} is the edge of a graph. Give the others as {answer}',
    '{"From": "User", "to": [1]}',
]


@each("text", AS_TEXT)
def test_chat_messages_that_became_a_text(text):
    """In whatever way they were written, as by to_csv of pandas."""
    with pytest.raises(UsageError, match="row 0 .*'prompt' has chat messages"):
        prompts([{"prompt": eval(text)}])


@pytest.mark.parametrize("text", TEXTS)
def test_texts_that_look_like_messages(text):
    assert prompts([{"prompt": text}])[0].prompt == text


@pytest.mark.parametrize(
    "text",
    ["{" + '"role": "user" ' * 60_000 + "x", " " * 10**6 + "x", "[" * 10**6, "{" * 10**6 + "x"],
)
def test_a_long_text_is_read_once(text):
    """A transcript of a megabyte. With a pattern that goes through it from every role it would take
    minutes, and not hundredths of a second."""
    begun = time.process_time()
    assert prompts([{"prompt": text}])[0].prompt == text
    assert time.process_time() - begun < 20


@pytest.mark.parametrize("messages", [CHAT, MESSAGES])
def test_chats_that_pandas_has_read(messages):
    """From parquet it makes arrays of them."""
    pandas = pytest.importorskip("pandas")
    write("a.parquet", [{"prompt": messages, "answer": None}])
    read = pandas.read_parquet("a.parquet")
    assert prompts(read.to_dict("records"))[0].prompt == messages
    assert prompts([{"prompt": np.array(messages)}])[0].prompt == messages
    for nothing in (None, float("nan"), pandas.NA, pandas.NaT):
        row = {"prompt": nothing, "question": np.array(messages)}
        assert prompts([row])[0].prompt == messages
    data = pytest.importorskip("datasets").Dataset.from_pandas(read)
    for form in (None, "numpy", "torch", "pandas"):
        assert prompts(data.with_format(form))[0].prompt == messages


# Two values that JSON has no form for.
VALUES = """
np.int64(5) | np.int64(6)
np.arange(3) | np.arange(4)
np.arange(2000) | np.arange(2000) % 1999
np.bool_(True) | np.bool_(False)
torch.tensor(0.12345678) | torch.tensor(0.12345679)
Decimal("0.1") | Decimal("0.2")
datetime.date(2020, 1, 1) | datetime.date(2020, 1, 2)
b"a" | b"b"
{1, 2} | {1, 3}
np.array([{"a": 1}]) | np.array([{"a": 2}])
[{"a": np.int64(5)}] | [{"a": np.int64(6)}]
"""


@each("one, other", VALUES)
def test_the_digest_of_rows_in_memory(one, other):
    found = [prompts([{"prompt": "p", "x": eval(x)}]).digest for x in (one, one, other)]
    assert found[0] == found[1] != found[2]


def test_what_changes_from_run_to_run_is_not_in_the_digest():
    """The order of a set, and the address of an object."""
    found = [prompts([{"prompt": "p", "x": x, "y": object()}]).digest for x in ({0, 8}, {8, 0})]
    assert list({0, 8}) != list({8, 0})
    assert found[0] == found[1]


def test_one_content_in_two_files():
    """A file that was downloaded twice; in a folder of other names it is none of the split."""
    Path("data").mkdir()
    names = ("data/train.jsonl", "data/train (1).jsonl", "data/test.jsonl")
    for name in names:
        put(Path(name), [{"prompt": "p"}, {"prompt": "p"}])
    with pytest.raises(UsageError, match="same content"):
        prompts("data")
    put(Path("data/train (1).jsonl"), [{"prompt": "q"}])
    # The test set is a copy of one of them.
    with pytest.raises(UsageError, match="copy of it, data/test.jsonl: name one file"):
        load_task("prompts", "train", train="data", test="data/test.jsonl")
    # What is wrong with another split is said where it is read.
    Path("data/test.jsonl").unlink()
    Path("data/test.jsonl").symlink_to("nowhere.jsonl")
    assert len(load_task("prompts", "train", train="data", test="data/test.jsonl")) == 3
    with pytest.raises(FileNotFoundError, match="no file vaild.jsonl"):
        load_task("prompts", "validation", train="data", validation="vaild.jsonl")
    # A row has a file of its own.
    Path("data/test.jsonl").unlink()
    for name in names:
        put(Path(name), [{"prompt": "p"}])
    assert len(load_task("prompts", "train", train="data", test="data/test.jsonl")) == 2


def test_of_many_files_each_is_read_once(monkeypatch):
    """All have one size. For every pair of them it would take hours."""
    for split in ("train", "test"):
        Path(split).mkdir()
        for i in range(200):
            put(Path(split, f"{i:03}.jsonl"), [{"prompt": f"{split[:2]} {i:03}"}] * 2)
    summed = []
    monkeypatch.setattr(rows, "checksum", lambda file: summed.append(file) or checksum(file))
    assert len(load_task("prompts", "train", train="train", test="test")) == 400
    assert len(summed) == 400


def test_two_columns_of_one_name_in_parquet():
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    columns = [pyarrow.array(["p"]), pyarrow.array(["1"]), pyarrow.array(["2"])]
    write_table(pyarrow.table(columns, names=["prompt", "answer", "answer"]), "a.parquet")
    with pytest.raises(UsageError, match="one name"):
        prompts("a.parquet")


@pytest.mark.parametrize("name", ["image", "images"])
def test_pictures_of_a_prompt(name):
    """TRL puts those of these columns before the prompt, where no model here would see them."""
    with pytest.raises(UsageError, match=name.removesuffix("s")):
        prompts([{"prompt": "How many cats?", name: ["cats.png"]}])
    assert len(prompts([{"prompt": "How many?", name: None}])) == 1


def test_rows_in_memory():
    """They may have what no file holds."""
    task = prompts([{"prompt": "p", "answer": np.arange(2), (1, 2): 3}])
    assert task[0].answer == "", "this is no text to learn"
    assert task[0].columns[1, 2] == 3
    assert task.digest


@pytest.mark.parametrize("asked", ["2 + 2 =", CHAT])
def test_the_math_task_reads_them_too(asked):
    """TRL's solution is the answer there, and not what the demonstration works out before it (see
    test_references.py). Chat messages ask as they are."""
    row = {"prompt": asked, "solution": "4", "answer": None}
    example = load_task("math", "train", train=write("a.jsonl", [row]))[0]
    assert example.answer == "\\boxed{4}"
    if asked == CHAT:
        assert example.prompt == CHAT
    else:
        assert example.prompt[-1]["content"].startswith("2 + 2 =\n")


def test_what_is_tolerated():
    """A byte-order mark, Windows' line ends, no last newline, a key twice, U+2028 in a text."""
    text = '\ufeff{"prompt": "a", "prompt": "b"}\r\n\r\n{"prompt": "x\u2028y"}'
    Path("odd.jsonl").write_bytes(text.encode())
    assert columns(prompts("odd.jsonl")) == [{"prompt": "b"}, {"prompt": "x\u2028y"}]


# Lines of a file, and what is said after its name.
LINES = r"""
[3, {"prompt" | is not JSON
{"prompt | line 1 is not JSON
{"promt": "b"} | line 1: 'prompt' must be text or a list, not None
{"prompt": ""} | line 1: 'prompt' must be text or a list, not ''
{"prompt": 3} | line 1: 'prompt' must be text or a list, not 3
{"prompt": null} | line 1: 'prompt' must be text or a list, not None
{"prompt": []} | line 1: 'prompt' must be text or a list, not []
{"messages": [{"role": "user"}]} | line 1: 'prompt' must be text or a list, not None
{"prompt": ["x"]} | line 1: a message must have a role and a content
{"prompt": [{"content": "x"}]} | line 1: a message must have a role and a content
{"prompt": {"role": "x"}, "question": "p"} | line 1: 'prompt' must be text or a list, not {'role'
{"prompt": [{"role": "x", "content": 3}]} | line 1: a message must have a role and a content
{"prompt": "[{\"role\": \"user\"}]"} | line 1: 'prompt' has chat messages
{"prompt": "\ud800"} | line 1 is not UTF-8
"""
# Whole files.
FILES = r"""
a.jsonl | b"\n \n" | holds no rows
a.jsonl | b'{"prompt": "a"}\n\n{"prompt": ""}' | line 3: 'prompt' must be text
a.jsonl | b'\n{"prompt": "\xff"}' | line 2 is not UTF-8
a.csv | b"promt,answer\na,1\n" | line 2: 'prompt' must be text
a.csv | b"prompt,answer\na,1,2\n" | is not CSV after line 2: a row has more
a.csv | b"prompt,answer\na\n" | is not CSV after line 2: a row has more
a.csv | b"prompt,prompt\na,1,2\n" | is not CSV after line 1: two columns
a.csv | b'prompt,answer\n"a,1\n' | is not CSV after line 1
a.csv | b'prompt,answer\na, "1"\n' | is not CSV after line 2: a blank stands
a.csv | b"prompt\n\xff\n" | is not in UTF-8
a.csv | b"prompt,answer\n" | holds no rows
a.json | b'[{"prompt": "a"},\n{"prompt" "b"}]' | is not JSON: Expecting ':' delimiter
a.json | b'[{"prompt": "a"}, {}]' | row 2: 'prompt' must be text or a list, not None
a.json | b'[{"prompt": "a"}, 3]' | row 2 is 3, not an object
a.parquet | b"PAR1 and no more" | cannot be read
a.parquet | b"prompt,answer\na,1\n" | cannot be read
"""


@pytest.mark.parametrize(
    "name, content, words",
    [
        *[("a.jsonl", line.encode(), words) for line, words in cells(LINES)],
        *[(name, eval(content), words) for name, content, words in cells(FILES)],
        ("a.jsonl", b"[" * 100_000, "is not JSON"),
        ("a.jsonl", b'{"prompt": ' + b"1" * 5000 + b"}", "line 1 is not JSON"),
        ("a.jsonl", gzip.compress(b'{"prompt": "a"}', mtime=0), "is compressed"),
        ("a.csv", gzip.compress(b"prompt", mtime=0), "is compressed"),
        ("a.json", bz2.compress(b"[]"), "is compressed"),
        ("a.jsonl", lzma.compress(b"{}"), "is compressed"),
    ],
)
def test_damage_is_one_sentence_with_its_place(name, content, words):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    Path(name).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        prompts(name)
    assert re.match(rf".*{name},? {re.escape(words)}", str(caught.value))
    assert "\n" not in str(caught.value)


def test_damage_in_parquet():
    """An empty cell, overwritten pages, and text that is not UTF-8."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    with pytest.raises(UsageError, match=r"a.parquet, row 2: 'prompt' must be"):
        prompts(write("a.parquet", [{"prompt": "a"}, {"prompt": ""}]))
    write("b.parquet", [{"prompt": "abc" * i, "answer": i} for i in range(1, 400)])
    data = Path("b.parquet").read_bytes()
    Path("b.parquet").write_bytes(data[:100] + b"\xff" * 200 + data[300:])
    offsets = pa.py_buffer(b"\0\0\0\0\1\0\0\0")
    bad = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    pyarrow.parquet.write_table(pa.table({"prompt": ["a"], "other": bad}), "c.parquet")
    for name in ("b.parquet", "c.parquet"):
        with pytest.raises(UsageError, match=rf"{name} cannot be read \(.*\): it is damaged"):
            prompts(name)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_floats_of_parquet_have_the_digits_of_their_precision(kind):
    """As those of arrays have; a missing one is missing, and NaN is."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    values = np.array([0.1, 2.5, 1e-3, 0, np.nan], kind)
    answers = pa.array([*values, None], pa.from_numpy_dtype(kind), from_pandas=False)
    table = pa.table({"prompt": [*"abcdef"], "answer": answers})
    pyarrow.parquet.write_table(table, "a.parquet")
    task = load_task("prompts", "train", train="a.parquet")
    assert [task[i].answer for i in range(6)] == ["0.1", "2.5", "0.001", "0", "", ""]


def test_parquet_without_its_package(monkeypatch):
    Path("a.parquet").write_bytes(b"PAR1")
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r'needs pyarrow: pip install -e "\.\[parquet\]"'):
        prompts("a.parquet")


@pytest.fixture
def hub(monkeypatch):
    """A hub with org/set, which has two files of training rows in cache/; the requests it got."""
    for i, row in enumerate(ROWS):
        write(f"cache/default/train/{i:04}.parquet", [row])
    write("cache/default/test/0000.parquet", ROWS[:1])
    asked = []

    def snapshot_download(name, **options):
        asked.append({"name": name} | options)
        return "cache"

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return asked


def test_a_data_set_of_the_hub(hub):
    """As the hub has converted it, and no other split than the one that is asked for."""
    from huggingface_hub.utils import filter_repo_objects

    task = prompts("org/set-1.5")
    assert columns(task) == ROWS
    assert task.digest.count(" ") == 1
    (request,) = hub
    assert request.pop("name") == "org/set-1.5"
    assert request.pop("repo_type") == "dataset"
    assert request.pop("revision") == "refs/convert/parquet"
    wanted = "default/train/0000.parquet"
    others = ["default/test/0000.parquet", "README.md", "default/partial-train/0000.parquet"]
    assert list(filter_repo_objects([wanted, *others], **request)) == [wanted]
    assert len(prompts("org/set-1.5/default/test")) == 1
    assert len(load_task("math", "train", train="org/set-1.5")) == 2


@pytest.mark.parametrize("local", [False, True])
def test_a_data_set_of_the_hub_in_parts(local, hub):
    """Of two sets in one repository one must be named. For a local copy nothing is asked for."""
    write("cache/other/train/0000.parquet", ROWS[:1])
    if local:
        Path("org").mkdir()
        Path("org/set").symlink_to("../cache")
    with pytest.raises(FileNotFoundError, match="default/train.*other/train"):
        prompts("org/set")
    for name, number in {"other": 1, "default": 2, "other/train": 1, "default/test": 1}.items():
        assert len(prompts(f"org/set/{name}")) == number
    with pytest.raises(FileNotFoundError, match="validation"):
        prompts("org/set", "validation")
    assert bool(hub) != local


def test_what_cannot_be_on_the_hub(hub):
    for name in ("mine.jsonl", "other/mine.jsonl", "mine", "runs/x", "./x/y"):
        with pytest.raises(FileNotFoundError, match="there is no file.*--task.train"):
            prompts(name)
    assert hub == []


def test_the_hub_offline(monkeypatch):
    def snapshot_download(*_, **__):
        raise ConnectionError("no network\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    options = "--repo-type dataset --revision refs/convert/parquet"
    command = rf"\(no network\); .*`hf download org/set {options} --local-dir org/set` puts it here"
    with pytest.raises(FileNotFoundError, match=command):
        prompts("org/set")
