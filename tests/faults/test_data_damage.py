"""Damaged data sets: a byte that is changed, cut off or missing is recognised or has no effect."""

import hashlib
import importlib
import random
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from data import mathematics
from maxrl.models.tokenizer import Tokenizer
from maxrl.system.errors import UsageError
from maxrl.tasks import load_task
from tests.helpers.pictures import jpegs
from tests.helpers.wholeness import damages

FEW = "--train 6 --validation 3 --test 3"
ALL = ("train", "validation", "test")
# By name: the module that makes it and its options, the task that reads it, and its splits.
SETS = {
    "maze": ("data.maze.prepare", f"--size 7 --workers 1 {FEW}", "maze", {"size": 7}, ALL),
    "glyphs": (
        "results.images.glyphs",
        f"--classes 3 --size 6 --workers 1 {FEW}",
        "images",
        {"size": 6, "augment": False},
        ALL,
    ),
    "imagenet": (
        "data.imagenet.prepare",
        "--source SOURCE --workers 1 --size 8",
        "images",
        {"size": 8, "augment": False},
        ALL[:2],
    ),
    "word_problems": ("data.word_problems.prepare", FEW, "gsm8k", {}, ALL),
    "math500": ("", "--source SOURCE", "math", {"test": "math500"}, ALL[2:]),
}


@pytest.fixture
def made(tmp_path):
    """made(name) -> the directory of this set, in one with a blank in its name."""

    def make(name):
        folder = tmp_path / "a b" / name
        source = tmp_path / "source"
        module, options, *_ = SETS[name]
        words = [*options.replace("SOURCE", str(source)).split(), "--out", str(folder)]
        if name == "imagenet":
            jpegs(source, ("cat", "dog"), {"train": 3, "val": 3}, (9, 9))
        if name == "math500":
            folder.mkdir(parents=True)
            rows = [f'{{"problem": "{i} + 1?", "answer": "{i + 1}"}}\n' for i in range(6)]
            source.write_text("".join(rows))
            mathematics.main("math500", "", words)
        else:
            importlib.import_module(module).main(words)
        return folder

    return make


def content(name: str, folder: Path) -> str:
    """A digest of all that a program sees of the data set."""
    *_, task_name, options, splits = SETS[name]
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


@pytest.mark.parametrize("name", SETS)
def test_no_damage_is_silent(made, name):
    """Every damage ends in a sentence, or the program sees what it saw before."""
    folder = made(name)
    whole = content(name, folder)
    rng = random.Random(0)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = file.read_bytes()
        recognised = 0
        for what, damaged in damages(data, rng, cuts=16, flips=40):
            file.write_bytes(damaged)
            try:
                assert content(name, folder) == whole, f"{file} {what}: silent"
            # ValueError is of Tokenizer.load, and the scripts turn it into a sentence.
            except (UsageError, FileNotFoundError, ValueError) as error:
                assert isinstance(error, UsageError | OSError) or "tokenizer" in str(error)
                recognised += 1
        assert recognised > 0, file
        file.write_bytes(data)


@pytest.mark.parametrize("name, more", [("maze", ""), ("glyphs", "--classes 3 --size 6")])
def test_the_command_that_is_printed_makes_the_same_set_again(made, name, more):
    """With the options of the set, also in a directory with a blank in its name."""
    folder = made(name)
    whole = content(name, folder)
    min(folder.glob("train*.npy")).unlink()
    with pytest.raises(UsageError) as error:
        content(name, folder)
    module, printed = re.search(r"python -m (\S+) (.*) \(and", str(error.value)).groups()
    importlib.import_module(module).main(shlex.split(f"{more} {FEW} {printed}"))
    assert content(name, folder) == whole
