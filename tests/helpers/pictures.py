"""Mazes for tests, drawn, generated and made by a prepare.py command; JPEGs of noise."""

import itertools

import numpy as np
import pytest

from data.maze import prepare
from maxrl.tasks.maze import generate, unpack


def mazes(size, count, seed=0):
    return unpack(generate(size, count, np.random.default_rng(seed)), size)  # (M, n, n)


def looped(size, count, seed=0):
    """Mazes with some further inner squares open, pillars among them."""
    opened = np.random.default_rng(seed).random((count, size - 2, size - 2)) < 0.2
    return mazes(size, count, seed) & ~np.pad(opened, ((0, 0), (1, 1), (1, 1)))


def picture(text):
    """A prompt from a drawing: # wall, . path, S, G."""
    names = {"#": "WALL", ".": "PATH", "S": "START", "G": "GOAL"}
    rows = [" ".join(names[c] for c in line) for line in text.split()]
    return f"<bos> GRID_START {' NEWLINE '.join(rows)} NEWLINE GRID_END PATH_START"


def run(capsys, *args, main=prepare.main):
    """Exit code and output of one run of a prepare.py command."""
    code = 0
    try:
        main([str(arg) for arg in args])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out + said.err


def jpegs(source, classes, counts, size):
    """Write JPEGs of noise into class folders; `counts` says how many in train and val."""
    Image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for split, name in itertools.product(counts, classes):
        folder = source / split / name
        folder.mkdir(parents=True)
        for i in range(counts[split]):
            pixels = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize(size).save(folder / f"{i}.JPEG")


def splits(out):
    return {split: np.load(out / f"{split}.npy") for split in prepare.SPLITS}


CORRIDOR = picture("##### #S.## ##.## ##.G# #####")  # RIGHT DOWN DOWN RIGHT


OPEN = picture("S.. ... ..G")  # no border: stepping off it is a failure like a wall
