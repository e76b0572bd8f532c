"""Convert images in classes into large files of small JPEGs:  python -m data.imagenet.prepare --source SOURCE

Makes every short side at most --size pixels and packs the images into shards, in the format of maxrl/tasks/images.py, in
data/imagenet/SIZE/: reading file by file and decoding at full size are too slow to feed GPUs. SOURCE is one of

    train/ and val/, each with class folders, as ILSVRC, the 1,000 classes of ImageNet, is usually unpacked; there or in
    Kaggle's ILSVRC/Data/CLS-LOC/ (its flat val/ has to be sorted into class folders first)
        python -m data.imagenet.prepare --source /data/ILSVRC2012
    any directory of class folders; --validation-share of the images are held out
        python -m data.imagenet.prepare --source /data/flowers --out data/flowers
    parquet files as on the Hugging Face hub: train-*.parquet, validation-*.parquet, there or in data/ (needs pyarrow)
        hf download --repo-type dataset benjamin-paine/imagenet-1k-256x256 --local-dir /data/in1k
        python -m data.imagenet.prepare --source /data/in1k

Labels are positions among the class folders' sorted names, or those of the parquet files. Images become RGB, are scaled
down (never up) and encoded again; JPEGs in RGB or grey that are small enough are kept byte for byte. EXIF rotation is not
applied, as usual. Files that are no image are skipped, and named in info.json. Folders are shuffled by --seed, so that
shards, and the first images of validation, are mixtures; parquet rows keep their order, which is shuffled enough. Links to
folders within class folders are not followed. An interrupted conversion leaves nothing and starts again.
"""

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import os
import stat
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data.common import (
    add_options,
    check_limits,
    make_set,
    one_line_errors,
    parallel,
    parquet_splits,
    parse_arguments,
    progress,
    refuse,
)
from maxrl.io.tables import parquet_rows
from maxrl.tasks.images import CONVERTED, DATA, FORMATS, check_images, pillow, write_shard

VERSION = 1  # of the conversion: other bytes are another version
PIXELS = 100_000_000  # of an image at most: a small file that says more is more likely a mistake or an attack
ABOUT = {
    "size": "short side at most, in pixels",
    "quality": "of the JPEGs, 1 to 95",
    "seed": "shuffles the images of folders",
    "shard-images": "images in a file",
    "validation-share": "where there is no split",
    "workers": "processes",
}
Row = tuple[str, Path | bytes, int]  # an image's name, its file or the bytes of one, its label


@dataclass
class Source:
    classes: list[str]
    splits: dict[str, Iterable[Row]]  # in the order of the shards
    files: list[
        tuple[str, int]
    ]  # names and sizes, by which the same source is known again wherever it lies
    count: int  # images in all


def chance(name: str) -> float:
    """In [0, 1), by the name alone: neither other files nor their order move an image from one split to the other."""
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") / 2**64


def class_folders(directory: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(directory)
        if entry.is_dir() and not entry.name.startswith(".")
    )


def list_images(root: Path, folder: Path, classes: list[str]) -> list[Row]:
    """All files in the class folders of a folder, sorted by class and name; names are relative to `root`."""

    def stop(error):  # os.walk would leave out what it cannot list
        raise error

    rows = []
    for label, name in enumerate(classes):
        walk = os.walk(folder / name, onerror=stop)
        files = [
            Path(where, file)
            for where, _, names in walk
            for file in names
            if not file.startswith(".")
        ]
        rows += sorted((file.relative_to(root).as_posix(), file, label) for file in files)
    return rows


def divide(rows: list[Row], share: float) -> dict[str, list[Row]]:
    """Training and validation images, at least one of each class for training."""
    largest = {}
    for name, _, label in rows:
        largest[label] = max(chance(name), largest.get(label, 0))
    splits = {"train": [], "validation": []}
    for row in rows:
        held_out = chance(row[0]) < min(share, largest[row[2]])
        splits["validation" if held_out else "train"].append(row)
    return splits


