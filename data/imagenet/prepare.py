"""Convert images in classes into large files of small JPEGs:  python -m data.imagenet.prepare --source SOURCE

Makes every short side at most --size pixels and packs the images into shards, in the format of maxrl/tasks/images.py, in
data/imagenet/SIZE/: reading file by file and decoding at full size are too slow to feed GPUs. SOURCE is one of

    ILSVRC, the 1,000 classes of ImageNet, as it is usually unpacked: train/ and val/, each with class folders
        python -m data.imagenet.prepare --source /data/ILSVRC2012
    ILSVRC from Kaggle, where val/ is flat (the nesting ILSVRC/Data/CLS-LOC is found)
        python -m data.imagenet.prepare --source /data/kaggle --val-labels /data/kaggle/LOC_val_solution.csv
    any directory of class folders; --validation-share of the images are held out
        python -m data.imagenet.prepare --source /data/flowers --out data/flowers
    parquet files as on the Hugging Face hub: train-*.parquet, validation-*.parquet, there or in data/ (needs pyarrow)
        hf download --repo-type dataset benjamin-paine/imagenet-1k-256x256 --local-dir /data/in1k
        python -m data.imagenet.prepare --source /data/in1k

Labels are positions among the class folders' sorted names, or those of the parquet files. Images become RGB, are scaled
down (never up) and encoded again; JPEGs in RGB or grey that are small enough are kept byte for byte. EXIF rotation is not
applied, as usual. Files that are no image are skipped, and named in info.json. Folders are shuffled by --seed, so that
shards, and the first images of validation, are mixtures; parquet rows keep their order, which is shuffled enough. Links to
folders within class folders are not followed. An interrupted conversion goes on when the same command is given again.
"""

import argparse
import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
import re
import signal
import stat
import sys
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
from tqdm import tqdm

from maxrl.errors import UsageError
from maxrl.io.files import read_info, sealed, write_json, write_text
from maxrl.tasks.images import DATA, FORMATS, INDEX, pillow, write_shard

VERSION = 1  # of the conversion: other bytes are another version
PIXELS = 100_000_000  # of an image at most: a small file that says more is more likely a mistake or an attack
OURS = r"info\.json|request\.json|(train|validation|test)-\d{5,}\.(bin|npy|json)(\.incomplete)?"
Item = tuple[str, int, int]  # folders: (file name relative to the source, label, bytes); parquet: (file, row, bytes of it)


@dataclass
class Source:
    classes: list[str]
    splits: dict[str, list[Item]]  # in the order of the shards
    stream: Callable[[Iterable[Item]], Iterator[tuple[str, Path | bytes, int]]]  # (name, file or its bytes, label)


def refuse(sentence: str, code: int = 2) -> NoReturn:
    print(f"prepare.py: {sentence}", file=sys.stderr)
    raise SystemExit(code)


def chance(name: str) -> float:
    """In [0, 1), by the name alone: neither other files nor their order move an image from one split to the other."""
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") / 2**64


def class_folders(directory: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(directory) if entry.is_dir() and not entry.name.startswith("."))


def list_files(root: Path, folder: Path, label: int = -1) -> list[Item]:
    """All files below the folder, sorted by name; -1 bytes where a name leads to no file."""
    def stop(error):  # os.walk would leave out what it cannot list
        raise error
    files = [Path(where, name) for where, _, names in os.walk(folder, onerror=stop) for name in names if name[0] != "."]
    return sorted((file.relative_to(root).as_posix(), label, file.stat().st_size if file.is_file() else -1) for file in files)


def list_flat(root: Path, val: Path, classes: list[str], file: Path | None) -> list[Item]:
    """The files of a val/ without class folders; Kaggle's CSV has ImageId, and a PredictionString that starts with a class."""
    if file is None or not file.is_file():
        refuse(f"{val} has no class folders{f' and there is no {file}' if file else ''}: give Kaggle's LOC_val_solution.csv, "
               "where its classes are, with --val-labels")
    with open(file, newline="", encoding="utf-8-sig") as lines:
        rows = [(row.get("ImageId"), (row.get("PredictionString") or "").split(" ")[0]) for row in csv.DictReader(lines)]
    labels = {image: classes.index(name) for image, name in rows if name in classes}
    items = [(name, labels.get(Path(name).stem), size) for name, _, size in list_files(root, val)]
    if strange := [name for name, label, _ in items if label is None]:
        refuse(f"{file} names no class of train/ for {strange[0]}: give Kaggle's LOC_val_solution.csv with --val-labels")
    return items


