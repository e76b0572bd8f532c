"""Images and their classes: the format that data/imagenet and data/glyphs write, and the task that reads it.

    DIRECTORY/info.json            written last: classes, encoding ("jpeg" or "raw"), shape of raw images, counts, checksums
    DIRECTORY/train-00000.bin      a few large files of images, one behind the other
    DIRECTORY/train-00000.npy      their index: offset, length, label, CRC-32 of each, compared when an image is read

A rollout is one class drawn from the policy; its reward is 1 if it is the image's class (arXiv 2602.02710, Sec. 6.1).
"""

import contextlib
import hashlib
import io
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from maxrl.errors import UsageError
from maxrl.io.files import DataError, command, read_info, read_json
from maxrl.tasks.base import DATA, Example, Task

FORMATS = (
    "JPEG",
    "PNG",
    "GIF",
    "BMP",
    "WEBP",
    "TIFF",
    "PPM",
)  # not EPS, which would start another program
DRAWN = {
    "classes": 200,
    "size": 32,
    "train": 30_000,
    "validation": 2_000,
    "test": 2_000,
    "noise": 0.15,
    "jitter": 0.8,
    "seed": 0,
}  # the options of data/glyphs/prepare.py
CONVERTED = {
    "size": 256,
    "quality": 90,
    "seed": 0,
    "shard-images": 20_000,
    "validation-share": 0.1,
}  # of data/imagenet
INDEX = np.dtype([("offset", "<u8"), ("length", "<u4"), ("label", "<i4"), ("crc", "<u4")])


@dataclass
class ImageBatch:
    """P_local images, not yet normalised, and their labels."""

    images: torch.Tensor  # (P_local, 3, H, W) uint8
    labels: torch.Tensor  # (P_local,)

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device) -> "ImageBatch":
        return ImageBatch(
            self.images.to(device, non_blocking=True), self.labels.to(device, non_blocking=True)
        )

    def pin_memory(self) -> "ImageBatch":
        return ImageBatch(self.images.pin_memory(), self.labels.pin_memory())


def write_shard(directory: Path, split: str, number: int, images: list[tuple[bytes, int]]):
    """One .bin of the images' bytes and its .npy of INDEX; the index last, so that a shard with an index is whole."""
    name = directory / f"{split}-{number:05d}"
    index = np.array([(0, len(data), label, zlib.crc32(data)) for data, label in images], INDEX)
    index["offset"][1:] = np.cumsum(index["length"][:-1], dtype=np.uint64)
    with open(f"{name}.bin.incomplete", "wb") as file:
        file.writelines(data for data, _ in images)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{name}.bin.incomplete", f"{name}.bin")
    with open(f"{name}.npy.incomplete", "wb") as file:
        np.save(file, index, allow_pickle=False)
    os.replace(f"{name}.npy.incomplete", f"{name}.npy")


def fix_command(folder: Path) -> str:
    """What to do about a damaged set: the command that makes it again, with the options that info.json still has."""
    drawn = "glyphs" in folder.parts
    info = {}
    with contextlib.suppress(
        ValueError, OSError, LookupError, TypeError
    ):  # info.json may be what is damaged
        info = read_json(folder / "info.json")
        drawn |= "drawn" in info
        if drawn:
            info = (
                {"classes": len(info["classes"]), "size": int(info["shape"][0])}
                | info["counts"]
                | info["drawn"]
            )
    usual = DRAWN if drawn else CONVERTED
    options = {} if drawn else {"source": "SOURCE"}
    options |= {option: info[key] for option in usual if (key := option.replace("-", "_")) in info}
    module = f"data.{'glyphs' if drawn else 'imagenet'}.prepare"
    return f"{command(module, options | {'out': folder}, usual)} --overwrite makes it again"


