"""One rank of test_nodes.py: writes what it computed to FILE.rank."""

import sys
from unittest import mock

import torch
import torch.distributed as dist

from maxrl.run import cli
from maxrl.system import distributed, sharding
from tests.helpers import tiny
from tests.ranks.worker import advantages, policy, stored, wrapped

SETTINGS = ["tied", "second update", "LoRA of rank 1"]


def layout() -> dict:
    """The numbers of parameters that this rank holds and that there are; how often slices are added
    up between the nodes in an update of several micro-batches, and how many groups there are.
    """
    ours = policy("tied", True, micro_batch_tokens=30)
    parameters = list(ours.model.parameters())
    kept = []
    for p in parameters:
        again = sharding.placed_like(p, sharding.unsharded(p.detach()))
        kept.append(torch.equal(again.to_local(), p.to_local()))
    other = tiny.policy(tiny.model(seed=distributed.rank()), shard=True)
    losses = []
    loss = ours.loss
    ours.loss = lambda *arguments: losses.append(1) or loss(*arguments)
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduced:
        ours.backward(stored([distributed.rank() % 2] * 6), advantages("mixed"))
    between = [call for call in reduced.call_args_list if call.kwargs.get("group")]
    return {
        "held": sum(p.to_local().numel() for p in parameters),
        "all": sum(p.numel() for p in parameters),
        "mesh": parameters[0].device_mesh.mesh.tolist(),
        "placed": all(kept),
        "micro-batches": len(losses),
        "added up": len(between),
        "blocks": 1 + len(ours.model.model.layers),
        "start": other.unsharded_model().lm_head.weight,
    }


def main(file: str):
    distributed.setup("cpu")
    rank, world = distributed.rank(), distributed.world_size()
    torch.set_num_threads(1)
    found = wrapped("shard", rank, world, SETTINGS, ["float64"]) | {"layout": layout()}
    torch.save(found, f"{file}.{rank}")
    cli.cleanup()


if __name__ == "__main__":
    main(*sys.argv[1:])
