"""ResNet (He et al. 2015) with the stride in the 3x3 convolution, as in torchvision's checkpoints.

Modules carry torchvision's names, so that its weights load with strict=True. resnet50 has
25,557,032 parameters for 1,000 classes.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

# In our config.json; the tensors of transformers' "resnet" have other names.
MODEL_TYPE = "torchvision_resnet"
BLOCKS = {"basic": 1, "bottleneck": 4}  # channels of the result, in widths


@dataclass(frozen=True)
class ResNetConfig:
    """resnet50 is the default; resnet18 has block="basic" and depths (2, 2, 2, 2).

    num_labels  number of classes
    block       "bottleneck" (convolutions 1x1, 3x3, 1x1) or "basic" (two 3x3)
    depths      blocks of each stage; every stage but the first halves the image
    width       channels of the first stage; each further one has twice as many
    stem        "imagenet" (7x7 with stride 2, max-pooling) or, for images of few pixels, "small"
                (3x3)
    mean, std   of pixels in [0, 1]; ImageNet's by default
    """

    num_labels: int
    block: str = "bottleneck"
    depths: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    stem: str = "imagenet"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    @classmethod
    def from_dict(cls, config: dict) -> "ResNetConfig":
        """Read a parsed config.json; TypeError for unknown or missing keys."""
        given: dict = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
        given.pop("model_type", None)
        if sum(given.get("depths", ())) > 1000:
            raise ValueError("config.json asks for more than 1,000 blocks")
        return cls(**given)

    def to_hf(self) -> dict:
        """Return the config.json of this model."""
        return {"model_type": MODEL_TYPE, **asdict(self)}


def convolution(before: int, after: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that keeps the image's size up to the stride.

    It has no bias, as batch-norm follows.
    """
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """x + f(x), where f is two or three convolutions with batch-norm."""

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
        # Brings x to the shape of f(x).
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            shortcut = convolution(before, after, 1, stride)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.kind == "bottleneck":
            y = self.bn3(self.conv3(self.relu(y)))
        return self.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """Logits (B, C) of images (B, 3, H, W): uint8 pixels, or floats already normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: ResNetConfig):
        super().__init__()
        self.config = config
        # Not in the state_dict, so these have values even in a model on the meta device.
        for name in ("mean", "std"):
            values = torch.tensor(getattr(config, name), device="cpu").view(3, 1, 1)
            self.register_buffer(name, values, persistent=False)
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
        # As in torchvision the rest keeps torch's defaults.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype == torch.uint8:
            images = (images / 255 - self.mean) / self.std
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage, _ in enumerate(self.config.depths, 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(self.avgpool(x).flatten(1))
