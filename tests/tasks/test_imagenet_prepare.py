"""Images in folders become the shards that training reads."""

import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from pictures import run as run_command

from data.imagenet import prepare
from maxrl.tasks.images import Images, Shards

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
source, out = Path("in"), Path("out")
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


def folders(root, count=4, names=COLOURS):
    for c, name in enumerate(names):
        for i in range(count):
            data = encoded(COLOURS.get(name, (9, 9, 9)), seed=100 * c + i)
            put(root / name / f"{name}_{i}.JPEG", data)


def train_and_val(root, train=4, val=2):
    folders(root / "train", train)
    folders(root / "val", val)


def run(capsys, source, out, *args):
    options = ("--size", 32, "--workers", 1, *args)
    return run_command(capsys, "--source", source, "--out", out, *options, main=prepare.main)


def info(out):
    return json.loads((out / "info.json").read_text())


def images(out, split="train"):
    """(bytes, label) of all images of a split, in order."""
    shards = Shards(out, split, info(out)["counts"][split])
    return [(shards[i], int(label)) for i, label in enumerate(shards.index["label"])]


def check_colours(out, split, count, order=tuple(COLOURS)):
    """What training reads has the label of its colour, with `count` images of each class."""
    task = Images(split, out, size=16, augment=False)
    seen = []
    for i in range(len(task)):
        mean = task.pixels(i, None).reshape(-1, 3).mean(0)
        seen.append(min(COLOURS, key=lambda name, mean=mean: abs(mean - COLOURS[name]).sum()))
        assert order[task[i].columns["label"]] == seen[-1]
    assert sorted(seen) == sorted([*COLOURS] * count)


def test_train_and_val_folders(capsys):
    """Hidden files, broken links and pipes are no images."""
    train_and_val(source)
    for hidden in (".DS_Store", "ant/._ant_0.JPEG", ".cache/x"):
        put(source / "train" / hidden, b"?")
    os.symlink("nowhere", source / "train/ant/linked.JPEG")
    os.mkfifo(source / "train/ant/pipe.JPEG")
    code, said = run(capsys, source, out)
    assert code == 0 and f"wrote 18 images of 3 classes to {out}\n" in said
    check_colours(out, "train", 4)
    check_colours(out, "validation", 2)


def test_several_workers_and_files(capsys, monkeypatch):
    train_and_val(source)
    monkeypatch.setattr(prepare, "SHARD", 5)
    assert run(capsys, source, out, "--workers", 2)[0] == 0
    assert info(out)["counts"] == {"train": 12, "validation": 6}
    assert len([*out.glob("train-*.bin")]) == 3
    check_colours(out, "train", 4)


