"""ResNet (He et al. 2015) with the stride in the 3x3 convolution, as published checkpoints of torchvision have it.

Modules carry torchvision's names: its weights load with strict=True. resnet50 has 25,557,032 parameters for 1,000 classes.
"""

from dataclasses import asdict, dataclass

import torch
from torch import nn

MODEL_TYPE = (
    "torchvision_resnet"  # of our config.json; transformers' "resnet" names its tensors otherwise
)


@dataclass(frozen=True)
class ResNetConfig:
    """resnet50 is the default; resnet18 has block="basic" and depths (2, 2, 2, 2)."""

    num_labels: int
    block: str = "bottleneck"  # three convolutions 1x1, 3x3, 1x1; or "basic", two 3x3
    depths: tuple[int, ...] = (
        3,
        4,
        6,
        3,
    )  # blocks of each stage; every stage but the first halves the image
    width: int = 64  # channels of the first stage; each further one has twice as many
    stem: str = "imagenet"  # 7x7 of stride 2 and max-pooling; or "small", 3x3 of stride 1, for images of few pixels
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # of ImageNet's pixels in [0, 1]
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self):
        if self.block not in tuple(BLOCKS) or self.stem not in (
            "imagenet",
            "small",
        ):  # tuples take what has no hash
            raise ValueError(
                f"no ResNet has block {repr(self.block)[:40]} and stem {repr(self.stem)[:40]}; use basic or "
                "bottleneck, and imagenet or small"
            )
        for name, largest in (("num_labels", 2**24), ("width", 2**16), ("depths", 100)):
            value = getattr(self, name)
            sizes = value if name == "depths" else [value]
            few = (
                isinstance(sizes, (list, tuple)) and 0 < len(sizes) <= 8
            )  # every stage doubles the width
            if not (few and all(type(size) is int and 0 < size <= largest for size in sizes)):
                raise ValueError(
                    f"no ResNet has {name} = {str(value)[:40]}: whole numbers from 1 to {largest}"
                )
        for name in ("mean", "std"):
            values = getattr(self, name)
            three = isinstance(values, (list, tuple)) and len(values) == 3
            least = 0 if name == "std" else -1e6
            if not (three and all(type(v) in (int, float) and least < v < 1e6 for v in values)):
                raise ValueError(
                    f"no ResNet has {name} = {str(values)[:40]}: three numbers, those of std above 0"
                )

    @classmethod
    def from_dict(cls, config: dict) -> "ResNetConfig":
        """Read a parsed config.json; ValueError for keys that are unknown or missing."""
        given = {}
        for key, value in config.items():
            if key != "model_type":
                given[key] = tuple(value) if isinstance(value, list) else value
        unknown = given.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            raise ValueError(
                f"config.json of a {MODEL_TYPE} has unknown keys: {', '.join(sorted(unknown))[:80]}"
            )
        if "num_labels" not in given:
            raise ValueError(f"config.json of a {MODEL_TYPE} lacks num_labels")
        return cls(**given)

    def to_hf(self) -> dict:
        """Return the config.json of this model."""
        return {"model_type": MODEL_TYPE, **asdict(self)}


def convolution(before: int, after: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that keeps the image's size up to the stride; batch-norm follows, so it needs no bias."""
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)


BLOCKS = {"basic": 1, "bottleneck": 4}  # how many times the width its result has


class Block(nn.Module):
    """x + f(x), f two 3x3 convolutions ("basic") or a 3x3 between two 1x1 ("bottleneck"), each with batch-norm."""

    def __init__(self, kind: str, before: int, width: int, stride: int):
        super().__init__()
        after = width * BLOCKS[kind]
        shapes = [(before, width, 3, stride), (width, after, 3)]
        if kind == "bottleneck":
            shapes = [(before, width, 1), (width, width, 3, stride), (width, after, 1)]
        for i, shape in enumerate(shapes, 1):
            self.add_module(f"conv{i}", convolution(*shape))
            self.add_module(f"bn{i}", nn.BatchNorm2d(shape[1]))
        self.kind = kind
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Identity()
        if stride > 1 or before != after:  # brings x to the shape of f(x)
            self.downsample = nn.Sequential(
                convolution(before, after, 1, stride), nn.BatchNorm2d(after)
            )

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.kind == "bottleneck":
            y = self.bn3(self.conv3(self.relu(y)))
        return self.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """Logits (B, C) of images (B, 3, H, W): uint8 pixels, or floats that are normalised already."""

    def __init__(self, config: ResNetConfig):
        super().__init__()
        self.config = config
        for name in ("mean", "std"):  # not in the state_dict
            self.register_buffer(
                name, torch.tensor(getattr(config, name)).view(-1, 1, 1), persistent=False
            )
        small = config.stem == "small"
        width = channels = config.width
        self.conv1 = convolution(3, channels, 3) if small else convolution(3, channels, 7, 2)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        stride = 1
        for stage, depth in enumerate(config.depths, 1):
            blocks = []
            for _ in range(depth):
                blocks.append(Block(config.block, channels, width, stride))
                channels = width * BLOCKS[config.block]
                stride = 1
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            width *= 2
            stride = 2
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, config.num_labels)
        for module in self.modules():
            if isinstance(
                module, nn.Conv2d
            ):  # He initialisation; the rest keeps torch's defaults, as torchvision does
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images):
        if images.dtype == torch.uint8:
            images = (images / 255 - self.mean) / self.std
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage, _ in enumerate(self.config.depths, 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(self.avgpool(x).flatten(1))
