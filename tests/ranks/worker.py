"""One rank of test_distributed.py: writes what it computed to FILE.rank, and
then trains.
"""

import copy
import json
import resource
import sys
from unittest import mock

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import clip_grad_norm_

import train
from maxrl.advantages import ADVANTAGES
from maxrl.learning import policy as learning
from maxrl.learning.classifier import ClassifierPolicy
from maxrl.learning.config import Config
from maxrl.learning.optimizer import make_optimizer
from maxrl.learning.rounds import in_rounds, one_round
from maxrl.models.lora import add_lora, lora_state
from maxrl.models.resnet import ResNet, ResNetConfig
from maxrl.run import cli
from maxrl.run.evaluation import judge_samples
from maxrl.run.logger import step_totals
from maxrl.system import distributed, sharding
from maxrl.system.totals import Totals
from maxrl.tasks import Example, Task
from maxrl.tasks.images import ImageBatch
from maxrl.tasks.maze import VOCABULARY
from maxrl.tasks.rewards import Rewards
from tests.helpers import tiny
from tests.helpers.classified import Plain, pictures
from tests.helpers.tensors import normal, seeded

P, N = 6, 4
WITHOUT = {  # the prompts without advantages; with two ranks the even prompts are rank 0's
    "mixed": [2],
    "rank 1 has none": [1, 3, 5],
    "rank 0 has none": [0, 2, 4],
    "one group": [0, 1, 2, 4, 5],
    "nobody": range(P),
    "few rows": [5],
}
# What the ranks may disagree about: (advantages, aggregation, micro_batch_tokens). With 30 tokens a
# micro-batch the long prompts of rank 0 take more forwards than the short ones of rank 1.
CASES = [
    ("mixed", "token", 10**6),
    ("mixed", "sequence", 30),
    ("mixed", "constant", 1),
    ("rank 1 has none", "token", 30),
    ("rank 0 has none", "sequence", 10**6),
    ("one group", "token", 10),
    ("nobody", "token", 30),
    ("few rows", "token", 30),
]
TWO = [CASES[1], CASES[3]]  # of every setting but the first, which has all
CHECKPOINTED = {"gradient_checkpointing": True}
# name: (what differs from tiny.SIZES, options of the policy, rank of LoRA)
SETTINGS = {
    "tied": ({}, {}, 0),
    # Slices of 17 and 16.
    "untied, 33 tokens": (
        {"model_type": "llama", "tie_word_embeddings": False, "vocab_size": 33},
        {},
        0,
    ),
    "checkpointing": ({"model_type": "qwen3", "head_dim": 8}, CHECKPOINTED, 0),
    "entropy bonus and beta": (
        {},
        CHECKPOINTED | {"entropy_bonus": 0.1, "beta": 0.05, "share_prompt": False},
        0,
    ),
    "second update": ({}, {"clip": (0.1, 0.3)}, 0),
    # A has one row: rank 1's slice has none.
    "LoRA of rank 1": ({}, CHECKPOINTED, 1),
}
PRECISIONS = {
    "float64": ("tied", False),
    "bfloat16": ("tied", True),
    "LoRA, bfloat16": ("LoRA of rank 1", True),
}


class LastWord(tiny.Parity):
    """The answer is the last word of a response, if it has more than one."""

    several = True

    def verify(self, response, example):
        return float(self.final(response) in VOCABULARY[4:16])

    def final(self, response):
        return response.split()[-1] if len(response.split()) > 1 else None


class Dots(Task):
    """Seven random images of five classes."""

    classes = tuple("abcde")

    @staticmethod
    def right(rollouts, examples):
        return (rollouts.drawn == examples.labels[:, None]).double()

    def __len__(self):
        return 7

    def batch(self, indices, seeds=None):
        every = pictures(7)
        return ImageBatch(every.images[list(indices)], every.labels[list(indices)])


def policy(setting: str, shard: bool, dtype=torch.float64, **more):
    """The policy of a setting under one of the two wrappers."""
    changes, options, rank = SETTINGS[setting]
    model = tiny.model(dtype, **changes)
    if options.get("beta"):
        options = options | {"reference": tiny.model(dtype, seed=1)}
    if rank:
        add_lora(model, rank, 2.0)
        generator = seeded(3)
        for tensor in lora_state(model).values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return tiny.policy(model, shard=shard, **options, **more)


