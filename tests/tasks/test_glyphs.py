"""Drawn images: a set is a function of its options, and a label belongs to its image."""

import numpy as np
import pytest

from maxrl.tasks.images import Images
from results.images import glyphs as prepare
from tests.helpers.pictures import run

pytest.importorskip("PIL")
COUNTS = {"train": 250, "validation": 120, "test": 100}
GLYPHS = ["--classes", 5, "--size", 8, "--workers", 1]
GLYPHS += [word for split, count in COUNTS.items() for word in (f"--{split}", count)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 100 images, so that tests draw several."""
    monkeypatch.setattr(prepare, "BLOCK", 100)


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
    """Images of a class are alike but for their background, in all splits; labels that have
    slipped by one image are those of others."""
    monkeypatch.setattr(prepare, "NOISE", 0)
    monkeypatch.setattr(prepare, "JITTER", 0)
    parts = make("plain").values()
    images = np.concatenate([images for images, _ in parts]).astype(float)
    labels = np.concatenate([labels for _, labels in parts])

    def spread(labels):
        return sum(images[labels == c].std(0).mean() for c in range(5))

    assert spread(labels) < 0.9 * spread(np.roll(labels, 1))


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
