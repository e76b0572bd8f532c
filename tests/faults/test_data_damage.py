"""Damaged data sets: whatever byte is changed, cut off or taken away is recognised in a sentence, or has no effect.

PYTHONPATH=. python tests/faults/test_data_damage.py [--step 1]      every byte (every STEP-th) of every file, and a table
"""

import argparse
import contextlib
import hashlib
import importlib
import io
import itertools
import random
import re
import shlex
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from data import mathematics  # noqa: E402
from data.glyphs import prepare as glyphs  # noqa: E402
from data.imagenet import prepare as imagenet  # noqa: E402
from data.maze import prepare as maze  # noqa: E402
from data.word_problems import prepare as word_problems  # noqa: E402
from maxrl.errors import UsageError  # noqa: E402
from maxrl.io.tokenizer import Tokenizer  # noqa: E402
from maxrl.tasks import load_task  # noqa: E402

FEW = ["--train", "6", "--validation", "3", "--test", "3", "--out"]


def make_maze(folder: Path):
    maze.main(["--size", "7", "--workers", "1", *FEW, str(folder)])


def make_glyphs(folder: Path):
    glyphs.main(["--classes", "3", "--size", "6", "--workers", "1", *FEW, str(folder)])


def make_imagenet(folder: Path):
    from PIL import Image

    source, rng = folder.with_name("source"), np.random.default_rng(0)
    for kind, i in itertools.product(("cat", "dog"), range(4)):
        (source / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(
            source / kind / f"{i}.jpg"
        )
    options = ["--validation-share", "0.3", "--workers", "1", "--size", "8"]
    imagenet.main(["--source", str(source), "--out", str(folder), *options])
    shutil.rmtree(source)


def make_word_problems(folder: Path):
    word_problems.main([*FEW, str(folder)])


def make_math500(folder: Path):
    folder.mkdir(parents=True)
    source = folder.with_name("source.jsonl")
    source.write_text(
        "".join(f'{{"problem": "{i} + 1?", "answer": "{i + 1}"}}\n' for i in range(6))
    )
    mathematics.main("math500", "", ["--source", str(source), "--out", str(folder)])


SETS = {  # name: how it is made, the task that reads it, and its options beside the directory
    "maze": (make_maze, "maze", {"size": 7}),
    "glyphs": (make_glyphs, "images", {"size": 6, "augment": False}),
    "imagenet": (make_imagenet, "images", {"size": 8, "augment": False}),
    "word_problems": (make_word_problems, "gsm8k", {}),
    "math500": (make_math500, "math", {"test": "math500"}),
}


def made(name: str, root: Path) -> Path:
    folder = root / name
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        SETS[name][0](folder)
    return folder


def content(name: str, folder: Path) -> str:
    """All that a program sees of the data set, as a digest."""
    _, task_name, options = SETS[name]
    seen = []
    for split in (
        ("train", "validation", "test")
        if name not in ("math500", "imagenet")
        else (("test",) if name == "math500" else ("train", "validation"))
    ):
        where = folder.parent if name == "math500" else folder
        task = load_task(task_name, split, directory=str(where), **options)
        seen += [task.digest, task.classes, getattr(task, "info", {}).get("test")]
        for i in range(len(task)):
            columns = {
                key: value.tolist() if hasattr(value, "tolist") else value
                for key, value in task[i].columns.items()
            }
            seen += [task[i].prompt, task[i].answer, columns]
        if task.tokenizer:
            tokenizer = Tokenizer.load(task.tokenizer)
            seen += [tokenizer.encode(str(seen)), tokenizer.config]
    return hashlib.sha256(repr(seen).encode()).hexdigest()


def outcome(name: str, folder: Path, whole: str) -> str:
    """ "recognised" (a sentence, or a warning), "no effect", "silent" or the exception that would be a traceback."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            same = content(name, folder) == whole
        except (UsageError, FileNotFoundError):  # what train.py, eval.py and sample.py end with
            return "recognised"
        except ValueError as error:  # of Tokenizer.load, which they catch
            return "recognised" if "tokenizer" in str(error) else f"traceback {error!r}"
        except Exception as error:
            return f"traceback {type(error).__name__}"
    return "recognised" if said else "no effect" if same else "silent"


def damages(data: bytes, step: int, rng: random.Random):
    """A bit of every step-th byte turned, 16 bytes zeroed, the file cut; None: the file is taken away."""
    for place in range(rng.randrange(step), len(data), step):
        yield place, data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    for place in range(0, len(data), max(16, step)):
        yield place, data[:place] + bytes(16) + data[place + 16 :]
        yield place, data[:place]
    yield 0, None


def study(name: str, root: Path, step: int = 1, most: int = sys.maxsize) -> dict[str, Counter]:
    """Outcomes of every damage, by file; `most`: about how many places of one."""
    folder, rng, table = made(name, root), random.Random(0), {}
    whole = content(name, folder)
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        data, counts = file.read_bytes(), table.setdefault(file.name, Counter())
        for _, damaged in damages(data, max(step, len(data) // most), rng):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            counts[outcome(name, folder, whole)] += damaged != data
        file.write_bytes(data)
        assert outcome(name, folder, whole) == "no effect"
    return table


@pytest.mark.parametrize("name", SETS)
def test_no_damage_is_silent(name, tmp_path):
    if name in ("glyphs", "imagenet"):
        pytest.importorskip("PIL")
    for file, counts in study(name, tmp_path, most=24).items():
        assert set(counts) <= {"recognised", "no effect"}, (file, counts)
        assert counts["recognised"] > 0


def mended(said: str):
    """Runs the command that a sentence prints."""
    module, arguments = re.search(
        r"python -m (data\.\w+\.prepare) (.*?)(?: (?:makes|replaces) it.*)?$", said
    ).groups()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        importlib.import_module(module).main(shlex.split(arguments))


@pytest.mark.parametrize("name", ["maze", "glyphs"])
def test_the_command_that_is_printed_makes_the_same_set_again(name, tmp_path):
    """Also where a file is missing, and for a directory with a blank in its name; no option is named as the culprit."""
    if name == "glyphs":
        pytest.importorskip("PIL")
    folder = made(name, tmp_path / "a b")
    whole, file = content(name, folder), next(iter(sorted(folder.glob("train*.npy"))))
    for damage in (lambda: file.write_bytes(file.read_bytes()[:-1] + b"?"), file.unlink):
        damage()
        with pytest.raises((UsageError, FileNotFoundError)) as error:
            content(name, folder)
        assert "--task.NAME" not in str(error.value)
        mended(str(error.value))
        assert content(name, folder) == whole


def test_imagenet_names_its_own_options_and_a_source_to_fill_in(tmp_path):
    pytest.importorskip("PIL")
    folder = made("imagenet", tmp_path)
    (folder / "train-00000.npy").write_bytes(b"")
    command = (
        "imagenet.prepare --source SOURCE --validation-share 0.3 --size 8 --quality 90 --seed 0 "
        f"--out {folder} --overwrite makes it again"
    )
    with pytest.raises(UsageError, match=f"{re.escape(command)}$"):
        content("imagenet", folder)


def test_prepare_prints_what_mends_a_damaged_set(tmp_path, capsys):
    """As `make demo` meets it: the very options that were typed."""
    folder = made("maze", tmp_path)
    (folder / "test.npy").write_bytes(b"")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        make_maze(folder)
    said = capsys.readouterr().err
    assert "damaged" in said and "another set" not in said
    mended(said.strip())
    make_maze(folder)
    assert "holds this set already" in capsys.readouterr().out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=int, default=1)
    arguments, total = parser.parse_args(), Counter()
    for set_name in SETS:
        with tempfile.TemporaryDirectory() as temporary:
            for file_name, found in study(set_name, Path(temporary), arguments.step).items():
                print(f"{set_name:14} {file_name:24} {dict(found)}", flush=True)
                total += found
    print(f"{'all':39} {sum(total.values())} damages: {dict(total)}")
