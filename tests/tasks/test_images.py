"""Images are stored, cut out, augmented, scored and shown as they should be."""

import io
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maxrl.learning.prompt_order import prefetched
from maxrl.system.errors import UsageError
from maxrl.system.files import write_json
from maxrl.tasks import images as images_module
from maxrl.tasks import load_task
from maxrl.tasks.images import Images, Shards, centre_box, random_box, write_shard

Image = pytest.importorskip("PIL.Image")
hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SIZES = st.integers(1, 5000)


def smooth(width, height, seed=0):
    """An image of soft spots, which lose little in JPEG and in resizing."""
    spots = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image, kind="JPEG", mode="RGB"):
    file = io.BytesIO()
    image.convert(mode).save(file, kind)
    return file.getvalue()


def write_set(folder, shape=None, **splits):
    """A set of lists of (bytes, label), in one shard each; raw images if they have a shape."""
    for split, rows in splits.items():
        write_shard(folder, split, 0, rows)
    counts = {split: len(rows) for split, rows in splits.items()}
    info = {"classes": ["cat", "dog", "emu"], "counts": counts, "shape": shape}
    write_json(folder / "info.json", info)
    return folder


def single(folder, data, size, shape=None):
    """The task of a set of one image."""
    return Images("train", write_set(folder, shape, train=[(data, 0)]), size)


# --------------------------------------------- shards ---------------------------------------------
def test_bytes_in_are_bytes_out(tmp_path):
    """Over several shards of any lengths, an empty one among them; splits are not mixed."""
    rng = np.random.default_rng(0)
    written = []
    for number, size in enumerate((5, 1, 0, 30, 2)):
        rows = [(rng.bytes(int(n)), int(n) % 9) for n in rng.integers(0, 40, size)]
        write_shard(tmp_path, "train", number, rows)
        written += rows
    write_shard(tmp_path, "test", 0, [(b"other", 3)])
    read = Shards(tmp_path, "train", 38)
    assert [(read[i], int(label)) for i, label in enumerate(read.index["label"])] == written
    assert Shards(tmp_path, "test", 1)[0] == b"other"
    assert len(Shards(tmp_path, "never written", 0).index) == 0
    assert read.index["offset"].dtype == np.uint64, "a shard may have more than 4 GiB"


@pytest.mark.parametrize("missing", ["train-00000.bin", "train-00000.npy", ""])
def test_damaged_sets_are_refused(tmp_path, missing):
    """A file is missing, or there is one too many; tests/faults damages bytes of every file."""
    write_set(tmp_path, train=[(b"one", 0), (b"other", 1)])
    if missing:
        (tmp_path / missing).unlink()
    else:
        write_shard(tmp_path, "train", 1, [(b"more", 0)])
    with pytest.raises(UsageError, match=f"{tmp_path}.* again"):
        load_task("images", "train", directory=str(tmp_path))


# ---------------------------------------- what is cut out -----------------------------------------
@settings(max_examples=300, deadline=None)
@given(SIZES, SIZES)
def test_centre_box_is_a_square_in_the_middle(width, height):
    """Of 224 whole pixels after torchvision's Resize(256)."""
    left, upper, right, lower = centre_box(width, height)
    short = min(width, height)
    for first, last, side in ((left, right, width), (upper, lower, height)):
        resized = int(256 * side / short)
        first *= resized / side
        last *= resized / side
        assert math.isclose(last - first, 224)
        assert math.isclose(first, round(first), abs_tol=1e-6)
        assert abs(first + last - resized) < 1.001
        assert 0 < first < last < resized


@settings(max_examples=300, deadline=None)
@given(SIZES, SIZES, st.integers(0, 2**32))
def test_random_box_lies_inside_and_is_not_empty(width, height, seed):
    """Area and aspect are as asked for, up to the rounding of the sides to whole pixels."""
    left, upper, right, lower = random_box(width, height, np.random.default_rng(seed))
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height
    w = right - left
    h = lower - upper
    assert (w - 0.5) / (h + 0.5) <= 4 / 3
    assert (w + 0.5) / (h - 0.5) >= 3 / 4
    if 0.5 < width / height < 2:
        assert (w + 0.5) * (h + 0.5) >= 0.08 * width * height