class Shards:
    """The images of a split as bytes, mapped and not read. A copy of it for a worker is its list of files."""

    def __init__(self, directory: Path, split: str, count: int, classes: int = 2**31):
        self.fix = fix_command(directory)
        self.files = sorted(directory.glob(f"{split}-*.npy"))
        indices = [self.read_index(file) for file in self.files]
        self.index = np.concatenate([np.zeros(0, INDEX), *indices])
        if len(self.index) != count:
            raise UsageError(
                f"{directory} holds {len(self.index)} {split} images, info.json says {count}: {self.fix}"
            )
        if count and not 0 <= self.index["label"].min() <= self.index["label"].max() < classes:
            raise UsageError(f"{directory} has labels beyond its {classes} classes: {self.fix}")
        self.ends = np.cumsum([len(index) for index in indices])
        self.maps = {}

    def read_index(self, file: Path) -> np.ndarray:
        """UsageError where it is none, or does not fit its shard."""
        shard = file.with_suffix(".bin")
        try:
            index = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UsageError(f"{file} cannot be read ({error}): {self.fix}") from None
        if index.dtype != INDEX:
            raise UsageError(
                f"{file} is no index of images, or one of an earlier version: {self.fix}"
            )
        size = shard.stat().st_size if shard.exists() else 0
        says = index["length"].sum(dtype=np.int64)
        if size != says:
            raise UsageError(
                f"{shard} has {size} bytes, its index says {says}: the shard is damaged, {self.fix}"
            )
        return index

    def __getitem__(self, i: int) -> np.ndarray:
        shard = int(np.searchsorted(self.ends, i, side="right"))
        if shard not in self.maps:
            self.maps[shard] = np.memmap(self.files[shard].with_suffix(".bin"), np.uint8, "r")
        offset, length, _, crc = self.index[i].item()
        data = self.maps[shard][offset : offset + length]
        if len(data) != length or zlib.crc32(data) != crc:
            raise UsageError(
                f"image {i} is not what its checksum says: {self.files[shard].with_suffix('.bin')} is damaged, "
                f"{self.fix}"
            )
        return data

    def __getstate__(self) -> dict:
        return self.__dict__ | {"maps": {}}  # a pickled map would be all of its bytes


def check_images(directory: Path, info: dict):
    """UsageError if an image of a set is not what its checksum says, or if there are not as many as info.json says."""
    for split, count in info["counts"].items():
        shards = Shards(directory, split, count)
        for i in range(count):
            shards[i]


