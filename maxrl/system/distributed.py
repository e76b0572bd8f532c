"""One process or several ranks: a script runs the same under plain python and under torchrun."""

import atexit
import contextlib
import os
import resource
import sys
import threading
import time
import warnings
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from maxrl.system.errors import RunError, UsageError, one_line

T = TypeVar("T")

WAIT = 10.0  # seconds until a rank says that it waits for the others
ALONE = (
    "waiting for the other ranks that WORLD_SIZE, RANK and MASTER_ADDR promise: if nobody has "
    "started them, unset these variables"
)


def setup(device: str = "auto", deterministic: bool = False, hours: float = 1) -> torch.device:
    """Join the process group of torchrun, if any; return the device.

    hours  how long a rank may wait for another one's rollouts or evaluation. torchrun notices a
           dead rank at once; the time-out is for one that hangs
    """
    gpu = None
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise UsageError("--device cuda: torch sees no CUDA device; use --device cpu")
    if device != "cpu" and available:
        # A scheduler may show each task a GPU of its own.
        gpu = torch.device("cuda", launched("LOCAL_RANK", 0) % torch.cuda.device_count())
        torch.cuda.set_device(gpu)
        if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ):
            # Caches of ever new sizes would leave gaps. Not by the environment, which may have been
            # read when torch was imported.
            torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        # cuDNN's attention takes about a second to plan for every new prompt length.
        torch.backends.cuda.enable_cudnn_sdp(False)
        # Products of few rows would add in bfloat16: other log-probabilities than in training.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        # cuDNN times its kernels once per input size, and images have one size.
        torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for cuBLAS
        torch.use_deterministic_algorithms(True)
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        # Of an earlier launch, the variables may be left over, and nobody comes.
        waiting = threading.Timer(WAIT, warnings.warn, [ALONE])
        waiting.daemon = True
        waiting.start()
        try:
            backend = "nccl" if gpu else "gloo"
            dist.init_process_group(backend, timeout=timedelta(hours=hours), device_id=gpu)
        except (ValueError, OSError, dist.DistError) as error:
            raise RunError(
                "WORLD_SIZE is set, but the ranks cannot connect: start them with torchrun, or "
                f"start it again if it has ended: {one_line(error)}"
            ) from None
        finally:
            waiting.cancel()
        atexit.register(leave)
    return gpu or torch.device("cpu")


def launched(name: str, default: int) -> int:
    """Return a number that a launcher has set; the default without one, and for an empty text."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default


def leave() -> None:
    """Close the process group, which would complain at the end of the interpreter."""
    if dist.is_initialized():
        # Gloo's threads take the interpreter to release a tensor, and abort if it is gone. DDP
        # keeps a group that is destroyed alive, so that nothing waits for them.
        time.sleep(0.2)
        dist.destroy_process_group()


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def cores() -> int:
    """Return how many CPU cores this process may use, as a scheduler or taskset gives them."""
    # Linux alone has them.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def from_main(value: T) -> T:
    """Return the main rank's value on all ranks."""
    values = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(values, 0)
    return values[0]


def gathered(values: list) -> np.ndarray:
    """Return the numbers of every rank, (ranks, n), float64: one collective, one wait.

    values  n numbers or scalars on the device, the same n on all ranks
    """
    if not values:
        return np.empty((world_size(), 0))
    scalars = [value for value in values if isinstance(value, Tensor)]
    device = scalars[0].device if scalars else torch.device("cpu")
    if dist.is_initialized() and dist.get_backend() == "nccl":
        # NCCL exchanges tensors of the GPU alone.
        device = torch.device("cuda")
    numbers = [0.0 if isinstance(value, Tensor) else value for value in values]
    row = torch.tensor(numbers, dtype=torch.float64).to(device, non_blocking=True)
    row = torch.stack([v.to(n) if isinstance(v, Tensor) else n for v, n in zip(values, row)])
    rows = row.new_zeros(world_size(), len(row))
    rows[rank()] = row
    if dist.is_initialized():
        dist.all_reduce(rows)
    return rows.cpu().numpy()


def peak_memory(device: torch.device) -> dict[str, float]:
    """Return this rank's peak memory in GiB: on a GPU that since the last call, and what the
    allocator has taken for it.
    """
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        reserved = torch.cuda.max_memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        return {"memory/peak_gb": peak / 2**30, "memory/reserved_gb": reserved / 2**30}
    # In bytes on macOS, in KiB elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"memory/peak_gb": peak / 2**30}


def use_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether forwards run in bfloat16 autocast; "auto": where the hardware multiplies bfloat16."""
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # A cap on the instructions of a library (ONEDNN_MAX_CPU_ISA) is not taken into account.
    flags = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, flag, bool)() for flag in flags)


def sum_tensor(values: Tensor) -> Tensor:
    """Return the sum over the ranks of a tensor that has the same shape on all of them."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def broadcast_buffers(module: nn.Module) -> None:
    """Copy rank 0's buffers to every rank, as DDP does before a forward."""
    if dist.is_initialized():
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)


def data_parallel(module: nn.Module, *nothing: None) -> nn.Module:
    """Wrap a module in DDP, which averages gradients over the ranks, if there are several.

    nothing  arguments for which the module returns a 0 that needs every gradient, if there are any

    DDP rebuilds its buckets after the first backward. With `nothing` this happens here, before
    there is any Adam state; the first two steps would otherwise hold the gradients twice.
    """
    # An evaluation has no gradients.
    if not (dist.is_initialized() and torch.is_grad_enabled()):
        return module
    weight = next(module.parameters())
    devices = [weight.device] if weight.is_cuda else None
    wrapped = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
    for _ in range(2 if nothing else 0):
        wrapped.zero_grad()
        wrapped(*nothing).backward()
    return wrapped


def in_buckets(module: nn.Module) -> bool:
    """Whether gradients are views into DDP's buckets, which setting them to None would double."""
    return isinstance(module, DistributedDataParallel)


def synchronised(module: nn.Module, now: bool) -> AbstractContextManager:
    """Return the context of a forward and its backward; DDP averages gradients only if `now`.

    fully_shard averages after every backward, because whole gradients would pile up until the last,
    but between nodes, where the slices are added up, only if `now`.
    """
    if isinstance(module, DistributedDataParallel) and not now:
        return module.no_sync()
    between_nodes = getattr(module, "set_requires_all_reduce", None)
    if between_nodes:
        between_nodes(now)
    return contextlib.nullcontext()
