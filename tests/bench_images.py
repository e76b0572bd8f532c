"""Speed of the image loader and of ResNet-50's training step at 224x224, random weights and images, everything in one run.

    make bench                     or: PYTHONPATH=. python tests/bench_images.py [--repeats 5] [--batch 16] [--json FILE]

Loader: JPEGs of 256 pixels' short side through random resized crop and flip to uint8 batches (normalisation is the
model's), by 0, 1 and 2 workers, and what one image costs in parts. Training: forward and backward of one batch with
cross-entropy and with MaxRL at 1,024 rollouts, which draws labels from the same single forward.
"""

import argparse
import io
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from bench import describe_machine, report, take_turns
from PIL import Image

from maxrl import distributed
from maxrl.advantages import ADVANTAGES
from maxrl.batches import prefetched
from maxrl.classifier import ClassifierPolicy
from maxrl.io.files import sealed
from maxrl.models.resnet import ResNet, ResNetConfig
from maxrl.tasks.images import ImageBatch, Images, random_box, write_shard

IMAGES, BATCH = 512, 64


def photograph(rng) -> bytes:
    """Noise of all scales (amplitude proportional to scale), which a JPEG codes about as densely as a photograph."""
    image = np.zeros((256, 340, 3), np.float32)
    for step in (1, 2, 4, 8, 16, 32, 64, 128):
        small = Image.fromarray(rng.integers(0, 256, (256 // step + 2, 340 // step + 2, 3), dtype=np.uint8))
        image += np.asarray(small.resize((340, 256), Image.Resampling.BICUBIC), np.float32) * step**0.5
    image = (image - image.min()) / (image.max() - image.min()) * 255
    file = io.BytesIO()
    Image.fromarray(image.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def loader(folder: Path, repeats: int, results: list):
    rng = np.random.default_rng(0)
    files = [photograph(rng) for _ in range(64)]
    write_shard(folder, "train", 0, [(files[i % 64], i % 10) for i in range(IMAGES)])
    (folder / "info.json").write_text(sealed(
        {"encoding": "jpeg", "classes": [str(i) for i in range(10)], "counts": {"train": IMAGES}}, folder, ["train-00000.npy"]))
    task = Images("train", folder, 224)
    plan = [(range(i, i + BATCH), [[0, 0, j, 1] for j in range(BATCH)]) for i in range(0, IMAGES, BATCH)]
    turns = {f"{w} workers": lambda w=w: sum(len(batch) for batch in prefetched(task, plan, w)) for w in (0, 1, 2)}
    report(f"loader, {IMAGES} JPEGs of {sum(map(len, files)) / 64 / 1000:.0f} kB, start of the workers included",
           take_turns(turns, repeats, torch.device("cpu")), IMAGES, results, "images")
    image, parts = Image.open(io.BytesIO(files[0])).convert("RGB"), {}
    for name, part in {"decode": lambda: Image.open(io.BytesIO(files[0])).convert("RGB"),
                       "crop, resize": lambda: image.resize((224, 224), Image.Resampling.BILINEAR,
                                                            random_box(340, 256, rng), reducing_gap=2.0),
                       "all of it": lambda: task.pixels(0, [0, 0, 0, 1])}.items():
        start = time.perf_counter()
        for _ in range(200):
            part()
        parts[name] = (time.perf_counter() - start) / 200
    print("  milliseconds per image on one core: " + ", ".join(f"{name} {1000 * s:.2f}" for name, s in parts.items()))


def training(batch: int, low: bool, device) -> dict:
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(1000)).to(device, memory_format=torch.channels_last)
    policy = ClassifierPolicy(model, range(1000), autocast=low)
    examples = ImageBatch(torch.randint(0, 256, (batch, 3, 224, 224), dtype=torch.uint8), torch.arange(batch))

    def step(estimator, rollouts):
        model.zero_grad()
        drawn = policy.demonstrate(examples) if rollouts == 1 else policy.rollout(examples, rollouts)
        policy.backward(drawn, ADVANTAGES[estimator]((drawn.drawn == drawn.labels[:, None]).float()))

    return {"cross-entropy": lambda: step("supervised", 1), "maxrl, 1024 rollouts": lambda: step("maxrl", 1024)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16, help="images of a training step (16; 256 on a GPU)")
    parser.add_argument("--json", help="write all timings to this file")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device, results = distributed.setup(args.device)[2], []
    print(describe_machine(device))
    with tempfile.TemporaryDirectory() as folder:
        loader(Path(folder), args.repeats, results)
    for low in (False, True):
        report(f"ResNet-50 at 224x224, forward + backward, batch {args.batch}, {'bfloat16' if low else 'float32'}",
               take_turns(training(args.batch, low, device), args.repeats, device), args.batch, results, "images")
    if args.json:
        Path(args.json).write_text(json.dumps({"where": describe_machine(device), "results": results}))


if __name__ == "__main__":
    main()