def divide(items: list[Item], share: float) -> tuple[list[Item], list[Item]]:
    """Training and validation images of a class: at least one for training."""
    last = max(chance(item[0]) for item in items)
    out = [chance(item[0]) < min(share, last) for item in items]
    return [item for item, o in zip(items, out) if not o], list(itertools.compress(items, out))


def from_folders(root: Path, args: argparse.Namespace) -> Source:
    root = next((d for d in (root / "ILSVRC/Data/CLS-LOC", root / "Data/CLS-LOC") if d.is_dir()), root)
    train, val = root / "train", next((d for d in (root / "val", root / "validation") if d.is_dir()), None)
    if train.is_dir() != (val is not None):
        refuse(f"{root} has {'train/ but neither val/ nor validation/' if val is None else f'{val.name}/ but no train/'}: give "
               "a --source with both, or a directory of class folders")
    classes = class_folders(top := train if val else root)
    if len(classes) < 2:
        refuse(f"no images in at least 2 class folders were found in {top} ({len(classes)} folder(s)): give another --source")
    per_class = [list_files(root, top / name, label) for label, name in enumerate(classes)]
    if empty := [name for name, items in zip(classes, per_class) if not items]:
        refuse(f"no images were found in {len(empty)} class folder(s) of {top}, such as {empty[0]!r}: fill or remove them, or "
               "give another --source")
    held_classes = class_folders(val) if val else []
    if args.val_labels and (held_classes or not val):
        refuse(f"--val-labels is for a val/ without class folders, {root} has none: leave it out")
    if val and not held_classes:
        held = list_flat(root, val, classes, args.val_labels)
    elif val:
        if extra := sorted(set(classes) ^ set(held_classes)):
            refuse(f"{len(extra)} class folder(s) are in only one of train/ and {val.name}/, such as {extra[0]!r} in "
                   f"{'train' if extra[0] in classes else val.name}/: give a --source with the same classes in both")
        held = [item for label, name in enumerate(classes) for item in list_files(root, val / name, label)]
    else:
        per_class, held = zip(*(divide(items, args.validation_share) for items in per_class))
        held = list(itertools.chain(*held))
    splits = {"train": list(itertools.chain(*per_class)), "validation": held}
    for key, (split, items) in enumerate(splits.items()):
        rng = np.random.default_rng(np.random.SeedSequence(args.seed, spawn_key=(key,)))
        splits[split] = [items[i] for i in rng.permutation(len(items))]
    return Source(classes, splits, lambda items: ((name, root / name, label) for name, label, _ in items))


def open_parquet(file: Path):
    """A pyarrow ParquetFile with the columns image (a struct with bytes) and label; UsageError where it is not."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UsageError("parquet files need pyarrow: pip install pyarrow") from None
    try:
        table = pq.ParquetFile(file)
    except (OSError, ValueError) as error:  # pyarrow's errors are these
        raise UsageError(f"{file} is no parquet file ({str(error).partition(chr(10))[0]}): download it again") from None
    kinds = {field.name: field.type for field in table.schema_arrow}
    image, label = kinds.get("image", pa.null()), kinds.get("label", pa.null())
    if not (pa.types.is_struct(image) and image.get_field_index("bytes") >= 0 and pa.types.is_integer(label)):
        raise UsageError(f"{file} has no columns image (with bytes) and label (integers): give another --source")
    return table


def class_names(files: list[Path]) -> list[str]:
    """What the hub's metadata says, else numbers up to the largest label."""
    try:
        hub = json.loads(open_parquet(files[0]).schema_arrow.metadata[b"huggingface"])
        return list(hub["info"]["features"]["label"]["names"])
    except (KeyError, TypeError, ValueError):
        labels = (batch.column(0) for file in files
                  for batch in open_parquet(file).iter_batches(columns=["label"], use_threads=False))
        return [str(label) for label in range(max(max(filter(None, column.to_pylist()), default=0) for column in labels) + 1)]


