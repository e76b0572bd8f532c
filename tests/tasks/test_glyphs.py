"""Drawn images: a set is a function of its options, and a label belongs to its image."""

import numpy as np
import pytest

from data.glyphs import prepare
from maxrl.tasks.images import Images
from tests.helpers.pictures import run

pytest.importorskip("PIL")
COUNTS = {"train": 250, "validation": 120, "test": 100}
GLYPHS = ["--classes", 5, "--size", 8, "--workers", 1]
GLYPHS += [word for split, count in COUNTS.items() for word in (f"--{split}", count)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 100 images, two in a file, so that tests draw several."""
    monkeypatch.setattr(prepare, "BLOCK", 100)
    monkeypatch.setattr(prepare, "SHARD", 200)


@pytest.fixture
def make(tmp_path, capsys):
    def made(name, *options):
        """{split: (images (M, 3, size, size), labels)} of a set that is made in a folder."""
        folder = tmp_path / name
        assert run(capsys, *GLYPHS, *options, "--out", folder, main=prepare.main)[0] == 0
        batches = {}
        for split in COUNTS:
            task = Images(split, folder, 8, augment=False)
            batches[split] = task.batch(range(len(task)))
        return {split: (b.images.numpy(), b.labels.numpy()) for split, b in batches.items()}

    return made


def test_a_set_of_glyphs(make, tmp_path):
    parts = make("a")
    assert {split: len(labels) for split, (_, labels) in parts.items()} == COUNTS
    images = np.concatenate([images for images, _ in parts.values()])
    assert len(np.unique(images, axis=0)) == 470, "no image twice, none of test in train"
    assert Images("test", tmp_path / "a", 8).classes == tuple(f"glyph {i}" for i in range(5))
    assert len(list((tmp_path / "a").glob("train-*.bin"))) == 2


def test_held_out_images_depend_on_the_seed_alone(make):
    """Neither --train nor --workers changes them, and fewer images are the first of more."""
    here = make("here")
    for options in (["--workers", 3], ["--train", 20, "--validation", 110, "--test", 7]):
        for split, (images, labels) in make(str(len(options)), *options).items():
            count = len(labels)
            assert (images == here[split][0][:count]).all()
            assert (labels == here[split][1][:count]).all()
    for split, (_, labels) in make("seed", "--seed", 1).items():
        assert (labels != here[split][1]).any()


def test_labels_belong_to_the_images(make, monkeypatch):
    """The class whose mean image is nearest is right for held-out images, by far above chance.

    Labels that have slipped by one image leave it at chance.
    """
    monkeypatch.setattr(prepare, "NOISE", 0)
    monkeypatch.setattr(prepare, "JITTER", 0.3)
    parts = make("plain", "--train", 2000)
    # (M, values) without most of the background's colour
    x, u = (
        (images - images.mean((2, 3), keepdims=True)).reshape(len(images), -1)
        for images, _ in (parts["train"], parts["test"])
    )

    def accuracy(y):
        means = np.stack([x[y == c].mean(0) for c in range(5)])
        nearest = ((u[:, None] - means) ** 2).sum(-1).argmin(1)
        return (nearest == parts["test"][1]).mean()

    labels = parts["train"][1]
    assert accuracy(labels) > 0.8
    assert accuracy(np.roll(labels, 1)) < 0.4


def test_noise_and_jitter_are_what_they_say(monkeypatch):
    def drawn(noise, jitter):
        monkeypatch.setattr(prepare, "NOISE", noise)
        monkeypatch.setattr(prepare, "JITTER", jitter)
        rng = np.random.default_rng(0)
        return prepare.draw(prepare.make_classes(10, 0), np.arange(10), 16, rng).astype(float)

    plain = drawn(0, 0)
    noise = drawn(0.1, 0) - plain
    middle = (plain > 90) & (plain < 165)  # far from black and white, where it is cut off
    assert abs(noise[middle].std() / 255 - 0.1) < 0.01
    assert (drawn(0, 1) != plain).any()
