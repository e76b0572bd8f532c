"""One rank of test_shard.py, started by torchrun: the same work with DDP and with fully_shard,
written to FILE.rank.
"""

import json
import sys

import tiny
import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import clip_grad_norm_
from worker_ddp import CASES, N, P, Parity, advantages, rounds  # noqa: E402

import maxrl.policy  # noqa: E402
import train  # noqa: E402
from maxrl.evaluation import judge_samples
from maxrl.losses import policy_gradient_loss
from maxrl.models.lora import add_lora, lora_state  # noqa: E402
from maxrl.parallel import (
    distributed,
    sharding,  # noqa: E402
)
from maxrl.run import cli

# name: (what differs from tiny.SIZES, options of the policy, rank of LoRA)
SETTINGS = {
    "tied": ({}, {}, 0),
    "untied, 33 tokens": (
        dict(model_type="llama", tie_word_embeddings=False, vocab_size=33),
        {},
        0,
    ),  # slices of 17 and 16
    "checkpointing": (dict(model_type="qwen3", head_dim=8), dict(gradient_checkpointing=True), 0),
    "entropy bonus and beta": (
        {},
        dict(entropy_bonus=0.1, beta=0.05, share_prompt=False, gradient_checkpointing=True),
        0,
    ),
    "second update": ({}, dict(clip=(0.1, 0.3)), 0),
    "LoRA of rank 1": (
        {},
        dict(gradient_checkpointing=True),
        1,
    ),  # A has one row: rank 1's slice has none
}
TWO = [CASES[1], CASES[3]]  # of every setting but the first, which has all
LOW = {
    "float64": ("tied", False),
    "bfloat16": ("tied", True),
    "LoRA, bfloat16": ("LoRA of rank 1", True),
}


def policy(setting: str, shard: bool, dtype=torch.float64, **more):
    changes, options, rank = SETTINGS[setting]
    model = tiny.model(dtype, **changes)
    if options.get("beta"):
        options = options | {"reference": tiny.model(dtype, seed=1)}
    if rank:
        add_lora(model, rank, 2.0)
        generator = torch.Generator().manual_seed(3)
        for tensor in lora_state(model).values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return tiny.policy(model, shard=shard, **options, **more)


def local_rollouts(mine, dtype=torch.float64):
    rollouts = tiny.rollouts((20, 3, 17, 1, 25, 2), N=N, dtype=dtype)
    rollouts.tokens, rollouts.lengths, rollouts.log_probs = (
        values[mine] for values in (rollouts.tokens, rollouts.lengths, rollouts.log_probs)
    )
    rollouts.prompts = [rollouts.prompts[i] for i in mine]
    return rollouts


def gradients(setting: str, shard: bool, mine) -> dict:
    """{case: (gradient, statistics, its norm, the clipped one)}, and before a second update the
    log-probs it compares with.
    """
    results = {}
    for case in CASES if setting == "tied" else TWO:
        kind, aggregation, budget = case
        ours, rollouts = (
            policy(setting, shard, aggregation=aggregation, micro_batch_tokens=budget),
            local_rollouts(mine),
        )
        trained = [p for p in ours.model.parameters() if p.requires_grad]
        if setting == "second update":
            ours.record(rollouts)
            results[case, "record"] = dict(zip(mine, rollouts.old_log_probs))
            with torch.no_grad():
                for p in trained:
                    p.mul_(1.05)
        stats = ours.backward(rollouts, advantages(kind)[mine])
        assert all(p.grad.shape == p.shape and type(p.grad) is type(p.data) for p in trained)
        gradient = torch.cat([sharding.unsharded(p.grad).flatten() for p in trained])
        norm = sharding.unsharded(clip_grad_norm_(ours.model.parameters(), 0.01))
        clipped = torch.cat([sharding.unsharded(p.grad).flatten() for p in trained])
        results[case] = gradient, stats, float(norm), clipped
    return results


def samples(shard: bool, mine) -> dict:
    """Rollouts of step one in float64 and under autocast, before and after an update; counts of
    uneven shares.
    """
    results = {}
    for name, (setting, low) in LOW.items():
        ours = policy(
            setting,
            shard,
            torch.float32 if low else torch.float64,
            seed=7,
            autocast=low,
            wave_rows=8,
        )
        for step in (1, 2):
            rollouts = ours.rollout([Parity()[i] for i in mine], N, step=step, indices=mine)
            results[name, step] = {
                i: ([rollouts.text(g, j) for j in range(N)], rollouts.log_probs[g, :, 0])
                for g, i in enumerate(mine)
            }
            stats = ours.backward(rollouts, advantages("mixed")[mine].float())
            results[name, step, "difference"] = stats["sampling/logprob_abs_diff/max"]
            for p in ours.model.parameters():
                if p.grad is not None:
                    p.data.sub_(p.grad, alpha=0.5)
        results[name, "counts"] = [
            judge_samples(ours, Parity(), [4], 6)[0].tolist(),  # nothing for rank 1
            judge_samples(ours, Parity(), [3, 0, 5, 4, 2], 6, seed=9)[0].tolist(),
        ]
    return results


def compute(rank: int, world: int, shard: bool) -> dict:
    mine = list(range(rank, P, world))
    settings = SETTINGS if shard or world == 1 else ["tied"]
    found = {setting: gradients(setting, shard, mine) for setting in settings}
    found["rounds"] = rounds(policy("tied", shard, seed=7, micro_batch_tokens=30), mine)
    return found | {"samples": samples(shard, mine)}


def layout() -> dict:
    """What this rank holds: numbers of parameters and gradients and of how many, what its copy
    consists of.
    """
    ours, loss, early = (
        policy("tied", True, torch.float32, autocast=True, micro_batch_tokens=30),
        policy_gradient_loss,
        [],
    )
    parameters = list(ours.model.parameters())

    def noted(*given, **options):
        early.append([p.grad is not None for p in parameters])
        return loss(*given, **options)

    maxrl.policy.policy_gradient_loss = noted
    ours.backward(local_rollouts([distributed.rank()] * P), advantages("mixed"))
    copied = ours.unsharded_model()
    return {
        "held": sum(p.to_local().numel() for p in parameters),
        "gradient": sum(p.grad.to_local().numel() for p in parameters),
        "reduced": len(early) > 1 and all(map(all, early[1:])),
        "groups": sum(isinstance(m, FSDPModule) for m in ours.module.modules()),
        "all": sum(p.numel() for p in parameters),
        "copied": {n: p.dtype for n, p in copied.named_parameters()},
        "kept": ours.unsharded_model() is copied,
        "dropped": ours.backward(local_rollouts([0]), torch.zeros(1, N))
        and ours.gathered.copy is None,
    }


def another_start() -> dict:
    """The first weights of a model that every rank has drawn for itself: rank 0's, as with DDP."""
    ours = tiny.policy(tiny.model(seed=distributed.rank()), shard=True)
    return {"start": ours.unsharded_model().lm_head.weight}


def main(file: str, runs: str):
    rank, world, _ = distributed.setup("cpu")
    torch.set_num_threads(1)
    results = {kind: compute(rank, world, kind == "shard") for kind in ("ddp", "shard")}
    torch.save(results | another_start() | {"layout": layout()}, f"{file}.{rank}")
    for arguments in json.loads(runs):
        train.main(arguments)
    cli.cleanup()


if __name__ == "__main__":
    main(*sys.argv[1:])
