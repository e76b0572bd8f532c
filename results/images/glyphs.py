"""Draw a set of images from a seed, no download:  python -m results.images.glyphs --classes 100

A class is a glyph: a filled polygon and a few strokes, each with a place, width and colour of its
own. An image of it is turned, scaled and shifted, with jittered corners and colours, on a
background of a random colour, under noise. Writes train, validation and test in the format of
maxrl/tasks/images.py into data/glyphs/CLASSESxSIZE/. Every block of images has its own generator,
so that held-out images are the same whatever --train and --workers are.
"""

import argparse
import itertools
from functools import partial
from pathlib import Path

import numpy as np

from data.common import (
    SPLITS,
    make_parser,
    make_set,
    one_line_errors,
    parallel,
    parsed,
    progress,
)
from maxrl.system.distributed import cores
from maxrl.tasks.base import DATA
from maxrl.tasks.images import write_split

OPTIONS = {
    "classes": (200, 2, "kinds of glyph"),
    "size": (32, 4, "pixels on a side"),
    "train": (30_000, 1, "training images"),
    "validation": (2_000, 0, "validation images"),
    "test": (2_000, 0, "test images"),
    "seed": (0, 0, "decides classes and images"),
    "workers": (cores(), 1, "processes"),
}
VERSION = 1  # of the drawing: other images are another version
BLOCK = 1000  # images drawn at once, part of the set's definition
SHARD = 50_000  # images in a file
STROKES = 4
NOISE = 0.15  # standard deviation, where black is 0 and white 1
JITTER = 0.8  # how much the images of a class differ


def make_classes(count: int, seed: int) -> dict[str, np.ndarray]:
    """The glyphs: strokes from a to b (C, S, 2) in [-1, 1], half widths, colours and polygons."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(99,)))
    return {
        "ends": rng.uniform(-0.8, 0.8, (count, STROKES, 2, 2)),
        "width": rng.uniform(0.06, 0.16, (count, STROKES)),
        "colour": rng.uniform(0, 1, (count, STROKES + 1, 3)),
        "centre": rng.uniform(-0.5, 0.5, (count, 2)),
        "radius": rng.uniform(0.2, 0.5, count),
        "corners": rng.integers(3, 8, count),
        "angle": rng.uniform(0, 2 * np.pi, count),
    }


def draw(
    classes: dict[str, np.ndarray], labels: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """Images uint8 (M, size, size, 3) of the labels (M,); edges are softened over 1.5 pixels."""
    M = len(labels)
    f = np.float32
    axis = (np.arange(size) + 0.5) / size * 2 - 1
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(1, -1, 2)  # (1, pixels, 2) of (x, y)
    turn = rng.normal(0, 0.25 * JITTER, M)
    scale = np.exp(rng.normal(0, 0.15 * JITTER, M))
    rotation = np.stack([np.cos(turn), -np.sin(turn), np.sin(turn), np.cos(turn)], -1)
    rotation = rotation.reshape(M, 2, 2) / scale[:, None, None]
    shift = rng.normal(0, 0.15 * JITTER, (M, 1, 2))
    where = ((grid - shift) @ rotation).astype(f)  # (M, pixels, 2) in the glyph's coordinates
    ends = (classes["ends"][labels] + rng.normal(0, 0.06 * JITTER, (M, STROKES, 2, 2))).astype(f)
    colour = classes["colour"][labels] + rng.normal(0, 0.1 * JITTER, (M, STROKES + 1, 3))
    colour = np.clip(colour, 0, 1).astype(f)
    background = rng.uniform(0, 1, (M, 1, 3)).astype(f)
    image = np.broadcast_to(background, (M, size * size, 3))

    glyphs = {name: values[labels].astype(f) for name, values in classes.items()}
    strokes = [stroke(where, ends[:, s], glyphs["width"][:, s]) for s in range(STROKES)]
    # The polygon lies below the strokes, and its colour is the last one.
    for part, distance in enumerate([polygon(where, glyphs), *strokes], -1):
        cover = np.clip(0.5 - distance * f(size / 3), 0, 1)[..., None]  # (M, pixels, 1)
        image = image + cover * (colour[:, part, None] - image)
    image = image + rng.standard_normal(image.shape, f) * f(NOISE)
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8).reshape(M, size, size, 3)


def polygon(where: np.ndarray, glyphs: dict[str, np.ndarray]) -> np.ndarray:
    """Distance (M, pixels) of points (M, pixels, 2) to regular polygons, negative inside."""
    x, y = (where - glyphs["centre"][:, None]).transpose(2, 0, 1)  # (M, pixels) each
    wedge = 2 * np.float32(np.pi) / glyphs["corners"][:, None]
    # The angle from the middle of the nearest side.
    folded = (np.arctan2(y, x) - glyphs["angle"][:, None]) % wedge - wedge / 2
    return np.hypot(x, y) * np.cos(folded) - glyphs["radius"][:, None]


def stroke(where: np.ndarray, ends: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Distance (M, pixels) of points (M, pixels, 2) to a line (M, 2, 2) of half width (M,)."""
    a = ends[:, 0, None]  # (M, 1, 2)
    b = ends[:, 1, None]  # (M, 1, 2)
    along = np.clip(((where - a) * (b - a)).sum(-1) / ((b - a) ** 2).sum(-1).clip(1e-6), 0, 1)
    x, y = (where - a - along[..., None] * (b - a)).transpose(2, 0, 1)
    return np.hypot(x, y) - width[:, None]


def draw_block(args: argparse.Namespace, split: str, number: int) -> list[tuple[bytes, int]]:
    """A block of images, as bytes with their labels."""
    key = (SPLITS.index(split), number)
    rng = np.random.default_rng(np.random.SeedSequence(args.seed, spawn_key=key))
    classes = make_classes(args.classes, args.seed)
    labels = rng.integers(0, args.classes, BLOCK)
    images = draw(classes, labels, args.size, rng)
    return [(image.tobytes(), int(label)) for image, label in zip(images, labels)]


def write_splits(args: argparse.Namespace, counts: dict[str, int], folder: Path) -> None:
    """Write all shards; a block is a job for a worker."""
    for split, count in counts.items():
        numbers = range(-(-count // BLOCK))
        blocks = parallel(partial(draw_block, args, split), numbers, args.workers)
        images = itertools.islice(itertools.chain.from_iterable(blocks), count)
        write_split(folder, split, progress(images, split, total=count, unit=" images"), SHARD)


@one_line_errors()
def main(words: list[str] | None = None) -> None:
    parser = make_parser("glyphs", __doc__, "data/glyphs/CLASSESxSIZE")
    parser.prog = "python -m results.images.glyphs"
    args = parsed(parser, words, OPTIONS)
    counts = {split: getattr(args, split) for split in SPLITS}
    info = {
        "encoding": "raw",
        "shape": [args.size, args.size, 3],
        "counts": counts,
        "drawn": {"version": VERSION, "seed": args.seed, "noise": NOISE, "jitter": JITTER},
        "classes": [f"glyph {i}" for i in range(args.classes)],
    }
    folder = args.out or DATA / "glyphs" / f"{args.classes}x{args.size}"
    if make_set(folder, info, args, partial(write_splits, args, counts)):
        print(f"drew {sum(counts.values()):,} images of {args.classes} classes into {folder}")


if __name__ == "__main__":
    main()