@pytest.mark.parametrize(
    "width, height, box", [(100, 10, (43, 0, 56, 10)), (10, 100, (0, 43, 10, 56))]
)
def test_after_ten_tries_the_centre_is_taken(width, height, box):
    """As by torchvision: the largest centre box of an aspect in the range."""
    rng = SimpleNamespace(uniform=lambda low, high: high if low > 0 else 0.0)
    assert random_box(width, height, rng) == box


def test_random_boxes_are_spread_as_they_should_be():
    """Area, log aspect and corners are uniform: their means up to five standard errors. A square
    has no room for areas near 1 at an aspect far from 1, so that the area is uniform only below
    3/4 of it. Of uniform sides its mean would be lower by 14 standard errors.
    """
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(3000, 3000, rng) for _ in range(4000)])
    sides = boxes[:, 2:] - boxes[:, :2]  # (boxes, 2)
    area = sides.prod(1) / 3000**2
    few = area < 0.74
    values = {
        "area": (area - 0.08) / (0.74 - 0.08),
        "aspect": 0.5 + np.log(sides[:, 0] / sides[:, 1]) / (2 * math.log(4 / 3)),
        "corner": boxes[:, :2] / (3000 - sides).clip(1),
    }
    for name, uniform in values.items():
        error = abs(uniform[few].mean(0) - 0.5)
        assert error.max() < 5 * (12 * few.sum()) ** -0.5, name


# -------------------------------------------- the task --------------------------------------------
@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """24 images of several shapes in train, 6 in validation. As in ImageNet, some are grey or CMYK,
    and some are PNGs.
    """
    shapes = [(300, 300), (400, 280), (260, 390), (256, 256), (64, 48), (500, 270)]
    kinds = ["JPEG RGB", "JPEG L", "JPEG CMYK", "PNG RGBA", "JPEG RGB", "JPEG RGB"]
    rows = []
    for i in range(24):
        image = smooth(*shapes[i % 6], seed=i)
        rows.append((encoded(image, *kinds[i % 6].split()), i % 3))
    return write_set(tmp_path_factory.mktemp("photos"), train=rows, validation=rows[:6])


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """10 raw images of 12x12 in train and test, and their pixels (10, 12, 12, 3)."""
    pixels = np.random.default_rng(0).integers(0, 256, (10, 12, 12, 3), dtype=np.uint8)
    rows = [(image.tobytes(), i % 3) for i, image in enumerate(pixels)]
    folder = tmp_path_factory.mktemp("raw")
    return write_set(folder, [12, 12, 3], train=rows, test=rows), pixels


def test_raw_images_are_taken_as_they_are(raw, monkeypatch):
    """Channels first, in the order asked for, and not even Pillow is needed."""
    folder, pixels = raw
    monkeypatch.setattr(images_module, "pillow", lambda: pytest.fail("Pillow was asked for"))
    task = Images("test", folder, 12)
    batch = task.batch([7, 0, 7, 2], [[1, 2]] * 4)  # seeds are for training
    assert batch.images.dtype == torch.uint8
    assert batch.images.is_contiguous()
    assert (batch.images.numpy() == pixels[[7, 0, 7, 2]].transpose(0, 3, 1, 2)).all()
    assert batch.labels.dtype == torch.int64
    assert batch.labels.tolist() == [1, 0, 1, 2]
    assert task[5].answer == "emu"
    assert task[5].columns["label"] == 2


def test_raw_images_of_another_size_are_cut_and_resized(raw):
    folder, pixels = raw
    batch = Images("train", folder, 6, augment=False).batch(range(10))
    box = centre_box(12, 12)
    for image, p in zip(batch.images, pixels):
        wanted = Image.fromarray(p).resize((6, 6), Image.Resampling.BILINEAR, box=box)
        assert (image.permute(1, 2, 0).numpy() == np.asarray(wanted)).all()