def read_rows(root: Path, items: Iterable[Item]) -> Iterator[tuple[str, bytes, int]]:
    """The rows as a stream; row groups without any of them are not read."""
    for name, group in itertools.groupby(items, key=lambda item: item[0]):
        wanted, start = {row for _, row, _ in group}, 0
        try:
            table = open_parquet(root / name)
            for g in range(table.num_row_groups):
                first, start = start, start + table.metadata.row_group(g).num_rows
                if wanted.isdisjoint(range(first, start)):
                    continue
                batches = table.iter_batches(64, row_groups=[g], columns=["image.bytes", "label"], use_threads=False)
                for row, record in enumerate((record for batch in batches for record in batch.to_pylist()), first):
                    if row in wanted:
                        label, data = record["label"], (record["image"] or {}).get("bytes")
                        yield f"{name}:{row}", data or b"", -1 if label is None else label
        except (OSError, ValueError) as error:
            raise UsageError(f"{root / name} cannot be read ({str(error).partition(chr(10))[0]}): download it again") from None


def from_parquet(files: list[Path], args: argparse.Namespace) -> Source:
    """Splits by the files' names; without validation-* the share of the rows is held out, by a hash of file and row."""
    root, prefixes = files[0].parent, {"train": "train-", "validation": ("validation-", "val-"), "test": "test-"}
    parts = {split: [file for file in files if file.name.startswith(prefix)] for split, prefix in prefixes.items()}
    if len(files) == 1 or not any(parts.values()):
        parts = {"train": files, "validation": [], "test": []}
    splits = {split: [(file.name, row, file.stat().st_size) for file in of
                      for row in range(open_parquet(file).metadata.num_rows)] for split, of in parts.items()}
    if next((label for _, _, label in read_rows(root, splits["test"][:1])), -1) < 0:  # where the classes are kept secret
        del splits["test"], parts["test"]
    if not parts["validation"]:
        held = [chance(f"{name}:{row}") < args.validation_share for name, row, _ in splits["train"]]
        splits["validation"] = list(itertools.compress(splits["train"], held))
        splits["train"] = [item for item, out in zip(splits["train"], held) if not out]
    if not splits["train"]:
        refuse(f"no training images were found in the parquet files of {root}: give a --source with all files of the set")
    if len(classes := class_names([file for of in parts.values() for file in of])) < 2:
        refuse(f"the parquet files of {root} have {len(classes)} class, at least 2 are needed: give another --source")
    return Source(classes, splits, partial(read_rows, root))


def to_jpeg(data: bytes, size: int, quality: int) -> bytes:
    """The image as a JPEG in RGB or grey with a short side of at most `size`; ValueError, OSError, ... where it is none."""
    Image = pillow()
    with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):  # PIXELS decides instead
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
        image = image.resize([round(side * size / short) for side in image.size], Image.Resampling.LANCZOS)
    image.save(out := io.BytesIO(), "JPEG", quality=quality, comment=b"")
    return out.getvalue()


def convert(size: int, quality: int, row: tuple[str, Path | bytes, int]) -> tuple[str, int, bytes, str]:
    """(name, label, JPEG, why it was skipped or ""); OSError where not only the file but its folder cannot be read."""
    Image, (name, data, label) = pillow(), row
    if isinstance(data, Path):
        try:
            data = data.read_bytes() if stat.S_ISREG(data.stat().st_mode) else b""  # a pipe would wait forever
        except OSError as error:
            os.listdir(data.parent)  # raises where the source has gone, a disk or a share: then no image is to blame
            return name, label, b"", f"cannot be read ({error.strerror})"
    try:
        return (name, label, to_jpeg(data, size, quality), "") if data else (name, label, b"", "empty")
    except Image.DecompressionBombError:
        reason = f"more than {PIXELS // 10**6} megapixels"
    except Image.UnidentifiedImageError:  # its message has an address in memory, another each time
        reason = "not an image"
    except Exception as error:  # a damaged file makes Pillow raise nearly anything, and must not stop a million others
        reason = f"damaged ({str(error).partition(chr(10))[0]})"
    return name, label, b"", reason