class Images(Task):
    """Images of `directory` (a path, or one below data/), `size` pixels square.

    augment (training split only): a random part of 8 to 100 % of the area at an aspect of 3/4 to 4/3, resized, and flipped
    half the time (D.2). Otherwise the short side is resized to size * 256 / 224 and the centre cut out, as in the
    published code. Raw images of that very size, without augmentation, are taken as they are.
    """

    def __init__(
        self,
        split: str = "train",
        directory: str | Path = "imagenet/256",
        size: int = 224,
        augment: bool = True,
    ):
        folder = Path(directory) if (Path(directory) / "info.json").exists() else DATA / directory
        name = "glyphs" if "glyphs" in folder.parts else "imagenet"
        if not (folder / "info.json").exists():
            raise FileNotFoundError(
                f"there is no complete image set in {folder}: make it with python -m data.{name}.prepare "
                "(--help says how), or name another with --task.directory"
            )
        if type(size) is not int or size < 1:
            raise ValueError(
                f"the size of an image must be a whole number of at least 1, got {size}"
            )
        if type(augment) is not bool:
            raise ValueError(f"augment must be true or false, got {augment!r}")
        try:
            info = read_info(
                folder, (f"{split}-",), fix_command(folder).removesuffix(" makes it again")
            )
            counts = info["counts"]
            self.classes = tuple(info["classes"])
            self.encoding = info["encoding"]
            self.shape = info["shape"] if self.encoding == "raw" else None
        except DataError as error:
            raise UsageError(f"{error}") from None
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"{folder / 'info.json'} is damaged ({error!r}): {fix_command(folder)}"
            ) from None
        if split not in counts:
            raise UsageError(f"{folder} has no {split} split: use --split {' or '.join(counts)}")
        self.split = split
        self.size = size
        self.augment = augment and split == "train"
        self.shards = Shards(folder, split, counts[split], len(self.classes))
        self.digest = hashlib.sha256(self.shards.index.tobytes()).hexdigest()
        if self.shape and set(self.shards.index["length"].tolist()) - {math.prod(self.shape)}:
            raise UsageError(
                f"{folder} has raw images of another size than {self.shape}: {fix_command(folder)}"
            )
        self.as_they_are = (
            self.encoding == "raw" and not self.augment and self.shape[:2] == [size, size]
        )
        if not self.as_they_are:
            pillow()

    def __len__(self) -> int:
        return len(self.shards.index)

    def __getitem__(self, index: int) -> Example:
        """For people: the class by name, and the image as it is scored, uint8 (H, W, 3)."""
        self.check_index(index)
        label = int(self.shards.index["label"][index])
        return Example(
            f"{self.split} image {index}",
            self.classes[label],
            {"pixels": self.pixels(index, None), "label": label},
        )

    def batch(self, indices, seeds=None) -> ImageBatch:
        """The images; seeds has for each of them what np.random.default_rng takes, and decides its augmentation."""
        seeds = seeds if self.augment and seeds is not None else [None] * len(indices)
        images = np.stack(
            [self.pixels(int(i), seed) for i, seed in zip(indices, seeds)]
        )  # (P_local, H, W, 3)
        labels = self.shards.index["label"][np.asarray(indices)].astype(np.int64)  # (P_local,)
        return ImageBatch(
            torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)
        )

    def pixels(self, index: int, seed) -> np.ndarray:
        """One image, uint8 (H, W, 3): augmented where a seed is given."""
        data = self.shards[index]
        if self.as_they_are:
            return data.reshape(self.shape)
        Image = pillow()
        try:
            image = (
                Image.fromarray(data.reshape(self.shape))
                if self.encoding == "raw"
                else Image.open(io.BytesIO(data), formats=FORMATS)
            ).convert("RGB")
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise UsageError(
                f"{self.split} image {index} cannot be decoded ({type(error).__name__}): its shard is damaged, "
                f"{self.shards.fix}"
            ) from None
        rng = None if seed is None else np.random.default_rng(seed)
        box = centre_box(*image.size) if rng is None else random_box(*image.size, rng)
        pixels = np.asarray(
            image.resize(
                (self.size, self.size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0
            )
        )
        return pixels[:, ::-1] if rng is not None and rng.random() < 0.5 else pixels

    def verify(self, response: str, example: Example) -> float:
        return float(response == example.answer)

    def show(self, response: str, example: Example, colour: bool) -> str:
        """The image in half blocks, at most 48 columns, where colour is allowed; the class drawn, and the right one."""
        verdict = (
            f"right: {response}"
            if response == example.answer
            else f"wrong: {response}, not {example.answer}"
        )
        if not colour:
            return verdict
        step = -(-self.size // 48)
        pixels = example.columns["pixels"][::step, ::step].tolist()
        rows = []
        for upper, lower in zip(pixels[::2], pixels[1::2]):
            blocks = [
                "\x1b[38;2;{};{};{}m\x1b[48;2;{};{};{}m\u2580".format(*a, *b)
                for a, b in zip(upper, lower)
            ]
            rows.append("".join([*blocks, "\x1b[0m"]))
        return "\n".join([*rows, verdict])


def pillow():
    try:
        from PIL import Image
    except ImportError:
        raise UsageError("images need Pillow: pip install pillow") from None
    return Image


def centre_box(width: int, height: int) -> tuple[float, float, float, float]:
    """The square that is left when the short side is resized to 256 and the centre cut to 224: (left, upper, right, lower).

    Whole pixels of the resized image, as torchvision rounds them: half a pixel more would blur the image.
    """
    sides = np.array([width, height])
    resized = (256 * sides / sides.min()).astype(int)
    first = np.round((resized - 224) / 2)
    box = np.stack([first, first + 224]) * sides / resized
    return tuple(box.ravel().tolist())


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """A box of 8 to 100 % of the area and an aspect of 3/4 to 4/3 (log-uniform); the centre where ten tries do not fit."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        aspect = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w = round(np.sqrt(area * aspect))
        h = round(np.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left = int(rng.integers(width - w + 1))
            upper = int(rng.integers(height - h + 1))
            break
    else:
        w = min(width, round(height * 4 / 3))
        h = min(height, round(width * 4 / 3))
        left = (width - w) // 2
        upper = (height - h) // 2
    return left, upper, left + w, upper + h
