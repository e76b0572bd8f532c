"""One rank of test_distributed.py, started by torchrun: writes what it computed to FILE.rank."""

import itertools
import resource
import sys

import tiny
import torch

import maxrl.policy  # noqa: E402
import train  # noqa: E402
from maxrl.advantages import ADVANTAGES  # noqa: E402
from maxrl.build import make_optimizer
from maxrl.classifier import ClassifierPolicy  # noqa: E402
from maxrl.config import Config  # noqa: E402
from maxrl.evaluation import judge_samples  # noqa: E402
from maxrl.models.resnet import ResNet, ResNetConfig  # noqa: E402
from maxrl.parallel import distributed, sharding  # noqa: E402
from maxrl.rewards.functions import Rewards  # noqa: E402
from maxrl.rounds import in_rounds, one_round
from maxrl.run import cli
from maxrl.run.logger import step_metrics
from maxrl.tasks import Example, Task  # noqa: E402
from maxrl.tasks.images import ImageBatch  # noqa: E402
from maxrl.tasks.maze import VOCABULARY

P, N = 6, 4


class Parity(Task):
    """Succeeds when the response has an even number of tokens."""

    def __getitem__(self, index):
        return Example(" ".join(["UP"] * (index + 1)), "")

    def verify(self, response, example):
        return float(len(response.split(" ")) % 2 == 0)


