"""Images in classes: the format that data/imagenet and results/images write, and its task.

    DIRECTORY/info.json        classes, encoding ("jpeg" or "raw"), shape of raw images, counts
    DIRECTORY/train-00000.bin  a few large files of images, one after the other
    DIRECTORY/train-00000.npy  their index: offset, length, label and CRC-32 of each image

The CRC is compared when an image is read. A rollout is one class drawn from the policy; its reward
is 1 if it is the class of the image (arXiv 2602.02710, Sec. 6.1).
"""

import hashlib
import io
import itertools
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from maxrl.system.errors import UsageError
from maxrl.tasks.base import Example, ImageBatch, Task, open_set

# Formats that Pillow may open; not EPS, for which it would start another program.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
INDEX = np.dtype(
    [
        ("offset", "<u8"),
        ("length", "<u4"),
        ("label", "<i4"),
        ("crc", "<u4"),
    ]
)


def write_shard(directory: Path, split: str, number: int, images: list[tuple[bytes, int]]) -> None:
    """Write one shard of (bytes, label): the .bin of the images and the .npy of their INDEX."""
    name = f"{split}-{number:05d}"
    index = np.array([(0, len(data), label, zlib.crc32(data)) for data, label in images], INDEX)
    index["offset"][1:] = np.cumsum(index["length"][:-1], dtype=np.uint64)
    with open(directory / f"{name}.bin", "wb") as file:
        file.writelines(data for data, _ in images)
    np.save(directory / f"{name}.npy", index, allow_pickle=False)


def write_split(directory: Path, split: str, images: Iterable[tuple[bytes, int]], size: int):
    """Write all (bytes, label) of a split in shards of `size` images."""
    images = iter(images)
    number = 0
    while shard := list(itertools.islice(images, size)):
        write_shard(directory, split, number, shard)
        number += 1


class Shards:
    """The images of a split as bytes; the files are mapped, not read. UsageError for damage."""

    def __init__(self, directory: Path, split: str, count: int):
        self.files = sorted(directory.glob(f"{split}-*.npy"))
        indices = [np.load(file, allow_pickle=False) for file in self.files]
        for file, index in zip(self.files, indices):
            shard = file.with_suffix(".bin")
            size = shard.stat().st_size if shard.exists() else 0
            if size != index["length"].sum(dtype=np.int64):
                raise UsageError(f"{shard} is not as long as its index says: make the set again")
        self.index = np.concatenate([np.zeros(0, INDEX), *indices])
        if len(self.index) != count:
            raise UsageError(
                f"{directory} holds {len(self.index)} {split} images, not {count}: make it again"
            )
        self.ends = np.cumsum([len(index) for index in indices])
        self.maps: dict[int, np.memmap] = {}

    def __getitem__(self, i: int) -> bytes:
        shard = int(np.searchsorted(self.ends, i, side="right"))
        file = self.files[shard].with_suffix(".bin")
        if shard not in self.maps:
            self.maps[shard] = np.memmap(file, np.uint8, "r")
        offset, length, _, crc = self.index[i].item()
        data = self.maps[shard][offset : offset + length].tobytes()
        if zlib.crc32(data) != crc:
            raise UsageError(
                f"image {i} in {file} is not what its checksum says: make the set again"
            )
        return data

    def __getstate__(self) -> dict:
        # A loader's worker gets the list of files: a pickled map would be all of its bytes.
        return self.__dict__ | {"maps": {}}


class Images(Task):
    """Images of `directory` (a path, or one below data/), `size` pixels square.

    With `augment` a training image is a random part of 8 to 100 % of the area at an aspect of 3/4
    to 4/3, resized, and flipped half the time (App. D.2). Otherwise the short side is resized to
    size * 256 / 224 and the centre is cut out, as in the published code. Raw images of that very
    size are taken as they are unless they are augmented.
    """

    def __init__(
        self,
        split: str = "train",
        directory: str | Path = "imagenet/256",
        size: int = 224,
        augment: bool = True,
    ):
        if type(size) is not int or size < 1 or type(augment) is not bool:
            raise ValueError(
                "size must be a whole number of at least 1 and augment true or false, got "
                f"{size!r} and {augment!r}"
            )
        drawn = "glyphs" in Path(directory).parts
        maker = "results.images.glyphs" if drawn else "data.imagenet.prepare"
        folder, info = open_set(directory, maker, (f"{split}-",))
        counts = info["counts"]
        if split not in counts:
            raise UsageError(f"{folder} has no {split} split: use --split {' or '.join(counts)}")
        self.split = split
        self.size = size
        self.augment = augment and split == "train"
        self.classes = tuple(info["classes"])
        self.shape = info.get("shape")  # of raw images; JPEGs have shapes of their own
        self.shards = Shards(folder, split, counts[split])
        self.digest = hashlib.sha256(self.shards.index.tobytes()).hexdigest()
        self.ready = not self.augment and self.shape == [size, size, 3]
        if not self.ready:
            pillow()

    def __len__(self) -> int:
        return len(self.shards.index)

    def __getitem__(self, index: int) -> Example:
        """For people: the class by name."""
        label = int(self.shards.index["label"][index])
        return Example(f"{self.split} image {index}", self.classes[label], {"label": label})

    def batch(self, indices: Sequence[int], seeds: Sequence | None = None) -> ImageBatch:
        """Load images; seeds, one for each, decide the augmentation (np.random.default_rng)."""
        if not self.augment or seeds is None:
            seeds = [None] * len(indices)
        pixels = [self.pixels(int(i), seed) for i, seed in zip(indices, seeds)]
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)  # (P_local, 3, H, W)
        labels = self.shards.index["label"][np.asarray(indices)].astype(np.int64)  # (P_local,)
        return ImageBatch(images.contiguous(), torch.from_numpy(labels))

    def pixels(self, index: int, seed: int | Sequence[int] | None) -> np.ndarray:
        """One image, uint8 (H, W, 3), augmented if a seed is given."""
        data = self.shards[index]
        if self.ready:
            return np.frombuffer(data, np.uint8).reshape(self.shape)
        Image = pillow()
        if self.shape:
            image = Image.frombytes("RGB", (self.shape[1], self.shape[0]), data)
        else:
            image = Image.open(io.BytesIO(data), formats=FORMATS).convert("RGB")
        rng = None if seed is None else np.random.default_rng(seed)
        box = random_box(image.width, image.height, rng) if rng else centre_box(*image.size)
        image = image.resize(
            (self.size, self.size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0
        )
        pixels = np.asarray(image)
        return pixels[:, ::-1] if rng and rng.random() < 0.5 else pixels

    def show(self, response: str, example: Example) -> str:
        """The class drawn and the right one."""
        if response == example.answer:
            return f"right: {response}"
        return f"wrong: {response}, not {example.answer}"


def pillow() -> ModuleType:
    """Pillow's Image, or a UsageError where it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise UsageError("images need Pillow: pip install pillow") from None
    return Image


def centre_box(width: int, height: int) -> tuple[float, ...]:
    """(left, upper, right, lower) of the square that resizing to 256 and cutting 224 leaves.

    It has whole pixels of the resized image, rounded as by torchvision: half a pixel more would
    blur the image.
    """
    sides = np.array([width, height])
    resized = (256 * sides / sides.min()).astype(int)
    first = np.round((resized - 224) / 2)
    box = np.stack([first, first + 224]) * sides / resized
    return tuple(box.ravel().tolist())


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """A box of 8 to 100 % of the area and an aspect of 3/4 to 4/3 (log-uniform).

    After ten boxes that do not fit, it is the largest one in the centre.
    """
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
