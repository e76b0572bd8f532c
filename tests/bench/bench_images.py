"""The rows of bench.py about images: steps with cross-entropy and with MaxRL, and the loader.

Images and weights are random. Loader: JPEGs of 256 pixels' short side through random resized crop
and flip to uint8 batches (normalisation is the model's). MaxRL draws its labels from the same
single forward as cross-entropy.
"""

import io
import tempfile
from pathlib import Path

import bench_turns
import numpy as np
import torch
import torch.nn.functional as F
from bench_turns import row, sized, take_turns
from PIL import Image

from maxrl.advantages import ADVANTAGES
from maxrl.classifier import ClassifierPolicy
from maxrl.io.files import write_json
from maxrl.models import from_config
from maxrl.prompt_order import prefetched
from maxrl.recipes import imagenet, images_laptop
from maxrl.tasks.images import ImageBatch, Images, random_box, write_shard


def photograph(rng) -> bytes:
    """Noise of all scales (amplitude proportional to scale), which a JPEG codes about as densely as
    a photograph."""
    image = np.zeros((256, 340, 3), np.float32)
    for step in (1, 2, 4, 8, 16, 32, 64, 128):
        small = Image.fromarray(
            rng.integers(0, 256, (256 // step + 2, 340 // step + 2, 3), dtype=np.uint8)
        )
        image += (
            np.asarray(small.resize((340, 256), Image.Resampling.BICUBIC), np.float32) * step**0.5
        )
    image = (image - image.min()) / (image.max() - image.min()) * 255
    file = io.BytesIO()
    Image.fromarray(image.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def loader(turns: int) -> dict:
    """Batches by 0, 1 and 2 workers, their start included, and what one image costs in parts."""
    count, batch, different, repeats = sized((512, 64, 64, 200), (8, 4, 2, 1))
    rng = np.random.default_rng(0)
    files = [photograph(rng) for _ in range(different)]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        write_shard(folder, "train", 0, [(files[i % different], i % 10) for i in range(count)])
        info = {
            "encoding": "jpeg",
            "classes": [str(i) for i in range(10)],
            "counts": {"train": count},
        }
        write_json(folder / "info.json", info)
        task = Images("train", folder, 224)
        plan = [
            (range(i, i + batch), [[0, 0, j, 1] for j in range(batch)])
            for i in range(0, count, batch)
        ]
        image = Image.open(io.BytesIO(files[0])).convert("RGB")
        box = random_box(340, 256, rng)
        bilinear = Image.Resampling.BILINEAR
        parts = {
            "decoding alone, one core": lambda: Image.open(io.BytesIO(files[0])).convert("RGB"),
            "crop and resize alone, one core": lambda: image.resize(
                (224, 224), bilinear, box, reducing_gap=2.0
            ),
        }
        contestants = {
            f"{w} workers": lambda w=w: sum(len(batch) for batch in prefetched(task, plan, w))
            for w in (2, 1, 0)
        }
        contestants |= {
            name: lambda part=part: [part() for _ in range(repeats)] and None
            for name, part in parts.items()
        }
        times, _ = take_turns(contestants, turns)
    work = {who: repeats if who in parts else count for who in times}
    return row(
        f"{count} JPEGs of {sum(map(len, files)) / different / 1000:.0f} kB to crops of 224",
        times,
        work,
        "image",
    )


def steps(recipe, dtype: str, batch: int, size: int, rollouts, turns: int) -> tuple:
    """Times of an optimizer step on one batch: MaxRL with so many rollouts, cross-entropy, and the
    plainest loop."""
    cfg = recipe()
    torch.manual_seed(0)
    classes = 1000 if recipe is imagenet else 200
    batch, size = sized((batch, size), (2, 32))
    small = sized({}, {"depths": (1, 1, 1, 1), "width": 8})
    model = from_config(cfg.model | small | {"num_labels": classes}).to(
        bench_turns.device, memory_format=torch.channels_last
    )
    policy = ClassifierPolicy(model, range(classes), autocast=dtype == "bfloat16")
    examples = ImageBatch(
        torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8),
        torch.arange(batch) % classes,
    )
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-3, momentum=cfg.momentum, weight_decay=cfg.weight_decay
    )

    def step(estimator, drawn):
        labels = drawn.labels[:, None]
        policy.backward(drawn, ADVANTAGES[estimator]((drawn.drawn == labels).float()))
        optimizer.step()
        optimizer.zero_grad()

    def plain():
        moved = examples.to(bench_turns.device)
        with torch.autocast(bench_turns.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(moved.images.contiguous(memory_format=torch.channels_last))
        F.cross_entropy(logits.float(), moved.labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    contestants = {
        f"MaxRL {n}": lambda n=n: step("maxrl", policy.rollout(examples, n)) for n in rollouts
    }
    contestants |= {
        "cross-entropy": lambda: step("supervised", policy.demonstrate(examples)),
        "plain loop": plain,
    }
    return take_turns(contestants, turns)


def laptop(turns: int) -> dict:
    times, flops = steps(images_laptop, "float32", 256, 32, (1024, 128, 16), 4 * turns)
    return row(
        "a step of 256 images of 32 pixels",
        times,
        256,
        "image",
        dtype="float32",
        rivals=["cross-entropy"],
        flops=flops,
    )


def resnet50(dtype: str, turns: int) -> dict:
    times, flops = steps(imagenet, dtype, 16, 224, (1024,), turns)
    return row(
        "a step of 16 images of 224 pixels",
        times,
        16,
        "image",
        dtype=dtype,
        rivals=["cross-entropy"],
        flops=flops,
    )
