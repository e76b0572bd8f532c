"""Draw a set of images from a seed, no download:  python -m data.glyphs.prepare --classes 100 --size 16 --train 20000

A class is a glyph: a filled polygon and a few strokes with places, widths and colours of its own. An image of it is
turned, scaled, shifted, with jittered corners and colours, before a background of a random colour, under noise. Writes
train, validation and test in the format of maxrl/tasks/images.py into data/glyphs/CLASSESxSIZE/. Every block of images
has its own generator, so that held-out images are the same whatever --train and --workers are.
"""

import argparse
import os
from functools import partial
from pathlib import Path

import numpy as np

from data.common import (
    SPLITS,
    add_options,
    check_limits,
    make_set,
    one_line_errors,
    parallel,
    parse_arguments,
    progress,
)
from maxrl.tasks.images import DATA, DRAWN, check_images, write_shard

VERSION = 1  # of the drawing: other images are another version
BLOCK = 1000  # images drawn at once, part of the set's definition
SHARD = 50  # blocks in a file
STROKES = 4
ABOUT = {
    "classes": "kinds of glyph",
    "size": "pixels, square",
    "train": "training images",
    "validation": "held out",
    "test": "held out",
    "noise": "its standard deviation, black 0, white 1",
    "jitter": "how much images of a class differ",
    "seed": "decides classes and images",
    "workers": "processes",
}


def make_classes(count: int, seed: int) -> dict[str, np.ndarray]:
    """The glyphs: strokes from a to b (C, S, 2) in [-1, 1], half widths and colours, and a polygon each."""
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
    classes: dict,
    labels: np.ndarray,
    size: int,
    noise: float,
    jitter: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Images uint8 (M, size, size, 3) of the labels (M,); every edge is softened over a pixel and a half."""
    M = len(labels)
    f = np.float32
    axis = (np.arange(size) + 0.5) / size * 2 - 1
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(1, -1, 2)  # (1, pixels, 2) of (x, y)
    turn = rng.normal(0, 0.25 * jitter, M)
    scale = np.exp(rng.normal(0, 0.15 * jitter, M))
    rotation = (
        np.stack([np.cos(turn), -np.sin(turn), np.sin(turn), np.cos(turn)], -1).reshape(M, 2, 2)
        / scale[:, None, None]
    )
    where = ((grid - rng.normal(0, 0.15 * jitter, (M, 1, 2))) @ rotation).astype(
        f
    )  # (M, pixels, 2) in the glyph
    ends = (classes["ends"][labels] + rng.normal(0, 0.06 * jitter, (M, STROKES, 2, 2))).astype(f)
    colour = np.clip(
        classes["colour"][labels] + rng.normal(0, 0.1 * jitter, (M, STROKES + 1, 3)), 0, 1
    ).astype(f)
    image = np.broadcast_to(rng.uniform(0, 1, (M, 1, 3)).astype(f), (M, size * size, 3)).copy()

    shape = {
        name: classes[name][labels].astype(f)
        for name in ("centre", "radius", "corners", "angle", "width")
    }
    strokes = [stroke(where, ends[:, s], shape["width"][:, s]) for s in range(STROKES)]
    for part, distance in enumerate(
        [polygon(where, shape), *strokes], -1
    ):  # the polygon's colour is the last
        cover = np.clip(0.5 - distance * f(size / 3), 0, 1)[..., None]  # (M, pixels, 1)
        image += cover * (colour[:, part, None] - image)
    image = image + rng.standard_normal(image.shape, f) * f(noise)
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8).reshape(M, size, size, 3)


def polygon(where: np.ndarray, shape: dict) -> np.ndarray:
    """Distance (M, pixels) of the points (M, pixels, 2) to a regular polygon's sides, negative inside."""
    x, y = (where - shape["centre"][:, None]).transpose(2, 0, 1)  # (M, pixels) each
    wedge = 2 * np.float32(np.pi) / shape["corners"][:, None]
    folded = (
        np.arctan2(y, x) - shape["angle"][:, None]
    ) % wedge - wedge / 2  # from the middle of a side
    return np.hypot(x, y) * np.cos(folded) - shape["radius"][:, None]


def stroke(where: np.ndarray, ends: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Distance (M, pixels) of the points (M, pixels, 2) to a line with round ends (M, 2, 2) and half width (M,)."""
    a = ends[:, 0, None]  # (M, 1, 2)
    b = ends[:, 1, None]  # (M, 1, 2)
    along = np.clip(((where - a) * (b - a)).sum(-1) / ((b - a) ** 2).sum(-1).clip(1e-6), 0, 1)
    x, y = (where - a - along[..., None] * (b - a)).transpose(2, 0, 1)
    return np.hypot(x, y) - width[:, None]


def _block(job) -> tuple[np.ndarray, np.ndarray]:
    """Block `number` of a split: images (M, size, size, 3) and labels (M,)."""
    args, split, number, count = job
    rng = np.random.default_rng(
        np.random.SeedSequence(args.seed, spawn_key=(SPLITS.index(split), number))
    )
    labels = rng.integers(0, args.classes, BLOCK)
    images = draw(
        make_classes(args.classes, args.seed), labels, args.size, args.noise, args.jitter, rng
    )
    return images[:count], labels[:count]


def write(folder: Path, args: argparse.Namespace, counts: dict[str, int]) -> dict:
    """All shards; a block is a job for a worker."""
    jobs = [
        (args, split, n, min(BLOCK, count - n * BLOCK))
        for split, count in counts.items()
        for n in range(-(-count // BLOCK))
    ]
    with progress(total=sum(counts.values()), unit=" images") as bar:
        shard = []
        for (_, split, n, _), (images, labels) in zip(jobs, parallel(_block, jobs, args.workers)):
            shard += [(image.tobytes(), label) for image, label in zip(images, labels.tolist())]
            bar.update(len(images))
            if (n + 1) % SHARD == 0 or (n + 1) * BLOCK >= counts[split]:
                write_shard(folder, split, n // SHARD, shard)
                shard = []
    return {}


@one_line_errors()
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m data.glyphs.prepare", description="Draw a set of images from a seed."
    )
    add_options(parser, DRAWN | {"workers": os.cpu_count()}, ABOUT)
    parser.add_argument(
        "--out", type=Path, help="directory to write (default data/glyphs/CLASSESxSIZE)"
    )
    args = parse_arguments(parser, argv)
    check_limits(
        args,
        {
            "classes": 2,
            "size": 4,
            "train": 1,
            "validation": 0,
            "test": 0,
            "noise": 0,
            "jitter": 0,
            "seed": 0,
            "workers": 1,
        },
    )
    counts = {split: getattr(args, split) for split in SPLITS}
    folder = args.out or DATA / "glyphs" / f"{args.classes}x{args.size}"
    info = {
        "encoding": "raw",
        "shape": [args.size, args.size, 3],
        "counts": counts,
        "drawn": {
            "version": VERSION,
            "seed": args.seed,
            "noise": args.noise,
            "jitter": args.jitter,
        },
        "classes": [f"glyph {i}" for i in range(args.classes)],
    }
    if make_set(
        folder, info, args, lambda new: write(new, args, counts), partial(check_images, folder)
    ):
        print(
            f"drew {sum(counts.values()):,} images of {args.classes} classes, {args.size}x{args.size}, into {folder}"
        )


if __name__ == "__main__":
    main()