def from_folders(root: Path, args: argparse.Namespace) -> Source:
    root = next(
        (
            folder
            for folder in (root / "ILSVRC/Data/CLS-LOC", root / "Data/CLS-LOC")
            if folder.is_dir()
        ),
        root,
    )
    train = root / "train"
    val = next((folder for folder in (root / "val", root / "validation") if folder.is_dir()), None)
    if train.is_dir() != (val is not None):
        refuse(
            f"{root} has {'train/ but neither val/ nor validation/' if val is None else f'{val.name}/ but no train/'}: give "
            "a --source with both, or a directory of class folders"
        )
    top = train if val else root
    classes = class_folders(top)
    if len(classes) < 2:
        refuse(
            f"no images in at least 2 class folders were found in {top} ({len(classes)} folder(s)): give another --source"
        )
    if val and not class_folders(val):
        refuse(f"{val} has no class folders: sort its images into some, or give another --source")
    if val and (extra := sorted({*classes} ^ {*class_folders(val)})):
        refuse(
            f"{len(extra)} class folder(s) are in only one of train/ and {val.name}/, such as {extra[0]!r} in "
            f"{'train' if extra[0] in classes else val.name}/: give a --source with the same class folders in both"
        )
    rows = list_images(root, top, classes)
    if empty := sorted({*range(len(classes))} - {label for *_, label in rows}):
        refuse(
            f"no images were found in {len(empty)} class folder(s) of {top}, such as {classes[empty[0]]!r}: fill or remove "
            "them, or give another --source"
        )
    splits = (
        {"train": rows, "validation": list_images(root, val, classes)}
        if val
        else divide(rows, args.validation_share)
    )
    files = [
        (name, file.stat().st_size if file.is_file() else -1)
        for some in splits.values()
        for name, file, _ in some
    ]
    for key, (split, some) in enumerate(splits.items()):
        rng = np.random.default_rng(np.random.SeedSequence(args.seed, spawn_key=(key,)))
        splits[split] = [some[i] for i in rng.permutation(len(some))]
    return Source(classes, splits, files, len(files))


def class_names(file: Path, labels: list) -> list[str]:
    """What the hub's metadata in a file says, else numbers up to the largest label."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        from pyarrow.parquet import read_schema

        hub = json.loads(read_schema(file).metadata[b"huggingface"])
        return list(hub["info"]["features"]["label"]["names"])
    return [
        str(label) for label in range(max((n for n in labels if isinstance(n, int)), default=0) + 1)
    ]


def read_rows(files: list[Path], low: float = 0, high: float = 1) -> Iterator[Row]:
    """The images of parquet files whose chance lies between two shares."""
    for file in files:
        for number, row in enumerate(parquet_rows(file, "image.bytes", "label")):
            name = f"{file.name}:{number}"
            label = row["label"]
            if low <= chance(name) < high:
                yield (
                    name,
                    (row.get("image") or {}).get("bytes") or b"",
                    label if isinstance(label, int) else -1,
                )


def from_parquet(source: Path, share: float) -> Source:
    """Splits by the files' names; without validation files a share of the rows is held out, by a hash of file and row."""
    parts = parquet_splits(source)
    if (
        next((label for *_, label in read_rows(parts["test"])), -1) < 0
    ):  # some keep the classes of their test set secret
        del parts["test"]
    files = list(itertools.chain(*parts.values()))
    labels = [row["label"] for file in files for row in parquet_rows(file, "label")]
    classes = class_names(files[0], labels) if files else []
    if not parts["train"] or len(classes) < 2:
        refuse(
            f"no training images of at least 2 classes were found in the parquet files of {source}, which have "
            f"{len(classes)} class(es): give a --source with all files of the set"
        )
    splits = {
        split: read_rows(parts[split])
        for split in ("train", "validation", "test")
        if split in parts
    }
    if not parts["validation"]:
        splits |= {
            "train": read_rows(parts["train"], share),
            "validation": read_rows(parts["train"], 0, share),
        }
    return Source(
        classes, splits, [(file.name, file.stat().st_size) for file in files], len(labels)
    )


def to_jpeg(data: bytes, size: int, quality: int) -> bytes:
    """The image as a JPEG in RGB or grey with a short side of at most `size`; ValueError, OSError, ... where it is none."""
    Image = pillow()
    with warnings.catch_warnings(
        action="ignore", category=Image.DecompressionBombWarning
    ):  # PIXELS decides instead
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    if image.width * image.height > PIXELS:
        raise Image.DecompressionBombError
    image.load()  # all of it: a file that was cut off fails here
    short = min(image.size)
    if image.format == "JPEG" and image.mode in ("RGB", "L") and short <= size:
        return data
    if image.mode.startswith("I"):  # 16 bits of grey, which convert() would clip at 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.has_transparency_data:  # the colours below transparent pixels are arbitrary
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    image = image.convert("RGB")
    if short > size:
        image = image.resize(
            [round(side * size / short) for side in image.size], Image.Resampling.LANCZOS
        )
    image.save(out := io.BytesIO(), "JPEG", quality=quality, comment=b"")
    return out.getvalue()


