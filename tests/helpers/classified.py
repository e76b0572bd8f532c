"""A small classifier, and images for it."""

import torch

from maxrl.tasks.images import ImageBatch
from tests.helpers.tensors import seeded


class Plain(torch.nn.Sequential):
    """Without batch-norm: the images of a batch do not know each other."""

    def __init__(self):
        torch.manual_seed(0)
        linear = torch.nn.Linear
        super().__init__(torch.nn.Flatten(), linear(192, 16), torch.nn.Tanh(), linear(16, 5))
        self.double()

    def forward(self, images):
        return super().forward(images.double() / 128 - 1)


def pictures(count):
    """Random images of 8x8, whose five classes go round."""
    pixels = torch.randint(256, (count, 3, 8, 8), generator=seeded(), dtype=torch.uint8)
    return ImageBatch(pixels, torch.arange(count) % 5)
