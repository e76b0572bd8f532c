"""One model divided over the ranks (FSDP2), and whole copies of it."""

import copy
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from maxrl.distributed import rank, world_size


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


def meta_skeleton(model: nn.Module) -> nn.Module:
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
                whole = unsharded(parameter.detach().to(dtype)).to(device)
                made[id(parameter), dtype] = nn.Parameter(whole, requires_grad=False)
            setattr(place, name, made[id(parameter), dtype])
    return result


def gathered_state(model: nn.Module, frame: nn.Module, optimizer) -> dict:
    """{"model", "optimizer"}: a sharded model and the state of its optimizer, whole, in the memory of rank 0's CPU, for
    checkpoint.save; the other ranks, which must call this too, get them without numbers."""
    device = "cpu" if rank() == 0 else "meta"
    whole, state = gathered(model, frame, device), {}
    for name, parameter in model.named_parameters():
        values = {key: value for key, value in optimizer.state.get(parameter, {}).items() if value is not None}
        state[whole.get_parameter(name)] = {key: unsharded(value).to(device) for key, value in values.items()}
    return {"model": whole, "optimizer": SimpleNamespace(state=state)}


def unsharded(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that is divided over the ranks (all of them must ask), any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed_like(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A whole tensor with the parameter's device and memory format, or divided over the ranks as that is."""
    if isinstance(parameter, DTensor):
        return distribute_tensor(whole, parameter.device_mesh, parameter.placements)
    return torch.empty_like(parameter).copy_(whole)
