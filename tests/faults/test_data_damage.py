"""Damaged data sets: a byte that is changed, cut off or missing is recognised or has no effect."""

import contextlib
import hashlib
import importlib
import io
import itertools
import random
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from data import mathematics
from data.glyphs import prepare as glyphs
from data.imagenet import prepare as imagenet
from data.maze import prepare as maze
from data.word_problems import prepare as word_problems
from maxrl.errors import UsageError
from maxrl.io.tokenizer import Tokenizer
from maxrl.tasks import load_task

FEW = ["--train", "6", "--validation", "3", "--test", "3", "--out"]
PLACES = 24  # of each kind of damage in a file


def make_maze(folder: Path):
    maze.main(["--size", "7", "--workers", "1", *FEW, str(folder)])


def make_glyphs(folder: Path):
    glyphs.main(["--classes", "3", "--size", "6", "--workers", "1", *FEW, str(folder)])


def make_imagenet(folder: Path):
    from PIL import Image

    source, rng = folder.with_name("source"), np.random.default_rng(0)
    for kind, i in itertools.product(("train/cat", "train/dog", "val/cat", "val/dog"), range(3)):
        (source / kind).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(source / kind / f"{i}.jpg")
    options = ["--workers", "1", "--size", "8"]
    imagenet.main(["--source", str(source), "--out", str(folder), *options])
    shutil.rmtree(source)


def make_word_problems(folder: Path):
    word_problems.main([*FEW, str(folder)])


def make_math500(folder: Path):
    folder.mkdir(parents=True)
    source = folder.with_name("source.jsonl")
    rows = [f'{{"problem": "{i} + 1?", "answer": "{i + 1}"}}\n' for i in range(6)]
    source.write_text("".join(rows))
    mathematics.main("math500", "", ["--source", str(source), "--out", str(folder)])


ALL = ("train", "validation", "test")
# By name: how it is made, the task that reads it with its options, and its splits.
SETS = {
    "maze": (make_maze, "maze", {"size": 7}, ALL),
    "glyphs": (make_glyphs, "images", {"size": 6, "augment": False}, ALL),
    "imagenet": (make_imagenet, "images", {"size": 8, "augment": False}, ALL[:2]),
    "word_problems": (make_word_problems, "gsm8k", {}, ALL),
    "math500": (make_math500, "math", {"test": "math500"}, ALL[2:]),
}


def made(name: str, root: Path) -> Path:
    if name in ("glyphs", "imagenet"):
        pytest.importorskip("PIL")
    folder = root / name
    quietly(SETS[name][0], folder)
    return folder


def quietly(function, *arguments):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        function(*arguments)


def content(name: str, folder: Path) -> str:
    """A digest of all that a program sees of the data set."""
    _, task_name, options, splits = SETS[name]
    seen = []
    for split in splits:
        where = folder.parent if name == "math500" else folder
        task = load_task(task_name, split, directory=str(where), **options)
        seen += [task.digest, task.classes, getattr(task, "info", {}).get("test")]
        for i in range(len(task)):
            example = task[i]
            columns = {key: np.array(value).tolist() for key, value in example.columns.items()}
            seen += [example.prompt, example.answer, columns]
        if task.tokenizer:
            tokenizer = Tokenizer.load(task.tokenizer)
            seen += [tokenizer.encode(str(seen)), tokenizer.config]
    return hashlib.sha256(repr(seen).encode()).hexdigest()


def damages(data: bytes, rng: random.Random):
    """Yield a file with a bit flipped, with 16 bytes zeroed, and cut, at places all over it."""
    step = max(1, len(data) // PLACES)
    for place in range(rng.randrange(step), len(data), step):
        flipped = bytes([data[place] ^ 1 << rng.randrange(8)])
        yield data[:place] + flipped + data[place + 1 :]
        yield data[:place] + bytes(16) + data[place + 16 :]
        yield data[:place]


@pytest.mark.parametrize("name", SETS)
def test_no_damage_is_silent(name, tmp_path):
    """Every damage ends in a sentence, or the program sees what it saw before."""
    folder = made(name, tmp_path)
    whole = content(name, folder)
    rng = random.Random(0)
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        data = file.read_bytes()
        recognised = 0
        for damaged in damages(data, rng):
            file.write_bytes(damaged)
            try:
                assert content(name, folder) == whole, f"damage of {file} is silent"
            except (UsageError, FileNotFoundError):
                recognised += 1
            except ValueError as error:
                # Of Tokenizer.load, which the scripts turn into a sentence.
                assert "tokenizer" in str(error)
                recognised += 1
        assert recognised > 0, file
        file.write_bytes(data)
    assert content(name, folder) == whole


@pytest.mark.parametrize("name", ["maze", "glyphs"])
def test_the_command_that_is_printed_makes_the_same_set_again(name, tmp_path):
    """With the options of the set, also in a directory with a blank in its name."""
    folder = made(name, tmp_path / "a b")
    whole = content(name, folder)
    min(folder.glob("train*.npy")).unlink()
    with pytest.raises(UsageError) as error:
        content(name, folder)
    module, printed = re.search(r"python -m (\S+) (.*) \(and", str(error.value)).groups()
    options = {"glyphs": ["--classes", "3", "--size", "6"], "maze": []}[name]
    arguments = [*options, *FEW[:-1], *shlex.split(printed)]
    quietly(importlib.import_module(module).main, arguments)
    assert content(name, folder) == whole
