"""Runs of the scripts on the CPU and on the simulated device, for test_simulated.py.

    python -m tests.gpu.simulated.settings      # under torchrun: those of two ranks

A device cannot be taken back, so that all of it is in one process. It works in the current
directory and prints what was seen in each setting, as JSON; the runs of a setting are in its folder
NAME/cpu and NAME/cuda, for the test to compare. All is in float64 but checkpoints: no rounding
decides on a token.
"""

import collections
import contextlib
import gc
import io
import json
import os
import socket
import time
import traceback
import warnings
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

import eval as evaluation
import sample
import train
from data.maze import prepare
from maxrl import MaxRLConfig, MaxRLTrainer
from maxrl.learning.config import Config
from maxrl.models import checkpoint, varlen
from maxrl.models.cache import Cache
from maxrl.run import build, cli
from maxrl.run.recipes import RECIPES
from maxrl.sampling import sampler
from maxrl.sampling.cuda import CudaGraph
from maxrl.sampling.sampler import decode_step
from maxrl.system import distributed
from maxrl.tasks.base import ImageBatch
from results.images import glyphs
from tests.bench import bench_turns
from tests.gpu import gpu_check, parts
from tests.gpu.simulated import cuda, low_precision, nccl, waits
from tests.helpers import tiny

PEAKS: list[float] = []
PINNED: list[int] = []
TASK = ("--task", "tests.helpers.tiny:Ragged")
SFT = "--estimator supervised --rollouts 1 --eval-every 0"
LORA = "--lora-rank 2 --lora-alpha 4"
# Each with the words that train.py gets on both devices.
TRAIN = {
    "supervised": SFT,
    "graphs": "--wave-rows 8",
    "no-graphs": "--cuda-graphs false",
    "memory": "--kv-memory-gb .00002",
    "updates": "--minibatches 2 --passes 2",
    "beta": "--init supervised/cpu --beta .1 --max-response 20",
    "entropy": "--entropy-bonus .01",
    "lora": f"--init supervised/cpu {LORA}",
    "rounds": "--estimator maxrl_rare --rollouts 2,4,8",
    "checkpointing": "--gradient-checkpointing true",
    "deterministic": "--deterministic true",
    "rewards": "--init supervised/cpu --task prompts --task.train rows.jsonl "
    "--task.validation rows.jsonl --reward rewards.py:even",
    "muon": "--optimizer muon",
}
# Some prompts get no verdict.
REWARDS = """
def even(completions, number):
    return [len(c) % 2 if n % 4 else None for c, n in zip(completions, number)]
"""
ROWS = "a=supervised/cpu b=graphs/cpu c=lora/cpu --prompts 3 --samples 4 --k 1,2"
MANY = "--rollouts 32 --micro-batch-tokens 40"
LONG = "--steps 30 --prompts 2 --eval-every 0"
ONE_WAY = {"unordered": True, "unfinished": False}  # whether the default stream waits
# On which device the first two steps are, and on which the rest.
RESUMED = {"cuda-cuda": ("cuda", "cuda"), "cpu-cuda": ("cpu", "cuda"), "cuda-cpu": ("cuda", "cpu")}
# Those that equal another one's run on the CPU.
EQUAL = dict.fromkeys((*RESUMED, "cached"), "graphs") | {"workers": "images", "halved": "many"}


def from_host(model, state, **sampling):
    """A step that adds a tensor of the host: a GPU refuses it."""
    decode_step(model, state, **sampling)
    state.current += torch.zeros(state.current.shape, dtype=torch.long)


def waiting(model, state, **sampling):
    """A step that reads a number of the device: it cannot be captured."""
    decode_step(model, state, **sampling)
    int(state.cache.slot)


def counting(model, state, **sampling):
    """A step that takes its slot from a counter of Python: in a graph it never changes."""
    state.drawn = getattr(state, "drawn", -1) + 1
    state.cache.slot.fill_(state.drawn - 1)
    decode_step(model, state, **sampling)


