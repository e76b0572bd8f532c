"""Images in folders become the shards that training reads."""

import io
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data.imagenet import prepare
from maxrl.system.files import read_json
from maxrl.tasks.images import Images, Shards
from tests.helpers.pictures import run as run_command
from tests.helpers.runs import passed, refused

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
source = Path("in")
out = Path("out")
RED = (200, 60, 40)
GREY = (90, 90, 90)
COLOURS = {"ant": (220, 20, 20), "bee": (20, 220, 20), "cat": (20, 20, 220)}


def encoded(colour, size=(48, 40), form="JPEG", mode="RGB", seed=0):
    """An image of nearly one colour, as the bytes of a file."""
    pixels = np.random.default_rng(seed).integers(-15, 16, (size[1], size[0], 3)) + colour
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode).save(file, form)
    return file.getvalue()


def put(file, data):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def folders(root, count, names=COLOURS):
    for c, name in enumerate(names):
        for i in range(count):
            data = encoded(COLOURS.get(name, GREY), seed=100 * c + i)
            put(root / name / f"{name}_{i}.JPEG", data)


@pytest.fixture
def train_and_val():
    """Class folders with 4 and 2 images each."""
    folders(source / "train", 4)
    folders(source / "val", 2)


@pytest.fixture
def run(capsys):
    """run(words...): the exit code of prepare.py, and what it said."""

    def run(*words, source=source, out=out):
        options = ("--size", 40, "--workers", 1, *words)
        return run_command(capsys, "--source", source, "--out", out, *options, main=prepare.main)

    return run


def info(out=out):
    return read_json(out / "info.json")


def images(split="train", out=out):
    """(bytes, label) of all images of a split, in order."""
    shards = Shards(out, split, info(out)["counts"][split])
    return [(shards[i], int(label)) for i, label in enumerate(shards.index["label"])]


def test_train_and_val_folders(train_and_val, run, monkeypatch):
    """Hidden files, broken links and pipes are no images; a split may be several files. What
    training reads has the label of its colour."""
    monkeypatch.setattr(prepare, "SHARD", 5)
    for hidden in (".DS_Store", "ant/._ant_0.JPEG", ".cache/x"):
        put(source / "train" / hidden, b"?")
    os.symlink("nowhere", source / "train/ant/linked.JPEG")
    os.mkfifo(source / "train/ant/pipe.JPEG")
    said = passed(run())
    assert f"wrote 18 images of 3 classes to {out}\n" in said
    assert len([*out.glob("train-*.bin")]) == 3
    for split, count in (("train", 4), ("validation", 2)):
        task = Images(split, out, size=16, augment=False)
        names = [task[i].answer for i in range(len(task))]
        assert Counter(names) == dict.fromkeys(COLOURS, count)
        for i, name in enumerate(names):
            colour = task.pixels(i, None).mean((0, 1))
            assert abs(colour - COLOURS[name]).max() < 30


