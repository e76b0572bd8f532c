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
enough are kept byte for byte. EXIF rotation is not applied, as usual. Files that cannot be decoded
are skipped, and named in info.json. The images of folders are shuffled by --seed, so that shards,
and the first images of validation, are mixtures; parquet rows keep their order.
"""

import argparse
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data.common import (
    add_numbers,
    make_parser,
    make_set,
    one_line_errors,
    parallel,
    parquet_splits,
    parse_arguments,
    progress,
    refuse,
)
from maxrl.io.tables import parquet_rows
from maxrl.tasks.base import DATA
from maxrl.tasks.images import FORMATS, pillow, write_split

OPTIONS = {
    "size": (256, 1, "short side at most, in pixels"),
    "quality": (90, 1, "of the JPEGs, up to 95"),
    "seed": (0, 0, "shuffles the images of folders"),
    "workers": (os.cpu_count() or 1, 1, "processes"),
}
VERSION = 1  # of the conversion: other bytes are another version
SHARD = 20_000  # images in a file
FileRow = tuple[str, Path, int]
Row = tuple[str, Path | bytes, int]  # an image's name, its file or the bytes of one, its label


@dataclass
class Source:
    classes: list[str]
    splits: Mapping[str, Iterable[Row]]  # in the order of the shards
    # Names and sizes, by which the same source is known again wherever it lies.
    files: list[tuple[str, int]]
    count: int  # images in all


def class_folders(directory: Path) -> list[str]:
    folders = [entry for entry in directory.iterdir() if entry.is_dir()]
    return sorted(entry.name for entry in folders if not entry.name.startswith("."))


def list_images(root: Path, folder: Path, classes: list[str]) -> list[FileRow]:
    """The files in a folder's class folders by class and name; names are relative to `root`."""
    rows: list[FileRow] = []
    for label, name in enumerate(classes):
        files = (folder / name).rglob("[!.]*")
        rows += sorted(
            (file.relative_to(root).as_posix(), file, label) for file in files if file.is_file()
        )
    return rows


def from_folders(root: Path, seed: int) -> Source:
    folders = {"train": root / "train", "validation": root / "val"}
    for folder in folders.values():
        if not folder.is_dir():
            refuse(f"there is no {folder}: {root} needs train/ and val/ with class folders")
    classes = class_folders(folders["train"])
    if len(classes) < 2:
        refuse(f"{folders['train']} has {len(classes)} class folders, and 2 is the least")
    if class_folders(folders["validation"]) != classes:
        refuse(f"train/ and val/ in {root} have different class folders: they need the same ones")
    files = []
    splits: dict[str, Iterable[Row]] = {}
    for key, (split, folder) in enumerate(folders.items()):
        rows = list_images(root, folder, classes)
        files += [(name, file.stat().st_size) for name, file, _ in rows]
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(key,)))
        splits[split] = [rows[i] for i in rng.permutation(len(rows))]
    return Source(classes, splits, files, len(files))


def class_names(file: Path, labels: list[int]) -> list[str]:
    """The names in the hub's metadata of a file, or else numbers up to the largest label."""
    from pyarrow.parquet import read_schema

    try:
        hub = json.loads(read_schema(file).metadata[b"huggingface"])
        return list(hub["info"]["features"]["label"]["names"])
    except (KeyError, TypeError):
        return [str(label) for label in range(max(labels) + 1)]


def read_rows(files: list[Path]) -> Iterator[Row]:
    """The images of parquet files."""
    for file in files:
        for number, row in enumerate(parquet_rows(file, "image.bytes", "label")):
            data = (row["image"] or {}).get("bytes") or b""
            yield f"{file.name}:{number}", data, row["label"]


def from_parquet(source: Path) -> Source:
    """Training and validation by the files' names. The labels of test sets are often secret."""
    parts = parquet_splits(source)
    del parts["test"]
    if not parts["train"]:
        refuse(f"there are no parquet files of training images in {source}: use another --source")
    files = parts["train"] + parts["validation"]
    labels = [row["label"] for file in files for row in parquet_rows(file, "label")]
    if None in labels or -1 in labels:
        refuse(f"there are images without a label in {source}: use another --source")
    return Source(
        class_names(files[0], labels),
        {split: read_rows(parts[split]) for split in ("train", "validation")},
        [(file.name, file.stat().st_size) for file in files],
        len(labels),
    )


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


def convert(size: int, quality: int, row: Row) -> tuple[str, bytes, int, str]:
    """(name, JPEG, label, why it has to be skipped or "") of an image.

    An OSError in reading a file is not caught: the source may have gone, a disk or a share.
    """
    name, data, label = row
    if isinstance(data, Path):
        data = data.read_bytes()
    try:
        return name, to_jpeg(data, size, quality), label, ""
    except Exception as error:  # a damaged file makes Pillow raise nearly anything
        return name, b"", label, type(error).__name__


def write(source: Source, args: argparse.Namespace, folder: Path) -> dict:
    """Write all shards; returns the counts and what was skipped."""
    skipped: list[dict[str, str]] = []
    work = partial(convert, args.size, args.quality)

    def usable(rows: Iterable[Row]) -> Iterator[tuple[bytes, int]]:
        for name, data, label, reason in parallel(work, rows, args.workers):
            bar.update()
            if reason:
                skipped.append({"name": name, "reason": reason})
            else:
                yield data, label

    with progress(total=source.count, unit=" images") as bar:
        counts = {
            split: write_split(folder, split, usable(rows), SHARD)
            for split, rows in source.splits.items()
        }
    if not counts["train"]:
        refuse(f"no training image could be decoded, the first is {skipped[0]}", 1)
    return {"counts": counts, "skipped": skipped}


@one_line_errors()
def main(words: list[str] | None = None) -> None:
    parser = make_parser("imagenet", __doc__, "data/imagenet/SIZE")
    parser.add_argument("--source", type=Path, required=True, help="directory of images, see above")
    add_numbers(parser, OPTIONS)
    args = parse_arguments(parser, words)
    pillow()  # if it is missing, say so before the listing, which may take minutes
    if not args.source.is_dir():
        refuse(
            f"there is no directory {args.source}: ImageNet is at https://image-net.org and, "
            "smaller, on the Hugging Face hub as benjamin-paine/imagenet-1k-256x256"
        )
    if any(args.source.glob("*.parquet")) or any(args.source.glob("data/*.parquet")):
        source = from_parquet(args.source)
    else:
        source = from_folders(args.source, args.seed)
    request = {
        "encoding": "jpeg",
        "classes": source.classes,
        "version": VERSION,
        "source": hashlib.sha256(json.dumps(source.files).encode()).hexdigest(),
        "size": args.size,
        "quality": args.quality,
        "seed": args.seed,
        "shard_images": SHARD,
    }
    folder = args.out or DATA / "imagenet" / str(args.size)
    if info := make_set(folder, request, args, partial(write, source, args)):
        counts = " + ".join(f"{count:,}" for count in info["counts"].values())
        print(f"wrote {counts} images of {len(source.classes):,} classes to {folder}")
        print(f"skipped {len(info['skipped']):,} files, which info.json names")


if __name__ == "__main__":
    main()
