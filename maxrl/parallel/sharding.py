"""One model divided over the ranks (FSDP2), and unsharded copies of it."""

import copy
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from maxrl.parallel.distributed import all_reduce, from_launcher, rank, world_size


def fully_sharded(module: nn.Module, blocks) -> nn.Module:
    """Divide a module, in place: each rank has a slice of every parameter, of its gradient and of Adam's state (FSDP2).

    module  all of it on the CPU of each rank; rank 0's weights count, as with DDP
    blocks  its submodules that are gathered one at a time

    A block is gathered only while it runs forward or backward, the rest of the module from its forward to the end of its
    backward, so a device holds no more than its slices and one block. Gradients are averaged over the ranks, as by DDP.
    Where there are several nodes of several ranks each node has a whole model, divided over its own ranks: between nodes
    there is one all-reduce of the slices' gradients a step (distributed.synchronised), and nothing a micro-batch.
    ValueError without a process group.

    Weights are gathered in float32. MixedPrecisionPolicy's param_dtype would round norms and embeddings too, which autocast
    leaves alone: other numbers. Half of the bytes would not be felt, since a layer is gathered while another one works.

    Every forward and backward of a block is a collective. Ranks that run the module different numbers of times wait for
    each other for ever, and what does not go through its forward, as decode() of the model, finds slices in place of
    weights. So what needs no gradient, at a length of its own on each rank, runs on a copy from `gathered`.
    """
    # Here, since these modules are half of what a start would cost: only a sharded model has a use for them.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not dist.is_initialized():
        raise ValueError("to shard a model there must be a process group: start with torchrun")
    kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
    sizes = mesh_sizes()
    mesh = init_device_mesh(kind, sizes, mesh_dim_names=("nodes", "ranks")[-len(sizes) :])
    for parameter in module.parameters():
        full = parameter.detach().to(kind)
        dist.broadcast(full, 0)
        parameter.detach().copy_(full)
    # Several releases of torch hand gloo an average of float32 that it takes for a sum (pytorch issue 162338), without an
    # error. Of float64 torch adds and divides itself.
    numbers = MixedPrecisionPolicy(reduce_dtype=torch.float64 if kind == "cpu" else None)
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh, mp_policy=numbers)
    return module


def mesh_sizes() -> tuple[int, ...]:
    """(nodes, ranks of a node); (ranks,) of one node, and where the nodes do not have equally many, or only one each."""
    world = world_size()
    local = from_launcher("LOCAL_WORLD_SIZE", world)
    # Of nodes that differ each would build another mesh, and wait for the others for an hour.
    ends = all_reduce({"most": local, "least": -local}, "max")
    equal = ends["most"] == -ends["least"]
    return (
        (world // local, local) if equal and 1 < local < world and world % local == 0 else (world,)
    )


def meta_skeleton(model: nn.Module) -> nn.Module:
    """Return a copy of a model that is not sharded yet, without its numbers (on the meta device): what `gathered` fills."""
    empty = {}
    for p in model.parameters():
        empty[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False)
    return copy.deepcopy(model, empty)


@torch.no_grad()
def gathered(
    model: nn.Module, skeleton: nn.Module, device=None, linear: torch.dtype | None = None
) -> nn.Module:
    """Return an unsharded copy of a sharded model, without hooks; all ranks must call this.

    model     the sharded one
    skeleton  its meta_skeleton
    device    of the copy, without it that of the slices
    linear    dtype of the parameters of nn.Linear

    Making it is a collective, one tensor at a time; using it is none. With bfloat16 the linear layers are what autocast
    makes of them; norms and embeddings stay as they are, so that the copy computes the same.
    """
    result = copy.deepcopy(skeleton)
    made = {}
    for module, place in zip(model.modules(), result.modules()):
        for name, parameter in module.named_parameters(recurse=False):
            dtype = parameter.dtype
            if linear and isinstance(module, nn.Linear):
                dtype = linear
            # Tied ones are made once.
            key = id(parameter), dtype
            if key not in made:
                full = unsharded(parameter.detach().to(dtype))
                made[key] = nn.Parameter(full.to(device), requires_grad=False)
            setattr(place, name, made[key])
    return result


class Gathered:
    """The unsharded copy of a sharded model that sampling and saving use.

    It is gathered when it is first needed after an update, and dropped before the next one. Make
    this before the model is sharded.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.skeleton = meta_skeleton(model)
        self.copy: nn.Module | None = None

    def get(self, linear: torch.dtype | None) -> nn.Module:
        """Return the copy, as `gathered` makes it; all ranks must call this."""
        if self.copy is None:
            self.copy = gathered(self.model, self.skeleton, linear=linear)
        return self.copy

    def drop(self) -> None:
        """Forget the copy: the weights are about to change."""
        self.copy = None

    def state(self, optimizer: torch.optim.Optimizer) -> dict:
        """Return {"model", "optimizer"}, unsharded, for checkpoint.save; all ranks must call this.

        They are in the CPU memory of rank 0; on the other ranks they are on the meta device.
        """
        device = "cpu" if rank() == 0 else "meta"
        full = gathered(self.model, self.skeleton, device)
        state = {}
        for name, parameter in self.model.named_parameters():
            values = {}
            for key, value in optimizer.state.get(parameter, {}).items():
                if value is not None:
                    values[key] = unsharded(value).to(device)
            state[full.get_parameter(name)] = values
        return {"model": full, "optimizer": SimpleNamespace(state=state)}


def unsharded(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor that is divided over the ranks, which must all call this; any other as it is."""
    return tensor.full_tensor() if divided(tensor) else tensor


def divided(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor, by what only those have: to name the class would import it."""
    return hasattr(tensor, "full_tensor")


def placed_like(parameter: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    """Return a full tensor with the parameter's device and memory format, or divided over the ranks as that is."""
    if divided(parameter):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(full, parameter.device_mesh, parameter.placements)
    return torch.empty_like(parameter).copy_(full)
