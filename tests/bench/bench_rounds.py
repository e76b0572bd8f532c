"""The row of bench.py about rounds, and how many rollouts they save: this prints the table of
results/speed/bench.md.

    python -m tests.bench.bench_rounds

Pass rates decide both, so they are stated: those of the strong base of seed 10 on its 512 test
mazes, (c + 1/2) / 65 where c of 64 samples are right, or these with one number added to all
log-odds, so that they have another mean. Rewards are drawn from them.
"""

from dataclasses import replace
from types import SimpleNamespace

import torch

from maxrl.learning.rounds import in_rounds
from maxrl.run.recipes import maze9_laptop
from maxrl.sampling.rollouts import Rollouts
from results.lab.data import tested
from tests.bench.bench_text import FreshMazes, random_model, seeded
from tests.bench.bench_trl import our_step, policy_of
from tests.bench.bench_turns import contest, sized

SIZES = (8, 8, 16, 32, 64)
MEANS = (0.02, 0.1, 0.3, 0.6)


def base_rates() -> torch.Tensor:
    """The pass rates of the base (512,)."""
    test = tested("mazes9/strong-test-seed10.json")
    counts = {row["name"]: row["counts"] for row in test["checkpoints"]}["base"]
    return (torch.tensor(counts).double() + 0.5) / (test["samples"] + 1)


def moved(rates: torch.Tensor, mean: float) -> torch.Tensor:
    """The rates with one number added to their log-odds, by bisection, so that they have a mean."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if (rates.logit() + middle).sigmoid().mean() < mean:
            low = middle
        else:
            high = middle
    return (rates.logit() + low).sigmoid()


def expected(rates: torch.Tensor) -> float:
    """The expected rollouts of a prompt: with its chance of a failure in all rounds before, each
    round is reached."""
    drawn = 0
    total = torch.zeros_like(rates)
    for size in SIZES:
        total += size * (1 - rates) ** drawn
        drawn += size
    return float(total.mean())


def drawing(rates: torch.Tensor):
    """rewards(places, shape) of prompts at these places, drawn anew with every call."""
    generator = seeded()

    def rewards(places, shape):
        return (torch.rand(shape, generator=generator) < rates[places][:, None]).float()

    return rewards


def counted(rates: torch.Tensor, repeats: int = 20) -> float:
    """The mean rollouts of a prompt in maxrl.learning.rounds, with drawn rewards."""
    rewards = drawing(rates)
    places = list(range(len(rates)))

    def rollout(some, size, **_):
        nothing = torch.zeros(len(some), size, 1)
        lengths = torch.ones(len(some), size)
        return Rollouts(some, nothing, lengths, lengths > 0, None, nothing, nothing)

    def judge(some, rollouts):
        return rewards(some, rollouts.lengths.shape)

    policy = SimpleNamespace(rollout=rollout)
    found = [in_rounds(SIZES, policy, judge, places, 0, places) for _ in range(repeats)]
    return float(torch.stack([sampled.num_rollouts for sampled in found]).mean())


class DrawnMazes(FreshMazes):
    """Fresh mazes with quantiles of the base's rates, whose rewards are judged, and then drawn."""

    def __init__(self, size: int, count: int):
        super().__init__(size, count)
        places = (torch.arange(count).double() + 0.5) / count
        self.drawn = drawing(base_rates().quantile(places))
        self.places = {self[i].prompt: i for i in range(count)}

    def rewards(self, examples, rollouts):
        shape = super().rewards(examples, rollouts).shape
        return self.drawn([self.places[example.prompt] for example in examples], shape)


def rounds(turns: int) -> dict:
    """A step of order 128 on 9x9 mazes, in rounds and at once."""
    P, L = sized((16, 48), (2, 6))

    def contestant(estimator, rollouts):
        cfg = replace(maze9_laptop(), prompts=P, max_response=L, precision="float32")
        cfg = replace(cfg, estimator=estimator, rollouts=rollouts)
        return our_step(cfg, DrawnMazes(9, P), policy_of(cfg, random_model(cfg.model)))

    contestants = {
        "rounds": contestant("maxrl_rare", sized(SIZES, (2, 2, 4))),
        "at once": contestant("maxrl", sized((sum(SIZES),), (8,))),
    }
    what = f"a step of order 128 and 127, {P} prompts of 9x9 with {L} tokens a rollout and pass "
    what += "rates of a strong base: rounds of 8, 8, 16, 32, 64 with maxrl_rare, 128 with maxrl"
    return contest(what, contestants, turns, 1, "step", dtype="float32", rivals=["at once"])


def table() -> str:
    """Rollouts of Algorithm 1 over those of rounds, by the formula and as drawn."""
    lines = [
        "| mean pass rate | rollouts a prompt | drawn | ratio | drawn |",
        "|---|---|---|---|---|",
    ]
    for mean in MEANS:
        rates = moved(base_rates(), mean)
        both = expected(rates), counted(rates)
        ratios = [sum(SIZES) / rollouts for rollouts in both]
        cells = [f"{rollouts:.1f}" for rollouts in both] + [f"{ratio:.2f}" for ratio in ratios]
        lines.append(f"| {mean:g} | {' | '.join(cells)} |".replace(" 0.", " ."))
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
