"""Images: stored, cut out, augmented, scored and drawn as they should be (maxrl/tasks/images.py, data/glyphs)."""

import io
import itertools
import math
import multiprocessing
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data.glyphs import prepare
from maxrl.errors import UsageError
from maxrl.io.files import sealed
from maxrl.prompt_order import prefetched
from maxrl.tasks import images as images_module
from maxrl.tasks import load_task
from maxrl.tasks.images import INDEX, Images, Shards, centre_box, random_box, write_shard

Image = pytest.importorskip("PIL.Image")
hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SIZES = st.integers(1, 5000)


def smooth(width, height, seed=0):
    """An image of slow waves (height, width, 3): what is lost in JPEG and in resizing is little."""
    rng = np.random.default_rng(seed)
    y, x = (axis[..., None] / max(width, height) for axis in np.ogrid[:height, :width])
    (a, b), phase = rng.uniform(2, 7, (2, 3)), rng.uniform(0, 6, 3)
    return np.rint(127.5 + 120 * np.sin(a * x + b * y + phase)).astype(np.uint8)


def encoded(pixels, kind="JPEG", mode="RGB", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def write_set(folder, splits, encoding="jpeg", shape=None, classes=("cat", "dog", "emu")):
    """A set of {split: [(bytes, label)]} in one shard each."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        write_shard(folder, split, 0, rows)
    counts = {split: len(rows) for split, rows in splits.items()}
    info = {"classes": list(classes), "encoding": encoding, "counts": counts}
    names = [f"{split}-00000.npy" for split in splits]
    (folder / "info.json").write_text(
        sealed(info | ({"shape": shape} if shape else {}), folder, names)
    )
    return folder


# --------------------------------------------------- shards ---------------------------------------------------
def test_bytes_in_are_bytes_out(tmp_path):
    """Over several shards of any lengths, empty images and an empty shard among them; other splits are not mixed in."""
    rng = np.random.default_rng(0)
    shards = [[(rng.bytes(int(n)), int(rng.integers(9))) for n in rng.integers(0, 40, size)]
              for size in (5, 1, 0, 30, 2)]  # fmt: skip
    for number, rows in enumerate(shards):
        write_shard(tmp_path, "train", number, rows)
    write_shard(tmp_path, "test", 0, [(b"other", 3)])
    write_shard(tmp_path, "validation", 0, [])
    expected = [row for rows in shards for row in rows]
    read = Shards(tmp_path, "train", 38)
    assert [(read[i].tobytes(), int(read.index["label"][i])) for i in range(38)] == expected
    assert (
        Shards(tmp_path, "test", 1)[0].tobytes() == b"other"
        and len(Shards(tmp_path, "validation", 0).index) == 0
    )
    assert len(Shards(tmp_path, "never written", 0).index) == 0
    assert (
        sorted(os.listdir(tmp_path))[:2] == ["test-00000.bin", "test-00000.npy"]
        and len(os.listdir(tmp_path)) == 14
    )


def test_offsets_beyond_4_gib(tmp_path):
    """Lengths of 32 bits summed in 32 bits would wrap: the second half of a file would be read from its beginning."""

    class Long(bytes):
        """Says that it is long, and writes nothing."""

        def __len__(self):
            return 3_000_000_000

    write_shard(tmp_path, "train", 0, [(Long(), 0)] * 4)
    index = np.load(tmp_path / "train-00000.npy")
    assert (
        index["offset"].tolist() == [0, 3_000_000_000, 6_000_000_000, 9_000_000_000]
        and index.dtype == INDEX
    )
    with pytest.raises(UsageError, match="its index says 12000000000: the shard is damaged"):
        Shards(tmp_path, "train", 4)


def test_damaged_sets_are_refused_in_a_sentence(tmp_path):
    """Every way in which a copy or a download may have ended early."""
    rows = [(encoded(smooth(20, 20, i)), i % 3) for i in range(4)]

    def broken(name, damage):
        folder = write_set(tmp_path / name, {"train": rows, "test": []})
        damage(folder)
        with pytest.raises(UsageError) as error:
            Images("train", folder)
        with pytest.raises(UsageError):
            load_task("images", "train", directory=str(folder))
        said = str(error.value)
        assert "--source SOURCE --out" in said and "--overwrite makes it again" in said
        assert str(folder) in said and "\n" not in said
        assert len(load_task("images", "test", directory=str(folder))) == 0, (
            "another split is as good as ever"
        )
        return said

    whole = sum(len(data) for data, _ in rows)
    one, index = "train-00000.bin", "train-00000.npy"
    said = broken("short", lambda f: os.truncate(f / one, whole - 1))
    assert f"has {whole - 1} bytes, its index says {whole}" in said
    assert f"has {whole + 1} bytes" in broken("long", lambda f: os.truncate(f / one, whole + 1))
    assert "has 0 bytes" in broken("no bin", lambda f: (f / one).unlink())
    assert "No such file" in broken("no index", lambda f: (f / index).unlink())
    for name, damage in {
        "empty": lambda f: os.truncate(f / index, 0),
        "short": lambda f: os.truncate(f / index, 150),
        "no": lambda f: (f / index).write_text("nonsense"),
    }.items():
        assert f"{index} is not what its checksum says" in broken(f"{name} index", damage)
    assert "holds 8 train images, info.json says 4" in broken(
        "twice", lambda f: write_shard(f, "train", 1, rows)
    )
    with pytest.raises(FileNotFoundError, match=r"python -m data\.imagenet\.prepare"):
        broken("no info", lambda f: (f / "info.json").unlink())
    with pytest.raises(
        FileNotFoundError, match=r"no complete image set .* python -m data\.glyphs\.prepare"
    ):
        Images(directory="glyphs/7x7")


@pytest.mark.parametrize("survives", [0, 1, 2, 3])
def test_a_shard_with_an_index_is_whole(tmp_path, monkeypatch, survives):
    """A crash after any of the four steps of a second write leaves the old shard, or one that is seen to be damaged."""
    write_shard(tmp_path, "train", 0, [(b"old", 1), (b"older", 2)])
    steps, replace, save = itertools.count(), os.replace, np.save

    def step(real):
        def stepping(*args, **options):
            if next(steps) == survives:
                raise SystemExit
            real(*args, **options)

        return stepping

    monkeypatch.setattr(images_module.os, "fsync", step(os.fsync))
    monkeypatch.setattr(images_module.os, "replace", step(replace))
    monkeypatch.setattr(images_module.np, "save", step(save))
    with pytest.raises(SystemExit):
        write_shard(tmp_path, "train", 0, [(b"new one", 3), (b"newer", 4)])
    if survives < 2:
        read = Shards(tmp_path, "train", 2)
        assert [read[i].tobytes() for i in range(2)] == [b"old", b"older"]
    else:
        with pytest.raises(UsageError, match="damaged"):
            Shards(tmp_path, "train", 2)
    (tmp_path / "train-00000.npy").unlink()  # had there been none before
    with pytest.raises(UsageError, match="holds 0 train images"):
        Shards(tmp_path, "train", 2)


# ------------------------------------------------- what is cut out -------------------------------------------------
@settings(max_examples=300, deadline=None)
@given(SIZES, SIZES)
def test_centre_box_is_a_square_in_the_middle(width, height):
    left, upper, right, lower = centre_box(width, height)
    short = min(width, height)
    for first, last, side in ((left, right, width), (upper, lower, height)):
        resized = int(256 * side / short)  # what torchvision's Resize(256) makes of it
        first, last = first * resized / side, last * resized / side
        assert math.isclose(last - first, 224) and math.isclose(
            first, round(first), abs_tol=1e-6
        ), "whole pixels"
        assert abs(first + last - resized) < 1.001 and 0 < first < last < resized


@settings(max_examples=300, deadline=None)
@given(SIZES, SIZES, st.integers(0, 2**32))
def test_random_box_lies_inside_and_is_not_empty(width, height, seed):
    """For any size at all; area and aspect as asked for up to the rounding of its sides to whole pixels."""
    left, upper, right, lower = random_box(width, height, np.random.default_rng(seed))
    w, h = right - left, lower - upper
    assert 0 <= left < right <= width and 0 <= upper < lower <= height
    assert all(isinstance(v, int) for v in (left, upper, right, lower))
    assert (w - 0.5) / (h + 0.5) <= 4 / 3 and (w + 0.5) / (h - 0.5) >= 3 / 4
    if 0.5 < width / height < 2:
        assert (w + 0.5) * (h + 0.5) >= 0.08 * width * height


def fallback(width, height):
    """torchvision's, written as there: the largest centre box of an aspect in the range."""
    ratio, w, h = width / height, width, height
    if ratio < 3 / 4:
        w, h = width, int(round(width / (3 / 4)))
    elif ratio > 4 / 3:
        w, h = int(round(height * 4 / 3)), height
    return (width - w) // 2, (height - h) // 2, (width - w) // 2 + w, (height - h) // 2 + h


@settings(max_examples=200, deadline=None)
@given(SIZES, SIZES)
def test_where_ten_tries_do_not_fit(width, height):
    """A generator that asks for the whole area at an aspect of 4/3, then 3/4, ten times: nothing narrow has room."""
    for aspect in (4 / 3, 3 / 4):
        asked = []

        def uniform(low, high, aspect=aspect, asked=asked):
            asked.append((low, high))
            return 1.0 if low == 0.08 else math.log(aspect)

        rng = SimpleNamespace(uniform=uniform, integers=lambda n: 0)
        box = random_box(width, height, rng)
        w, h = round(math.sqrt(width * height * aspect)), round(math.sqrt(width * height / aspect))
        if 0 < w <= width and 0 < h <= height:
            assert box == (0, 0, w, h) and len(asked) == 2
        else:
            assert (
                box == fallback(width, height)
                and asked == [(0.08, 1), (math.log(3 / 4), math.log(4 / 3))] * 10
            )


def test_random_boxes_are_spread_as_they_should_be():
    """Area uniform and log aspect uniform, by Kolmogorov and Smirnov; corners uniform over all places that a box has.

    A square has no room for areas near 1 at an aspect far from 1, so the distribution is uniform only below 3/4 of the
    area. Of uniform sides instead of a uniform area the test would say so.
    """
    rng, n = np.random.default_rng(0), 4000
    boxes = np.array([random_box(3000, 3000, rng) for _ in range(n)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, aspect = w * h / 9e6, np.log(w / h)
    assert 0.0795 < area.min() < 0.085 and area.max() > 0.97
    assert -0.0015 < abs(aspect).max() - math.log(4 / 3) < 0.0015
    few = area < 0.74

    def uniform(values, low, high):
        """The statistic sqrt(n) D; above 1.95 once in a thousand."""
        x = (np.sort(values) - low) / (high - low)
        steps = np.arange(len(x) + 1) / len(x)
        return np.sqrt(len(x)) * max(abs(x - steps[:-1]).max(), abs(x - steps[1:]).max())

    assert few.sum() > 2000 and uniform(area[few], 0.08, 0.74) < 1.95
    assert uniform(aspect[few], -math.log(4 / 3), math.log(4 / 3)) < 1.95
    places = (boxes[:, :2] + rng.random((n, 2))) / (3001 - np.stack([w, h], 1))
    assert uniform(places[few, 0], 0, 1) < 1.95 and uniform(places[few, 1], 0, 1) < 1.95
    assert abs(np.corrcoef(places[few].T)[0, 1]) < 0.07
    sides = np.sqrt(rng.uniform(0.08**0.5, 0.74**0.5, few.sum()) ** 4)  # wrong: a uniform side
    assert uniform(sides, 0.08, 0.74) > 5


def test_every_place_is_used():
    """The last column and row too: integers(width - w) would never reach them, and fail where a box is the image."""
    boxes = {random_box(4, 4, np.random.default_rng(seed)) for seed in range(3000)}
    for w, h in {(b[2] - b[0], b[3] - b[1]) for b in boxes}:
        places = {b[:2] for b in boxes if (b[2] - b[0], b[3] - b[1]) == (w, h)}
        assert places == set(itertools.product(range(5 - w), range(5 - h))), (w, h)
    assert (0, 0, 4, 4) in boxes


# ---------------------------------------------------- the task ----------------------------------------------------
@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """24 JPEGs of several shapes in train, 6 in validation."""
    shapes = [(300, 300), (400, 280), (260, 390), (256, 256), (64, 48), (500, 270)]
    rows = [(encoded(smooth(*shapes[i % 6], seed=i), quality=95), i % 3) for i in range(24)]
    return write_set(tmp_path_factory.mktemp("photos"), {"train": rows, "validation": rows[:6]})


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """10 raw images of 12x12 in train and test, and their pixels (10, 12, 12, 3)."""
    pixels = np.random.default_rng(0).integers(0, 256, (10, 12, 12, 3), dtype=np.uint8)
    rows = [(image.tobytes(), i % 3) for i, image in enumerate(pixels)]
    return write_set(
        tmp_path_factory.mktemp("raw"), {"train": rows, "test": rows}, "raw", [12, 12, 3]
    ), pixels


def test_raw_images_are_as_they_are(raw, monkeypatch):
    """Channels first, in the order asked for, and not even Pillow is needed."""
    folder, pixels = raw
    monkeypatch.setattr(images_module, "pillow", lambda: pytest.fail("Pillow was asked for"))
    task = Images("test", folder, 12)
    assert (len(task), task.classes) == (10, ("cat", "dog", "emu"))
    batch = task.batch([7, 0, 7, 2], [[1, 2]] * 4)  # seeds are for training
    assert (
        batch.images.dtype == torch.uint8 and batch.labels.dtype == torch.int64 and len(batch) == 4
    )
    assert batch.images.is_contiguous() and batch.labels.tolist() == [1, 0, 1, 2]
    assert (batch.images.numpy() == pixels[[7, 0, 7, 2]].transpose(0, 3, 1, 2)).all()
    example = task[5]
    assert (example.answer, example.columns["label"]) == ("emu", 2) and (
        example.columns["pixels"] == pixels[5]
    ).all()
    assert task.batch(torch.tensor([3])).labels.tolist() == [0]
    for index in (-1, 10):
        pytest.raises(IndexError, task.__getitem__, index)


def test_raw_images_of_another_size_are_cut_and_resized(raw):
    """The centre square; raw images of the size asked for are never cut, training images without augmentation too."""
    folder, pixels = raw
    batch = Images("train", folder, 6, augment=False).batch(range(10), range(10))
    for image, p in zip(batch.images, pixels):
        wanted = Image.fromarray(p).resize(
            (6, 6), Image.Resampling.BILINEAR, box=centre_box(12, 12)
        )
        assert (image.permute(1, 2, 0).numpy() == np.asarray(wanted)).all()
    plain = Images("train", folder, 12, augment=False).batch([4]).images[0]
    assert (plain.numpy() == pixels[4].transpose(2, 0, 1)).all()
    assert (Images("train", folder, 12).batch([4], [0]).images[0] != plain).any(), (
        "glyphs are augmented too"
    )


def test_short_side_to_256_then_224_of_the_centre(photos):
    """The published two steps, of which the first rounds the long side to whole pixels: the same picture up to that.

    Without the crop (the whole short side), or with the corner instead of the centre, it is another picture.
    """
    task = Images("validation", photos, 224)
    for i in range(6):
        original = Image.open(io.BytesIO(task.shards[i].tobytes()))
        scale = 256 / min(original.size)
        resized = original.resize(
            [round(side * scale) for side in original.size], Image.Resampling.BILINEAR
        )
        left, upper = ((side - 224) // 2 for side in resized.size)
        two_steps = np.asarray(resized.crop((left, upper, left + 224, upper + 224))).astype(int)
        difference = abs(task.pixels(i, None) - two_steps)
        assert difference.mean() < 1.5 and difference.max() < 10
        whole = original.resize((224, 224), box=(0, 0, min(original.size), min(original.size)))
        assert abs(np.asarray(whole) - two_steps).mean() > 6


def test_decoded_within_the_tolerance_of_jpeg(photos):
    task = Images("validation", photos, 224)
    for i, (width, height) in enumerate([(300, 300), (400, 280), (260, 390)]):
        pixels = Image.fromarray(smooth(width, height, seed=i))
        wanted = np.asarray(
            pixels.resize((224, 224), Image.Resampling.BILINEAR, box=centre_box(width, height))
        )
        assert abs(task.pixels(i, None) - wanted.astype(int)).mean() < 2


@pytest.mark.parametrize(
    "kind, mode",
    [
        ("JPEG", "L"),
        ("JPEG", "CMYK"),
        ("PNG", "RGBA"),
        ("PNG", "LA"),
        ("PNG", "P"),
        ("GIF", "P"),
        ("WEBP", "RGB"),
    ],
)
def test_any_mode_becomes_rgb(tmp_path, kind, mode):
    """ImageNet holds CMYK and greyscale JPEGs and a PNG that is called .JPEG."""
    grey = smooth(64, 64)[..., :1].repeat(3, -1)
    task = Images("train", write_set(tmp_path, {"train": [(encoded(grey, kind, mode), 0)]}), 56)
    pixels = task.batch([0], [3]).images
    assert pixels.shape == (1, 3, 56, 56) and pixels.dtype == torch.uint8
    assert abs(task.pixels(0, None).astype(int) - grey[4:60, 4:60]).mean() < (
        20 if mode == "P" else 6
    )  # P is dithered


@pytest.mark.parametrize("width, height", [(1, 1), (1, 700), (700, 1), (2, 3), (3000, 5)])
def test_images_of_any_shape(tmp_path, width, height):
    task = Images(
        "train", write_set(tmp_path, {"train": [(encoded(smooth(width, height)), 0)]}), 16
    )
    assert (
        task.batch([0] * 40, range(40)).images.shape
        == (40, 3, 16, 16)
        == task.batch([0] * 40).images.shape
    )


# --------------------------------------------------- augmentation ---------------------------------------------------
def test_augmentation_is_a_function_of_the_seed(photos):
    """Not of the batch, its order, or the worker: a resumed run, or one on more GPUs, sees the same images."""
    task = Images("train", photos, 32)
    seeds = [(7, i) for i in range(24)]
    whole = task.batch(range(24), seeds).images
    order = np.random.default_rng(0).permutation(24)
    assert torch.equal(task.batch(order, [seeds[i] for i in order]).images, whole[order])
    assert torch.equal(torch.cat([task.batch([i], [seeds[i]]).images for i in range(24)]), whole)
    plans = {
        size: [(list(range(i, i + size)), seeds[i : i + size]) for i in range(0, 24, size)]
        for size in (4, 12)
    }
    for workers, size in ((0, 4), (2, 4), (2, 12)):
        batches = list(prefetched(task, plans[size], workers))
        assert torch.equal(torch.cat([b.images for b in batches]), whole)
        assert torch.cat([b.labels for b in batches]).tolist() == [i % 3 for i in range(24)]
    others = task.batch(range(24), [(8, i) for i in range(24)]).images
    assert (
        all((a != b).any() for a, b in zip(whole, others))
        and (whole != task.batch(range(24)).images).any()
    )


def test_only_training_is_augmented(photos):
    """Held-out images are the same whatever the seeds are, and so are training images with augment=False."""
    plain = Images("train", photos, 32, augment=False)
    held_out = Images("validation", photos, 32)
    assert torch.equal(
        held_out.batch(range(6), range(6)).images, plain.batch(range(6), range(9, 15)).images
    )
    assert torch.equal(held_out.batch(range(6)).images, held_out.batch(range(6), range(6)).images)
    augmented = Images("train", photos, 32).batch(range(6), range(6)).images
    assert not torch.equal(augmented, plain.batch(range(6)).images)


def test_half_are_flipped(tmp_path):
    """An image that grows brighter from left to right tells; what is not flipped is its box, resized, no more."""
    ramp = np.tile(np.linspace(0, 255, 200).astype(np.uint8)[None, :, None], (150, 1, 3))
    task = Images(
        "train", write_set(tmp_path, {"train": [(ramp.tobytes(), 0)]}, "raw", [150, 200, 3]), 8
    )
    pixels = task.batch([0] * 1000, range(1000)).images.float()
    flipped = pixels[:, 0, 0, 0] > pixels[:, 0, 0, -1]
    assert abs(flipped.float().mean() - 0.5) < 0.05  # three standard errors
    for seed in range(20):
        box = random_box(200, 150, np.random.default_rng(seed))
        wanted = np.asarray(
            Image.fromarray(ramp).resize(
                (8, 8), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0
            )
        )
        wanted = wanted[:, ::-1] if flipped[seed] else wanted
        assert (pixels[seed].permute(1, 2, 0).numpy() == wanted).all()


# ------------------------------------------------ damage and verdicts ------------------------------------------------
def test_a_damaged_image_is_named(tmp_path):
    """Bytes that are no image, too few of them, and a header that claims 60,000 x 60,000 pixels, which Pillow calls a
    bomb: an error of its own kind, at one time a traceback. The images beside it are read as ever."""
    good = encoded(smooth(40, 40))
    sizes = good.index(b"\xff\xc0") + 5
    bomb = good[:sizes] + (60_000).to_bytes(2, "big") * 2 + good[sizes + 4 :]
    rows = [(data, 0) for data in (good, b"", b"no image", good[: len(good) // 2], bomb, good)]
    task = Images("train", write_set(tmp_path, {"train": rows}), 8)
    assert task.batch([0, 5], [1, 2]).images.shape == (2, 3, 8, 8)
    for bad in (1, 2, 3, 4):
        for batch in (lambda: task.batch([0, bad]), lambda: task[bad]):
            with pytest.raises(
                UsageError, match=f"^train image {bad} cannot be decoded .* makes it again$"
            ):
                batch()


def test_no_image_starts_another_program(tmp_path, monkeypatch):
    """Pillow opens an EPS by Ghostscript: a shard may come from anywhere."""
    gs = tmp_path / "bin" / "gs"
    gs.parent.mkdir()
    gs.write_text(f"#!/bin/sh\ntouch {tmp_path / 'was-run'}\necho 10.0\n")
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gs.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # asked for once
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    task = Images("train", write_set(tmp_path / "set", {"train": [(eps, 0)]}), size=8)
    with pytest.raises(UsageError, match="train image 0 cannot be decoded"):
        task.batch([0])
    assert not (tmp_path / "was-run").exists()


def test_a_damaged_image_in_a_worker(tmp_path):
    """It does not hang the run, and what arrives is the sentence, not torch's account of the worker around it."""
    rows = [(encoded(smooth(40, 40)), 0), (b"no image", 0)]
    task = Images("train", write_set(tmp_path, {"train": rows}), 8)
    for workers in (0, 1):
        batches = iter(prefetched(task, [([0], [1]), ([1], [1])], workers))
        assert len(next(batches)) == 1
        with pytest.raises(
            UsageError, match=r"^train image 1 cannot be decoded .* makes it again\Z"
        ):
            next(batches)


def test_rewards_and_verdicts(raw):
    """1 where the class drawn is the image's, for every rollout of every image: by batch and by name the same."""
    task = Images("test", raw[0], 12)
    drawn = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2], [0, 0, 0, 0]])
    rewards = task.rewards(task.batch([3, 4, 5]), SimpleNamespace(drawn=drawn))
    assert (
        rewards.tolist() == [[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]]
        and rewards.dtype == torch.float32
    )
    verdicts = [
        [task.verify(task.classes[c], task[i]) for c in row] for i, row in zip((3, 4, 5), drawn)
    ]
    assert verdicts == rewards.tolist() and type(verdicts[0][0]) is float
    assert all(task.verify(text, task[3]) == 0.0 for text in ("", "Cat", " cat", "dog"))


def test_show(tmp_path):
    """Two rows of pixels in one of text: the upper one is the colour of the half block, the lower one its ground."""
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[0, 0], pixels[1, 0], pixels[3, 3] = (1, 2, 3), (4, 5, 6), (7, 8, 9)
    task = Images(
        "test", write_set(tmp_path, {"test": [(pixels.tobytes(), 1)]}, "raw", [4, 4, 3]), 4
    )
    assert task.show("dog", task[0], False) == "right: dog"
    lines = task.show("cat", task[0], True).splitlines()
    assert lines[-1] == "wrong: cat, not dog" and len(lines) == 3
    assert lines[0].startswith("\x1b[38;2;1;2;3m\x1b[48;2;4;5;6m\u2580\x1b[38;2;0;0;0m")
    assert (
        lines[1].endswith("\x1b[38;2;0;0;0m\x1b[48;2;7;8;9m\u2580\x1b[0m")
        and lines[1].count("\u2580") == 4
    )
    wide = Images("test", tmp_path, 100)
    lines = wide.show("dog", wide[0], True).splitlines()[:-1]
    assert [line.count("\u2580") for line in lines] == [34] * 17, (
        "at most 48 pixels either way, all of the image"
    )


def test_options_that_are_refused(raw):
    folder, _ = raw
    with pytest.raises(UsageError, match="no validation split: use --split train or test$"):
        Images("validation", folder)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Images("test", folder, 0)
    with pytest.raises(UsageError, match="colour"):
        load_task("images", "test", directory=str(folder), colour=1)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(UsageError, match="pip install pillow"),
    ):
        patch.setitem(__import__("sys").modules, "PIL", None)
        Images("train", folder)


# ------------------------------------------------------ glyphs ------------------------------------------------------
@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 100 images, two in a file, so that tests draw several."""
    monkeypatch.setattr(prepare, "BLOCK", 100)
    monkeypatch.setattr(prepare, "SHARD", 2)


GLYPHS = (
    "--classes",
    5,
    "--size",
    8,
    "--train",
    250,
    "--validation",
    120,
    "--test",
    100,
    "--workers",
    1,
)


def run(capsys, *args):
    """Exit code and what was said of one run of prepare.py."""
    code = 0
    try:
        prepare.main([str(arg) for arg in args])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out + said.err


def everything(folder, size=8, splits=prepare.SPLITS):
    """{split: (images (M, 3, size, size), labels)}."""
    tasks = {split: Images(split, folder, size, augment=False) for split in splits}
    batches = {split: task.batch(range(len(task))) for split, task in tasks.items() if len(task)}
    return {split: (batch.images.numpy(), batch.labels.numpy()) for split, batch in batches.items()}


def same(a, b):
    return all((x == y).all() for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "BLOCK", 100)
        patch.setattr(prepare, "SHARD", 2)
        out = tmp_path_factory.mktemp("glyphs") / "a"
        prepare.main([*map(str, GLYPHS), "--out", str(out)])
    return out


def test_a_set_of_glyphs(glyphs):
    parts = everything(glyphs)
    assert {split: images.shape for split, (images, _) in parts.items()} == {
        "test": (100, 3, 8, 8),
        "validation": (120, 3, 8, 8),
        "train": (250, 3, 8, 8),
    }
    images = np.concatenate([images for images, _ in parts.values()]).reshape(470, -1)
    assert len(np.unique(images, axis=0)) == 470, "no image twice, none of test in train"
    assert Images("test", glyphs, 8).classes == tuple(f"glyph {i}" for i in range(5))
    shards = ("test-00000", "validation-00000", "train-00000", "train-00001")
    assert set(os.listdir(glyphs)) == {
        f"{shard}.{end}" for shard in shards for end in ("bin", "npy")
    } | {"info.json"}


def test_held_out_images_depend_on_the_seed_alone(glyphs, tmp_path, capsys):
    """Neither --train nor --workers changes them, and fewer images are the first of more."""
    here = everything(glyphs)
    for name, changes in (
        ("workers", ["--workers", 3]),
        ("few", ["--train", 20, "--validation", 110, "--test", 7]),
    ):
        assert run(capsys, *GLYPHS, *changes, "--out", tmp_path / name)[0] == 0
        there = everything(tmp_path / name)
        for split, part in there.items():
            assert same(part, [array[: len(part[0])] for array in here[split]])
    assert same(everything(tmp_path / "workers")["train"], here["train"])
    assert run(capsys, *GLYPHS, "--seed", 1, "--out", tmp_path / "seed")[0] == 0
    other = everything(tmp_path / "seed")
    assert not any((other[split][1] == here[split][1]).all() for split in here)


def test_the_glyphs_of_another_seed_are_others():
    a, b, more = (prepare.make_classes(n, seed) for n, seed in ((50, 0), (50, 1), (50, 0)))
    assert same(a.values(), more.values()) and not any((a[name] == b[name]).all() for name in a)
    assert set(a["corners"]) == {3, 4, 5, 6, 7}


def drawn(labels, classes=10, size=16, noise=0.0, jitter=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return prepare.draw(prepare.make_classes(classes, 0), labels, size, noise, jitter, rng)


def test_labels_are_uniform_and_belong_to_the_images():
    """Chi-square of 20 classes; then the class whose mean image is nearest, over the training blocks, for other images.

    Labels that have slipped by one image would leave it at chance.
    """
    args = SimpleNamespace(classes=20, size=8, noise=0.0, jitter=0.3, seed=0)
    jobs = [("train", n) for n in range(20)] + [("test", n) for n in range(4)]
    blocks = [prepare._block((args, *job, 100)) for job in jobs]
    images, labels = (np.concatenate(arrays) for arrays in zip(*blocks))
    images = (images - images.mean((1, 2), keepdims=True)).reshape(
        2400, -1
    )  # without most of the background's colour
    x, y, u, v = images[:2000], labels[:2000], images[2000:], labels[2000:]
    counts = np.bincount(y, minlength=20)
    assert (
        len(counts) == 20 and ((counts - 100) ** 2 / 100).sum() < 43.8
    )  # 19 degrees of freedom, once in a thousand

    def accuracy(y):
        means = np.stack([x[y == c].mean(0) for c in range(20)])
        return (((u[:, None] - means) ** 2).sum(-1).argmin(1) == v).mean()

    assert accuracy(y) > 0.5 and accuracy(np.roll(y, 1)) < 0.15


def test_without_noise_and_jitter_only_the_background_differs():
    """Two images of a class differ by (1 - cover) x (one background's colour - the other's): a matrix of rank 1, whose
    first factor is the same for every pair; where the glyph covers a pixel they are equal."""
    for c in range(5):
        images = drawn(np.full(8, c)).reshape(8, -1, 3).astype(float) / 255
        masks = []
        for other in images[1:]:
            difference = other - images[0]
            u, s, _ = np.linalg.svd(difference, full_matrices=False)
            assert s[1] < 0.03 * s[0] + 0.05  # rounding to 1/255 in 256 pixels
            masks.append(abs(u[:, 0]) / abs(u[:, 0]).max())
        assert np.ptp(np.stack(masks), axis=0).max() < 0.15
        assert (np.mean(masks, 0) < 0.05).sum() > 10 and (np.mean(masks, 0) > 0.95).sum() > 10
    assert (drawn(np.zeros(2, int), jitter=1.0)[0] != drawn(np.zeros(2, int))[0]).any()


def brute_force(classes, c, size, background, samples=2000):
    """Glyph c by the definitions: distances to many points of a stroke, to the sides' half planes of a polygon."""
    axis = (np.arange(size) + 0.5) / size * 2 - 1
    image = np.broadcast_to(background, (size, size, 3)).copy()
    x, y = axis[None, :, None], axis[:, None, None]
    middle, k = classes["centre"][c], np.arange(classes["corners"][c])
    normals = classes["angle"][c] + 2 * np.pi * (k + 0.5) / len(k)
    distances = [
        ((x - middle[0]) * np.cos(normals) + (y - middle[1]) * np.sin(normals)).max(-1)
        - classes["radius"][c]
    ]
    for (ax, ay), (bx, by) in classes["ends"][c]:
        t = np.linspace(0, 1, samples)
        distances.append(np.hypot(x - ax - t * (bx - ax), y - ay - t * (by - ay)).min(-1))
    distances[1:] = [d - w for d, w in zip(distances[1:], classes["width"][c])]
    for distance, colour in zip(distances, classes["colour"][c][[4, 0, 1, 2, 3]]):
        cover = np.clip(0.5 - distance * size / 3, 0, 1)[..., None]
        image = image * (1 - cover) + cover * colour
    return image * 255


def test_glyphs_against_their_definition():
    """The polygon first, strokes over it; x goes to the right and y down."""
    classes, images = prepare.make_classes(10, 0), drawn(np.arange(10), size=24)
    rng = np.random.default_rng(0)
    for shape in ((10,), (10,), (10, 1, 2), (10, 4, 2, 2), (10, 5, 3)):
        rng.normal(0, 0, shape)  # the jitter, drawn before the background
    background = rng.uniform(0, 1, (10, 1, 3))
    for c in range(10):
        assert abs(images[c] - brute_force(classes, c, 24, background[c])).max() < 1.5


def test_jitter_is_a_turn_a_scale_and_a_shift(monkeypatch):
    """The grid in the glyph's coordinates keeps its right angles and its handedness: a shear would be other glyphs."""
    seen = []
    monkeypatch.setattr(
        prepare, "polygon", lambda where, shape: seen.append(where) or where[..., 0]
    )
    drawn(np.zeros(400, int), size=4, jitter=1.0)
    where = seen[0].astype(float)  # (M, 16, 2)
    right, down = where[:, 1] - where[:, 0], where[:, 4] - where[:, 0]
    lengths = np.hypot(*right.T)
    assert np.allclose(lengths, np.hypot(*down.T), rtol=1e-4) and np.allclose(
        (right * down).sum(1), 0, atol=1e-4
    )
    turned = right[:, 0] * down[:, 1] - right[:, 1] * down[:, 0]
    assert (turned > 0).all() and np.allclose(where[:, 5] - where[:, 0], right + down, atol=1e-4)
    angles = np.arctan2(right[:, 1], right[:, 0])
    assert abs(np.log(lengths / 0.5).std() - 0.15) < 0.02 and abs(angles.std() - 0.25) < 0.03
    assert (abs(where.mean(1).std(0) - 0.15) < 0.02).all()


def test_noise_has_the_standard_deviation_asked_for():
    plain, noisy = (drawn(np.arange(10), size=32, noise=noise).astype(float) for noise in (0, 0.1))
    middle = (plain > 90) & (plain < 165)  # far from black and white, where it is cut off
    assert (
        abs((noisy - plain)[middle].std() / 255 - 0.1) < 0.003
        and abs((noisy - plain)[middle].mean()) < 1
    )


@pytest.mark.parametrize("args, words", [
    (["--classes", 1], ["--classes", "at least 2, got 1"]), (["--size", 3], ["--size", "at least 4, got 3"]),
    (["--train", 0], ["--train", "got 0"]), (["--validation", -1], ["--validation", "got -1"]),
    (["--test", -2], ["--test", "got -2"]), (["--noise", -0.1], ["--noise", "got -0.1"]),
    (["--noise", "nan"], ["--noise", "got nan"]), (["--jitter", -1], ["--jitter", "got -1"]),
    (["--seed", -1], ["--seed", "got -1"]), (["--workers", 0], ["--workers", "got 0"])])  # fmt: skip
def test_prepare_refuses_in_one_sentence(tmp_path, capsys, args, words):
    code, said = run(capsys, *GLYPHS, *args, "--out", tmp_path / "none")
    assert code == 2 and said.count("\n") == 1 and all(word in said for word in words)
    assert not (tmp_path / "none").exists()


def test_prepare_never_overwrites_silently(tmp_path, capsys):
    args = [*GLYPHS, "--train", 10, "--validation", 0, "--out", tmp_path]
    assert run(capsys, *args)[0] == 0
    before = everything(tmp_path)
    assert run(capsys, *args) == (0, f"{tmp_path} holds this set already\n")
    assert run(capsys, *args, "--workers", 2) == (0, f"{tmp_path} holds this set already\n")
    assert list(before) == ["test", "train"] and len(Images("validation", tmp_path, 8)) == 0
    for change in (
        ("--seed", 1),
        ("--noise", 0.2),
        ("--jitter", 0.1),
        ("--train", 11),
        ("--classes", 6),
    ):
        code, said = run(capsys, *args, *change)
        assert (
            code == 2
            and said.count("\n") == 1
            and all(w in said for w in ("another set", "--out", "--overwrite"))
        )
    assert all(same(before[split], part) for split, part in everything(tmp_path).items())
    assert "cannot read or write" in run(capsys, *args[:-1], tmp_path / "info.json")[1]
    os.truncate(tmp_path / "train-00000.bin", 5)  # what Images refuses with "makes it again"
    code, said = run(capsys, *args)
    assert code == 2 and "damaged" in said and "--overwrite" in said
    assert run(capsys, *args, "--overwrite")[0] == 0
    assert all(same(before[split], part) for split, part in everything(tmp_path).items())
    (tmp_path / "info.json").write_text("{")
    assert run(capsys, *args)[0] == 2


def test_overwrite_removes_what_a_set_is_made_of_and_nothing_else(tmp_path, capsys):
    """The larger set's second shard goes, files of other people stay: `train-?????.*` took train-notes.txt with it."""
    foreign = ["notes.txt", "train-notes.txt", "test-model.pt", "train-00000.txt", "train-000001.bin",
               "my-train-00000.npy", "train-00000.bin.bak", "info_json"]  # fmt: skip
    tmp_path.joinpath("mine").mkdir()
    for name in foreign:
        (tmp_path / name).write_text(name)
    assert run(capsys, *GLYPHS, "--out", tmp_path)[0] == 2, "a folder that is not empty is not ours"
    assert run(capsys, *GLYPHS, "--overwrite", "--out", tmp_path)[0] == 0
    assert (tmp_path / "train-00001.bin").exists()
    assert run(capsys, *GLYPHS, "--train", 10, "--overwrite", "--out", tmp_path)[0] == 0
    assert len(Images("train", tmp_path, 8)) == 10 and not (tmp_path / "train-00001.bin").exists()
    assert all((tmp_path / name).read_text() == name for name in foreign)
    assert set(os.listdir(tmp_path)) - {*foreign, "mine"} == {"info.json"} | {
        f"{split}-00000.{end}" for split in prepare.SPLITS for end in ("bin", "npy")
    }


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("after", [0, 2, 3])
def test_an_interrupted_run_leaves_the_set_as_it_was(tmp_path, capsys, monkeypatch, error, after):
    """Over another set, in the worst place: old training images with new test images would leak."""
    assert run(capsys, *GLYPHS, "--out", tmp_path)[0] == 0
    names, before = sorted(os.listdir(tmp_path)), everything(tmp_path)
    written, write = itertools.count(), prepare.write_shard

    def failing(*args):
        if next(written) == after:
            raise error
        write(*args)

    monkeypatch.setattr(prepare, "write_shard", failing)
    code, said = run(capsys, *GLYPHS, "--seed", 5, "--overwrite", "--out", tmp_path)
    assert (
        code in (1, 130) and said.count("\n") == 1 and re.search("interrupted|No space left", said)
    )
    assert sorted(os.listdir(tmp_path)) == names
    assert all(same(before[split], part) for split, part in everything(tmp_path).items())


def test_control_c_reaches_the_workers_too(tmp_path, capfd, monkeypatch):
    """A terminal sends it to all processes: each worker wrote a traceback of its own before the one sentence."""

    def interrupted(*_):
        for child in multiprocessing.active_children():
            os.kill(child.pid, signal.SIGINT)
            child.join(0.2)
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "write_shard", interrupted)
    code, said = run(capfd, *GLYPHS, "--workers", 2, "--out", tmp_path)
    assert (code, said) == (
        130,
        "prepare.py: interrupted, no set was written\n",
    ) and not os.listdir(tmp_path)


@pytest.mark.parametrize("error, code", [(SystemExit(9), 9), (KeyboardInterrupt(), 130)])
@pytest.mark.parametrize("moved", [False, True])
def test_a_crash_before_the_last_step_is_no_set(tmp_path, capsys, monkeypatch, error, code, moved):
    """info.json is written last, and appears last when the files are moved to their places."""
    replace = os.replace

    def dying(source, target):
        if str(target).endswith("info.json") and (Path(target).parent == tmp_path) == moved:
            raise error
        replace(source, target)

    monkeypatch.setattr(prepare.os, "replace", dying)
    assert run(capsys, *GLYPHS, "--out", tmp_path)[0] == code and len(os.listdir(tmp_path)) == (
        8 if moved else 0
    )
    with pytest.raises(FileNotFoundError, match="no complete"):
        Images("train", tmp_path, 8)
    monkeypatch.setattr(prepare.os, "replace", replace)
    assert run(capsys, *GLYPHS, "--out", tmp_path)[0] == (2 if moved else 0)
    assert run(capsys, *GLYPHS, "--overwrite", "--out", tmp_path)[0] == 0
    assert (
        "info.json.incomplete" not in os.listdir(tmp_path)
        and len(everything(tmp_path)["train"][1]) == 250
    )
