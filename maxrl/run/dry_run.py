"""What a run asks of each GPU, by arithmetic alone: `python train.py RECIPE --dry-run [--gpus 8] [--field value ...]`.

Always there, with p parameters: 4 p weights, 4 p gradients (DDP's buckets, which hold them once), 8 p Adam (SGD 4 p), with
--shard true over the GPUs of a node, NODE of them, and 4 p of a KL reference. Beside it the larger of two moments, which
follow one another; the update needs nothing more, since Adam is fused:

    sampling  2 p for the bfloat16 weights (float32, sharded: 4 p, gathered), the prompts' keys and values, 24 bytes of noise
              and results for each token that a row may get, and the responses' keys and values with 20 bytes a logit of a
              decode step: together no more than --kv-memory-gb, or every row of --wave-rows at its longest
    training  2 p for the bfloat16 weights (and 2 p of the reference), a micro-batch's activations, 20 bytes a logit of a
              chunk (maxrl.losses.CHUNK)

Sharded, sampling has a float32 embedding table too, which beside bfloat16 weights is a tensor of its own; training has the
parameters outside the layers and those of two layers (one at work, one on its way) whole, with their gradients: 8 bytes each.

Activations are what autograd keeps. With a = 2 bytes (bfloat16) or 4, hidden size E, feed-forward I, H heads and Hk key-value
heads of size D, one layer keeps of each token

    16 E + 2 a E            input and normalised input of the two norms (float32), and their outputs
    a (2 H D + 2 Hk D)      queries, keys, values and attention's result
    8 (H + Hk) D            Qwen3 only: the same of its norms of queries and keys
    4 a I                   gate, silu(gate), up and their product
    4 H                     attention's log-sum-exp

and of each token of a prompt, for each row that reads it, its keys and values again (2 a Hk D). Around the layers: 8 E of the
last norm, 2 a E of its result. With gradient checkpointing a layer keeps its input, 4 E, and one layer is whole.

Not counted: the CUDA context, communication buffers, fragmentation; RESERVE of a card is left for them.
"""

import contextlib
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from maxrl.checkpoint import Uninitialised
from maxrl.config import Config, with_overrides
from maxrl.errors import UsageError
from maxrl.io.arguments import dashed, split_arguments
from maxrl.io.files import read_json
from maxrl.io.hub_files import find, on_hub
from maxrl.losses import CHUNK
from maxrl.models import from_config
from maxrl.models.lora import add_lora
from maxrl.models.transformer import FAMILIES
from maxrl.run.logger import duration
from maxrl.run.setup import check_names
from maxrl.sampling.memory import cache_bytes

PROMPT = 256  # tokens, assumed
NODE = 8  # GPUs
RESERVE = 0.1
CARDS = {
    "16 GB": 14,
    "24 GB": 22,
    "40 GB": 39,
    "48 GB": 44,
    "80 GB": 79,
    "141 GB": 140,
}  # the GiB of the smallest such card

# The sizes in the config.json of models that a recipe starts from by their name on the hub.
QWEN3 = dict(
    model_type="qwen3",
    vocab_size=151936,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=32768,
    rope_theta=1e6,
    tie_word_embeddings=True,
)
PUBLISHED = {
    "HuggingFaceTB/SmolLM2-360M-Instruct": dict(
        model_type="llama",
        vocab_size=49152,
        hidden_size=960,
        intermediate_size=2560,
        num_hidden_layers=32,
        num_attention_heads=15,
        num_key_value_heads=5,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
        tie_word_embeddings=True,
    ),
    "Qwen/Qwen3-1.7B-Base": QWEN3 | dict(hidden_size=2048, intermediate_size=6144),
    "Qwen/Qwen3-4B-Base": QWEN3
    | dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32),
}