def stored(mine: list[int], dtype=torch.float64):
    """The rollouts of these prompts."""
    rollouts = tiny.rollouts((20, 3, 17, 1, 25, 2), N=N, dtype=dtype)
    for name in ("tokens", "lengths", "finished", "log_probs", "entropies"):
        setattr(rollouts, name, getattr(rollouts, name)[mine])
    rollouts.prompts = [rollouts.prompts[i] for i in mine]
    return rollouts


def advantages(kind: str) -> torch.Tensor:
    """(P, N)."""
    values = normal(P, N, seed=1)
    if kind == "few rows":
        values = values * (torch.rand(P, N, generator=seeded(2)) < 0.3)
    return values.index_fill(0, torch.tensor(list(WITHOUT[kind])), 0)


def gradients(setting: str, shard: bool, mine: list[int]) -> dict:
    """{case: (gradient, statistics, its norm, the clipped one)}; log-probs of a first update."""
    results = {}
    for case in CASES if setting == "tied" else TWO:
        kind, aggregation, budget = case
        ours = policy(setting, shard, aggregation=aggregation, micro_batch_tokens=budget)
        rollouts = stored(mine)
        trained = [p for p in ours.model.parameters() if p.requires_grad]
        if setting == "second update":
            ours.record(rollouts)
            results[case, "record"] = dict(zip(mine, rollouts.old_log_probs))
            with torch.no_grad():
                for p in trained:
                    p.mul_(1.05)
        stats = ours.backward(rollouts, advantages(kind)[mine]).metrics()
        assert all(p.grad.shape == p.shape and type(p.grad) is type(p.data) for p in trained)
        gradient = whole_gradient(trained)
        norm = sharding.unsharded(clip_grad_norm_(ours.model.parameters(), 0.01))
        results[case] = gradient, stats, float(norm), whole_gradient(trained)
    return results


def whole_gradient(parameters) -> torch.Tensor:
    return torch.cat([sharding.unsharded(p.grad).flatten() for p in parameters])


def rounds(shard: bool, mine: list[int]) -> dict:
    """The gradient of prompts that were sampled in rounds, and the rollouts of each."""
    ours = policy("tied", shard, seed=7, micro_batch_tokens=30)

    def judge(_, rollouts):
        return (rollouts.tokens[..., 0] % 4 == 0).double()

    examples = [tiny.Parity()[i] for i in mine]
    sampled = in_rounds((1, 2, 3), ours, judge, examples, 1, mine)
    rule = ADVANTAGES["maxrl_rare"](sampled.rewards, allow_missing=True)
    stats = ours.backward(sampled.rollouts, rule.to(sampled.rollouts.log_probs)).metrics()
    return {
        "gradient": whole_gradient(ours.model.parameters()),
        "stats": stats,
        "counts": dict(zip(mine, sampled.num_rollouts.tolist())),
    }


def samples(shard: bool, mine: list[int], precisions) -> dict:
    """Rollouts in these precisions, before and after an update; uneven counts."""
    results = {}
    for name in precisions:
        setting, low = PRECISIONS[name]
        dtype = torch.float32 if low else torch.float64
        ours = policy(setting, shard, dtype, seed=7, autocast=low, wave_rows=8)
        for step in (1, 2):
            rollouts = ours.rollout([tiny.Parity()[i] for i in mine], N, step=step, indices=mine)
            results[name, step] = {
                i: ([rollouts.text(g, j) for j in range(N)], rollouts.log_probs[g, :, 0])
                for g, i in enumerate(mine)
            }
            stats = ours.backward(rollouts, advantages("mixed")[mine].float()).metrics()
            results[name, step, "difference"] = stats["sampling/logprob_abs_diff/max"]
            for p in ours.model.parameters():
                if p.grad is not None:
                    p.data.sub_(p.grad, alpha=0.5)
        results[name, "counts"] = [
            judge_samples(ours, tiny.Parity(), [4], 6)[0].sum(1).tolist(),  # nothing for rank 1
            judge_samples(ours, tiny.Parity(), [3, 0, 5, 4, 2], 6, seed=9)[0].sum(1).tolist(),
        ]
    return results


def even(completions):
    return [float(len(text.split()) % 2 == 0) for text in completions]


