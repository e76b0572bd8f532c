"""What a step of sampling costs on a GPU, counted by replaying the sampler on lengths as they are.

    python -m tests.bench.replay [--steps 4] [--only gsm8k] [--label after] [--out FILE.json]
    python -m tests.bench.replay --show results/speed/replay.json

The sampler is the project's own: waves and their memory, searches for ended rows, whose counts come
a search late as on a GPU, packing and growing. Only the model is none: it has no layers, and a row
ends where its length says. Responses have lognormal lengths with a coefficient of variation of .6,
36 % of whose log-variance lies between prompts; prompts are lognormal too, but for mazes.

Row-steps, bytes and captures are counted. Seconds are estimates for an H100, from the constants
below; nobody has measured them. The first step, before anything is known of lengths, is left out.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch

from maxrl.learning import policy
from maxrl.learning.policy import SequencePolicy
from maxrl.models.cache import Cache
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.hf_config import FAMILIES, TransformerConfig
from maxrl.run.recipes import RECIPES
from maxrl.sampling import sampler
from tests.helpers.published import PUBLISHED

MAZE = 310  # tokens of a maze, all alike
# Recipe, model, GPUs, mean tokens of a response and of a prompt.
ROWS = {
    "maze17, 1 GPU": ("maze17", "maze", 1, 45, MAZE),
    "maze17, 8 GPUs": ("maze17", "maze", 8, 45, MAZE),
    "gsm8k_smollm2, 8 GPUs": ("gsm8k_smollm2", "SmolLM2-360M-Instruct", 8, 200, 150),
    "polaris_qwen3_1_7b, 8 GPUs": ("polaris_qwen3_1_7b", "Qwen3-1.7B-Base", 8, 1400, 130),
    "polaris_qwen3_1_7b, 32 GPUs": ("polaris_qwen3_1_7b", "Qwen3-1.7B-Base", 32, 1400, 130),
    "polaris_qwen3_4b, 32 GPUs": ("polaris_qwen3_4b", "Qwen3-4B-Base", 32, 2100, 130),
}
VARIATION = 0.6
BETWEEN = 0.36
BANDWIDTH = 0.7 * 3.35e12  # bytes a second that are reached
PRODUCTS = 400e12  # FLOP a second that are reached
NODE = 1.8e-6  # seconds of a kernel in a graph
CAPTURE = 17e-6  # seconds for each kernel: an eager step, the capture, making the graph
LOGIT = 50  # bytes that are read and written for a logit
ELEMENT = 75  # the same for a row, layer and number of a hidden state
HEAD = (
    "recipe, of one GPU | | row-steps | of them lost | needed | steps | keys and values, TB | "
    "captures | seconds | of them with under a tenth of the rows"
)


@dataclass
class Size:
    """What a model's step reads and writes."""

    kernels: int
    parameters: int
    token: int  # bytes of a token's keys and values
    row: int  # bytes that a row moves besides
    words: int

    @classmethod
    def of(cls, name: str) -> "Size":
        published, parameters = PUBLISHED[name]
        config = TransformerConfig.from_hf(published)
        layers = config.num_hidden_layers
        kernels = 47 + layers * (36 if FAMILIES[config.model_type].qk_norm else 30)
        token = 4 * layers * config.num_key_value_heads * config.head_dim
        row = ELEMENT * layers * config.hidden_size + LOGIT * config.vocab_size
        return cls(kernels, parameters, token, row, config.vocab_size)


class NoModel(torch.nn.Module):
    """Two equally likely words, and the shape of every step."""

    def __init__(self, size: Size, shapes: list):
        super().__init__()
        self.lm_head = torch.nn.Linear(1, 2)
        self.config = SimpleNamespace(max_position_embeddings=10**6)
        self.size = size
        self.shapes = shapes

    def encode(self, prefix):
        empty = torch.zeros(len(prefix), 1, prefix.shape[1], 0)
        return [(empty, empty)]

    def decode(self, tokens, cache):
        cache.extend()
        self.shapes[-1].append((*tokens.shape, cache.own[0].shape[4], cache.prefix[0][0].shape[2]))
        return torch.zeros(*tokens.shape, 2)


class Replayed(SequencePolicy):
    """Its examples are the lengths of prompts."""

    def encode_prompts(self, examples):
        return [torch.zeros(length, dtype=torch.long) for length in examples]


class Lag(sampler.Late):
    """Counts as a GPU's host has them: those of the search before."""

    def start(self, alive):
        self.counts = alive.sum(1)

    def read(self, alive):
        return self.counts


def lognormal(generator, mean: float, variance: float, *shape: int):
    """Numbers of that mean whose logarithms have that variance."""
    return generator.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), shape)


def lengths(step: int, index: int, N: int, mean: float) -> np.ndarray:
    """Of the N responses to a prompt of a step."""
    generator = np.random.default_rng((step, index))
    variance = math.log(1 + VARIATION**2)
    middle = lognormal(generator, mean, BETWEEN * variance, 1)
    drawn = middle * lognormal(generator, 1, (1 - BETWEEN) * variance, N)
    return drawn.round().clip(1).astype(int)


def prompt_length(step: int, index: int, mean: float) -> int:
    """Mazes are equally long, texts lognormal."""
    if mean == MAZE:
        return MAZE
    generator = np.random.default_rng((step, index, 1))
    return int(lognormal(generator, mean, 0.15, 1).clip(16, 4 * mean)[0])