def convert(size: int, quality: int, row: Row) -> tuple[str, int, bytes, str]:
    """(name, label, JPEG, why it was skipped or ""); OSError where not only the file but its folder cannot be read."""
    Image = pillow()
    name, data, label = row
    jpeg = b""
    try:
        if isinstance(data, Path):
            data = (
                data.read_bytes() if stat.S_ISREG(data.stat().st_mode) else b""
            )  # a pipe would wait forever
        reason = "" if data else "empty"
        jpeg = data and to_jpeg(data, size, quality)
    except Image.DecompressionBombError:
        reason = f"more than {PIXELS // 10**6} megapixels"
    except Image.UnidentifiedImageError:  # its message has an address in memory, another each time
        reason = "not an image"
    except Exception as error:  # a damaged file makes Pillow raise nearly anything, and must not stop a million others
        reason = f"damaged ({str(error).partition(chr(10))[0]})"
        if isinstance(data, Path):  # not even read
            os.listdir(
                data.parent
            )  # raises where the source has gone, a disk or a share: then no image is to blame
            reason = f"cannot be read ({error.strerror})"
    return name, label, jpeg, reason


def write(source: Source, args: argparse.Namespace, folder: Path) -> dict:
    """All shards, and what info.json says of them."""
    counts = dict.fromkeys(source.splits, 0)
    skipped = []

    def images(rows: Iterable[Row]) -> Iterator[tuple[bytes, int]]:
        for name, label, data, reason in parallel(
            partial(convert, args.size, args.quality), rows, args.workers
        ):
            bar.update()
            if not reason and 0 <= label < len(source.classes):
                yield data, label
            else:
                skipped.append({"name": name, "reason": reason or f"label {label}"})

    with progress(total=source.count, unit=" images") as bar:
        for split, rows in source.splits.items():
            remaining = images(rows)
            while shard := list(itertools.islice(remaining, args.shard_images)):
                write_shard(folder, split, counts[split] // args.shard_images, shard)
                counts[split] += len(shard)
    if not counts["train"]:
        refuse(
            "no training image could be decoded, {name!a} is {reason}: give another --source".format(
                **skipped[0]
            ),
            code=1,
        )
    return {"counts": counts, "skipped": skipped}


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot be made, before any work."""
    check_limits(
        args, {"size": 1, "quality": 1, "workers": 1, "seed": 0, "shard-images": 1}, quality=95
    )
    if not 0 <= args.validation_share < 1:
        refuse(
            f"--validation-share must be at least 0 and below 1, got {args.validation_share}: try --validation-share 0.1"
        )
    if not args.source.exists():
        refuse(
            f"there is no {args.source}: give --source a copy of ILSVRC from https://image-net.org (after registration), or "
            "of benjamin-paine/imagenet-1k-256x256 from the Hugging Face hub"
        )
    if args.source.is_dir() and args.out.resolve().is_relative_to(args.source.resolve()):
        refuse(
            f"{args.out} is inside --source {args.source}: choose a directory outside of it with --out"
        )
    pillow()  # before the listing, which may take minutes


@one_line_errors()
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m data.imagenet.prepare", description="Pack images in classes into shards."
    )
    parser.add_argument(
        "--source",
        type=Path,
        required=True,
        help="directory of images or of parquet files, see above",
    )
    parser.add_argument("--out", type=Path, help="directory to write (default data/imagenet/SIZE)")
    add_options(parser, CONVERTED | {"workers": os.cpu_count()}, ABOUT)
    args = parse_arguments(parser, argv)
    args.out = args.out or DATA / "imagenet" / str(args.size)
    check(args)
    if (
        args.source.is_file()
        or any(args.source.glob("*.parquet"))
        or any(args.source.glob("data/*.parquet"))
    ):
        source = from_parquet(args.source, args.validation_share)
    else:
        source = from_folders(args.source, args)
    request = {
        "encoding": "jpeg",
        "classes": source.classes,
        "version": VERSION,
        "source": hashlib.sha256(json.dumps(source.files).encode()).hexdigest(),
    }
    request |= {
        name: getattr(args, name)
        for name in ("size", "quality", "seed", "shard_images", "validation_share")
    }
    info = make_set(
        args.out, request, args, partial(write, source, args), partial(check_images, args.out)
    )
    if info:
        for one in info["skipped"][:5]:
            print("skipped {name!a}: {reason}".format(**one))
        counts = " + ".join(f"{count:,}" for count in info["counts"].values())
        gibibytes = sum(file.stat().st_size for file in args.out.glob("*.bin")) / 2**30
        print(
            f"wrote {counts} images of {len(source.classes):,} classes to {args.out} ({gibibytes:.1f} GiB), "
            f"skipped {len(info['skipped']):,}"
        )


if __name__ == "__main__":
    main()