def parquet(file, rows, names):
    """A file as the hub has it: rows of (bytes, label)."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    hub = {"info": {"features": {"label": {"names": names}}}}
    found = [{"image": data and {"bytes": data}, "label": label} for data, label in rows]
    table = pa.Table.from_pylist(found)
    if names:
        table = table.replace_schema_metadata({"huggingface": json.dumps(hub)})
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, file, row_group_size=2)


@pytest.mark.parametrize("below", ["", "data"])
def test_parquet(run, below):
    """In their order, small JPEGs byte for byte; a test split, which has no labels, is left out."""
    order = ["cat", "ant", "bee"]
    rows = [(encoded(COLOURS[n], seed=i), order.index(n)) for i in range(4) for n in COLOURS]
    unlabelled = [(data, -1) for data, _ in rows]
    parts = {"train-0": rows[:7], "train-1": rows[7:], "validation-0": rows[:6]}
    for name, part in (parts | {"test-0": unlabelled}).items():
        parquet(source / below / f"{name}.parquet", part, order)
    passed(run())
    assert info()["classes"] == order
    assert images() == rows
    assert images("validation") == rows[:6]


@pytest.mark.parametrize(
    "data, label, names, words",
    [
        (None, 0, ["a", "b"], "a parquet row is no image"),
        (b"text", 0, ["a", "b"], "a parquet row is no image"),
        (encoded(RED), 2, ["a", "b"], "has the label 2 for 2 classes"),
        (b"", 0, None, "names its classes"),
    ],
)
def test_parquet_that_cannot_be_used(run, data, label, names, words):
    for split in ("train", "validation"):
        parquet(source / f"{split}-0.parquet", [(data, label)], names)
    refused(run(), words)
    assert not (out / "info.json").exists()


def test_parquet_of_training_alone(run):
    """No set is made whose validation split is empty."""
    parquet(source / "train-0.parquet", [(encoded(RED), 0)], ["a", "b"])
    code, said = run()
    assert code != 0
    assert "validation" in said
    assert not (out / "info.json").exists()


KINDS = "JPEG RGB,JPEG CMYK,JPEG L,PNG P,PNG L,PNG 1,WEBP RGB,GIF P,BMP RGB"


@pytest.mark.parametrize("size", [(120, 80), (80, 120), (43, 44), (60, 40), (20, 10)])
@pytest.mark.parametrize("kind", KINDS.split(","))
def test_images_become_small_rgb(kind, size):
    """Whatever the mode; short side, aspect and colour are right. Nothing is enlarged, and a JPEG
    that is small enough is kept byte for byte."""
    scale = min(1, 40 / min(size))
    kept = scale == 1 and kind in ("JPEG RGB", "JPEG L")
    data = encoded(RED, size, *kind.split())
    small = prepare.to_jpeg(data, 40, 90)
    assert (small == data) == kept
    image = Image.open(io.BytesIO(small))
    assert image.format == "JPEG"
    assert image.size == tuple(round(side * scale) for side in size)
    assert kept or image.mode == "RGB"
    before, after = (np.asarray(Image.open(io.BytesIO(d)).convert("RGB")) for d in (data, small))
    assert abs(before.mean((0, 1)) - after.mean((0, 1))).max() < 12


def test_what_pillow_would_make_black_or_white(train_and_val, run):
    """More than 8 bits are refused by name; ink on a transparent ground is on white."""
    deep = Image.fromarray(np.linspace(4000, 60000, 2500).reshape(50, 50).astype(np.uint16))
    file = io.BytesIO()
    deep.save(file, "PNG")
    put(source / "train/bee/deep.png", file.getvalue())
    refused(run(), "train/bee/deep.png has pixels of more than 8 bits")
    ink = Image.new("RGBA", (50, 50), (0, 0, 0, 0))
    ink.paste((0, 0, 0, 255), (0, 0, 25, 50))
    file = io.BytesIO()
    ink.save(file, "PNG")
    small = np.asarray(Image.open(io.BytesIO(prepare.to_jpeg(file.getvalue(), 40, 90))))
    assert small[:, :18].max() < 40 and small[:, 22:].min() > 215


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
CUT = encoded(GREY, (30, 400))[:-99]  # its size can still be read


@pytest.mark.parametrize("data", [CUT, b"", b"no\n", EPS], ids=["cut", "", "text", "eps"])
def test_a_damaged_file_is_named(train_and_val, run, data):
    """Also by a worker."""
    put(source / "train/bee/bad.jpg", data)
    refused(run("--workers", 2), "train/bee/bad.jpg is no image")
    assert not (out / "info.json").exists()


def test_shuffled_by_the_seed_and_not_by_the_workers(run):
    """The first images, by which evaluation is quick, are of all classes."""
    folders(source / "train", 20)
    folders(source / "val", 8)
    found = {}
    for name, words in {"one": (), "two": ("--workers", 2), "seed": ("--seed", 1)}.items():
        passed(run(*words, out=Path(name)))
        found[name] = images(out=Path(name))
    one = found["one"]
    seed = found["seed"]
    assert found["two"] == one
    assert seed != one
    assert sorted(seed) == sorted(one)
    for split in ("train", "validation"):
        assert {label for _, label in images(split, Path("one"))[:12]} == {0, 1, 2}


def test_the_same_source_is_known_wherever_it_lies(train_and_val, run):
    assert run()[0] == 0
    shutil.copytree(source, "moved")
    assert run(source=Path("moved")) == (0, f"{out} holds this set already\n")
    for other in (("--size", 31), ("--quality", 80), ("--seed", 3)):
        refused(run(*other), "holds another set")
    put(source / "train/ant/new.jpg", b"")
    refused(run(), "holds another set")


@pytest.mark.parametrize(
    "classes, words",
    [
        ({"train": ["ant"], "val": ["ant"]}, "two at least"),
        ({"train": ["ant", "bee"], "val": ["ant", "emu"]}, "the same class folders"),
        ({}, "needs train/ and val/"),
        ({"train": COLOURS}, "needs train/ and val/"),
    ],
)
def test_sources_that_are_no_sets(run, classes, words):
    """In one sentence, and nothing is written."""
    for folder, names in classes.items():
        folders(source / folder, 1, names)
    refused(run(), words)
    assert not out.exists()
