"""An estimate of the GPU memory that a run needs: `train.py RECIPE --dry-run [--gpus 8]`.

Further options, such as --shard true or --gradient-checkpointing true, may follow as in a run.

With p parameters every rank always holds 4 p bytes of weights, 4 p of gradients (in the buckets of
DDP), 8 p of Adam's state (4 p for SGD, and for matrices under Muon) and 4 p for the reference model
of a KL penalty. With --shard true the first three are divided over the 8 GPUs of a node, or over
fewer. The larger of two moments is added; the optimizer step needs next to nothing of its own:

    sampling  2 p for the bfloat16 weights (float32 and sharded: 4 p, gathered), the keys and values
              of the prompts, 24 bytes of noise and results for each token that a row may get, and
              the keys and values of the responses with 20 bytes per logit of a decode step: at most
              --kv-memory-gb together, or all rows of --wave-rows at full length
    training  2 p for the bfloat16 weights (and 2 p for the reference's), the activations of a
              micro-batch, 20 bytes per logit of a chunk (maxrl.learning.losses.CHUNK)

With --shard true, sampling also needs the embedding table in float32, a tensor of its own beside
bfloat16 weights. Training holds whole the parameters outside the layers and those of two layers
(one at work, one being gathered), with their gradients: 8 bytes each.

Activations are what autograd saves. With a = 2 bytes (bfloat16) or 4, hidden size E, feed-forward
size I, H heads and Hk key-value heads of size D, a layer saves for each token

    16 E + 2 a E            inputs and normalised inputs of the two norms (float32), and outputs
    a (2 H D + 2 Hk D)      queries, keys, values and the result of attention
    8 (H + Hk) D            Qwen3 only: the same for its norms of queries and keys
    4 a I                   gate, silu(gate), up and their product
    4 H                     the log-sum-exp of attention

and for each prompt token its keys and values once more per row that reads them (2 a Hk D). Outside
the layers the last norm saves 8 E, and its result is 2 a E. With gradient checkpointing a layer
saves only its input, 4 E, and one layer at a time is whole.

Behind prompts of several lengths the masked form of attention saves keys and values of H heads,
2 a (H - Hk) D more for each of these tokens, and a mask of a bytes for each token and key. That is
in float32, or where maxrl/models/varlen.py has warned, which is not counted.

The CUDA context, communication buffers and fragmentation are not counted: leave a tenth of a GPU
free.
"""

import contextlib

import torch

from maxrl.advantages.options import check_estimation
from maxrl.learning.config import Config
from maxrl.learning.losses import CHUNK
from maxrl.learning.optimizer import hidden_matrices
from maxrl.models.checkpoint import Uninitialised
from maxrl.models.hub_files import download, find, on_hub
from maxrl.models.lora import add_lora
from maxrl.models.transformer import FAMILIES, Transformer, TransformerConfig
from maxrl.sampling.memory import cache_bytes
from maxrl.system.arguments import counted
from maxrl.system.errors import UsageError, refusing
from maxrl.system.files import read_json

PROMPT = 256  # tokens of a prompt, assumed
NODE = 8  # GPUs of a node, assumed


def shape(cfg: Config) -> Transformer:
    """Return the recipe's model on the meta device, where it has sizes and no weights.

    The sizes are those in the config.json of --init, which is fetched from the hub if need be, or
    else those of cfg.model. Raises UsageError if there are none, and for a classifier.
    """
    config = cfg.model
    needs = f"--dry-run needs config.json of {cfg.init or 'this model'}, and no more: "
    with refusing(needs, FileNotFoundError, ValueError):
        if on_hub(cfg.init):
            config = read_json(download(cfg.init, "config.json") / "config.json")
        elif cfg.init:
            # Not there if the checkpoint is not made yet, or is an adapter.
            with contextlib.suppress(FileNotFoundError):
                config = read_json(find(cfg.init) / "config.json")
        if not config:
            raise UsageError(
                f"the sizes of {cfg.init or 'a model without --init'} are not known: name a "
                "directory with a config.json, or a hub id, as --init"
            )
        with torch.device("meta"), Uninitialised():
            return Transformer(TransformerConfig.from_hf(config))


def activation_bytes(
    config: TransformerConfig,
    tokens: int,
    low: bool,
    checkpointing: bool,
    copied: int = 0,
    masked: bool = False,
) -> int:
    """Return the bytes that autograd saves in a training forward, up to the last norm.

    low            whether the forward runs in bfloat16
    checkpointing  whether layers are recomputed in the backward pass
    copied         prompt tokens times the rows that read each of them
    masked         whether attention has a mask, which is not counted, and so repeats heads
    """
    E = config.hidden_size
    D = config.head_dim
    H = config.num_attention_heads
    Hk = config.num_key_value_heads
    a = 2 if low else 4
    layer = 16 * E + 2 * a * E + a * (2 * H + 2 * Hk) * D + 4 * a * config.intermediate_size + 4 * H
    if FAMILIES[config.model_type].qk_norm:
        layer += 8 * (H + Hk) * D
    layer = tokens * layer + copied * 2 * a * Hk * D
    if masked:
        layer += (tokens + copied) * 2 * a * (H - Hk) * D
    layers = config.num_hidden_layers
    kept = layer + layers * 4 * E * tokens if checkpointing else layers * layer
    return kept + tokens * (8 + 2 * a) * E


