"""Pack images in classes into a few large files:  python -m data.imagenet.prepare --source SOURCE

Scales every image to a short side of at most --size pixels and writes shards of JPEGs, in the
format of maxrl/tasks/images.py, into data/imagenet/SIZE/: reading file by file and decoding at full
size would be too slow to feed GPUs. SOURCE is one of

    train/ and val/, each with the same class folders, as ILSVRC is usually unpacked
        python -m data.imagenet.prepare --source /data/ILSVRC2012
    train-*.parquet and validation-*.parquet, there or in data/, as on the hub (needs pyarrow)
        hf download --repo-type dataset benjamin-paine/imagenet-1k-256x256 --local-dir /data/in1k
        python -m data.imagenet.prepare --source /data/in1k

A label is a position among the sorted names of the class folders, or the one in the parquet file.

Images become RGB, are scaled down (never up) and encoded again; JPEGs in RGB or grey that are small
enough are kept byte for byte. EXIF rotation is not applied, as usual. The images of folders are
shuffled by --seed, so that shards, and the first images of validation, are mixtures; parquet rows
keep their order.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from data.common import (
    make_parser,
    make_set,
    one_line_errors,
    parallel,
    parsed,
    progress,
)
from maxrl.system.distributed import cores
from maxrl.system.errors import UsageError
from maxrl.system.files import DataError
from maxrl.system.tables import open_parquet, parquet_rows
from maxrl.tasks.base import DATA
from maxrl.tasks.images import FORMATS, pillow, write_split
from maxrl.tasks.splits import files_in

OPTIONS = {
    "size": (256, 1, "short side at most, in pixels"),
    "quality": (90, 1, "of the JPEGs, up to 95"),
    "seed": (0, 0, "shuffles the images"),
    "workers": (cores(), 1, "processes"),
}
VERSION = 1  # of the conversion: other bytes are another version
SHARD = 20_000  # images in a file
Row = tuple[Path | bytes, int]  # the file of an image or what it holds, and its label
# Classes, files, and for each split the number of its images and these.
Source = tuple[
    list[str],
    list[Path],
    dict[str, int],
    dict[str, Iterable[Row]],
]


def class_folders(directory: Path) -> list[str]:
    if not directory.is_dir():
        raise UsageError(
            f"there is no {directory}: --source needs train/ and val/ with class folders; ImageNet "
            "is at https://image-net.org"
        )
    folders = [entry for entry in directory.iterdir() if entry.is_dir()]
    return sorted(entry.name for entry in folders if not entry.name.startswith("."))


def to_jpeg(data: bytes, size: int, quality: int) -> bytes:
    """The image as a JPEG in RGB or grey with a short side of at most `size` pixels."""
    Image = pillow()
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    image.load()  # all of it: a file that was cut off fails here
    short = min(image.size)
    if image.format == "JPEG" and image.mode in ("RGB", "L") and short <= size:
        return data
    if image.mode[0] in "IF":
        # Of these Pillow makes white or black ones.
        raise DataError(f"has pixels of more than 8 bits (mode {image.mode}): convert it")
    if image.has_transparency_data:
        page = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(page, image.convert("RGBA"))
    image = image.convert("RGB")
    if short > size:
        sides = [round(side * size / short) for side in image.size]
        image = image.resize(sides, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, comment=b"")
    return file.getvalue()


def convert(size: int, quality: int, row: Row) -> tuple[bytes, int]:
    """JPEG and label of an image; DataError if it cannot be decoded."""
    image, label = row
    data = image if isinstance(image, bytes) else image.read_bytes()
    try:
        return to_jpeg(data, size, quality), label
    except Exception as error:  # a damaged file makes Pillow raise nearly anything
        name = "a parquet row" if isinstance(image, bytes) else image
        if isinstance(error, DataError):
            raise DataError(f"{name} {error}") from None
        raise DataError(f"{name} is no image ({type(error).__name__}): remove it") from None


def from_folders(source: Path, seed: int) -> Source:
    """Classes, files, counts and images of class folders, shuffled."""
    folders = {"train": source / "train", "validation": source / "val"}
    classes = class_folders(folders["train"])
    if len(classes) < 2 or class_folders(folders["validation"]) != classes:
        raise UsageError(f"train/ and val/ in {source} need the same class folders, two at least")
    files: list[Path] = []
    counts: dict[str, int] = {}
    splits: dict[str, Iterable[Row]] = {}
    for key, (split, folder) in enumerate(folders.items()):
        # By class and name.
        rows: list[tuple[Path, int]] = []
        for label, name in enumerate(classes):
            found = sorted((folder / name).rglob("[!.]*"), key=Path.as_posix)
            rows += [(file, label) for file in found if file.is_file()]
        files += [file for file, _ in rows]
        counts[split] = len(rows)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(key,)))
        splits[split] = [rows[i] for i in rng.permutation(len(rows))]
    return classes, files, counts, splits


def from_parquet(source: Path) -> Source:
    """The same of the hub's parquet files, whose metadata names the classes."""
    parts = {split: files_in(source, split) for split in ("train", "validation")}
    counts = {}
    for split, files in parts.items():
        counts[split] = sum(open_parquet(file).metadata.num_rows for file in files)
    try:
        hub = json.loads(open_parquet(parts["train"][0]).schema_arrow.metadata[b"huggingface"])
        classes = hub["info"]["features"]["label"]["names"]
    except (KeyError, TypeError):
        raise UsageError(
            f"{source} has no train-*.parquet that names its classes, as the hub's does"
        ) from None
    splits: dict[str, Iterable[Row]] = {
        split: read_rows(files, len(classes)) for split, files in parts.items()
    }
    return classes, parts["train"] + parts["validation"], counts, splits


def read_rows(files: list[Path], classes: int) -> Iterator[Row]:
    """The images of parquet files; DataError for a label that is none of so many classes."""
    for file in files:
        for row in parquet_rows(file):
            if row["label"] not in range(classes):
                raise DataError(f"{file} has the label {row['label']} for {classes} classes")
            yield (row["image"] or {}).get("bytes") or b"", row["label"]


@one_line_errors()
def main(words: list[str] | None = None) -> None:
    parser = make_parser("imagenet", __doc__, "data/imagenet/SIZE")
    parser.add_argument("--source", type=Path, required=True, help="directory of images, see above")
    args = parsed(parser, words, OPTIONS)
    pillow()  # if it is missing, say so before the listing, which may take minutes
    if any(args.source.glob("*.parquet")) or any(args.source.glob("data/*.parquet")):
        classes, files, counts, splits = from_parquet(args.source)
    else:
        classes, files, counts, splits = from_folders(args.source, args.seed)
    # Names and sizes, by which the same source is known again wherever it lies.
    known = [(file.relative_to(args.source).as_posix(), file.stat().st_size) for file in files]
    info = {
        "encoding": "jpeg",
        "classes": classes,
        "version": VERSION,
        "source": hashlib.sha256(json.dumps(known).encode()).hexdigest(),
        "size": args.size,
        "quality": args.quality,
        "seed": args.seed,
        "shard_images": SHARD,
        "counts": counts,
    }

    def write(new: Path) -> None:
        work = partial(convert, args.size, args.quality)
        for split, rows in splits.items():
            images = parallel(work, rows, args.workers)
            bar = progress(images, split, total=counts[split], unit=" images")
            write_split(new, split, bar, SHARD)

    folder = args.out or DATA / "imagenet" / str(args.size)
    if make_set(folder, info, args, write):
        print(f"wrote {sum(counts.values()):,} images of {len(classes):,} classes to {folder}")


if __name__ == "__main__":
    main()
