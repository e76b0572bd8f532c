"""The first thing to run on a GPU: does it all run there, is it right, and how fast is it?

    python -m tests.gpu.gpu_check [--block 1] [--only NAME]
    python -m tests.gpu.gpu_check --device cpu --tiny

Block 1 asks whether everything runs and is right, block 2 how fast it is. An item that fails stops
no other; --out gets a line of JSON for each. The second command tries the script on any machine.
"""

import argparse
import collections
import copy
import gc
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch.utils import collect_env

from maxrl.learning import losses
from maxrl.models.cache import Cache
from maxrl.run import dry_run
from maxrl.run.recipes import maze9_laptop, maze17
from maxrl.sampling.cuda import CudaGraph
from maxrl.sampling.sampler import generate, noise
from tests.bench import bench_turns
from tests.bench.bench_text import policy, quarter_right, random_model, random_prompts
from tests.bench.bench_turns import peak_gb, sized
from tests.gpu import parts
from tests.gpu.parts import (
    ONE_RANK,
    RL,
    WARM_UP,
    asked,
    kernels,
    median_seconds,
    random_batch,
    slowest_kernels,
    stages,
    trained,
    without_graphs,
)
from tests.helpers import tiny
from tests.helpers.published import PUBLISHED


def versions() -> dict:
    """What decides what follows."""
    return {
        "versions": collect_env.get_pretty_env_info().splitlines(),
        "gpus": subprocess.getoutput("nvidia-smi").splitlines(),
        "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),
        "attention_priority": [int(backend) for backend in torch._C._get_sdp_priority_order()],
    }


# Block 1, within this process.


def attention_values() -> dict:
    """Gradients against float64 on the CPU, and the sampler's log-probabilities against the
    training forward's, with heads of a size and prompts of lengths that take other kernels."""
    found = {}
    for D, lengths in itertools.product(sized((64, 128), (64,)), ((40, 40, 40), (40, 33, 21))):
        sizes = {"hidden_size": 4 * D, "intermediate_size": 8 * D, "head_dim": D}
        model = random_model(tiny.SIZES | sizes)
        exact = copy.deepcopy(model).to("cpu", torch.float64)
        batch, advantages = random_batch(lengths, N=6, L=17)
        expected = tiny.gradient(policy(exact), batch, advantages.double())
        for name, most in (("float64", 1e-9), ("float32", 1e-3), ("bfloat16", 0.05)):
            dtype = torch.float64 if name == "float64" else torch.float32
            learner = policy(model.to(dtype), autocast=name == "bfloat16", max_tokens=24)
            gradient = tiny.gradient(learner, batch, advantages.to(dtype)).cpu().double()
            drawn = learner.rollout([asked(length) for length in lengths], 6)
            stats = learner.backward(drawn, quarter_right(*drawn.lengths.shape)).metrics()
            case = f"{name} within {most}, D = {D}, prompts {lengths}"
            apart = [tiny.distance(gradient, expected), stats["sampling/logprob_abs_diff/mean"]]
            found[case] = dict(zip(("gradient", "sampler"), apart), well=max(apart) < most)
    assert all(numbers["well"] for numbers in found.values()), found
    return found


def synchronisations() -> dict:
    """Lines where the host waits for the GPU: in sampling, once a step, in no micro-batch."""
    learner = policy(random_model(maze17().model), autocast=True, micro_batch_tokens=640)
    prompts = random_prompts(4, sized(310, 20))
    equal, ragged = (random_batch(ls, N=8, L=40) for ls in ((30,) * 4, (30, 9, 1, 17) * 2))

    def sample(tokens):
        with learner.precision():
            generate(learner.model, prompts, noise(0, 0, range(4), 8, tokens), [99])

    found = {
        "32 tokens": waits(lambda: sample(32)),
        "64 tokens": waits(lambda: sample(64)),
        "training": waits(lambda: learner.backward(*equal)),
        "ragged": waits(lambda: learner.backward(*ragged)),
    }
    assert found["ragged"] == found["training"], found
    # The counts of live rows are read a window late, from pinned memory: no warning is allowed for
    # in a step.
    more = sum(found["64 tokens"].values()) - sum(found["32 tokens"].values())
    assert more <= 10, found
    return found