def plan(cfg: Config, gpus: int = 1) -> dict[str, dict[str, int]]:
    """Return the bytes that one rank needs, {"always", "sampling" or "training": {what: bytes}}."""
    if gpus < 1 or cfg.prompts % gpus:
        raise UsageError(f"--prompts {cfg.prompts} cannot be divided by --gpus {gpus}")
    model = shape(cfg)
    config = model.config
    if cfg.lora_rank:
        add_lora(model, cfg.lora_rank, cfg.lora_alpha, cfg.lora_projections)
    p = parameters(model)
    share = min(gpus, NODE) if cfg.shard else 1
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    momentum = trained if cfg.optimizer == "sgd" else 0
    if cfg.optimizer == "muon":
        momentum = sum(matrix.numel() for matrix in hidden_matrices(model))
    reference = p * bool(cfg.beta)
    always = {
        "weights": 4 * p // share,
        "gradients": 4 * trained // share,
        "optimizer state": (8 * trained - 4 * momentum) // share,
        "reference model": 4 * reference,
    }
    sampling = sampling_bytes(cfg, config, cfg.prompts // gpus)
    training = training_bytes(cfg, config, cfg.prompts // gpus)
    if is_low(cfg):
        sampling["weights in bfloat16"] = training["weights in bfloat16"] = 2 * p
        training["reference in bfloat16"] = 2 * reference
    if cfg.shard:
        if is_low(cfg):
            each = 4 if config.tie_word_embeddings else 2
            sampling["embeddings in float32"] = config.vocab_size * config.hidden_size * each
        else:
            # They are freed before the backward.
            sampling["weights, gathered"] = 4 * p
        layers = parameters(model.model.layers)
        outside = p - layers
        training["two layers and what is in none"] = 8 * (
            outside + 2 * layers // config.num_hidden_layers
        )
    return {"always": always, "sampling": sampling, "training": training}


def sampling_bytes(cfg: Config, config: TransformerConfig, prompts: int) -> dict[str, int]:
    """Return what sampling needs for `prompts` prompts of one rank, besides weights."""
    if cfg.supervised:
        return {}
    size = 2 if is_low(cfg) else 4
    N = max(cfg.rollouts)
    row = cache_bytes(config, cfg.max_response, size) + config.vocab_size * 20
    groups = prompts if cfg.kv_memory_gb else min(max(1, cfg.wave_rows // N), prompts)
    rows = groups * N
    responses = rows * row
    if cfg.kv_memory_gb:
        # A single row may need more than the limit.
        responses = min(responses, max(row, int(cfg.kv_memory_gb * 2**30)))
    return {
        "keys and values of prompts": groups * cache_bytes(config, PROMPT, size),
        f"noise and results of {rows:,} rows": rows * cfg.max_response * 24,
        "their keys, values and logits": responses,
    }


def training_bytes(cfg: Config, config: TransformerConfig, prompts: int) -> dict[str, int]:
    """Return what a micro-batch of one rank with `prompts` prompts needs, besides weights."""
    L = cfg.max_response
    V = config.vocab_size
    most = prompts * (PROMPT + max(cfg.rollouts) * L)
    tokens = min(max(cfg.micro_batch_tokens, PROMPT + L), most)
    half = half_long(cfg)
    low = is_low(cfg)
    activations = activation_bytes(
        config, tokens, low, cfg.gradient_checkpointing, tokens // half * PROMPT, masked=not low
    )
    return {
        f"activations of {tokens:,} tokens": activations,
        "mask of prompts": 0 if low else 4 * tokens * (PROMPT + half),
        "logits of a chunk": min(max(CHUNK["cuda"], V), tokens * V) * 20,
    }


def half_long(cfg: Config) -> int:
    """Return the tokens of a response, assumed: half of the most."""
    return -(-cfg.max_response // 2)


def is_low(cfg: Config) -> bool:
    """Return whether the forward runs in bfloat16."""
    return cfg.precision != "float32"


def parameters(module: torch.nn.Module) -> int:
    """Return the number of parameters."""
    return sum(p.numel() for p in module.parameters())


def peak(plan: dict[str, dict[str, int]]) -> int:
    """Return the bytes of a plan's larger moment, together with what is always there."""
    always, *moments = (sum(items.values()) for items in plan.values())
    return always + max(moments)


def dry_run(name: str, cfg: Config, gpus: int) -> str:
    """Return the table that --dry-run prints."""
    check_estimation(cfg)
    if cfg.task == "images":
        raise UsageError(
            "--dry-run estimates language models; to measure what a classifier needs, run one step "
            "of it (--steps 1 --out DIR) and read memory/peak_gb in DIR/metrics.jsonl"
        )
    found = plan(cfg, gpus)
    dtype = "bfloat16" if is_low(cfg) else "float32"
    lines = [
        f"{name}: {parameters(shape(cfg)):,} parameters, forward in {dtype}",
        f"each of {counted(gpus, 'GPU')}, with {counted(cfg.prompts // gpus, 'prompt')}, needs "
        "these GiB:",
    ]
    for moment, items in found.items():
        for what, size in items.items():
            if size:
                lines.append(f"  {moment + ':':10}{what:32}{size / 2**30:12.2f}")
    lines.append(f"  {'peak':42}{peak(found) / 2**30:12.2f}")
    lines.append(
        f"for prompts of {PROMPT} tokens and responses of {half_long(cfg)}: longer prompts take "
        "more, and in training so do shorter responses, which keep copies of their prompt's keys"
    )
    return "\n".join(lines)
