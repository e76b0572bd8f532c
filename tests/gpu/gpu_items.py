"""Items of gpu_check.py within one process: attention, waits for the device, and speed."""

import collections
import gc
import os
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import tiny
import torch
from published import PUBLISHED

import train
from maxrl.advantages import ADVANTAGES
from maxrl.build import make_optimizer
from maxrl.config import Config
from maxrl.io.tokenizer import Tokenizer
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.parallel import distributed
from maxrl.policy import SequencePolicy
from maxrl.recipes import maze9_laptop, maze17
from maxrl.sampling import sampler
from maxrl.sampling.sampler import generate, noise
from maxrl.tasks.base import Example
from maxrl.tasks.maze import VOCABULARY, to_prompt, unpack
from maxrl.tasks.maze import generate as mazes

device = torch.device("cpu")
small = False


def start(name: str, tiny_ones: bool):
    global device, small
    small = tiny_ones
    # As setup() of a run does it, so that its settings are what is looked at.
    device = distributed.setup(name)[2]


def sized(full, tiny_one):
    """What an item works with: with --tiny, what any CPU does in a moment."""
    return tiny_one if small else full


def synchronise():
    if device.type == "cuda":
        torch.cuda.synchronize()


def free():
    """After an item: what it held may be in the way of the next one."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def seconds(function, repeats: int = 3) -> float:
    """Of a call: the median of some, after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        synchronise()
        begin = time.perf_counter()
        function()
        synchronise()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def kernels(function) -> collections.Counter:
    """How often each kernel runs in a call (on a CPU: each operation)."""
    from torch.profiler import ProfilerActivity, profile

    kind = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    function()
    with profile(activities=[kind]) as found:
        function()
        synchronise()
    return collections.Counter(
        event.name for event in found.events() if event.device_type.name == kind.name
    )


def build(sizes: dict, dtype=torch.float32, where=None) -> Transformer:
    """A model with random weights, made where they shall be, whose tokens are all about equally
    likely."""
    torch.manual_seed(0)
    with torch.device(where or device):
        return Transformer(TransformerConfig.from_hf(sizes | {"initializer_range": 0.02})).to(dtype)


def prompts(count: int, length: int, vocabulary: int = 32) -> list[torch.Tensor]:
    return list(
        torch.randint(1, vocabulary, (count, length), generator=torch.Generator().manual_seed(0))
    )


def policy(model, stop=7, **options) -> SequencePolicy:
    """It stops at DONE alone, so that a model with random weights writes about as much as one that
    was trained."""
    options = {"max_tokens": 180, "autocast": True, "kv_memory_gb": 64.0} | options
    return SequencePolicy(model, Tokenizer.from_vocabulary(VOCABULARY), [stop], **options)


def examples(size: int, count: int) -> list[Example]:
    walls = unpack(mazes(size, count, np.random.default_rng(0)), size)
    return [Example(to_prompt(each), "") for each in walls]


def quarter_right(rollouts) -> torch.Tensor:
    P, N = rollouts.lengths.shape
    return (torch.arange(N) < N // 4).float().expand(P, N)


def peak() -> float:
    """GiB, since this was asked last."""
    return round(distributed.peak_memory(device)["memory/peak_gb"], 2)


def without_graphs():
    """Context in which sampling launches every kernel from the host."""
    return mock.patch.object(sampler, "CudaGraph", lambda step, *_: lambda shape: step())


def versions() -> dict:
    """What decides what follows."""
    found = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "gpus": torch.cuda.device_count(),
        "cores": os.cpu_count(),
        "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),
        "attention_priority": [int(backend) for backend in torch._C._get_sdp_priority_order()],
    }
    if device.type == "cuda":
        asked = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw,memory.used"
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv"], capture_output=True, text=True
        )
        found |= {"nccl": str(torch.cuda.nccl.version()), "gpu": done.stdout.strip().splitlines()}
    return found


def attention_model(D: int, dtype=torch.float32, where=None) -> Transformer:
    """Two layers with heads of this size, two of queries for one of keys."""
    sizes = {
        "hidden_size": 4 * D,
        "intermediate_size": 8 * D,
        "head_dim": D,
        "max_position_embeddings": 4096,
    }
    return build(tiny.SIZES | sizes, dtype, where)


def attention_values() -> dict:
    """Gradients against float64 on the CPU, and the sampler's log-probabilities against the
    training forward's."""
    found, wrong = {}, []
    for D in sized((64, 128), (64,)):
        for lengths in ((40, 40, 40), (40, 33, 21)):
            stored = replace(tiny.rollouts(lengths, N=6, L=17), log_probs=None)
            advantages = quarter_right(stored) - 0.25
            exact = attention_model(D, torch.float64, "cpu")
            reference = tiny.gradient(policy(exact, autocast=False), stored, advantages.double())
            for name, most in (("float64", 1e-9), ("float32", 1e-3), ("bfloat16", 0.05)):
                dtype = torch.float64 if name == "float64" else torch.float32
                model = attention_model(D, dtype)
                model.load_state_dict(exact.state_dict())
                learner = policy(model, autocast=name == "bfloat16", max_tokens=24)
                vector = tiny.gradient(learner, stored, advantages.to(dtype)).double().cpu()
                drawn = learner.rollout([Example(text(n), "") for n in lengths], 6)
                stats = learner.backward(drawn, quarter_right(drawn))
                numbers = {
                    "gradient": tiny.distance(vector, reference),
                    "sampler": stats["sampling/logprob_abs_diff/mean"],
                }
                found[f"{name}, D = {D}, prompts {lengths}"] = numbers
                if not max(numbers.values()) < most:
                    wrong.append(f"{name}, D = {D}, prompts {lengths}: {numbers}")
    return found | {"wrong": wrong}


