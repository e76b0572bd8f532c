"""Images in folders and parquet files become the shards that training reads (data/imagenet/prepare.py)."""

import io
import json
import os
import shutil
import signal
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from data import common
from data.imagenet import prepare
from maxrl.tasks.images import Images, Shards

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
source, out = Path("in"), Path("out")
COLOURS = {"ant": (220, 20, 20), "bee": (20, 220, 20), "cat": (20, 20, 220)}


def encoded(colour, size=(48, 40), form="JPEG", mode="RGB", seed=0):
    """An image of nearly one colour, as the bytes of a file."""
    pixels = np.random.default_rng(seed).integers(-15, 16, (size[1], size[0], 3)) + colour
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode).save(
        file := io.BytesIO(), form
    )
    return file.getvalue()


def put(file, data):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def folders(root, count=4, names=COLOURS):
    for c, name in enumerate(names):
        for i in range(count):
            put(
                root / name / f"{name}_{i}.JPEG",
                encoded(COLOURS.get(name, (9, 9, 9)), seed=100 * c + i),
            )


def bomb(width, height):
    """A PNG of a few bytes that says it is large."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def run(capsys, source, out, *args):
    """Exit code and what was said of one run of prepare.py."""
    code = 0
    options = {"--size": 32, "--workers": 1} | dict(zip(args[::2], args[1::2]))
    flags = [str(part) for pair in options.items() for part in pair if part is not None]
    try:
        prepare.main(["--source", str(source), "--out", str(out), *flags])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out + said.err


def info(out):
    return {
        k: v
        for k, v in json.loads((out / "info.json").read_text()).items()
        if k not in ("sha256", "seal")
    }


def images(out, split="train"):
    """(bytes, label) of all images of a split, in order."""
    shards = Shards(out, split, info(out)["counts"][split])
    return [(bytes(shards[i]), int(label)) for i, label in enumerate(shards.index["label"])]


def files(out):
    return {file.name: file.read_bytes() for file in out.iterdir()}


def reasons(out):
    return {one["name"]: one["reason"] for one in info(out)["skipped"]}


def check_colours(out, split, count, order=tuple(COLOURS)):
    """What training reads has the label of its colour; `count` images of each class."""
    task = Images(split, out, size=16, augment=False)
    means = [task[i].columns["pixels"].reshape(-1, 3).mean(0) for i in range(len(task))]
    seen = [min(COLOURS, key=lambda name: np.abs(mean - COLOURS[name]).sum()) for mean in means]
    assert [order[task[i].columns["label"]] for i in range(len(task))] == seen
    assert sorted(seen) == sorted([*COLOURS] * count)


@pytest.mark.parametrize("above", ["", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC"])
@pytest.mark.parametrize("val", ["val", "validation"])
def test_train_and_val_folders(tmp_path, capsys, val, above):
    folders(source / above / "train", 4)
    folders(source / above / val, 2)
    for hidden in (".DS_Store", "ant/._ant_0.JPEG", ".cache/x"):
        put(source / above / "train" / hidden, b"?")
    os.symlink("ant_0.JPEG", source / above / "train/ant/linked.JPEG")
    (source / above / "train/ant/ant_1.JPEG").unlink()
    said = f"wrote 12 + 6 images of 3 classes to {out} (0.0 GiB), skipped 0\n"
    assert run(capsys, source, out) == (0, said)
    known = {
        "encoding": "jpeg",
        "classes": list(COLOURS),
        "counts": {"train": 12, "validation": 6},
        "size": 32,
        "skipped": [],
    }
    assert info(out) == info(out) | known
    check_colours(out, "train", 4)
    check_colours(out, "validation", 2)


def test_class_folders_without_a_split(tmp_path, capsys):
    """A share of each class, by file name: what else there is does not matter, and training always has one."""
    more = tmp_path / "more"
    folders(source, 40)
    for to, share in ((out, 0.3), (tmp_path / "most", 0.999999), (tmp_path / "none", 0)):
        assert run(capsys, source, to, "--validation-share", share)[0] == 0
    assert info(tmp_path / "most")["counts"] == {"train": 3, "validation": 117}
    assert info(tmp_path / "none")["counts"] == {"train": 120, "validation": 0}
    assert sorted(label for _, label in images(tmp_path / "most")) == [0, 1, 2]
    assert len(Images("validation", tmp_path / "none", size=16)) == 0
    shutil.copytree(source, more)
    folders(more, 60)
    (more / "bee" / "bee_7.JPEG").unlink()
    assert run(capsys, more, tmp_path / "third", "--validation-share", 0.3)[0] == 0
    held, held_of_more = (
        set(images(out, "validation")),
        set(images(tmp_path / "third", "validation")),
    )
    assert (
        20 < len(held) < 55
        and {label for _, label in held} == {0, 1, 2}
        and len(held - held_of_more) <= 1
    )
    assert not held_of_more & set(images(out, "train"))


def parquet(file, rows, names=None, group=2):
    """A file as the hub has it: rows of (bytes, label), two in a row group."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if names else None
    schema = pa.schema(
        {"image": pa.struct({"bytes": pa.binary(), "path": pa.string()}), "label": pa.int64()},
        metadata,
    )
    columns = {
        "image": [data and {"bytes": data, "path": None} for data, _ in rows],
        "label": [label for _, label in rows],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, schema=schema), file, row_group_size=group)