@pytest.mark.parametrize("i", range(6))
def test_short_side_to_256_then_224_of_the_centre(photos, i):
    """The published two steps, of which the first rounds the long side to whole pixels.

    Without the crop it would be another picture.
    """
    task = Images("validation", photos, 224)
    original = Image.open(io.BytesIO(task.shards[i])).convert("RGB")
    short = min(original.size)
    width, height = (round(side * 256 / short) for side in original.size)
    left = (width - 224) // 2
    upper = (height - 224) // 2
    resized = original.resize((width, height), Image.Resampling.BILINEAR)
    two_steps = resized.crop((left, upper, left + 224, upper + 224))
    difference = abs(np.subtract(task.pixels(i, None), two_steps, dtype=int))
    assert difference.mean() < 1.5
    assert difference.max() < 10
    whole = original.resize((224, 224), box=(0, 0, short, short))
    assert abs(np.subtract(whole, two_steps, dtype=int)).mean() > 6


@pytest.mark.parametrize("width, height", [(1, 1), (1, 700), (3000, 5)])
def test_images_of_any_shape(tmp_path, width, height):
    task = single(tmp_path, encoded(smooth(width, height)), 16)
    assert task.batch([0] * 40, range(40)).images.shape == (40, 3, 16, 16)
    assert task.batch([0]).images.shape == (1, 3, 16, 16)


# ------------------------------------------ augmentation ------------------------------------------
def test_augmentation_is_a_function_of_the_seed(photos):
    """Not of the batch or its order; that a resumed run sees the same images, whatever its
    workers, is in tests/runs. Only training is augmented."""
    task = Images("train", photos, 32)
    seeds = [(7, i) for i in range(24)]
    whole = task.batch(range(24), seeds)
    some = [20, 3, 4]
    batch = task.batch(some, [seeds[i] for i in some])
    assert torch.equal(batch.images, whole.images[some])
    assert torch.equal(batch.labels, whole.labels[some])
    others = task.batch(range(24), [(8, i) for i in range(24)]).images
    assert (whole.images != others).flatten(1).any(1).all()
    plain = Images("train", photos, 32, augment=False).batch(range(6)).images
    held_out = Images("validation", photos, 32).batch(range(6), seeds[:6]).images
    assert torch.equal(held_out, plain)
    assert not torch.equal(whole.images[:6], plain)


def test_half_are_flipped(tmp_path):
    """A raw image that grows brighter from left to right tells."""
    ramp = np.tile(np.linspace(0, 255, 200).astype(np.uint8)[:, None], (150, 1, 3))
    task = single(tmp_path, ramp.tobytes(), 8, [150, 200, 3])
    pixels = task.batch([0] * 1000, range(1000)).images.float()
    flipped = pixels[:, 0, 0, 0] > pixels[:, 0, 0, -1]
    assert abs(flipped.float().mean() - 0.5) < 0.05  # three standard errors


# -------------------------------------- damage and verdicts ---------------------------------------
def test_changed_bytes_are_named(tmp_path):
    """The images beside it are read as ever, and a worker passes the sentence on."""
    folder = write_set(tmp_path, [1, 1, 3], test=[(b"one", 0), (b"two", 0)])
    (folder / "test-00000.bin").write_bytes(b"oneone")
    batches = prefetched(Images("test", folder, 1), [([0], [1]), ([1], [1])], workers=1)
    assert len(next(batches)) == 1
    words = r"image 1 in .* is not what its checksum says: make .* again\Z"
    with pytest.raises(UsageError, match=words):
        next(batches)


def test_no_room_for_a_workers_images(tmp_path, monkeypatch):
    """As in a container whose /dev/shm has 64 MB. The worker was once waited for forever."""
    folder = write_set(tmp_path, [1, 1, 3], test=[(b"one", 0), (b"two", 0)])

    def full(tensor):
        raise RuntimeError("unable to allocate shared memory(shm)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(UsageError, match="unable to allocate shared memory"):
        next(prefetched(Images("test", folder, 1), [([0], [1])], workers=1))


def test_no_image_starts_another_program(tmp_path):
    """Pillow opens an EPS by Ghostscript, and a shard may come from anywhere."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    assert Image.open(io.BytesIO(eps)).format == "EPS"
    with pytest.raises(OSError, match="cannot identify image"):
        single(tmp_path, eps, 8).batch([0])


def test_verdicts_by_name(raw):
    """Rewards of draws are in runs/test_metrics.py."""
    task = Images("test", raw[0], 12)
    for name in ("cat", "dog", "", "Dog", " dog"):
        assert task.show(name, task[4]).startswith("right" if name == "dog" else "wrong")


def test_without_pillow(raw, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match="pip install pillow"):
        Images("train", raw[0])