def second_letter(completions):
    """Of short completions there is no verdict."""
    return [ord(text[1]) / 100 if len(text) > 12 else None for text in completions]


def metrics(mine: list[int]) -> dict:
    """What a step logs: some rollouts are cut, ratios far from 1; two reward functions."""
    rollouts = stored(mine)
    rollouts.finished = rollouts.lengths > 2
    rollouts.entropies = torch.rand(P, N, 6, generator=seeded(3), dtype=torch.float64)[mine]
    extras = {"beta": 0.3, "entropy_bonus": 0.2, "reference": tiny.model(seed=1)}
    ours = tiny.policy(micro_batch_tokens=30, **extras)
    ours.record(rollouts)
    rollouts.old_log_probs += torch.arange(-2, 2)[:, None] * 0.3  # by row
    stats = ours.backward(rollouts, advantages("mixed")[mine]).metrics()
    judge = Rewards([even, second_letter])
    rewards = judge([Example("", "") for _ in mine], rollouts)
    return stats | step_totals(one_round(rollouts, rewards), judge).metrics()


def votes() -> list:
    """Rewards and majority votes of seven prompts shared by the ranks."""
    rewards, answers = judge_samples(tiny.policy(), LastWord(), range(7), 4, seed=2)
    return [rewards.tolist(), *(answers[name].tolist() for name in ("majority", "distinct"))]


def noted(act):
    """Call act() before the loss of every micro-batch; return what ends that."""
    loss = learning.policy_gradient_loss

    def noting(*arguments, **options):
        act()
        return loss(*arguments, **options)

    learning.policy_gradient_loss = noting
    return lambda: setattr(learning, "policy_gradient_loss", loss)


def three_steps(rank: int, world: int) -> dict:
    """The weights after three optimizer steps of several micro-batches each, and where the
    gradients lay at each of these.
    """
    mine = list(range(rank, P, world))
    places = []
    ours = tiny.policy(micro_batch_tokens=30)
    parameters = list(ours.model.parameters())
    optimizer = make_optimizer(Config(), ours.model)

    def place(p):
        return p.grad is not None and p.grad.data_ptr()

    end = noted(lambda: places.append(list(map(place, parameters))))
    for step in range(3):
        totals = ours.backward(stored(mine), advantages("mixed")[mine])
        storages = [p.grad.untyped_storage() for p in parameters]
        totals.sum("signal", 1)
        train.update(Config(), ours, optimizer, totals, step)
    end()
    return {
        "weights": torch.cat([p.detach().flatten() for p in parameters]),
        "places": places,
        "buckets": {storage.data_ptr(): storage.nbytes() for storage in storages},
        "size": sum(8 * p.numel() for p in parameters),
    }


def muon(shard: bool, mine: list[int]) -> tuple[torch.Tensor, list[str]]:
    """The weights after three steps of Muon, with float64 for bfloat16; slices of 25 and 24 rows.
    No rollout of the last step has an advantage, and of the one before none of rank 1. The names of
    what the last one has moved.
    """
    cfg = Config(optimizer="muon", lr=1e-2, beta=0.1, init="x")
    model = tiny.model(intermediate_size=49)
    ours = tiny.policy(model, shard=shard, beta=0.1, reference=copy.deepcopy(model))
    optimizer = make_optimizer(cfg, ours.model)
    before = after = {}
    for step, kind in enumerate(("mixed", "rank 1 has none", "nobody")):
        with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.double):
            train.learn(cfg, ours, optimizer, stored(mine), advantages(kind)[mine], step)
        before = after
        named = ours.model.named_parameters()
        after = {name: sharding.unsharded(p).detach().clone() for name, p in named}
    moved = [name for name, p in after.items() if not torch.equal(p, before[name])]
    return torch.cat([p.flatten() for p in after.values()]), moved