def replay(name: str, steps: int, indices: Callable | None = None, **changes) -> list[dict]:
    """Counts and seconds of a rank's steps after the first, or of the first if it is the only one.

    indices  of a step, which of the prompts of all ranks this one has; default: the first ones
    changes  of the recipe's fields
    """
    recipe, published, gpus, mean, prompt = ROWS[name]
    cfg = replace(RECIPES[recipe](), **changes)
    size = Size.of(published)
    (N,) = cfg.rollouts
    limit = cfg.max_response
    shapes: list[list] = []  # of each call of generate(), those of its steps
    lost: list[bool] = []
    drawn: list[np.ndarray] = []  # the lengths of its rows

    def noise(seed, step, indices, num_rollouts, length, earlier=0):
        """Half a word's chance, but at a row's length."""
        rows = np.stack([lengths(step, i, num_rollouts, mean) for i in indices])
        drawn.append(rows.clip(max=limit))
        uniforms = torch.full((*rows.shape, length + 1), 0.25, dtype=torch.float64)
        ends = torch.from_numpy(rows.clip(max=length + 1) - 1)
        return uniforms.scatter(2, ends[..., None], 0.75)[..., :length]

    def generate(*arguments, real=sampler.generate, **options):
        shapes.append([])
        lost.append(True)
        made = real(*arguments, **options)
        lost[-1] = False
        return made

    class Counted(Cache):
        def __init__(self, prefix_kv, prefix_lengths, num_rows, budget, extra_bytes):
            super().__init__(
                prefix_kv, prefix_lengths, num_rows, budget, sampler.LOGIT_BYTES * size.words
            )
            self.token_bytes = size.token

    learner = Replayed(
        Checkpoint(NoModel(size, shapes), None, [1]),
        max_tokens=limit,
        wave_rows=cfg.wave_rows,
        kv_memory_gb=cfg.kv_memory_gb,
    )
    on_a_gpu = {"Late": Lag, "Cache": Counted, "pack_every": lambda device: Cache.BLOCK}
    every = []
    with (
        mock.patch.multiple(sampler, create=True, **on_a_gpu),
        mock.patch.multiple(policy, noise=noise, generate=generate),
    ):
        for step in range(steps):
            mine = indices(step) if indices else range(cfg.prompts // gpus)
            prompts = [prompt_length(step, i, prompt) for i in mine]
            for calls in (shapes, lost, drawn):
                calls.clear()
            learner.rollout(prompts, N, step=step, indices=mine)
            every.append(counted(size, shapes, lost, drawn))
    return every[1:] or every


def averaged(steps: list[dict]) -> dict[str, float]:
    """Of the counts of several steps."""
    return {key: float(np.mean([step[key] for step in steps])) for key in steps[0]}


def counted(size: Size, shapes: list, lost: list, drawn: list) -> dict:
    """Counts and seconds of one step's calls of generate()."""
    found: dict = defaultdict(float)
    for call, was_lost, rows in zip(shapes, lost, drawn):
        found["calls"] += 1
        found["lost calls"] += was_lost
        found["needed"] += 0 if was_lost else rows.sum()
        before: tuple | None = None
        seen = 0
        for position, (G, M, C, Lp) in enumerate(call):
            read = (G * M * C + G * Lp) * size.token
            moved = read + G * M * size.row
            products = max(2 * size.parameters / BANDWIDTH, 2 * size.parameters * G * M / PRODUCTS)
            seconds = size.kernels * NODE + moved / BANDWIDTH + products
            if before != (G, M, C):
                seconds += 2 * read / BANDWIDTH
                seen = 0
            seen += 1
            if seen == 2:
                found["captures"] += 1
                seconds += size.kernels * CAPTURE
            before = (G, M, C)
            found["steps"] += 1
            found["row-steps"] += G * M
            found["lost"] += G * M * was_lost
            found["bytes"] += read
            found["seconds"] += seconds
            found["tail"] += seconds * ((rows > position).mean() < 0.1)
            found["longest"] += seconds * ((rows > position).mean() < 0.01)
    return found


def table(found: dict) -> str:
    """{recipe: {label: counts}} as Markdown."""
    lines = [f"| {HEAD} |", "|---" * (HEAD.count("|") + 1) + "|"]
    for name, labels in found.items():
        for label, row in labels.items():
            counts = [f"{row[key] / 1000:,.0f}k" for key in ("row-steps", "lost", "needed")]
            numbers = [f"{row['steps']:,.0f}", f"{row['bytes'] / 1e12:.3g}"]
            numbers += [f"{row['captures']:.0f}", f"{row['seconds']:.3g}", f"{row['tail']:.2g}"]
            lines.append(f"| {' | '.join([name, label, *counts, *numbers])} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--steps", type=int, default=4, help="of each recipe, the first is not counted")
    add("--only", default="", help="recipes whose names contain this")
    add("--label", default="now", help="what the rows are called")
    add("--out", type=Path, help="a file of JSON to which they are added")
    add("--show", type=Path, help="replay nothing, print the table of this file")
    args = parser.parse_args()
    file = args.show or args.out
    found = json.loads(file.read_text()) if file and file.exists() else {}
    for name in () if args.show else ROWS:
        if args.only in name:
            found.setdefault(name, {})[args.label] = averaged(replay(name, args.steps))
            if args.out:
                args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