# All of gpu_check.py but what asks torch's profiler.
PROFILED = (gpu_check.decode_smollm2, gpu_check.decode_qwen3)
PROFILED += (gpu_check.training_smollm2, gpu_check.training_qwen3)
LEFT = [item for item in (*gpu_check.RIGHT, *gpu_check.FAST) if item not in PROFILED]
ITEMS = {item.__name__: item for item in LEFT}
# Steps of sampling that are right on a CPU alone.
WRONG = {step.__name__: step for step in (from_host, waiting, counting)}


def recipe() -> Config:
    """Three steps of a tiny model."""
    return Config(
        task=TASK[1],
        model=tiny.SIZES,
        estimator="maxrl",
        prompts=4,
        rollouts=(6,),
        steps=3,
        lr=1e-2,
        max_response=8,
        micro_batch_tokens=160,
        precision="float32",
        eval_every=2,
        eval_prompts=3,
        eval_k=(1, 2),
        eval_samples=2,
    )


def trainer(device: str) -> dict:
    """What a MaxRLTrainer finds at the end, and what it saves."""
    args = MaxRLConfig(
        f"trainer/{device}",
        per_device_train_batch_size=24,
        num_generations=6,
        max_completion_length=8,
        max_steps=3,
        learning_rate=1e-2,
        bf16=False,
        use_cpu=device == "cpu",
    )
    learner = MaxRLTrainer("supervised/cpu", "rewards.py:even", args, "rows.jsonl", "rows.jsonl")
    learner.train()
    learner.save_model(f"{args.output_dir}/saved")
    return learner.evaluate()


def low(device: str):
    """A run in bfloat16, on the CPU in float32; autocast would leave float64 alone."""
    torch.set_default_dtype(torch.float32)
    words = "--precision bfloat16" if device == "cuda" else ""
    run(f"{SFT} {words}", f"low/{device}", device)


def recomputed():
    """Layers that are recomputed, behind ragged prompts in bfloat16; the trial of a kernel has not
    been made yet."""
    torch.set_default_dtype(torch.float32)
    varlen.passes.cache_clear()
    words = f"{SFT} --precision bfloat16 --gradient-checkpointing true"
    run(words, "recomputed/cuda", "cuda")


def broken_off():
    """A step of sampling that runs out of memory after it has written."""
    state = torch.zeros(3, device="cuda")

    def step():
        state.add_(1)
        raise torch.OutOfMemoryError("no room")

    graph = CudaGraph(step, torch.device("cuda"))
    with contextlib.suppress(torch.OutOfMemoryError):
        graph(torch.Size([1]))
    return (state + 1).tolist()


def waits_of(default: bool):
    """Of the default stream and the others those of one kind alone wait."""
    real = cuda.Stream.wait_stream

    def wait_stream(stream, other):
        if (stream is cuda.Stream.default) == default:
            real(stream, other)

    return mock.patch.object(cuda.Stream, "wait_stream", wait_stream)


def short_of_memory(name: str, words: str, share: float, cached: bool = False) -> list:
    """A run with a share of the memory that another one took: its exit code and what it says.

    cached  whether all of it has been taken and freed, as a gradient leaves it
    """
    lines = Path("graphs/cuda/metrics.jsonl").read_text().splitlines()
    limit = int(share * json.loads(lines[-1])["memory/peak_gb"] * 2**30)
    torch.ops.simulated.reset(limit)
    if cached:
        torch.empty(limit - torch.cuda.memory_reserved(), dtype=torch.uint8, device="cuda")
    said = io.StringIO()
    code = 0
    try:
        with contextlib.redirect_stderr(said), cli.script("train.py", memory=cli.LESS_MEMORY):
            run(words, f"{name}/cuda", "cuda")
    except SystemExit as end:
        code = end.code
    torch.ops.simulated.reset(0)
    return [code, said.getvalue()]