def layout() -> dict:
    """What this rank holds under fully_shard: numbers of parameters and gradients and of how many,
    what its copy consists of.
    """
    ours = policy("tied", True, torch.float32, autocast=True, micro_batch_tokens=30)
    parameters = list(ours.model.parameters())
    early = []
    end = noted(lambda: early.append([p.grad is not None for p in parameters]))
    ours.backward(stored([distributed.rank()] * P), advantages("mixed"))
    end()
    copied = ours.unsharded_model()
    found = {
        "held": sum(p.to_local().numel() for p in parameters),
        "gradient": sum(p.grad.to_local().numel() for p in parameters),
        "reduced": len(early) > 1 and all(map(all, early[1:])),
        "groups": sum(isinstance(m, FSDPModule) for m in ours.module.modules()),
        "all": sum(p.numel() for p in parameters),
        "copied": {n: p.dtype for n, p in copied.named_parameters()},
        "kept": ours.unsharded_model() is copied,
    }
    ours.backward(stored([0]), torch.zeros(1, N))
    found["dropped"] = ours.gathered.copy is None
    # Every rank has drawn a model for itself; the first weights are rank 0's, as with DDP.
    other = tiny.policy(tiny.model(seed=distributed.rank()), shard=True)
    return found | {"start": other.unsharded_model().lm_head.weight}


def residual():
    """With batch-norm, whose statistics in eval mode are the running ones: random here."""
    model = ResNet(ResNetConfig(5, "bottleneck", (1, 1), 4, "small"))
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5).sub_(float("mean" in name))
    return model


def images(rank: int, world: int) -> dict:
    """Gradients of a classifier on seven images, four of them rank 0's; its draws; its pass rates
    on uneven batches.
    """
    mine = range(rank, 7, world)
    examples = Dots().batch(mine)
    results = {}
    for name, make, training in (("plain", Plain, True), ("residual, eval mode", residual, False)):
        for estimator in ("supervised", "maxrl", "nobody right"):
            torch.manual_seed(0)
            ours = ClassifierPolicy(make().double(), Dots.classes, seed=3)
            ours.model.train(training)
            if estimator == "supervised":
                rollouts = ours.demonstrate(examples)
                advantage = ADVANTAGES["supervised"](Dots.right(rollouts, examples))
            else:
                rollouts = ours.rollout(examples, 6, step=1, indices=mine)
                right = Dots.right(rollouts, examples) * (estimator == "maxrl")
                advantage = ADVANTAGES["maxrl"](right)
            totals = ours.backward(rollouts, advantage)
            rollouts.count(totals)
            stats = totals.metrics()
            results[name, estimator] = whole_gradient(ours.model.parameters()), stats
        results[name, "draws"] = dict(zip(mine, rollouts.drawn.tolist()))
        results[name, "pass rates"] = [values.tolist() for values in ours.pass_rates(Dots(), 5)]
    ours.model.train()
    ours.rollout(examples, 2)  # every rank's own averages now
    every = Dots().batch(range(7))
    with torch.no_grad():
        chances = ours.model.eval()(every.images).softmax(1)
    results["by this rank alone"] = chances.gather(1, every.labels[:, None])[:, 0].tolist()
    results["pass rates after training"] = ours.pass_rates(Dots(), 7)[0].tolist()
    return results


def wrapped(kind: str, rank: int, world: int, settings, precisions=PRECISIONS) -> dict:
    """Gradients and rollouts under one wrapper: "ddp", which is none in one process, or "shard"."""
    mine = list(range(rank, P, world))
    shard = kind == "shard"
    found = {setting: gradients(setting, shard, mine) for setting in settings}
    found |= {"rounds": rounds(shard, mine), "samples": samples(shard, mine, precisions)}
    return found | {"muon": muon(shard, mine)}


def unwrapped(rank: int, world: int) -> dict:
    """What no wrapper makes a difference to, and what DDP alone has."""
    found = {"metrics": metrics(list(range(rank, P, world)))}
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    totals = Totals()
    for name, peak in distributed.peak_memory(torch.device("cpu")).items():
        totals.highest(name, peak)
    found["memory"] = own, totals.metrics()["memory/peak_gb"]
    found["votes"] = votes()
    found["three steps"] = three_steps(rank, world)
    return found | images(rank, world)


def main(file: str, runs: str):
    distributed.setup("cpu")
    rank, world = distributed.rank(), distributed.world_size()
    torch.set_num_threads(1)
    found = unwrapped(rank, world) | {"layout": layout()}
    found["ddp"] = wrapped("ddp", rank, world, ["tied"])
    found["shard"] = wrapped("shard", rank, world, SETTINGS)
    torch.save(found, f"{file}.{rank}")
    for arguments in json.loads(runs):
        train.main(arguments)
    cli.cleanup()


if __name__ == "__main__":
    main(*sys.argv[1:])