def parquet(file, rows, names):
    """A file as the hub has it: rows of (bytes, label)."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    hub = {"info": {"features": {"label": {"names": names}}}}
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    metadata = {"huggingface": json.dumps(hub)} if names else None
    schema = pa.schema({"image": image, "label": pa.int64()}, metadata)
    images = [data and {"bytes": data, "path": None} for data, _ in rows]
    columns = {"image": images, "label": [label for _, label in rows]}
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, schema=schema), file, row_group_size=2)


@pytest.mark.parametrize("below", ["", "data"])
def test_parquet(capsys, monkeypatch, below):
    """In their order, small JPEGs byte for byte; a test split, which has no labels, is left out."""
    order = ["cat", "ant", "bee"]
    rows = [(encoded(COLOURS[n], seed=i), order.index(n)) for i in range(4) for n in COLOURS]
    parquet(source / below / "train-00000-of-00002.parquet", rows[:7], order)
    parquet(source / below / "train-00001-of-00002.parquet", rows[7:], order)
    parquet(source / below / "validation-00000-of-00001.parquet", rows[:6], order)
    parquet(source / below / "test-00000-of-00001.parquet", [(data, -1) for data, _ in rows], order)
    monkeypatch.setattr(prepare, "SHARD", 5)
    assert run(capsys, source, out, "--workers", 2, "--size", 40)[0] == 0
    assert info(out)["counts"] == {"train": 12, "validation": 6} and images(out) == rows
    assert info(out)["classes"] == order and len([*out.glob("train-*.bin")]) == 3
    check_colours(out, "validation", 2, order)


@pytest.mark.parametrize("data, names", [(None, ["a", "b"]), (b"text", ["a", "b"]), (b"", None)])
def test_parquet_that_cannot_be_used(capsys, data, names):
    for split in ("train", "validation"):
        parquet(source / f"{split}-0.parquet", [(data, 0)], names)
    code, said = run(capsys, source, out)
    assert code and "parquet" in said and not (out / "info.json").exists()


def test_images_become_small_rgb(capsys):
    """Whatever the mode; short side, aspect and colour are right, and nothing is enlarged."""
    red = (200, 60, 40)
    for kind in ("JPEG RGB", "JPEG CMYK", "PNG P", "WEBP RGB", "GIF P", "BMP RGB"):
        put(source / "train/a" / kind, encoded(red, (100, 64), *kind.split()))
    for kind in ("JPEG L", "PNG L", "PNG 1"):
        put(source / "train/b" / kind, encoded((250, 250, 250), (64, 100), *kind.split()))
    put(source / "train/c/small.png", encoded(red, (20, 10), "PNG"))
    for name in "abc":
        (source / "val" / name).mkdir(parents=True)
    assert run(capsys, source, out)[0] == 0
    wanted = [((50, 32), red), ((32, 50), 248), ((20, 10), red)]
    found = images(out)
    assert len(found) == 10
    for data, label in found:
        image = Image.open(io.BytesIO(data))
        size, colour = wanted[label]
        assert (image.format, image.size, image.mode) == ("JPEG", size, "RGB")
        assert abs(np.asarray(image).reshape(-1, 3).mean(0) - colour).max() < 12


def test_small_jpegs_are_kept_byte_for_byte(capsys):
    grey = (90, 90, 90)
    kept = [encoded(grey, (32, 32)), encoded(grey, (60, 32), seed=1), encoded(grey, mode="L")]
    other = [encoded(grey, (43, 44)), encoded(grey, form="PNG"), encoded(grey, mode="CMYK")]
    for i, data in enumerate(kept + other):
        put(source / "train" / "ab"[i // 3] / f"{i}.jpg", data)
        put(source / "val" / "ab"[i // 3] / f"{i}.jpg", data)
    assert run(capsys, source, out, "--size", 40)[0] == 0
    assert sorted(data for data, label in images(out) if label == 0) == sorted(kept)
    assert not {data for data, label in images(out) if label == 1} & set(other)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"


@pytest.mark.parametrize(
    "data", [encoded((9, 9, 9), (30, 400))[:400], b"", b"no\n", EPS], ids=["cut", "", "text", "eps"]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_file_is_named(capsys, data, workers):
    train_and_val(source, 3)
    put(source / "train/bee/bad.jpg", data)
    code, said = run(capsys, source, out, "--workers", workers)
    assert code == 2 and said.count("\n") == 1 and "train/bee/bad.jpg is no image" in said
    assert not (out / "info.json").exists()


def test_shuffled_by_the_seed_and_not_by_the_workers(tmp_path, capsys):
    """The first images, by which evaluation is quick, are of all classes."""
    train_and_val(source, 20, 8)
    for name, args in {"one": (), "two": ("--workers", 2), "seed": ("--seed", 1)}.items():
        assert run(capsys, source, tmp_path / name, *args)[0] == 0
    one, two, seed = (images(tmp_path / name) for name in ("one", "two", "seed"))
    assert one == two != seed and sorted(one) == sorted(seed)
    for split in ("train", "validation"):
        assert {label for _, label in images(tmp_path / "one", split)[:12]} == {0, 1, 2}


def test_the_same_source_is_known_wherever_it_lies(tmp_path, capsys):
    train_and_val(source)
    assert run(capsys, source, out)[0] == 0
    shutil.copytree(source, tmp_path / "moved")
    assert run(capsys, tmp_path / "moved", out) == (0, f"{out} holds this set already\n")
    for other in (("--size", 31), ("--quality", 80), ("--seed", 3)):
        assert "holds another set" in run(capsys, source, out, *other)[1]
    put(source / "train/ant/new.jpg", b"")
    assert "holds another set" in run(capsys, source, out)[1]


def test_refuses_sources_that_are_no_sets(tmp_path, capsys, monkeypatch):
    """In one sentence, and nothing is written."""
    sets = {"one/train": ["ant"], "one/val": ["ant"], "train_only/train": COLOURS}
    sets |= {"differ/train": ["ant", "bee"], "differ/val": ["ant", "emu"], "classes": COLOURS}
    for name, classes in sets.items():
        folders(tmp_path / name, 1, classes)
    words = {
        "none": "image-net.org",
        "one": "two at least",
        "differ": "the same class folders",
        "classes": "needs train/ and val/",
        "train_only": "needs train/ and val/",
    }
    for name, word in words.items():
        code, said = run(capsys, tmp_path / name, out)
        assert code == 2 and said.count("\n") == 1 and word in said, said
    assert not out.exists()
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install pillow" in run(capsys, tmp_path / "one", out)[1]
