"""One of four ranks on two nodes of two, for test_shard.py: a step of a sharded model, from a fork
server (no imports anew).
"""

import os

import tiny
import torch
from worker_ddp import P, advantages, stored

import maxrl.policy
from maxrl.build import make_optimizer
from maxrl.config import Config
from maxrl.parallel import distributed, sharding

WORLD, NODE = 4, 2


def step(rank: int, world: int, shard: bool) -> dict:
    """Gradient and weights of a step of several micro-batches, whole; whether a gradient was there
    before the last one.
    """
    mine, early, loss = list(range(rank, P, world)), [], maxrl.policy.policy_gradient_loss
    policy = tiny.policy(tiny.model(), shard=shard, micro_batch_tokens=10)
    parameters = list(policy.model.parameters())
    optimizer = make_optimizer(Config(lr=0.01), policy.model)

    def noted(*arguments, **options):
        early.append([p.grad is None for p in parameters])
        return loss(*arguments, **options)

    maxrl.policy.policy_gradient_loss = noted
    policy.backward(stored(mine), advantages("mixed")[mine])
    maxrl.policy.policy_gradient_loss = loss
    gradient = torch.cat([sharding.unsharded(p.grad).flatten() for p in parameters])
    optimizer.step()
    weights = torch.cat([sharding.unsharded(p.detach()).flatten() for p in parameters])
    return {
        "gradient": gradient,
        "weights": weights,
        "waited": all(map(all, early)),
        "batches": len(early),
        "policy": policy,
    }


def main(rank: int, port: int, file: str):
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_RANK": str(rank % NODE),
        "MASTER_PORT": str(port),
        "LOCAL_WORLD_SIZE": str(NODE),
        "MASTER_ADDR": "127.0.0.1",
    }
    torch.set_num_threads(1)
    distributed.setup("cpu")
    result = step(rank, WORLD, True)
    parameters = list(result.pop("policy").model.parameters())
    result["mesh"] = parameters[0].device_mesh.mesh.tolist()
    result["held"] = sum(p.to_local().numel() for p in parameters) / sum(
        p.numel() for p in parameters
    )
    torch.save(result, f"{file}.{rank}")
    torch.distributed.destroy_process_group()
