"""Pack images in classes into a few large files:  python -m data.imagenet.prepare --source SOURCE

Scales every image to a short side of at most --size pixels and writes shards of JPEGs, in the
format of maxrl/tasks/images.py, into data/imagenet/SIZE/: reading file by file and decoding at full
size would be too slow to feed GPUs. SOURCE has train/ and val/, each with the same class folders,
as ILSVRC is usually unpacked. A label is a position among their sorted names.

Images become RGB, are scaled down (never up) and encoded again; JPEGs in RGB or grey that are small
enough are kept byte for byte. EXIF rotation is not applied, as usual. The images are shuffled by
--seed, so that shards, and the first images of validation, are mixtures.
"""

import argparse
import hashlib
import io
import json
import os
from functools import partial
from pathlib import Path

import numpy as np

from data.common import (
    add_numbers,
    make_parser,
    make_set,
    one_line_errors,
    parallel,
    progress,
    refuse,
)
from maxrl.io.files import DataError
from maxrl.tasks.base import DATA
from maxrl.tasks.images import FORMATS, pillow, write_split

OPTIONS = {
    "size": (256, 1, "short side at most, in pixels"),
    "quality": (90, 1, "of the JPEGs, up to 95"),
    "seed": (0, 0, "shuffles the images"),
    "workers": (os.cpu_count() or 1, 1, "processes"),
}
VERSION = 1  # of the conversion: other bytes are another version
SHARD = 20_000  # images in a file
Row = tuple[Path, int]  # the file of an image and its label


def class_folders(directory: Path) -> list[str]:
    if not directory.is_dir():
        refuse(
            f"there is no {directory}: --source needs train/ and val/ with class folders; ImageNet "
            "is at https://image-net.org"
        )
    folders = [entry for entry in directory.iterdir() if entry.is_dir()]
    return sorted(entry.name for entry in folders if not entry.name.startswith("."))


def list_images(folder: Path, classes: list[str]) -> list[Row]:
    """The files in a folder's class folders by class and name."""
    rows: list[Row] = []
    for label, name in enumerate(classes):
        files = sorted((folder / name).rglob("[!.]*"), key=Path.as_posix)
        rows += [(file, label) for file in files if file.is_file()]
    return rows


def to_jpeg(data: bytes, size: int, quality: int) -> bytes:
    """The image as a JPEG in RGB or grey with a short side of at most `size` pixels."""
    Image = pillow()
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    image.load()  # all of it: a file that was cut off fails here
    short = min(image.size)
    if image.format == "JPEG" and image.mode in ("RGB", "L") and short <= size:
        return data
    image = image.convert("RGB")
    if short > size:
        sides = [round(side * size / short) for side in image.size]
        image = image.resize(sides, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, comment=b"")
    return file.getvalue()


def convert(size: int, quality: int, row: Row) -> tuple[bytes, int]:
    """JPEG and label of an image; DataError if it cannot be decoded."""
    file, label = row
    data = file.read_bytes()
    try:
        return to_jpeg(data, size, quality), label
    except Exception as error:  # a damaged file makes Pillow raise nearly anything
        raise DataError(f"{file} is no image ({type(error).__name__}): remove it") from None


def write(splits: dict[str, list[Row]], args: argparse.Namespace, folder: Path) -> None:
    """Write all shards, shuffled."""
    work = partial(convert, args.size, args.quality)
    for key, (split, rows) in enumerate(splits.items()):
        rng = np.random.default_rng(np.random.SeedSequence(args.seed, spawn_key=(key,)))
        shuffled = [rows[i] for i in rng.permutation(len(rows))]
        images = parallel(work, shuffled, args.workers)
        write_split(folder, split, progress(images, split, total=len(rows), unit=" images"), SHARD)


@one_line_errors()
def main(words: list[str] | None = None) -> None:
    parser = make_parser("imagenet", __doc__, "data/imagenet/SIZE")
    parser.add_argument("--source", type=Path, required=True, help="directory of images, see above")
    add_numbers(parser, OPTIONS)
    args = parser.parse_args(words)
    pillow()  # if it is missing, say so before the listing, which may take minutes
    folders = {"train": args.source / "train", "validation": args.source / "val"}
    classes = class_folders(folders["train"])
    if len(classes) < 2 or class_folders(folders["validation"]) != classes:
        refuse(f"train/ and val/ in {args.source} need the same class folders, two at least")
    splits = {split: list_images(folder, classes) for split, folder in folders.items()}
    # Names and sizes, by which the same source is known again wherever it lies.
    files = [
        (file.relative_to(args.source).as_posix(), file.stat().st_size)
        for rows in splits.values()
        for file, _ in rows
    ]
    counts = {split: len(rows) for split, rows in splits.items()}
    info = {
        "encoding": "jpeg",
        "classes": classes,
        "version": VERSION,
        "source": hashlib.sha256(json.dumps(files).encode()).hexdigest(),
        "size": args.size,
        "quality": args.quality,
        "seed": args.seed,
        "shard_images": SHARD,
        "counts": counts,
    }
    folder = args.out or DATA / "imagenet" / str(args.size)
    if make_set(folder, info, args, partial(write, splits, args)):
        print(f"wrote {sum(counts.values()):,} images of {len(classes):,} classes to {folder}")


if __name__ == "__main__":
    main()