def waits(call) -> dict:
    """How often the host waits for the device in a second call, by line; nothing on a CPU."""
    call()
    if bench_turns.device.type == "cpu":
        return {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        call()
        torch.cuda.set_sync_debug_mode("default")
    said = [warning for warning in caught if "synchroniz" in str(warning.message)]
    places = [f"{Path(warning.filename).name}:{warning.lineno}" for warning in said]
    return dict(collections.Counter(places).most_common(20))


def deterministic() -> dict:
    """The same numbers twice with --deterministic true, in a warm-up and in reinforcement."""
    found = {}
    for recipes in (WARM_UP, RL):
        found[recipes[0]] = both = []
        for i in range(2):
            rows = trained(recipes, f"same{i}", "--steps 2 --deterministic true")
            both.append([(row["loss"], row["grad_norm"]) for row in rows])
    for first, second in found.values():
        assert first == second, found
    return found


def torchrun() -> dict:
    """DDP by torchrun, over NCCL on a GPU, with one process, and what it costs beside plain
    Python."""
    options = f"--steps {sized(8, 2)}"
    return {
        "python": stages(trained(RL, "python", options))["seconds"],
        "torchrun": stages(trained(RL, "torchrun", options, launcher=ONE_RANK))["seconds"],
    }


def sharded() -> dict:
    """fully_shard with one rank gives the gradient of DDP; in a process group of its own."""
    if not torch.distributed.is_initialized():
        words = ["--only", "sharded", "--device", bench_turns.device.type, "--out", os.devnull]
        parts.run(__file__, *words, *sized([], ["--tiny"]), launcher=ONE_RANK)
        return {}
    batch, advantages = random_batch((9, 5, 1, 7), N=4, L=6)
    expected = tiny.gradient(policy(random_model(tiny.SIZES)), batch, advantages)
    learner = policy(random_model(tiny.SIZES).cpu(), shard=True, max_tokens=12)
    learner.rollout([asked(9)], 2)
    learner.backward(batch, advantages)
    found = torch.cat([p.grad.full_tensor().flatten() for p in learner.model.parameters()])
    apart = tiny.distance(found, expected)
    assert apart < 1e-4, apart
    return {"gradient": apart}


def resumed() -> dict:
    """A run of six steps and one that is continued after the fourth end with the same loss."""
    whole = trained(WARM_UP, "whole", "--steps 6")
    trained(WARM_UP, "part", "--steps 4")
    part = trained(WARM_UP, "part", "--steps 6 --resume auto")
    assert len(part) == 6, part
    difference = abs(part[-1]["loss"] / whole[-1]["loss"] - 1)
    assert difference < 0.01, difference
    return {"relative": difference}


def memory_of_steps() -> dict:
    """What the allocator keeps does not grow over steps that sample with graphs and train."""
    rows = trained(RL, "memory", f"--steps {sized(150, 6)}")
    reserved = [row["memory/reserved_gb"] for row in rows if "memory/reserved_gb" in row]
    middle = len(reserved) // 2
    # The first half has met every shape, or nearly so.
    if reserved:
        assert max(reserved[middle:]) <= 1.02 * max(reserved[:middle]) + 0.1, reserved
    names = ("seconds/rollout", "seconds/backward", "memory/peak_gb")
    late = {name: stages(rows)[name] for name in names}
    return {"reserved_gb": reserved[:: sized(15, 1)]} | late


def options() -> dict:
    """LoRA, the KL term, several updates a step, checkpointing, a budget for keys and values."""
    memory = f"--gradient-checkpointing true --kv-memory-gb {sized(0.2, 0.001)}"
    updates = "--minibatches 2 --passes 2"
    found = {}
    for words in ("--lora-rank 4", "--beta 0.01", updates, memory):
        rows = trained(RL, "options", f"--steps 2 {words}")
        found[words] = [round(row["seconds"], 3) for row in rows]
    return found


def recipes() -> dict:
    """The maze recipes as they are, beside the memory that --dry-run has said."""
    plan = dry_run.plan(sized(maze17, maze9_laptop)())
    return {
        "warm-up": stages(trained(WARM_UP, "warm-up", f"--steps {sized(100, 2)}")),
        "rl": stages(trained(RL, "rl", f"--steps {sized(10, 2)}")),
        "planned_gb": dry_run.peak(plan) / 2**30,
    }


# Block 2.


def decode_smollm2() -> dict:
    return decoding("SmolLM2-360M-Instruct", *sized((32, 128, 50), (2, 2, 8)))


def decode_qwen3() -> dict:
    return decoding("Qwen3-1.7B-Base", *sized((8, 16, 200), (2, 2, 8)))


def decoding(name: str, P: int, N: int, L: int) -> dict:
    """Microseconds and kernels of one more token of a published model's size, random weights, and
    the memory."""
    published, _ = PUBLISHED[name]
    model = random_model(sized(published, tiny.SIZES))
    examples = [asked(sized(150, 9))] * P
    peak_gb()

    def sample(tokens):
        learner = policy(model, stop=10**6, max_tokens=tokens, autocast=True, kv_memory_gb=64.0)
        return partial(learner.rollout, examples, N)

    short = max(2, L // 4)
    more = median_seconds(sample(L), 1) - median_seconds(sample(short), 1)
    with without_graphs():
        launched = kernels(sample(8)) - kernels(sample(4))
    return {
        "rows": P * N,
        "us_a_step": round(1e6 * more / (L - short)),
        "kernels_a_step": launched / 4,
        "peak_gb": round(peak_gb(), 2),
    }


def training_smollm2() -> dict:
    return training("SmolLM2-360M-Instruct", N=sized(16, 2), L=sized(200, 8))


def training_qwen3() -> dict:
    return training("Qwen3-1.7B-Base", N=sized(1, 2), L=sized(1024, 8))


def training(name: str, N: int, L: int) -> dict:
    """Milliseconds of a gradient at a published model's size, with prompts of one length and of
    several, by the logits of a chunk; and the kernels that take most of it."""
    published, _ = PUBLISHED[name]
    model = random_model(sized(published, tiny.SIZES))
    learner = policy(model, autocast=True, micro_batch_tokens=65536, max_tokens=L)
    found = {}
    for case, lengths in (("one length", (150,) * 4), ("ragged", (150, 149, 151, 140))):
        batch, advantages = random_batch(sized(lengths, (9,) * 4), N=N, L=L)
        step = partial(learner.backward, batch, advantages)
        for exponent in (25, 27):
            with mock.patch.dict(losses.CHUNK, {bench_turns.device.type: 2**exponent}):
                found[f"{case}, ms, 2**{exponent} logits"] = round(1e3 * median_seconds(step), 1)
        found[f"{case}, kernels"] = slowest_kernels(step)
    return found


def captures() -> dict:
    """Milliseconds that a capture costs, from sampling with few and with many of them."""
    found, pairs = {}, []
    learner = policy(random_model(maze17().model), autocast=True, max_tokens=sized(180, 24))
    sample = partial(learner.rollout, [asked(sized(310, 20))] * sized(32, 2), sized(128, 4))
    for block in (Cache.BLOCK, 8 * Cache.BLOCK):
        capture = mock.patch.object(CudaGraph, "capture", autospec=True, wraps=CudaGraph.capture)
        with mock.patch.object(Cache, "BLOCK", block):
            with capture as made:
                sample()
            seconds = median_seconds(sample)
        pairs.append((made.call_count, seconds))
        found[f"blocks of {block}"] = {"captures": made.call_count, "ms": round(1e3 * seconds, 1)}
    (many, slow), (few, fast) = pairs
    if many > few:
        found["ms_a_capture"] = round(1e3 * (slow - fast) / (many - few), 2)
    return found


def graphs() -> dict:
    """Sampling by CUDA graphs gives the tokens of sampling without, and microseconds a step of
    both."""
    found = {}
    learner = policy(random_model(maze17().model), autocast=True, max_tokens=sized(180, 24))
    for P, N in sized(((32, 128), (256, 128)), ((2, 4),)):
        sample = partial(learner.rollout, [asked(sized(310, 20))] * P, N)
        first = sample()
        seconds = median_seconds(sample)
        with without_graphs():
            second = sample()
            eager = median_seconds(sample)
        steps = min(first.tokens.shape[-1], second.tokens.shape[-1])
        # Products of other shapes round otherwise: where two tokens tie, a rollout may go another
        # way.
        equal = (first.tokens[..., :steps] == second.tokens[..., :steps]).all(-1)
        same = float((equal & (first.lengths == second.lengths)).float().mean())
        found[f"{P} x {N}"] = {
            "steps": steps,
            "us_graph": round(1e6 * seconds / steps),
            "us_eager": round(1e6 * eager / steps),
            "same_rollouts": same,
        }
        assert same >= 0.999, found
    return found


def whole_steps() -> dict:
    """Steps of train.py in which every group is trained on, in large micro-batches."""
    found = {}
    for P, N in sized(((32, 128), (256, 128)), ((2, 4),)):
        options = f"--steps {sized(6, 2)} --prompts {P} --rollouts {N}"
        rows = trained(RL, "whole", f"{options} --micro-batch-tokens {sized(262_144, 512)}")
        found[f"{P} x {N}"] = stages(rows)
    return found


RIGHT = [versions, attention_values, synchronisations, deterministic, torchrun, sharded]
RIGHT += [resumed, memory_of_steps, options, recipes]
FAST = [versions, decode_smollm2, decode_qwen3, graphs, captures]
FAST += [training_smollm2, training_qwen3, whole_steps]
BLOCKS = {1: RIGHT, 2: FAST}


def check(item) -> dict:
    """Run one item: its name, whether it is well, its seconds, and what it found."""
    begin = time.monotonic()
    try:
        found = {"well": True} | item()
    except Exception:
        found = {"well": False, "wrong": traceback.format_exc()[-3000:]}
    # What it held may be in the way of the next one.
    gc.collect()
    torch.cuda.empty_cache()
    return {"item": item.__name__, "seconds": round(time.monotonic() - begin, 1)} | found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--block", type=int, choices=BLOCKS, nargs="*", default=list(BLOCKS))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.jsonl"))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--tiny", action="store_true", help="small sizes")
    args = parser.parse_args(arguments)
    bench_turns.start(torch.get_num_threads(), args.device, args.tiny)
    well = True
    with args.out.open("a") as file:
        for item in dict.fromkeys(item for block in args.block for item in BLOCKS[block]):
            if args.only and item.__name__ not in args.only:
                continue
            row = check(item)
            well &= row["well"]
            print(json.dumps(row), flush=True)
            print(json.dumps(row), file=file, flush=True)
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