def shape(cfg: Config) -> torch.nn.Module:
    """The recipe's model without its numbers, on the meta device: of a local --init, of a known hub id, or of cfg.model."""
    published = {Path(name).name: sizes for name, sizes in PUBLISHED.items()}
    config = published.get(Path(cfg.init).name, cfg.model)
    try:
        if cfg.init and not on_hub(cfg.init):
            with contextlib.suppress(FileNotFoundError):  # it is not made yet, or an adapter
                config = read_json(find(cfg.init) / "config.json")
        if not config:
            raise UsageError(
                f"nothing is known of {cfg.init or 'a model without --init'}: give a directory with its "
                f"config.json as --init, or one of {', '.join(PUBLISHED)}"
            )
        with torch.device("meta"), Uninitialised():
            return from_config({"num_labels": 1000} | config)
    except ValueError as error:
        raise UsageError(f"--init {cfg.init}: {error}") from None


def activation_bytes(config, tokens: int, low: bool, checkpointing: bool, copied: int = 0) -> int:
    """Of a training forward up to the last norm; copied: prompt tokens times the rows that read each of them."""
    E = config.hidden_size
    D = config.head_dim
    H = config.num_attention_heads
    Hk = config.num_key_value_heads
    a = 2 if low else 4
    layer = 16 * E + 2 * a * E + a * (2 * H + 2 * Hk) * D + 4 * a * config.intermediate_size + 4 * H
    if FAMILIES[config.model_type]["qk_norm"]:
        layer += 8 * (H + Hk) * D
    layer = tokens * layer + copied * 2 * a * Hk * D
    kept = (
        layer + config.num_hidden_layers * 4 * E * tokens
        if checkpointing
        else config.num_hidden_layers * layer
    )
    return kept + tokens * (8 + 2 * a) * E


def image_bytes(model, images: int, size: int, low: bool) -> int:
    """What autograd keeps of a classifier's forward: counted in one on the meta device."""
    storages = {}

    def count(tensor):
        storages[tensor.untyped_storage()._cdata] = tensor  # kept, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model(torch.zeros(images, 3, size, size, device="meta"))
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    return sum(t.untyped_storage().nbytes() for key, t in storages.items() if key not in own) // (
        2 if low else 1
    )


