"""One process or many, started by plain python or by torchrun: the same script."""

import contextlib
import copy
import ctypes
import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from maxrl.config import RunError, UsageError

MEETING = timedelta(minutes=10)  # for all ranks to start
PR_SET_PDEATHSIG = 1  # of prctl(2)


def setup(device: str = "auto", deterministic: bool = False) -> tuple[int, int, torch.device]:
    """Join the process group that torchrun announces, if any. Returns rank, world size and this process's device."""
    rank, world, local = (from_launcher(name, number) for name, number in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    if rank >= world:
        raise UsageError(f"the environment has RANK={rank}, which must be below WORLD_SIZE={world}: start with torchrun, "
                         "or unset both")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no CUDA device; use --device cpu")
    where = torch.device("cuda", local) if device == "cuda" else torch.device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
    torch.use_deterministic_algorithms(deterministic)
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        # An hour: a rank may wait that long for another one's rollouts or evaluation. One that has died is noticed at once, by
        # the launcher, which ends the others; the time-out ends those that wait for one that hangs.
        store, hour = meet(rank, world), timedelta(hours=1)
        store.set_timeout(hour)
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo", store=store, rank=rank, world_size=world,
                                timeout=hour, device_id=where if where.type == "cuda" else None)
        end_with_launcher()
    return rank, world, where


def from_launcher(name: str, default: int) -> int:
    """A number that torchrun says by an environment variable."""
    said = os.environ.get(name, str(default))
    if not said.isdecimal():
        raise UsageError(f"the environment has {name}={said!r}, which is no number: start with torchrun, or unset {name}")
    return int(said)


def meet(rank: int, world: int):
    """The store by which the ranks find each other."""
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise UsageError(f"the environment has WORLD_SIZE and no {missing[0]}: start with torchrun, or unset WORLD_SIZE")
    from_launcher("MASTER_PORT", 0)
    try:
        return next(rendezvous("env://", rank, world, timeout=MEETING))[0]
    except (dist.DistError, ValueError) as error:
        raise UsageError(f"rank {rank} did not find the others at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} "
                         f"({' '.join(str(error).split())[:100]})") from None


def end_with_launcher():
    """On Linux the kernel sends SIGTERM when the launcher dies, however it does: a rank without one finishes its step, saves
    and ends, where it would go on as an orphan that nobody finds."""
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def cleanup():
    """The last line of a script. A rank ends here and now: threads of torch's that still run while the interpreter shuts
    down may end it by SIGABRT, its work done."""
    if dist.is_initialized():
        dist.destroy_process_group()
        leave(0, at_once=True)


def refuse(program: str, error: UsageError | FileNotFoundError):
    """End with one sentence and the error's exit code. Of ranks that would all say the same the first one speaks."""
    try:
        if os.environ.get("LOCAL_RANK", "0") != "0" and not isinstance(error, RunError):
            time.sleep(2)  # where all ranks would say the same the launcher has ended this one by then
        close_bars()
        print(f"{program}: {error}", file=sys.stderr)
    finally:
        leave(getattr(error, "code", 2))


def close_bars():
    """Bars that are open would be drawn once more at the end, below the sentence that says why."""
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.leave = False
        bar.close()


def crashed(program: str):
    """End after an exception that nobody expected: with its traceback, or a sentence where another rank was the first."""
    error = sys.exception()
    try:
        close_bars()
        if isinstance(error, dist.DistError) or isinstance(error, RuntimeError) and "gloo" in str(error):
            time.sleep(2)  # the launcher may have ended this one by then
            print(f"{program}: rank {rank()} lost another one, whose message says why ({str(error)[:99]})", file=sys.stderr)
        else:
            traceback.print_exc()
    finally:  # also where torch says meanwhile, in its handler of SIGCHLD, that a loader's worker has died
        leave(1)


def leave(code: int, at_once: bool = False):
    """Exit, and wait for nobody: the processes that were started here are killed. On several ranks, and where a thread of the
    user's goes on, without any farewell: destroying the group would wait for the ranks that still work."""
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's would raise an error for every worker that is killed
    for child in multiprocessing.active_children():
        child.kill()
    threads = [t for t in threading.enumerate() if not (t.daemon or t is threading.main_thread())]
    if not (at_once or threads or dist.is_initialized()):
        sys.exit(code)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


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
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def all_reduce(numbers: dict[str, float], op: str = "sum", device=None) -> dict[str, float]:
    """Sum (or "max") of every number over the ranks; the keys must be the same on all of them."""
    if not (numbers and dist.is_initialized()):
        return numbers
    device = device or group_device()
    values = torch.tensor([float(numbers[k]) for k in sorted(numbers)], dtype=torch.float64, device=device)
    dist.all_reduce(values, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)
    return dict(zip(sorted(numbers), values.tolist()))