def advantages(kind: str) -> torch.Tensor:
    """(P, N); with two ranks the even prompts are rank 0's."""
    values = torch.randn(P, N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    zero = {
        "mixed": [2],
        "rank 1 has none": [1, 3, 5],
        "rank 0 has none": [0, 2, 4],
        "one group": [0, 1, 2, 4, 5],
        "nobody": range(P),
        "few rows": [5],
    }[kind]
    if kind == "few rows":
        values = values * (torch.rand(P, N, generator=torch.Generator().manual_seed(2)) < 0.3)
    return values.index_fill(0, torch.tensor(list(zero)), 0)


# what the ranks may disagree about: (advantages, aggregation, micro_batch_tokens); with 30 tokens a
# micro-batch the long prompts of rank 0 take more forwards than the short ones of rank 1
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


def even(completions):
    return [float(len(text.split()) % 2 == 0) for text in completions]


def second_letter(completions):
    """Of short completions there is no verdict."""
    return [ord(text[1]) / 100 if len(text) > 12 else None for text in completions]


def metrics(mine: list[int]) -> dict:
    """What a step logs of stored rollouts: some cut, with ratios far from 1, KL, entropy bonus and
    two reward functions.
    """
    rollouts = tiny.rollouts((20, 3, 17, 1, 25, 2), N=N)
    rollouts.finished = rollouts.lengths > 2
    rollouts.entropies = torch.rand(
        rollouts.tokens.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    chosen = torch.zeros(P, dtype=torch.bool).index_fill(0, torch.tensor(mine), True)
    rollouts = rollouts.select(chosen)
    policy = tiny.policy(
        tiny.model(),
        beta=0.3,
        entropy_bonus=0.2,
        reference=tiny.model(seed=1),
        micro_batch_tokens=30,
    )
    policy.record(rollouts)
    rollouts.old_log_probs += torch.arange(-2, 2)[: rollouts.tokens.shape[1], None] * 0.3  # by row
    stats = policy.backward(rollouts, advantages("mixed")[mine])
    judge, examples = Rewards([even, second_letter]), [Example("", "") for _ in mine]
    return stats | step_metrics(one_round(rollouts, judge(examples, rollouts)), judge)


def stored(mine):
    """The rollouts of these prompts."""
    everything = tiny.rollouts((20, 3, 17, 1, 25, 2), N=N)
    everything.tokens, everything.lengths = everything.tokens[mine], everything.lengths[mine]
    everything.log_probs, everything.prompts = (
        everything.log_probs[mine],
        [everything.prompts[i] for i in mine],
    )
    return everything


# Order of groups and rows, tokens of a micro-batch, gradient checkpointing, shared prompt.
WAYS = list(
    itertools.product(
        ("as they are", "groups", "rows"), (1, 30, 10**6), (False, True), (False, True)
    )
)


def ways(rank: int, world: int) -> dict:
    """{way: gradient in float32} of the same stored rollouts."""
    results = {}
    for way in WAYS:
        order, budget, again, share = way
        generator = torch.Generator().manual_seed(7)
        groups = torch.randperm(P, generator=generator) if order == "groups" else torch.arange(P)
        rows = torch.randperm(N, generator=generator) if order == "rows" else torch.arange(N)
        mine = groups[rank::world].tolist()
        rollouts = stored(mine)
        for name in ("tokens", "lengths", "log_probs"):
            setattr(rollouts, name, getattr(rollouts, name)[:, rows])
        options = {"gradient_checkpointing": again, "share_prompt": share}
        policy = tiny.policy(tiny.model(torch.float32), micro_batch_tokens=budget, **options)
        values = advantages("mixed")[mine][:, rows].float()
        results[way] = tiny.gradient(policy, rollouts, values)
    return results


class LastWord(Parity):
    """The answer is the last word of a response, if it has more than one."""

    def verify(self, response, example):
        return float(self.final(response) in VOCABULARY[4:16])

    def final(self, response):
        return response.split()[-1] if len(response.split()) > 1 else None


def votes() -> list:
    """Counts of right samples, and the majority votes, of seven prompts shared by the ranks."""
    policy = tiny.policy(tiny.model())
    counts, majority, _ = judge_samples(policy, LastWord(), range(7), 4, seed=2)
    return [counts.tolist(), majority.tolist()]


def three_steps(rank: int, world: int) -> dict:
    """The weights after three optimizer steps of several micro-batches each, and where the
    gradients lay at each of these.
    """
    mine, places, loss = list(range(rank, P, world)), [], maxrl.policy.policy_gradient_loss
    policy = tiny.policy(tiny.model(), micro_batch_tokens=30)
    parameters = list(policy.model.parameters())
    optimizer = make_optimizer(Config(), policy.model)

    def noted(*arguments, **options):
        places.append([p.grad.data_ptr() if p.grad is not None else None for p in parameters])
        return loss(*arguments, **options)

    maxrl.policy.policy_gradient_loss = noted
    for step in range(3):
        stats = policy.backward(stored(mine), advantages("mixed")[mine])
        storages = {
            p.grad.untyped_storage().data_ptr(): p.grad.untyped_storage().nbytes()
            for p in parameters
        }
        train.update(Config(), policy, optimizer, stats, step)
    maxrl.policy.policy_gradient_loss = loss
    return {
        "weights": torch.cat([p.detach().flatten() for p in parameters]),
        "places": places,
        "buckets": storages,
        "size": sum(8 * p.numel() for p in parameters),
    }


def rounds(policy, mine: list[int]) -> dict:
    """The gradient of prompts that were sampled in rounds, and the rollouts of each."""

    def judge(_, rollouts):
        return (rollouts.tokens[..., 0] % 4 == 0).double()

    examples = [Parity()[i] for i in mine]
    sampled = in_rounds((1, 2, 3), policy.rollout, judge, examples, 1, mine)
    rule = ADVANTAGES["maxrl_rare"](sampled.rewards, allow_missing=True)
    stats = policy.backward(sampled.rollouts, rule.to(sampled.rollouts.log_probs))
    gradient = torch.cat([sharding.unsharded(p.grad).flatten() for p in policy.model.parameters()])
    return {
        "gradient": gradient,
        "stats": stats,
        "counts": dict(zip(mine, sampled.num_rollouts.tolist())),
    }


def compute(rank: int, world: int) -> dict:
    """Gradients and statistics of every case on the same stored rollouts, rollouts of step one,
    counts.
    """
    mine, results = list(range(rank, P, world)), {}
    everything = stored(mine)
    for case in CASES:
        kind, aggregation, budget = case
        policy = tiny.policy(tiny.model(), aggregation=aggregation, micro_batch_tokens=budget)
        gradient = tiny.gradient(policy, everything, advantages(kind)[mine])
        results[case] = gradient, policy.backward(everything, advantages(kind)[mine])
    policy = tiny.policy(tiny.model(), seed=7)
    rollouts = policy.rollout([Parity()[i] for i in mine], N, step=1, indices=mine)
    results["rollouts"] = {i: [rollouts.text(g, j) for j in range(N)] for g, i in enumerate(mine)}
    results["rounds"] = rounds(tiny.policy(tiny.model(), seed=7, micro_batch_tokens=30), mine)
    results["metrics"], own = (
        metrics(mine),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )
    results["memory"] = own, distributed.peak_memory(torch.device("cpu"))["memory/peak_gb"]
    results["ways"] = ways(rank, world)
    results["votes"] = votes()
    counts, *_ = judge_samples(policy, Parity(), [3, 0, 5, 4, 2], 6, seed=9)
    results["counts"] = counts.tolist()
    return results


class Dots(Task):
    """Seven random images of five classes."""

    classes = tuple("abcde")

    @staticmethod
    def right(rollouts, examples):
        return (rollouts.drawn == examples.labels[:, None]).double()

    def __len__(self):
        return 7

    def batch(self, indices, seeds=None):
        pixels = torch.randint(
            0, 256, (7, 3, 8, 8), generator=torch.Generator().manual_seed(2), dtype=torch.uint8
        )
        return ImageBatch(pixels[list(indices)], torch.arange(7)[list(indices)] % 5)


def plain():
    """A network without batch-norm."""
    layers = [
        torch.nn.Flatten(),
        torch.nn.Linear(3 * 64, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 5),
    ]

    class Pixels(torch.nn.Sequential):
        def forward(self, images):
            return super().forward(images.double() / 255)

    return Pixels(*layers)


def residual():
    """With batch-norm, whose statistics in eval mode are the running ones: random here."""
    model = ResNet(ResNetConfig(5, "bottleneck", (1, 1), 4, "small"))
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5).sub_(float("mean" in name))
    return model


def compute_images(rank: int, world: int) -> dict:
    """Gradients of a classifier on seven images, four of them rank 0's; its draws; its pass rates
    on uneven batches.
    """
    mine, results = range(rank, 7, world), {}
    for name, make, training in (("plain", plain, True), ("residual, eval mode", residual, False)):
        for estimator in ("supervised", "maxrl", "nobody right"):
            torch.manual_seed(0)
            policy = ClassifierPolicy(make().double().train(training), Dots.classes, seed=3)
            examples = Dots().batch(mine)
            policy.model.train(training)
            if estimator == "supervised":
                rollouts = policy.demonstrate(examples)
            else:
                rollouts = policy.rollout(examples, 6, step=1, indices=mine)
            rewards = Dots.right(rollouts, examples) * (estimator != "nobody right")
            stats = policy.backward(
                rollouts,
                ADVANTAGES["supervised" if estimator == "supervised" else "maxrl"](rewards),
            )
            gradient = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
            results[name, estimator] = gradient, stats | rollouts.statistics()
        results[name, "draws"] = dict(zip(mine, rollouts.drawn.tolist()))
        results[name, "pass rates"] = [values.tolist() for values in policy.pass_rates(Dots(), 5)]
    policy.model.train()
    policy.rollout(examples, 2)  # every rank's own averages now
    own = Dots().batch(range(7))
    with torch.no_grad():
        log_probs = policy.model.eval()(own.images).log_softmax(1)
    results["by this rank alone"] = log_probs.gather(1, own.labels[:, None])[:, 0].exp().tolist()
    results["pass rates after training"] = policy.pass_rates(Dots(), 7)[0].tolist()
    return results


def main(file: str):
    rank, world, _ = distributed.setup("cpu")
    torch.set_num_threads(1)
    results = (
        compute(rank, world)
        | compute_images(rank, world)
        | {"three steps": three_steps(rank, world)}
    )
    torch.save(results, f"{file}.{rank}")
    cli.cleanup()


if __name__ == "__main__":
    main(sys.argv[1])