def plan(
    cfg: Config, gpus: int = 1, sharded: bool = False, mean: int = 0
) -> dict[str, dict[str, int]]:
    """Bytes of one rank: {"always" or a moment: {what: bytes}}; mean: assumed length of a response, 0: half the longest."""
    if gpus < 1 or cfg.prompts % gpus:
        raise UsageError(f"--prompts {cfg.prompts} must divide by the {gpus} GPUs")
    model = shape(cfg)
    config = model.config
    low = cfg.precision != "float32"
    local = cfg.prompts // gpus
    if cfg.lora_rank:
        add_lora(model, cfg.lora_rank, cfg.lora_alpha, cfg.lora_projections)
    p = parameters(model)
    reference = p * bool(cfg.beta)
    share = min(gpus, NODE) if sharded else 1
    gradients = (
        4 * sum(weight.numel() for weight in model.parameters() if weight.requires_grad) // share
    )
    always = {"weights": 4 * p // share, "gradients": gradients}
    always |= {"Adam": 2 * gradients} if cfg.optimizer == "adamw" else {"momentum": gradients}
    always["reference model"] = 4 * reference
    if low:
        weights = kept = {"weights in bfloat16": 2 * p}
    else:
        weights = {"weights, gathered": 4 * p * sharded}
        kept = {}  # for the backward: gathered weights are freed before
    if not is_language_model(model):
        images = {
            f"activations of {local:,} images": image_bytes(
                model, local, cfg.task_options.get("size", 224), low
            )
        }
        return {"always": always, "training": kept | images}
    N = max(cfg.rounds)  # of prompts of which none has been solved before
    L = cfg.max_response
    V = config.vocab_size
    size = 2 if low else 4
    row = cache_bytes(config, L, size) + V * 20
    samples = cfg.estimator != "supervised"
    groups = local if cfg.kv_memory_gb else min(max(1, cfg.wave_rows // N), local)
    rows = groups * N * samples
    responses = rows * row
    if cfg.kv_memory_gb:  # which one row may pass
        responses = min(responses, max(row, int(cfg.kv_memory_gb * 2**30)))
    prompt = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * size
    tokens = min(max(cfg.micro_batch_tokens, PROMPT + L), local * (PROMPT + N * L))
    copied = tokens // (mean or -(-L // 2)) * PROMPT
    activations = activation_bytes(config, tokens, low, cfg.gradient_checkpointing, copied)
    if sharded:
        table = V * config.hidden_size
        layers = parameters(model.model.layers)
        weights = weights | {
            "embeddings in float32": (4 if config.tie_word_embeddings else 2) * table * low
        }
        kept = kept | {
            "two layers and what is in none": 8
            * (p - layers + 2 * layers // config.num_hidden_layers)
        }
    return {
        "always": always,
        "sampling": weights
        | {
            "keys and values of prompts": groups * samples * PROMPT * prompt,
            f"noise and results of {rows:,} rows": rows * L * 24,
            "their keys, values and logits": responses,
        },
        "training": kept
        | {
            "weights of the reference": 2 * reference * low,
            f"activations of {tokens:,} tokens": activations,
            "logits of a chunk": min(max(CHUNK, V), tokens * V) * 20,
        },
    }


def parameters(model) -> int:
    return sum(p.numel() for p in model.parameters())


def is_language_model(model) -> bool:
    return hasattr(model.config, "vocab_size")


def peak(parts: dict[str, dict[str, int]]) -> int:
    sums = {moment: sum(items.values()) for moment, items in parts.items()}
    return sums.pop("always") + max(sums.values())


def ways(cfg: Config, gpus: int) -> dict[str, int]:
    """How the recipe may run, and its peak then: "as it is", or with the options --gradient-checkpointing, --shard, both."""
    language = is_language_model(shape(cfg))
    several = language and gpus > 1
    found = {}
    for sharded in (False, True)[cfg.shard and several : 1 + several]:
        for changed in (cfg, replace(cfg, gradient_checkpointing=language)):
            options = ["--shard true"] * (sharded and not cfg.shard) + [
                "--gradient-checkpointing true"
            ] * (changed != cfg)
            found["with " + " ".join(options) if options else "as it is"] = peak(
                plan(changed, gpus, sharded)
            )
    return found


def fits(ways: dict[str, int], card: float) -> str:
    """The first of the ways that a card of so many GiB has memory for, or "no"."""
    return next((way for way, size in ways.items() if size <= (1 - RESERVE) * card * 2**30), "no")


def checkpoint_bytes(cfg: Config, always: dict[str, int]) -> int:
    """Weights, or LoRA's adapter alone, and the optimizer's state; always: of one GPU's plan."""
    weights = always["gradients" if cfg.lora_rank and not cfg.lora_merge else "weights"]
    return weights + (always.get("Adam") or always["momentum"])


def disk(cfg: Config, size: int) -> str:
    """What the checkpoints that stay take, of `size` bytes each."""
    each = f"{size / 1e9:,.2f} GB"
    stay = cfg.keep
    if not stay and (cfg.save_every_minutes or cfg.epochs):  # nobody knows yet how many
        return f"  disk: {each} a checkpoint, and all of them stay"
    stay = stay or (-(-cfg.steps // cfg.save_every) if cfg.save_every else 1)
    many = f"{stay} checkpoint{'s' * (stay > 1)} of {each}"
    more = ", and one more while it saves" * bool(cfg.keep)
    return f"  disk: {stay * size / 1e9:,.2f} GB, {many}{more}"


def time(cfg: Config, gpus: int, mean: int, bench: str) -> str:
    """What a step takes by two rates in a file of tests/bench/bench.py: of large matrix products, which nothing passes, and of its
    whole step of 17x17 mazes. Counted are multiplications and additions of weights, and not those of attention."""
    p = parameters(shape(cfg))
    tokens = cfg.prompts // gpus * (PROMPT + sum(cfg.rounds) * mean)
    backward = 2 if cfg.lora_rank else 4  # frozen weights have no gradient
    passes = 2 + backward + 2 * cfg.gradient_checkpointing + 2 * (cfg.estimator != "supervised")
    dtype = "float32" if cfg.precision == "float32" else "bfloat16"
    try:
        found = read_json(bench)
        rows = {row["name"]: row for row in found["rows"]}
        limits, step = rows["limits"], rows[f"step/17x17/{dtype}"]
        product = f"[2048,2048]x[2048,2048] {dtype}"
        fastest = limits["work"][product] / median(limits["times"][product]["wall"])
        usual = step["flops"] / median(step["times"]["maxrl"]["wall"])
        machine = found["machine"]["gpu"] or found["machine"]["cpu"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"--bench {bench} is no file of python tests/bench/bench.py with the steps of this machine"
        ) from None
    low, high = sorted(p * tokens * passes / rate for rate in (fastest, usual))
    steps = " to ".join(duration(cfg.steps * seconds) for seconds in (low, high))
    return f"  a step on {machine}, evaluations aside: {low:.2g} to {high:.2g} s; {cfg.steps:,} steps: {steps}"


def dry_run(name: str, recipe: Config, arguments: list[str]) -> str:
    """The table that --dry-run prints; `arguments` are train.py's, and --gpus G, --mean-response TOKENS, --bench FILE."""
    own = {"gpus": "1", "mean-response": "0", "bench": ""}
    rest = []
    for key, text in split_arguments(arguments):
        if dashed(key) in own:
            own[dashed(key)] = text or ""
        else:
            rest += [f"--{key}"] if text is None else [f"--{key}={text}"]
    bench = own.pop("bench")
    for key, text in own.items():
        if not (text.isascii() and text.isdecimal()):
            raise UsageError(f"--{key} {text} cannot be read: expected a whole number")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cfg = with_overrides(recipe, rest)
        check_names(cfg)
        lines = table(name, cfg, int(own["gpus"]), int(own["mean-response"]), bench)
    return "\n".join([*lines, *dict.fromkeys(str(w.message) for w in said)])


def table(name: str, cfg: Config, gpus: int, mean: int, bench: str) -> list[str]:
    model = shape(cfg)
    language = is_language_model(model)
    mean = mean or -(-cfg.max_response // 2)
    plans = {"replicated": plan(cfg, gpus, mean=mean)}
    if gpus > 1 and language:
        plans["sharded"] = plan(cfg, gpus, True, mean)
    lines = [
        f"{name} on {gpus} GPU{'s' * (gpus > 1)}: {parameters(model):,} parameters, forward in "
        f"{'float32' if cfg.precision == 'float32' else 'bfloat16'}",
        f"{cfg.prompts} prompts x {' + '.join(map(str, cfg.rounds))} rollouts a step, "
        f"{cfg.prompts // gpus} prompts a rank",
    ]
    if language:
        R = cfg.prompts * sum(cfg.rounds)
        lines.append(
            f"response tokens a step: {R * mean:,} at {mean:,} a response (assumed), at most {R * cfg.max_response:,}"
        )
    lines += ["", f"{'GiB of a rank':44}" + "".join(f"{kind:>12}" for kind in plans)]

    def line(title, sizes):
        return f"  {title:42}" + "".join(f"{size / 2**30:12.2f}" for size in sizes)

    for moment in plans["replicated"]:
        for what in dict.fromkeys(what for p in plans.values() for what in p[moment]):
            sizes = [p[moment].get(what, 0) for p in plans.values()]
            if any(sizes):
                lines.append(line(f"{moment + ':':10}{what}", sizes))
    lines.append(line("peak", map(peak, plans.values())))
    if language and not cfg.gradient_checkpointing:
        less = replace(cfg, gradient_checkpointing=True)
        lines.append(
            line(
                "peak with gradient checkpointing",
                (peak(plan(less, gpus, s == "sharded", mean)) for s in plans),
            )
        )
    if bench:
        lines.append(
            time(cfg, gpus, mean, bench)
            if language
            else "  the time of a classifier's step is not estimated"
        )
    possible = ways(cfg, gpus)
    lines.append(disk(cfg, checkpoint_bytes(cfg, plans["replicated"]["always"])))
    return lines + [f"  fits {card} GPUs: {fits(possible, size)}" for card, size in CARDS.items()]