def coloured(count, seed=0, order=tuple(COLOURS)):
    return [
        (encoded(COLOURS[name], seed=seed + i), order.index(name))
        for i in range(count)
        for name in COLOURS
    ]


@pytest.mark.parametrize(("below", "named"), [("", True), ("data", True), ("data", False)])
def test_parquet(tmp_path, capsys, below, named):
    order = ("cat", "ant", "bee")
    names, rows = list(order) if named else None, coloured(4, 0, order)
    parquet(source / below / "train-00000-of-00002.parquet", rows[:7], names)
    parquet(source / below / "train-00001-of-00002.parquet", rows[7:], names)
    parquet(source / below / "validation-00000-of-00001.parquet", coloured(2, 50, order), names)
    parquet(source / below / "test-00000-of-00001.parquet", [(data, -1) for data, _ in rows], names)
    for workers, shard in ((1, 3), (2, 20_000)):
        to = out / str(shard)
        assert (
            run(capsys, source, to, "--workers", workers, "--shard-images", shard, "--size", 40)[0]
            == 0
        )
        assert (
            info(to)["counts"] == {"train": 12, "validation": 6} and images(to) == rows
        )  # in their order, as they are
        assert info(to)["classes"] == (list(order) if named else ["0", "1", "2"])
        assert len([*to.glob("train-*.bin")]) == -(-12 // shard)
    if named:
        check_colours(to, "validation", 2, order)


def test_parquet_corners(tmp_path, capsys):
    """One file, rows that cannot be used, a test set with classes, no validation files, damage."""
    rows = coloured(30)
    parquet(
        source / "one.parquet",
        [*rows, (b"text", 0), (None, 1), (rows[0][0], -1), (rows[0][0], None)],
        group=100,
    )
    assert run(capsys, source / "one.parquet", out, "--validation-share", 0.2)[0] == 0
    said = ("not an image", "empty", "label -1", "label -1")
    assert reasons(out) == {f"one.parquet:{row}": reason for row, reason in enumerate(said, 90)}
    assert sum(info(out)["counts"].values()) == 90 and 5 < info(out)["counts"]["validation"] < 35
    assert info(out)["classes"] == ["0", "1", "2"]
    parquet(tmp_path / "two" / "train-0.parquet", [*coloured(2), (rows[0][0], 3)], list(COLOURS))
    parquet(tmp_path / "two" / "test-0.parquet", coloured(1), list(COLOURS))
    assert run(capsys, tmp_path / "two", tmp_path / "o2", "--validation-share", 0)[0] == 0
    assert info(tmp_path / "o2")["counts"] == {"train": 6, "validation": 0, "test": 3}
    assert reasons(tmp_path / "o2") == {"train-0.parquet:6": "label 3"}
    assert len(Images("test", tmp_path / "o2", size=16)) == 3


def test_parquet_refusals(tmp_path, capsys, monkeypatch):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet(tmp_path / "a" / "train-0.parquet", coloured(1), ["ant"])
    for i in range(2):
        parquet(tmp_path / "b" / f"validation-{i}.parquet", coloured(1))
    parquet(tmp_path / "c" / "train-0.parquet", [])
    put(tmp_path / "d" / "train-0.parquet", b"PAR1 not one")
    (tmp_path / "e").mkdir()
    pq.write_table(
        pa.table({"img": [b"x", b"y"], "label": [0, 1]}), tmp_path / "e" / "train-0.parquet"
    )
    parquet(tmp_path / "f" / "train-0.parquet", coloured(20), group=60)
    whole = (tmp_path / "f" / "train-0.parquet").read_bytes()
    put(tmp_path / "f" / "train-0.parquet", whole[:100] + b"\xff" * 2000 + whole[2100:])
    words = (
        "1 class",
        "no training images",
        "no training images",
        "not parquet",
        "no column 'image.",
        "cannot be read",
    )
    for name, word in zip("abcdef", words, strict=True):
        code, said = run(capsys, tmp_path / name, out)
        assert code == 2 and said.count("\n") == 1 and word in said
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    code, said = run(capsys, tmp_path / "a", tmp_path / "out")
    assert (
        code == 2 and said.count("\n") == 1 and 'needs pyarrow: pip install -e ".[parquet]"' in said
    )


def test_images_become_small_rgb(tmp_path, capsys):
    """Whatever the mode; the short side, the aspect and the colour are right, and nothing is enlarged."""
    red = (200, 60, 40)
    for kind in ("JPEG RGB", "JPEG CMYK", "PNG P", "PNG RGBA", "WEBP RGB", "GIF P", "BMP RGB"):
        put(source / "train/a" / kind, encoded(red, (100, 64), *kind.split()))
    for kind in ("JPEG L", "PNG L", "PNG 1"):
        put(source / "train/b" / kind, encoded((250, 250, 250), (64, 100), *kind.split()))
    for name in "abcde":
        (source / "train" / name).mkdir(exist_ok=True)
        (source / "val" / name).mkdir(parents=True)
    Image.fromarray(np.full((64, 64), 0x8000, np.uint16)).save(source / "train/c/sixteen.png")
    Image.new("RGBA", (64, 64), (0, 255, 0, 0)).save(source / "train/d/clear.png")
    put(source / "train/e/small.png", encoded(red, (20, 10), "PNG"))
    assert run(capsys, source, out)[0] == 0 and info(out)["counts"] == {
        "train": 13,
        "validation": 0,
    }
    wanted = [((50, 32), red), ((32, 50), 248), ((32, 32), 127), ((32, 32), 255), ((20, 10), red)]
    for data, label in images(out):
        image = Image.open(io.BytesIO(data))
        assert image.format == "JPEG" and image.size == wanted[label][0] and image.mode == "RGB"
        colour = np.asarray(image.convert("RGB")).reshape(-1, 3).mean(0)
        assert np.abs(colour - wanted[label][1]).max() < 12, (label, colour)


def test_small_jpegs_are_kept_byte_for_byte(tmp_path, capsys):
    kept = [
        encoded((90, 90, 90), (32, 32)),
        encoded((9, 9, 9), (60, 32), seed=1),
        encoded((9, 9, 9), (20, 60), "JPEG", "L"),
    ]
    other = [
        encoded((90, 90, 90), (33, 40)),
        encoded((90, 90, 90), (32, 32), "PNG"),
        encoded((9, 9, 9), (32, 32), mode="CMYK"),
    ]
    for i, data in enumerate(kept + other):
        put(source / "ab"[i // 3] / f"{i}.jpg", data)
    assert run(capsys, source, out, "--validation-share", 0, "--quality", 30)[0] == 0
    assert sorted(data for data, label in images(out) if label == 0) == sorted(kept)
    assert not {data for data, label in images(out) if label == 1} & set(other)
    assert run(capsys, source, tmp_path / "best", "--validation-share", 0, "--quality", 95)[0] == 0
    assert sum(len(data) for data, _ in images(tmp_path / "best")) > sum(
        len(data) for data, _ in images(out)
    )


def spoil(source):
    """Files that are no images, with the reason each is skipped for."""
    good = encoded((9, 9, 9), (30, 400))
    bad = {"cut.jpg": (good[: len(good) // 2], "damaged (image file is truncated"), "empty.jpg": (b"", "empty"),
           "text.jpg": (b"not an image\n", "not an image"), "large.png": (bomb(11_000, 10_000), "more than 100 megapixels"),
           "larger.png": (bomb(60_000, 60_000), "more than 100 megapixels"), "hollow.png": (bomb(40, 40), "damaged ("),
           "script.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not an image")}  # fmt: skip
    for name, (data, _) in bad.items():
        put(source / "bee" / name, data)
    os.symlink("nowhere", source / "ant" / "broken.jpg")
    os.mkfifo(source / "ant" / "pipe.jpg")
    return {f"bee/{name}": reason for name, (_, reason) in bad.items()} | {
        "ant/broken.jpg": "cannot be read (No such file", "ant/pipe.jpg": "empty"}  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_bad_files_are_skipped_and_named(tmp_path, capsys):
    folders(source, 3)
    expected = spoil(source)
    code, said = run(capsys, source, out, "--validation-share", 0)
    assert code == 0 and said.endswith(f"skipped {len(expected)}\n")
    assert len([text for text in said.splitlines() if text.startswith("skipped '")]) == 5
    found = reasons(out)
    assert found.keys() == expected.keys() and "0x" not in str(found)
    assert [
        name for name, reason in expected.items() if not found[name].startswith(reason)
    ] == [], found
    assert info(out)["counts"] == {"train": 9, "validation": 0}
    check_colours(out, "train", 3)
    for name in COLOURS:
        put(tmp_path / "bad" / name / "x.jpg", b"")
    code, said = run(capsys, tmp_path / "bad", tmp_path / "other")
    assert (
        code == 1
        and "no training image could be decoded" in said
        and not (tmp_path / "other" / "info.json").exists()
    )


def test_a_source_that_goes_away_is_no_bad_image(tmp_path, capsys, monkeypatch):
    """A disk that is unplugged would else leave a set without most of its images."""
    folders(source, 4)
    shard = prepare.write_shard

    def unplug(*args):
        shard(*args)
        source.rename(tmp_path / "gone")

    monkeypatch.setattr(prepare, "write_shard", unplug)
    for workers in (1, 2):
        code, said = run(capsys, source, out, "--shard-images", 4, "--workers", workers)
        assert (
            code == 1
            and said.count("\n") == 1
            and "cannot read or write" in said
            and "No such file" in said
        )
        (tmp_path / "gone").rename(source)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run(capsys, source, out, "--shard-images", 4)[0] == 0 and info(out)["skipped"] == []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda at: scandir(at if Path(at).name != "bee" else "none"))
    code, said = run(capsys, source, tmp_path / "other")
    assert code == 1 and "No such file" in said


def test_shuffled_by_the_seed_and_not_by_the_workers(tmp_path, capsys):
    folders(source / "train", 20)
    folders(source / "val", 8)
    spoil(source / "train")
    for name, args in {"one": (), "two": ("--workers", 2), "seed": ("--seed", 1)}.items():
        assert run(capsys, source, tmp_path / name, "--shard-images", 50, *args)[0] == 0
    assert files(tmp_path / "one") == files(tmp_path / "two")
    one, seed = images(tmp_path / "one"), images(tmp_path / "seed")
    assert one != seed and sorted(one) == sorted(seed)
    for split in (
        "train",
        "validation",
    ):  # evaluation takes the first images: these must be of all classes, too
        assert {label for _, label in images(tmp_path / "one", split)[:12]} == {0, 1, 2}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_conversion_starts_again(tmp_path, capsys, monkeypatch, workers):
    """It leaves nothing, or the set that --overwrite was to replace."""
    args = ("--shard-images", 5, "--workers", workers, "--validation-share", 0.2)
    folders(source, 8)
    bad = spoil(source)
    assert run(capsys, source, tmp_path / "whole", *args)[0] == 0
    shard, written = prepare.write_shard, []

    def interrupted(folder, split, number, rows):
        if len(written) in stops:
            stops.remove(len(written))
            raise KeyboardInterrupt
        written.append((split, number))
        shard(folder, split, number, rows)

    monkeypatch.setattr(prepare, "write_shard", interrupted)
    stops = [0, 2]
    for _ in range(2):
        code, said = run(capsys, source, out, *args)
        assert (
            code == 130
            and said.count("\n") == 1
            and "interrupted" in said
            and not list(out.iterdir())
        )
        with pytest.raises(FileNotFoundError, match="no complete"):
            Images("train", out)
    assert run(capsys, source, out, *args)[0] == 0 and not stops
    assert files(out) == files(tmp_path / "whole") and reasons(out).keys() == bad.keys()
    stops = [len(written) + 1]  # the second shard of a set that is made anew
    assert (
        run(capsys, source, out, *args, "--size", 20, "--overwrite", None)[0] == 130 and not stops
    )
    assert files(out) == files(tmp_path / "whole")
    (out / ".unfinished-x").mkdir()  # of a command that was killed
    assert run(capsys, source, out, *args, "--size", 20, "--overwrite", None)[0] == 0
    assert info(out)["size"] == 20 and not list(out.glob(".*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c(capsys, monkeypatch, workers):
    """The signal itself, in the middle of the pool's work, where an exception could make the pool wait for ever."""
    folders(source, 8)
    submit, shard = common.ProcessPoolExecutor.submit, prepare.write_shard
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background ignores it
    submitted = []

    def interrupted(*args):
        submitted.append(signal.raise_signal(signal.SIGINT))
        return (submit if workers > 1 else shard)(*args)

    monkeypatch.setattr(
        *(common.ProcessPoolExecutor, "submit") if workers > 1 else (prepare, "write_shard"),
        interrupted,
    )
    assert run(capsys, source, out, "--workers", workers, "--shard-images", 5)[0] == 130
    kept = signal.signal(signal.SIGINT, before)
    assert (
        len(submitted) == workers - 1
        and kept is signal.default_int_handler
        and not list(out.iterdir())
    )
    monkeypatch.undo()


def test_a_worker_that_is_killed(capsys, monkeypatch):
    """As the system does where memory ends: one sentence, and nothing is left."""
    folders(source, 8)
    monkeypatch.setattr(prepare, "to_jpeg", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    code, said = run(capsys, source, out, "--workers", 2)
    assert (
        code == 1
        and said.count("\n") == 1
        and "fewer --workers" in said
        and not list(out.iterdir())
    )


def test_the_same_set_another_and_a_damaged_one(tmp_path, capsys, monkeypatch):
    folders(source, 5)
    args = ("--shard-images", 4)
    assert run(capsys, source, out, *args)[0] == 0
    first = files(out)
    assert run(capsys, source, out, *args) == (0, f"{out} holds this set already\n")
    shutil.copytree(source, tmp_path / "moved")
    assert run(capsys, tmp_path / "moved", out, *args) == (0, f"{out} holds this set already\n")
    for other in (
        ("--size", 31),
        ("--quality", 80),
        ("--seed", 3),
        ("--shard-images", 5),
        ("--validation-share", 0.5),
    ):
        code, said = run(capsys, source, out, *args, *other)
        assert code == 2 and said.count("\n") == 1 and "--out" in said and "--overwrite" in said, (
            other
        )
    assert files(out) == first
    for name, damage in (("train-00001.bin", b"x"), ("train-00002.npy", b""), ("info.json", b"{}")):
        (out / name).write_bytes(damage)
        code, said = run(capsys, source, out, *args)
        assert (
            code == 2
            and said.count("\n") == 1
            and "damaged" in said
            and "--shard-images 4 --overwrite replaces it" in said
        )
        assert run(capsys, source, out, *args, "--overwrite", None)[0] == 0 and files(out) == first
    put(source / "ant" / "new.jpg", b"")
    assert run(capsys, source, out, *args)[0] == 2
    put(out / "mine.txt", b"not ours")
    unlink, removed = Path.unlink, []
    monkeypatch.setattr(
        Path, "unlink", lambda file, **known: removed.append(file.name) or unlink(file, **known)
    )
    assert (
        run(capsys, source, out, *args, "--size", 20, "--shard-images", 50, "--overwrite", None)[0]
        == 0
    )
    assert removed[0] == "info.json" and len(removed) > 8  # what else is left is no set
    assert (
        info(out)["size"] == 20
        and (out / "mine.txt").exists()
        and len([*out.glob("train-*.bin")]) == 1
    )
    (out / "info.json").unlink()
    assert run(capsys, source, out, *args)[0] == 2


@pytest.mark.parametrize(("args", "words"), [
    (["--size", 0], ["--size", "got 0"]), (["--quality", 0], ["--quality", "got 0"]), (["--quality", 96], ["--quality 95"]),
    (["--workers", 0], ["--workers", "got 0"]), (["--seed", -1], ["--seed", "got -1"]),
    (["--shard-images", 0], ["--shard-images", "got 0"]), (["--validation-share", 1], ["--validation-share", "got 1"]),
    (["--validation-share", -0.1], ["--validation-share", "got -0.1"]), (["--validation-share", "nan"], ["--validation-share"]),
    (["--source", "none"], ["image-net.org", "benjamin-paine/imagenet-1k-256x256", "--source"]),
    (["--out", "in/new"], ["inside", "--out"]), (["--out", "in"], ["inside", "--out"]),
])  # fmt: skip
def test_refuses_in_one_sentence(tmp_path, capsys, args, words):
    folders(source, 1)
    folder = {"--source": "in", "--out": "out"} | dict([args])
    code, said = run(capsys, folder["--source"], folder["--out"], *args)
    assert code == 2 and said.count("\n") == 1 and all(word in said for word in words)
    assert [file.name for file in tmp_path.iterdir()] == ["in"] and not (
        tmp_path / "in/new"
    ).exists()


def test_refuses_sources_that_are_no_sets(tmp_path, capsys, monkeypatch):
    (tmp_path / "empty").mkdir()
    for name, classes in {"one": ["ant"], "some": COLOURS, "train_only/train": COLOURS, "val_only/val": COLOURS,
                          "differ/train": ["ant", "bee"], "differ/val": ["ant", "bee", "emu"]}.items():  # fmt: skip
        folders(tmp_path / name, 1, classes)
    (tmp_path / "some" / "emu").mkdir()
    folders(tmp_path / "flat/train", 1)
    put(tmp_path / "flat/val/ILSVRC2012_val_00000001.JPEG", encoded(COLOURS["ant"]))
    words = {"empty": "no images", "one": "at least 2", "some": "'emu'", "differ": "'emu' in val/",
             "flat": "val has no class folders",
             "train_only": "neither val/ nor", "val_only": "no train/"}  # fmt: skip
    for name, word in words.items():
        code, said = run(capsys, tmp_path / name, tmp_path / "out")
        assert code == 2 and said.count("\n") == 1 and word in said and "--source" in said, said
    assert not (tmp_path / "out").exists()
    code, said = run(capsys, tmp_path / "differ" / "train", tmp_path / "one" / "ant" / "ant_0.JPEG")
    assert code == 1 and said.count("\n") == 1 and "--out" in said
    monkeypatch.setattr(prepare, "DATA", tmp_path)
    prepare.main(["--source", str(tmp_path / "differ" / "train"), "--size", "24", "--workers", "1"])
    assert info(tmp_path / "imagenet/24")["counts"]["train"] == 2
    monkeypatch.setitem(sys.modules, "PIL", None)
    code, said = run(capsys, tmp_path / "empty", tmp_path / "out")
    assert code == 2 and said.endswith("prepare.py: images need Pillow: pip install pillow\n")