def in_order(pool: ProcessPoolExecutor, function: Callable, rows: Iterable, ahead: int) -> Iterator:
    """map(function, rows) by the pool, which is at most `ahead` rows ahead: a shard's source never is in memory at once."""
    waiting = deque()
    for row in rows:
        waiting.append(pool.submit(function, row))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def standing(folder: Path, split: str, number: int, items: list[Item]) -> tuple[int, list[dict]] | None:
    """(images, skipped) of a shard that is whole, else None."""
    name = folder / f"{split}-{number:05d}"
    try:
        index = np.load(f"{name}.npy", allow_pickle=False)
        skipped, size = json.loads(Path(f"{name}.json").read_text()), Path(f"{name}.bin").stat().st_size
        whole = index.dtype == INDEX and len(index) + len(skipped) == len(items) and index["length"].sum(dtype=np.int64) == size
        with open(f"{name}.bin", "rb") as shard:
            whole = whole and all(zlib.crc32(shard.read(row["length"])) == row["crc"] for row in index)
        return (len(index), skipped) if whole else None
    except (OSError, ValueError, EOFError):
        return None


def write_all(folder: Path, source: Source, shards: list, found: list, args: argparse.Namespace) -> dict:
    """The shards that are not found standing; then info.json, with what it returns."""
    counts, skipped, stops, function = dict.fromkeys(source.splits, 0), [], [], partial(convert, args.size, args.quality)
    total, done = sum(len(items) for _, _, items in shards), sum(one[0] + len(one[1]) for one in found if one)
    # Ctrl-C takes effect between two images: an exception in the middle of the pool's own work can make it hang.
    signal.signal(signal.SIGINT, lambda *_: stops.append(True))
    pool = ProcessPoolExecutor(args.workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    with pool, tqdm(total=total, initial=done, unit=" images", unit_scale=True, disable=None) as bar:
        for (split, number, items), shard in zip(shards, found):
            if shard is None:
                images, left_out, rows = [], [], source.stream(items)
                results = in_order(pool, function, rows, 16 * args.workers) if args.workers > 1 else map(function, rows)
                for name, label, data, reason in results:
                    bar.update()
                    if stops:
                        raise KeyboardInterrupt
                    if reason or not 0 <= label < len(source.classes):
                        left_out.append({"name": name, "reason": reason or f"label {label}"})
                    else:
                        images.append((data, label))
                write_json(folder / f"{split}-{number:05d}.json", left_out)  # first: the shard's index says it is whole
                write_shard(folder, split, number, images)
                shard = len(images), left_out
            counts[split] += shard[0]
            skipped += shard[1]
    if not counts["train"]:
        refuse("no training image could be decoded, {name!a} is {reason}: give another --source".format(**skipped[0]), code=1)
    info = {"encoding": "jpeg", "classes": source.classes, "counts": counts, "size": args.size, "skipped": skipped}
    write_text(folder / "info.json", sealed(info, folder, [f"{split}-{number:05d}.npy" for split, number, _ in shards]))
    return info


def make_way(folder: Path, request: dict, overwrite: bool) -> None:
    """Leave in the folder nothing but shards of this very request; refuses where it holds anything else."""
    ours = [file for file in folder.iterdir() if re.fullmatch(OURS, file.name)]
    try:
        same = json.loads((folder / "request.json").read_text()) == request
    except (OSError, ValueError):
        same = False
    if same and not (overwrite and (folder / "info.json").exists()):  # an interrupted --overwrite goes on, too
        return
    if ours and not overwrite:
        refuse(f"{folder} holds another set, or other options made it: choose another --out, or replace it with --overwrite")
    for file in sorted(ours, key=lambda file: file.name != "info.json"):  # it first: what is left without it is no set
        file.unlink()
    write_json(folder / "request.json", request)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot be made, before any work."""
    for name, least in {"size": 1, "quality": 1, "workers": 1, "seed": 0, "shard-images": 1}.items():
        if (value := getattr(args, name.replace("-", "_"))) < least:
            refuse(f"--{name} must be at least {least}, got {value}: give --{name} {least} or more")
    if args.quality > 95:
        refuse(f"--quality must be at most 95, got {args.quality}: give --quality 95 or less")
    if not 0 <= args.validation_share < 1:
        refuse(f"--validation-share must be at least 0 and below 1, got {args.validation_share}: try --validation-share 0.1")
    if not args.source.exists():
        refuse(f"there is no {args.source}: give --source a copy of ILSVRC from https://image-net.org (after registration), or "
               "of benjamin-paine/imagenet-1k-256x256 from the Hugging Face hub")
    if args.source.is_dir() and args.out.resolve().is_relative_to(args.source.resolve()):
        refuse(f"{args.out} is inside --source {args.source}: choose a directory outside of it with --out")


def convert_all(args: argparse.Namespace) -> None:
    pillow()  # asked for before the listing, which may take minutes
    files = [args.source] if args.source.is_file() else sorted(args.source.glob("*.parquet"))
    files = files or sorted(args.source.glob("data/*.parquet"))
    source = from_parquet(files, args) if files else from_folders(args.source, args)
    digest = hashlib.sha256(json.dumps([source.classes, source.splits]).encode()).hexdigest()
    asked = {name: getattr(args, name) for name in ("size", "quality", "seed", "shard_images")}
    args.out.mkdir(parents=True, exist_ok=True)
    make_way(args.out, asked | {"version": VERSION, "digest": digest}, args.overwrite)
    shards = [(split, number, items[start : start + args.shard_images]) for split, items in source.splits.items()
              for number, start in enumerate(range(0, len(items), args.shard_images))]
    found = [standing(args.out, *shard) for shard in shards]
    with contextlib.suppress(ValueError):  # info.json is damaged: it is written anew
        if (args.out / "info.json").exists() and None not in found and read_info(args.out, ("",), ""):
            print(f"{args.out} holds this set already")
            return
    (args.out / "info.json").unlink(missing_ok=True)
    info = write_all(args.out, source, shards, found, args)
    for one in info["skipped"][:5]:
        print("skipped {name!a}: {reason}".format(**one))
    size, counts = sum(f.stat().st_size for f in args.out.glob("*.bin")), " + ".join(f"{n:,}" for n in info["counts"].values())
    print(f"wrote {counts} images of {len(source.classes):,} classes to {args.out} ({size / 2**30:.1f} GiB), "
          f"skipped {len(info['skipped']):,}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m data.imagenet.prepare", description="Pack images in classes into shards.")
    parser.add_argument("--source", type=Path, required=True, help="directory of images or of parquet files, see above")
    parser.add_argument("--out", type=Path, help="directory to write (default data/imagenet/SIZE)")
    parser.add_argument("--size", type=int, default=256, help="short side at most, in pixels (default %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default %(default)s)")
    parser.add_argument("--quality", type=int, default=90, help="of the JPEGs, 1 to 95 (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="shuffles the images of folders (default %(default)s)")
    parser.add_argument("--shard-images", type=int, default=20_000, help="images in a file (default %(default)s)")
    parser.add_argument("--validation-share", type=float, default=0.1, help="where there is no split (default %(default)s)")
    parser.add_argument("--val-labels", type=Path, help="CSV with the classes of a flat val/, LOC_val_solution.csv")
    parser.add_argument("--overwrite", action="store_true", help="replace the set that the directory holds")
    args = parser.parse_args(argv)
    args.out = args.out or DATA / "imagenet" / str(args.size)
    check(args)
    handler = signal.getsignal(signal.SIGINT)
    try:
        convert_all(args)
    except UsageError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"stopped at {error.filename or args.out} ({error.strerror}): mend that and give the same command again "
               "(finished shards are kept), or choose another directory with --out", code=1)
    except BrokenExecutor:
        refuse("a worker was killed, perhaps for memory: finished shards are kept, go on with fewer --workers", code=1)
    except KeyboardInterrupt:
        refuse("interrupted: finished shards are kept, the same command goes on from there", code=130)
    finally:
        signal.signal(signal.SIGINT, handler)


if __name__ == "__main__":
    main()
