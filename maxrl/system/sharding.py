"""A model divided among the ranks (FSDP2), and unsharded copies of it."""

import copy
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from maxrl.system.distributed import gathered, launched, rank


def fully_sharded(module: nn.Module, blocks: Iterable[nn.Module]) -> nn.Module:
    """Divide a module in place: a rank keeps a slice of every parameter, gradient and Adam state.

    module  all of it on the CPU of each rank; rank 0's weights count, as with DDP
    blocks  its submodules that are gathered one at a time

    A block is gathered only while it runs forward or backward, and the rest of the module from its
    forward to the end of its backward, so that a device holds its slices and one block. Gradients
    are averaged over the ranks. On several nodes each node has the whole module, divided among its
    ranks, because the network between nodes would carry every gathered block.

    Weights are gathered in float32: MixedPrecisionPolicy's param_dtype would also round norms and
    embeddings, which autocast leaves alone.

    Every forward and backward of a block is a collective. Ranks that run the module different
    numbers of times wait for each other for ever, so what needs no gradient runs on a copy of
    `Gathered`. ValueError without a process group.
    """
    # Imported here because only a sharded model needs these modules, which load slowly.
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not dist.is_initialized():
        raise ValueError("sharding a model needs a process group: start with torchrun")
    kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mesh = mesh_of_nodes(kind)
    for parameter in module.parameters():
        full = parameter.detach().to(kind)
        dist.broadcast(full, 0)
        parameter.detach().copy_(full)
    # Several releases of torch ask gloo for an average of float32 and get a sum, without an error
    # (pytorch issue 162338). In float64 torch itself adds and divides.
    numbers = MixedPrecisionPolicy(reduce_dtype=torch.float64 if kind == "cpu" else None)
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh, mp_policy=numbers)
    return module


def mesh_of_nodes(kind: str) -> Any:
    """Return a mesh of (nodes, ranks of a node), of which fully_shard divides a model along the
    last dimension; one of (ranks,) on a single node or where the nodes have unequal numbers.

    A launcher sets LOCAL_WORLD_SIZE and numbers the ranks of a node one after another.
    """
    from torch.distributed.device_mesh import init_device_mesh

    world = dist.get_world_size()
    local = gathered([launched("LOCAL_WORLD_SIZE", world)])  # (ranks, 1)
    size = int(local.min())
    if size == local.max() < world and world % size == 0:
        return init_device_mesh(kind, (world // size, size), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(kind, (world,))


class Gathered:
    """The unsharded copy of a sharded model that sampling and saving use.

    It is gathered when it is first needed after an update, and dropped before the next one. Make
    this before the model is sharded: a copy of a sharded module would have its hooks.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.copy: Any = None
        empty = {}
        for p in model.parameters():
            empty[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False)
        self.skeleton = copy.deepcopy(model, empty)

    def get(self, linear: torch.dtype | None) -> Any:
        """Return the copy, as `gather` makes it; the first call after an update is a collective."""
        if self.copy is None:
            self.copy = self.gather(linear=linear)
        return self.copy

    def drop(self) -> None:
        """Forget the copy: the weights are about to change."""
        self.copy = None

    @torch.no_grad()
    def gather(self, device: str | None = None, linear: torch.dtype | None = None) -> Any:
        """Return an unsharded copy of the model, without hooks; all ranks must call this.

        device  of the copy (default: that of the slices)
        linear  dtype of the parameters of nn.Linear

        Gathering is a collective, one tensor at a time; using the copy is not. Linear layers in
        bfloat16 are what autocast makes of them, while norms and embeddings stay as they are, so
        that the copy computes the same.
        """
        result = copy.deepcopy(self.skeleton)
        made = {}
        for module, target in zip(self.model.modules(), result.modules()):
            for name, parameter in module.named_parameters(recurse=False):
                dtype = parameter.dtype
                if linear and isinstance(module, nn.Linear):
                    dtype = linear
                # Tied parameters are gathered once.
                key = id(parameter), dtype
                if key not in made:
                    full = unsharded(parameter.detach().to(dtype))
                    made[key] = nn.Parameter(full.to(device), requires_grad=False)
                setattr(target, name, made[key])
        return result

    def state(self, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """Return model and optimizer, unsharded, for checkpoint.save; all ranks must call this.

        They are in the CPU memory of rank 0; on the other ranks they are on the meta device.
        """
        device = "cpu" if rank() == 0 else "meta"
        full = self.gather(device)
        state: dict = {}
        for name, parameter in self.model.named_parameters():
            values = state[full.get_parameter(name)] = {}
            for key, value in optimizer.state.get(parameter, {}).items():
                if value is not None:
                    values[key] = unsharded(value).to(device)
        return full, SimpleNamespace(state=state)


def unsharded(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that is divided among the ranks, which must all call this.

    Any other tensor is returned as it is.
    """
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def placed_like(parameter: Any, full: Tensor) -> Tensor:
    """Return a full tensor on the parameter's device, in its format, or divided as it is."""
    if full.shape != parameter.shape:
        raise ValueError(f"a state has the shape {[*full.shape]}, not {[*parameter.shape]}")
    # A DTensor, whose class is not named because that would import it.
    if hasattr(parameter, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(full, parameter.device_mesh, parameter.placements)
    return torch.empty_like(parameter).copy_(full)
