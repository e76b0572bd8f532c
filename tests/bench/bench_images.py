"""The rows of bench.py about images: steps with cross-entropy and with MaxRL, and the loader.

Images and weights are random. Loader: JPEGs of 256 pixels' short side through random resized crop
and flip to uint8 batches (normalisation is the model's). MaxRL draws its labels from the same
single forward as cross-entropy.
"""

import io
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from maxrl.advantages import ADVANTAGES
from maxrl.learning.classifier import ClassifierPolicy
from maxrl.learning.optimizer import make_optimizer
from maxrl.learning.prompt_order import prefetched
from maxrl.models import from_config
from maxrl.run.recipes import imagenet
from maxrl.system.files import write_json
from maxrl.tasks.images import ImageBatch, Images, random_box, write_shard
from results.images.recipe import images_laptop
from tests.bench import bench_turns
from tests.bench.bench_turns import autocast, contest, repeated, sized


def photograph(rng) -> bytes:
    """Noise of all scales (amplitude proportional to scale), which a JPEG codes about as densely as
    a photograph."""
    image = np.zeros((256, 340, 3), np.float32)
    for step in (1, 2, 4, 8, 16, 32, 64, 128):
        shape = (256 // step + 2, 340 // step + 2, 3)
        small = Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))
        large = small.resize((340, 256), Image.Resampling.BICUBIC)
        image += np.asarray(large, np.float32) * step**0.5
    image -= image.min()
    image *= 255 / image.max()
    file = io.BytesIO()
    Image.fromarray(image.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def loader(turns: int) -> dict:
    """Batches by 0, 1 and 2 workers, their start included, and what one image costs in parts."""
    count, batch, different, repeats = sized((512, 64, 64, 200), (8, 4, 2, 1))
    rng = np.random.default_rng(0)
    files = [photograph(rng) for _ in range(different)]
    kilobytes = sum(map(len, files)) / different / 1000

    def decode():
        return Image.open(io.BytesIO(files[0])).convert("RGB")

    image = decode()
    box = random_box(340, 256, rng)

    def crop():
        image.resize((224, 224), Image.Resampling.BILINEAR, box, reducing_gap=2.0)

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        write_shard(folder, "train", 0, [(files[i % different], i % 10) for i in range(count)])
        classes = [str(i) for i in range(10)]
        info = {"encoding": "jpeg", "classes": classes, "counts": {"train": count}}
        write_json(folder / "info.json", info)
        task = Images("train", folder, 224)
        keys = [[0, 0, j, 1] for j in range(batch)]
        plan = [(range(i, i + batch), keys) for i in range(0, count, batch)]

        def load(workers):
            for _ in prefetched(task, plan, workers):
                pass

        contestants = {f"{n} workers": partial(load, n) for n in (2, 1, 0)}
        work = dict.fromkeys(contestants, count)
        for name, part in {"decoding": decode, "crop and resize": crop}.items():
            who = f"{name} alone, one core"
            contestants[who] = partial(repeated, repeats, part)
            work[who] = repeats
        what = f"{count} JPEGs of {kilobytes:.0f} kB to crops of 224"
        return contest(what, contestants, turns, work, "image")


def steps(recipe, dtype: str, batch: int, size: int, rollouts, turns: int) -> dict:
    """The row of an optimizer step on one batch: MaxRL with so many rollouts, cross-entropy, and
    the plainest loop."""
    cfg = replace(recipe(), lr=1e-3)
    classes = 1000 if recipe is imagenet else 200
    what = f"a step of {batch} images of {size} pixels"
    batch, size = sized((batch, size), (2, 32))
    small = sized({}, {"depths": (1, 1, 1, 1), "width": 8})
    torch.manual_seed(0)
    model = from_config(cfg.model | small | {"num_labels": classes})
    model.to(bench_turns.device, memory_format=torch.channels_last)
    policy = ClassifierPolicy(model, range(classes), autocast=dtype == "bfloat16")
    optimizer = make_optimizer(cfg, model)
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)
    examples = ImageBatch(images, torch.arange(batch) % classes)

    def learn(estimator, drawn):
        labels = drawn.labels[:, None]
        policy.backward(drawn, ADVANTAGES[estimator]((drawn.drawn == labels).float()))
        optimizer.step()
        optimizer.zero_grad()

    def plain():
        moved = examples.to(bench_turns.device)
        with autocast(dtype):
            logits = model(moved.images.contiguous(memory_format=torch.channels_last))
        F.cross_entropy(logits.float(), moved.labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    contestants = {}
    for n in rollouts:
        contestants[f"MaxRL {n}"] = lambda n=n: learn("maxrl", policy.rollout(examples, n))
    contestants["cross-entropy"] = lambda: learn("supervised", policy.demonstrate(examples))
    contestants["plain loop"] = plain
    more = {"dtype": dtype, "rivals": ["cross-entropy"]}
    return contest(what, contestants, turns, batch, "image", **more)


def laptop(turns: int) -> dict:
    return steps(images_laptop, "float32", 256, 32, (1024, 128, 16), 4 * turns)


def resnet50(dtype: str, turns: int) -> dict:
    return steps(imagenet, dtype, 16, 224, (1024,), turns)
