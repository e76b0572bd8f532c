"""One process or many, started by plain python or by torchrun: the same script."""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from maxrl.errors import UsageError

MEETING = timedelta(minutes=10)  # for all ranks to start
PR_SET_PDEATHSIG = 1  # of prctl(2)


def setup(device: str = "auto", deterministic: bool = False) -> tuple[int, int, torch.device]:
    """Join the process group that torchrun announces, if any. Returns rank, world size and this process's device."""
    rank = from_launcher("RANK", 0)
    world = from_launcher("WORLD_SIZE", 1)
    local = from_launcher("LOCAL_RANK", 0)
    if rank >= world:
        raise UsageError(
            f"the environment has RANK={rank}, which must be below WORLD_SIZE={world}: start with torchrun, or unset both"
        )
    gpu = None
    if device != "cpu":
        spare_memory()
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise UsageError("--device cuda: torch sees no CUDA device; use --device cpu")
    if device != "cpu" and available:
        gpu = torch.device("cuda", local)
        torch.cuda.set_device(gpu)
        # New releases ask cuDNN first, which makes a plan of about a second for every length of a prompt that is new to it.
        torch.backends.cuda.enable_cudnn_sdp(False)
        # Of convolutions it tries its kernels once for a size and keeps the fastest: images have one size.
        torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
    torch.use_deterministic_algorithms(deterministic)
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        # An hour: a rank may wait that long for another one's rollouts or evaluation. One that has died is noticed at once, by
        # the launcher, which ends the others; the time-out ends those that wait for one that hangs.
        hour = timedelta(hours=1)
        store = meet(rank, world)
        store.set_timeout(hour)
        dist.init_process_group(
            "nccl" if gpu else "gloo",
            store=store,
            rank=rank,
            world_size=world,
            timeout=hour,
            device_id=gpu,
        )
        end_with_launcher()
    return rank, world, gpu or torch.device("cpu")


def spare_memory():
    """Before the first call of CUDA: its allocator grows a segment where caches and micro-batches of ever new sizes would
    leave gaps. What the user has set stays, under this name or the one that PyTorch 2.9 brought (and ignored for this)."""
    if "PYTORCH_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def from_launcher(name: str, default: int) -> int:
    """A number that torchrun says by an environment variable."""
    said = os.environ.get(name, str(default))
    if not said.isdecimal():
        raise UsageError(
            f"the environment has {name}={said!r}, which is no number: start with torchrun, or unset {name}"
        )
    return int(said)


def meet(rank: int, world: int):
    """The store by which the ranks find each other."""
    if missing := [
        name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)
    ]:
        raise UsageError(
            f"the environment has WORLD_SIZE and no {missing[0]}: start with torchrun, or unset WORLD_SIZE"
        )
    from_launcher("MASTER_PORT", 0)
    try:
        return next(rendezvous("env://", rank, world, timeout=MEETING))[0]
    except (dist.DistError, ValueError) as error:
        raise UsageError(
            f"rank {rank} did not find the others at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} "
            f"({' '.join(str(error).split())[:100]})"
        ) from None


def end_with_launcher():
    """On Linux the kernel sends SIGTERM when the launcher dies, however it does: a rank without one finishes its step, saves
    and ends, where it would go on as an orphan that nobody finds."""
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def barrier():
    if dist.is_initialized():
        dist.barrier()


def from_main(value):
    """A JSON value of the main rank's, on all of them: as text, since torch would send an object as a pickle."""
    if not dist.is_initialized():
        return value
    text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=group_device())
    size = torch.tensor(len(text), device=text.device)
    dist.broadcast(size, 0)
    text = text if rank() == 0 else text.new_empty(int(size))
    dist.broadcast(text, 0)
    return json.loads(bytes(text.tolist()))


def group_device() -> torch.device:
    """Where the tensors lie that the ranks exchange."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if dist.get_backend() == "nccl"
        else torch.device("cpu")
    )


def all_reduce(numbers: dict[str, float], op: str = "sum") -> dict[str, float]:
    """Sum (or "max") of every number over the ranks; the keys must be the same on all of them."""
    if not (numbers and dist.is_initialized()):
        return numbers
    names = sorted(numbers)
    values = torch.tensor(
        [float(numbers[name]) for name in names], dtype=torch.float64, device=group_device()
    )
    dist.all_reduce(values, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)
    return dict(zip(names, values.tolist()))


def peak_memory(device: torch.device) -> dict[str, float]:
    """The most memory a rank has held, in GiB: on a GPU since this was asked last, on a CPU since the process began."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
    return {"memory/peak_gb": all_reduce({"peak": peak / 2**30}, "max")["peak"]}


def use_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether forwards run in bfloat16 autocast: as asked, or with "auto" where the hardware multiplies in bfloat16."""
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(bfloat16_unit())


def bfloat16_unit() -> str:
    """What this CPU multiplies bfloat16 with, by its flags; "" where it has nothing that is faster than float32.

    A cap on what a library may use (ONEDNN_MAX_CPU_ISA) is not asked: bfloat16 is then slow, and right.
    """
    for unit, flag in (
        ("AMX", "_is_amx_tile_supported"),
        ("AVX512-BF16", "_is_avx512_bf16_supported"),
    ):
        if getattr(torch.cpu, flag, bool)():  # bool() is False: for a torch that does not ask
            return unit
    return ""


def sum_tensor(values: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor of the same shape over the ranks, on every rank."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def broadcast_buffers(module: torch.nn.Module):
    """Every rank takes rank 0's buffers: DDP does so before a forward, and each rank's batch moves its own again."""
    if dist.is_initialized():
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)


def data_parallel(module: torch.nn.Module, *nothing) -> torch.nn.Module:
    """The module whose forward everything that needs a gradient must go through; DDP averages over ranks.

    nothing: arguments for which it gives a 0 that needs every gradient, if there are any. DDP orders its buckets anew after
    the first backward: this is done here, before there is any Adam state. From then on the gradients lie in the buckets,
    where the first two steps would otherwise hold them twice.
    """
    if not dist.is_initialized():
        return module
    weight = next(module.parameters())
    devices = [weight.device] if weight.is_cuda else None
    wrapped = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
    for _ in range(2 if nothing else 0):
        wrapped.zero_grad()
        wrapped(*nothing).backward()
    return wrapped


def in_buckets(module: torch.nn.Module) -> bool:
    """Whether the memory of the gradients is DDP's: set to None they would be made once more beside it."""
    return isinstance(module, DistributedDataParallel)


def synchronised(module: torch.nn.Module, now: bool):
    """Context of a forward and its backward; only where `now` is true does DDP average the gradients over the ranks.

    fully_shard does after each of them: left for the last one, whole gradients would pile up on every rank until then.
    Between the nodes of a two-dimensional mesh it waits for the last one, with slices.
    """
    if hasattr(module, "set_requires_all_reduce"):
        module.set_requires_all_reduce(now)
    return contextlib.nullcontext() if now or not in_buckets(module) else module.no_sync()