def images() -> Config:
    """Three steps of a classifier."""
    return Config(
        task="images",
        task_options={"directory": "glyphs", "size": 12, "augment": False},
        model={"model_type": "torchvision_resnet", "block": "basic", "depths": (1, 1), "width": 8},
        estimator="maxrl",
        aggregation="sequence",
        prompts=8,
        rollouts=(16,),
        steps=3,
        optimizer="sgd",
        lr=1e-2,
        precision="float32",
        eval_every=2,
        eval_samples=0,
        eval_prompts=8,
        eval_k=(1, 2),
    )


def run(words: str, out: str, device: str, *more: str, recipe: str = "simulated"):
    """Train a recipe with these words."""
    train.main([recipe, *words.split(), "--device", device, "--out", out, *more])


def resume(name: str):
    first, then = RESUMED[name]
    run("--steps 2", f"{name}/cuda", first)
    run("", f"{name}/cuda", then, "--resume", "auto")


def printed(script, words: str, device: str) -> str:
    """What a script prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        script.main([*words.split(), *TASK, "--device", device])
    return said.getvalue()


def scripts(script, words: str) -> dict:
    """What a script prints on each device."""
    return {device: printed(script, words, device) for device in ("cpu", "cuda")}


def settings() -> dict:
    """Each setting's name and what it does; later ones read the runs of earlier ones."""
    calls = {}
    for name, words in TRAIN.items():
        calls[f"{name}/cpu"] = lambda name=name, words=words: run(words, f"{name}/cpu", "cpu")
        calls[f"{name}/cuda"] = lambda name=name, words=words: run(words, f"{name}/cuda", "cuda")
    for name in RESUMED:
        calls[f"{name}/cuda"] = lambda name=name: resume(name)
    for device in ("cpu", "cuda"):
        for name, step in WRONG.items():
            out = f"{name}/{device}"
            change = mock.patch.object(sampler, "decode_step", step)
            calls[out] = change(lambda out=out, device=device: run("", out, device))
        calls[f"images/{device}"] = partial(run, "", f"images/{device}", device, recipe="images")
        calls[f"trainer/{device}"] = partial(trainer, device)
        calls[f"low/{device}"] = partial(low, device)
    calls["workers/cuda"] = partial(run, "--workers 2", "workers/cuda", "cuda", recipe="images")
    calls["long/cuda"] = partial(run, LONG, "long/cuda", "cuda")
    kept = mock.patch.object(cuda.MemPool, "empties", False)
    calls["leaking/cuda"] = kept(partial(run, LONG, "leaking/cuda", "cuda"))
    for name, default in ONE_WAY.items():
        calls[name] = waits_of(default)(partial(run, "", name, "cuda"))
    calls["many/cpu"] = partial(run, MANY, "many/cpu", "cpu")
    calls["halved/cuda"] = partial(short_of_memory, "halved", MANY, 0.6)
    calls["full/cuda"] = partial(short_of_memory, "full", "", 0.5)
    calls["cached/cuda"] = partial(short_of_memory, "cached", "", 2, cached=True)
    calls["eval"] = lambda: scripts(evaluation, ROWS)
    calls["sample"] = lambda: scripts(sample, "graphs/cpu --samples 4 --top-p .9 --temperature .7")
    calls["low_precision"] = low_precision.every_call
    calls["recomputed/cuda"] = recomputed
    calls["broken off"] = broken_off
    calls["rank"] = lambda: in_a_group(lambda: printed(evaluation, ROWS, "cuda"))
    return calls | {name: partial(well, item) for name, item in ITEMS.items()}


def resume_sharded():
    """From the checkpoint in float32: Adam's state is distributed in the type that it has there."""
    run("--shard true --steps 2", "resumed", "cuda")
    torch.set_default_dtype(torch.float32)
    run("--shard true", "resumed", "cuda", "--resume", "auto")


# What two ranks do, each in its process.
RANKS = {
    "ddp": lambda: run("--micro-batch-tokens 40", "ddp", "cuda"),
    "shard": lambda: run("--shard true", "shard", "cuda"),
    "resumed": resume_sharded,
    "host": lambda: distributed.sum_tensor(torch.ones(1)),
}