def text(words: int) -> str:
    return " ".join(["WALL", "PATH"] * words)[: 5 * words - 1]


def synchronisations() -> dict:
    """Lines at which the host waits for the GPU: in 32 more tokens of sampling, and in a training
    step."""
    model = build(maze17().model | sized({}, {"num_hidden_layers": 1, "hidden_size": 64}))
    learner, asked = policy(model), prompts(4, sized(310, 20))

    def sample(tokens):
        with learner.precision():
            generate(model, asked, noise(0, 0, range(4), 8, tokens), [99])

    batch = replace(tiny.rollouts((30, 30, 30, 30), N=8, L=40), log_probs=None)
    found = {}
    for name, call in {
        "32 tokens": lambda: sample(32),
        "64 tokens": lambda: sample(64),
        "training": lambda: learner.backward(batch, quarter_right(batch) - 0.25),
    }.items():
        call()
        found[name] = waits(call)
    more = sum(found["64 tokens"].values()) - sum(found["32 tokens"].values())
    # The counts of live rows are read a window late, from pinned memory: no warning is allowed for
    # in a step.
    return found | {
        "in 32 more tokens": more,
        "wrong": [f"{more} waits in 32 tokens"] if more > 10 else [],
    }


def waits(call) -> dict:
    """How often the host waits for the device in a call, by line; nothing on a CPU."""
    if device.type != "cuda":
        call()
        return {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = [
        f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)
    ]
    return dict(collections.Counter(places).most_common(20))


def decoding(name: str, P: int, N: int, L: int) -> dict:
    """Microseconds and kernels of one more token of a published model's size, random weights, and
    the memory."""
    sizes = PUBLISHED[name][0] if not small else tiny.SIZES
    model, asked = build(sizes), [Example(text(sized(150, 9)), "")] * P
    peak()

    def sample(tokens):
        policy(model, stop=10**6, max_tokens=tokens).rollout(asked, N)

    short = max(2, L // 4)
    step = (seconds(lambda: sample(L), 1) - seconds(lambda: sample(short), 1)) / (L - short)
    with without_graphs():
        more = kernels(lambda: sample(8)).total() - kernels(lambda: sample(4)).total()
    return {
        "rows": P * N,
        "us_a_step": round(1e6 * step),
        "kernels_a_step": more / 4,
        "peak_gb": peak(),
    }


def decode_smollm2() -> dict:
    return decoding("SmolLM2-360M-Instruct", *sized((32, 128, 50), (2, 2, 8)))


def decode_qwen3() -> dict:
    return decoding("Qwen3-1.7B-Base", *sized((8, 16, 200), (2, 2, 8)))


def maze_model() -> Transformer:
    return build(sized(maze17(), maze9_laptop()).model)


def sampling(P: int, N: int):
    """A function that samples P x N responses to mazes; those that end leave."""
    model, size = maze_model(), sized(17, 7)
    learner = policy(model, max_tokens=sized(180, 24))
    asked = examples(size, P)
    return lambda: learner.rollout(asked, N)


def graphs() -> dict:
    """Sampling by CUDA graphs gives the tokens of sampling without, and microseconds a step of
    both."""
    found, wrong = {}, []
    for P, N in sized(((32, 128), (256, 128)), ((2, 4),)):
        sample = sampling(P, N)
        graph, first = seconds(sample), sample()
        with without_graphs():
            eager, second = seconds(sample), sample()
        steps = first.tokens.shape[-1]
        # Products of other shapes round otherwise: where two tokens tie, a rollout may go another
        # way.
        both = min(steps, second.tokens.shape[-1])
        tokens = (first.tokens[..., :both] == second.tokens[..., :both]).all(-1)
        same = float((tokens & (first.lengths == second.lengths)).float().mean())
        found[f"{P} x {N}"] = {
            "steps": steps,
            "us_graph": round(1e6 * graph / steps),
            "us_eager": round(1e6 * eager / steps),
            "same_rollouts": same,
            "tokens": int(first.lengths.sum()),
        }
        wrong += [f"{P} x {N}: {same:.4f} of the rollouts are the same"] if same < 0.999 else []
    return found | {"wrong": wrong}


def whole_steps() -> dict:
    """Seconds of the stages of a step in which every group is trained on."""
    found = {}
    for P, N in sized(((32, 128), (256, 128)), ((2, 4),)):
        model, asked, times = maze_model(), examples(sized(17, 7), P), []
        cfg = Config(model=maze17().model, lr=1e-4, task="maze", prompts=P, rollouts=N)
        learner = policy(model, max_tokens=sized(180, 24), micro_batch_tokens=sized(262_144, 512))
        optimizer = make_optimizer(cfg, model)
        peak()
        for step in range(sized(6, 2)):
            marks = []

            def mark(marks=marks):
                synchronise()
                marks.append(time.perf_counter())

            mark()
            drawn = learner.rollout(asked, N, step=step)
            mark()
            stats = learner.backward(drawn, ADVANTAGES["maxrl"](quarter_right(drawn)))
            mark()
            train.update(cfg, learner, optimizer, stats, step)
            mark()
            times.append([b - a for a, b in zip(marks, marks[1:])])
        rollout, backward, update = (statistics.median(column) for column in zip(*times[1:]))
        found[f"{P} x {N}"] = {
            "rollout": rollout,
            "backward": backward,
            "update": update,
            "sum": rollout + backward + update,
            "mean_length": float(drawn.lengths.float().mean()),
            "peak_gb": peak(),
            "sampler": stats["sampling/logprob_abs_diff/mean"],
        }
    return found