def peak_memory(device: torch.device) -> dict[str, float]:
    """The most memory a rank has held, in GiB: on a GPU since this was asked last, on a CPU since the process began."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"memory/peak_gb": all_reduce({"peak": peak / 2**30}, "max", device)["peak"]}


def use_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether forwards run in bfloat16 autocast: as asked, or with "auto" where the hardware multiplies in bfloat16."""
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


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


def data_parallel(module: torch.nn.Module) -> torch.nn.Module:
    """The module whose forward everything that needs a gradient must go through; DDP averages over ranks."""
    if not dist.is_initialized():
        return module
    devices = [next(module.parameters()).device] if next(module.parameters()).is_cuda else None
    return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)


def synchronised(module: torch.nn.Module, now: bool):
    """Context of a forward and its backward; only where `now` is true does DDP average the gradients over the ranks.

    fully_shard does after each of them: left for the last one, whole gradients would pile up on every rank until then.
    """
    return contextlib.nullcontext() if now or not isinstance(module, DistributedDataParallel) else module.no_sync()


def fully_sharded(module: nn.Module, blocks) -> nn.Module:
    """`module`, in place, with a slice of every parameter on each rank (FSDP2): so of its gradient, so of Adam's state.

    A block is whole only while it runs forward or backward, the rest of the module from its forward to the end of its
    backward. Gradients are averaged over the ranks, as by DDP. Each rank comes with the whole module on the CPU; then a
    device holds no more than its slices and one block. Like DDP, this takes rank 0's weights.

    Every forward and backward of a block is a collective. Ranks that run the module different numbers of times wait for
    each other for ever, and what does not go through its forward, as decode() of the model, finds slices in place of
    weights. So what needs no gradient, at a length of its own on each rank, runs on a copy from `gathered`.
    """
    if not dist.is_initialized():
        raise ValueError("to shard a model there must be a process group: start with torchrun")
    kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mesh = init_device_mesh(kind, (world_size(),))
    for parameter in module.parameters():
        whole = parameter.detach().to(kind)
        dist.broadcast(whole, 0)
        parameter.detach().copy_(whole)
    # Several releases of torch hand gloo an average of float32 that it takes for a sum (pytorch issue 162338), without an
    # error. Of float64 torch adds and divides itself.
    numbers = MixedPrecisionPolicy(reduce_dtype=torch.float64 if kind == "cpu" else None)
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh, mp_policy=numbers)
    return module


def frame(model: nn.Module) -> nn.Module:
    """A copy of a model, which is still whole, without its numbers (on the meta device): what `gathered` fills."""
    empty = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, empty)


@torch.no_grad()
def gathered(model: nn.Module, frame: nn.Module, device=None, linear: torch.dtype | None = None) -> nn.Module:
    """A copy of a sharded model that is whole and has no hooks: using it is no collective. Making it is, one tensor at a
    time: all ranks must call this.

    device: where the copy is, with None where the slices are. linear: dtype of the parameters of nn.Linear. With bfloat16
    they are what autocast makes of them; norms and embeddings stay as they are, so that the copy computes the same.
    """
    result, made = copy.deepcopy(frame), {}
    for module, place in zip(model.modules(), result.modules()):
        for name, parameter in module.named_parameters(recurse=False):
            dtype = linear if linear and isinstance(module, nn.Linear) else parameter.dtype
            if (id(parameter), dtype) not in made:  # tied ones once
                whole = full(parameter.detach().to(dtype)).to(device)
                made[id(parameter), dtype] = nn.Parameter(whole, requires_grad=False)
            setattr(place, name, made[id(parameter), dtype])
    return result


def gathered_state(model: nn.Module, frame: nn.Module, optimizer) -> dict:
    """{"model", "optimizer"}: a sharded model and the state of its optimizer, whole, in the memory of rank 0's CPU, for
    checkpoint.save; the other ranks, which must call this too, get them without numbers."""
    device = "cpu" if rank() == 0 else "meta"
    whole, state = gathered(model, frame, device), {}
    for name, parameter in model.named_parameters():
        values = optimizer.state.get(parameter, {}).items()
        state[whole.get_parameter(name)] = {key: value if value is None else full(value).to(device) for key, value in values}
    return {"model": whole, "optimizer": SimpleNamespace(state=state)}


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that is divided over the ranks (all of them must ask), any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed_like(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A whole tensor with the parameter's device and memory format, or divided over the ranks as that is."""
    if isinstance(parameter, DTensor):
        return distribute_tensor(whole, parameter.device_mesh, parameter.placements)
    return torch.empty_like(parameter).copy_(whole)