def in_a_group(call):
    """What a call returns in the only rank of a group, on a node whose tasks see one GPU each."""
    port = socket.create_server(("localhost", 0))
    ours = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 3, "MASTER_ADDR": "localhost"}
    ours["MASTER_PORT"] = port.getsockname()[1]
    port.close()
    with mock.patch.dict(os.environ, {name: str(value) for name, value in ours.items()}):
        try:
            return call()
        finally:
            dist.destroy_process_group()


def command(*words, launcher=()):
    """Do what gpu_check.py would do in a process of its own."""
    program, *rest = map(str, words)
    scripts = {"train.py": train.main, "-m": prepare.main, gpu_check.__file__: gpu_check.main}
    call = partial(scripts[program], rest[program == "-m" :])
    assert not (in_a_group(call) if launcher else call())


def well(item) -> dict:
    """What an item of gpu_check.py finds."""
    torch.set_default_dtype(torch.float32)
    bench_turns.start(1, "cuda", True)
    return gpu_check.check(item)


def policy_from(*arguments, real=build.policy_from):
    """Note the peak memory of the device meanwhile, in weights."""
    policy = real(*arguments)
    weights = sum(parameter.nbytes for parameter in policy.model.parameters())
    PEAKS.append(torch.cuda.max_memory_allocated() / weights)
    return policy


def initial(*arguments, real=build.initial):
    torch.cuda.reset_peak_memory_stats()
    return real(*arguments)


def pin_memory(batch):
    """Note that a batch of images was pinned, which in a run on the CPU would set up a GPU."""
    PINNED.append(len(batch))
    return batch


def look(call) -> dict:
    """What is seen while a call runs: what it returns or raises, waits, streams and graphs."""
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    gc.collect()
    torch.cuda.empty_cache()
    cuda.USED["device"] = False
    PEAKS.clear()
    PINNED.clear()
    cuda.taken()
    waits.taken()
    cuda.CUDAGraph.counts.clear()
    made = cuda.Stream.made
    start = time.process_time()
    seen = {"error": "", "result": None}
    try:
        seen["result"] = call()
    except BaseException:
        seen["error"] = traceback.format_exc()
    by_line = collections.Counter()
    for (kind, _, where), count in cuda.taken().items():
        by_line[f"{kind} {where}"] += count
    return seen | {
        "by_part": waits.taken(),
        "seconds": round(time.process_time() - start, 2),
        "waits": by_line,
        "streams": cuda.Stream.made - made,
        "graphs": dict(cuda.CUDAGraph.counts),
        "peaks": list(PEAKS),
        "pinned": len(PINNED),
    }


def main():
    cuda.install()
    waits.install()
    load = checkpoint.load

    def in_default_type(*arguments, **options):
        loaded = load(*arguments, **options)
        loaded.model.to(torch.get_default_dtype())
        return loaded

    checkpoint.load = in_default_type
    # So that caches grow in responses of a few tokens.
    Cache.BLOCK = 4
    build.policy_from = policy_from
    build.initial = initial
    ImageBatch.pin_memory = pin_memory
    RECIPES.update(simulated=recipe, images=images)
    parts.run = command
    parts.WORK = Path("gpu_check")
    nccl.install()
    warnings.filterwarnings("error", "sampling goes on without CUDA graphs")
    rank = os.environ.get("RANK")
    if rank:
        calls = RANKS
    else:
        sizes = "--classes 4 --size 12 --train 40 --validation 20 --test 8 --workers 1"
        glyphs.main([*sizes.split(), "--out", "glyphs"])
        Path("rewards.py").write_text(REWARDS)
        task = tiny.Ragged("train")
        rows = [json.dumps({"prompt": task[i].prompt, "number": i}) for i in range(len(task))]
        Path("rows.jsonl").write_text("\n".join(rows))
        calls = settings()
    found = {name: look(call) for name, call in calls.items()}
    Path(f"seen{rank or ''}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
