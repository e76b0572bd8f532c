"""MaxRL without a model: softmax policies over a handful of outcomes, in seconds on one core.

    python -m maxrl toy --out toy      numbers, and the figure toy/toy.png (needs matplotlib)
    python -m maxrl toy --estimator rloo,maxrl,mine.py:root      these instead, one of them yours

There are 200 prompts, each a softmax over 8 outcomes of which 2 are right, with pass rates from
1e-3 to 0.5. Every method takes as many gradient steps of the same size, twice:
    exact     grad = weight(name, p, rollouts=N) * grad p    the expectation: solid lines
    sampled   grad = 1/N sum_i A_i grad log m(z_i)           ADVANTAGES[name](rewards): dashed
Maximum likelihood has the weight 1/p, which no number of rollouts gives exactly.

What to see:
1. Dashed lines follow solid ones: an estimator does what its weight says. (They run a little ahead,
   less so with smaller steps: a lucky success raises p, and makes the next success likelier.)
2. RLOO (weight 1) leaves the hard prompts behind; maximum likelihood takes all of them along. With
   the same rollouts MaxRL comes closest to it: the last panel. The hardest, p near 1e-3, stay
   behind even so: their weight is at most N - 1 = 15 where 1/p is 1000. More --rollouts raise it.
3. GRPO weighs hard prompts more than RLOO and less than MaxRL, and nearly certain ones more again;
   `python -m maxrl plots --weights rloo,grpo,maxrl --out weights.png` draws the weights.
4. All methods take steps of one size, and MaxRL's weights are up to N - 1 = 15 times RLOO's: a part
   of its lead is longer steps. (Adam, which the recipes use, cancels a constant factor.)
5. The order is a dial between RLOO (T = 1) and Algorithm 1 (T = N - 1): maxrl_order with T = 4 lies
   between them.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from maxrl.advantages import ADVANTAGES, weight
from maxrl.advantages.registry import find
from maxrl.analysis import plots
from maxrl.system.arguments import check_least
from maxrl.system.errors import refusing

# Methods and their options; the user's own estimators have none.
METHODS: dict[str, dict] = {"rloo": {}, "grpo": {}, "maxrl_order": {"order": 4}, "maxrl": {}}
EXACT_ML = "maximum likelihood"
# Statistics of pass rates (..., P).
STATISTICS = {
    "mean pass rate": lambda p: p.mean(dim=-1),
    "mean log p": lambda p: p.log().mean(dim=-1),
    "p of hardest half": lambda p: p[..., : -(-p.shape[-1] // 2)].mean(dim=-1),
}
OUTCOMES = 8
# Outcomes 0 and 1 are right.
RIGHT = 2
WORDS = """
rloo and so on      every step along the expected gradient w(p) grad p of {rollouts} rollouts
rloo-sampled        every step along the gradient of {rollouts} rollouts drawn from the policy
mean pass rate      p is the probability of a right outcome; its mean over the prompts
mean log p          what maximum likelihood maximises; 0 if every prompt is always solved
p of hardest half   the mean pass rate of the half of the prompts that began with the lowest p
maxrl_order         MaxRL of order T = 4; rloo has T = 1, and maxrl one less than the rollouts
maximum likelihood  the exact gradient of log p, which no number of rollouts gives
"""


def initial_logits(prompts: int) -> Tensor:
    """Logits (P, 8) whose pass rates are log-spaced from 1e-3 to 0.5, in float64."""
    top = torch.log10(torch.tensor(0.5)).item()
    p = torch.logspace(-3, top, prompts, dtype=torch.float64)  # (P,)
    wrong = OUTCOMES - RIGHT
    return torch.stack([p / RIGHT] * RIGHT + [(1 - p) / wrong] * wrong, dim=1).log()  # (P, 8)


def pass_rate(logits: Tensor) -> Tensor:
    """The pass rates (P,) of logits (P, 8)."""
    return logits.softmax(dim=1)[:, :RIGHT].sum(dim=1)  # (P,)


def exact_gradient(logits: Tensor, name: str, **options) -> Tensor:
    """w(p) grad p (P, 8), grad p by autograd.

    Without rollouts=N the weight is its limit of many rollouts: for maxrl this is grad log p.
    """
    logits = logits.detach().requires_grad_()
    p = pass_rate(logits)
    (grad_p,) = torch.autograd.grad(p.sum(), logits)  # (P, 8)
    return weight(name, p.detach(), **options)[:, None] * grad_p


def sampled_gradient(
    logits: Tensor, name: str, rollouts: int, generator: torch.Generator
) -> Tensor:
    """(1/N) sum_i A_i grad log m(z_i), (P, 8).

    The score of outcome z of a softmax is onehot(z) - probabilities.
    """
    probabilities = logits.softmax(dim=1)  # (P, 8)
    outcomes = torch.multinomial(probabilities, rollouts, True, generator=generator)  # (P, N)
    rewards = (outcomes < RIGHT).to(logits.dtype)  # (P, N)
    advantages = ADVANTAGES[name](rewards, **METHODS.get(name, {}))  # (P, N)
    scores = torch.nn.functional.one_hot(outcomes, OUTCOMES) - probabilities[:, None]  # (P, N, 8)
    return (advantages[..., None] * scores).mean(dim=1)  # Algorithm 1, line 8


def train(prompts: int, steps: int, lr: float, gradient, **options) -> Tensor:
    """The pass rates before each step of gradient ascent and after the last, (steps + 1, P)."""
    logits = initial_logits(prompts)
    rates = [pass_rate(logits)]
    for _ in range(steps):
        logits = logits + lr * gradient(logits, **options)
        rates.append(pass_rate(logits))
    return torch.stack(rates)


def simulate(
    prompts: int, rollouts: int, steps: int, lr: float, seed: int, names=METHODS
) -> dict[str, Tensor]:
    """{method, or method-sampled: pass rates (steps + 1, P)}."""
    size = (prompts, steps, lr)
    runs = {}
    for name in names:
        options = METHODS.get(name, {})
        generator = torch.Generator().manual_seed(seed)
        exact = train(*size, exact_gradient, name=name, rollouts=rollouts, **options)
        sampled = train(*size, sampled_gradient, name=name, rollouts=rollouts, generator=generator)
        runs[name] = exact
        runs[f"{name}-sampled"] = sampled
    runs[EXACT_ML] = train(*size, exact_gradient, name="maxrl")
    return runs


def table(runs: dict[str, Tensor]) -> str:
    """The STATISTICS after the last step."""
    lines = [f"{'':20}" + "".join(f"{what:>20}" for what in STATISTICS)]
    for name, rates in runs.items():
        cells = "".join(f"{statistic(rates[-1]):20.3f}" for statistic in STATISTICS.values())
        lines.append(f"{name:20}{cells}")
    return "\n".join(lines)


def figure(runs: dict[str, Tensor], path: Path):
    """Draw the STATISTICS over the steps into a file."""
    curves: dict[str, list] = {}
    for name, rates in runs.items():
        rows = []
        for i, p in enumerate(rates):
            # After i steps, of which the first is step 0.
            row = {what: statistic(p).item() for what, statistic in STATISTICS.items()}
            rows.append({"step": i - 1} | row)
        curves[Path(name).name] = [rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    plots.training(curves, path, panels=[*STATISTICS])


def main(arguments: list[str]):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m maxrl toy", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--out", type=Path, help="directory of toy.png; numbers only when left out")
    add("--estimator", type=plots.comma_list, default=[*METHODS], help="NAME,FILE.py:FUNCTION")
    add("--rollouts", type=int, default=16, help="N")
    add("--steps", type=int, default=300, help="gradient steps of every method")
    args = parser.parse_args(arguments)
    check_least("rollouts", args.rollouts, 1, plots.MOST)
    check_least("steps", args.steps, 0)
    plots.check_curves("estimator", args.estimator)
    for name in args.estimator:
        with refusing(f"--estimator {name}: ", KeyError, TypeError, ValueError):
            ADVANTAGES[name] = find(name)
            weight(name, 0.5, rollouts=args.rollouts, **METHODS.get(name, {}))
    if args.out:
        plots.require(args.out / "toy.png")
    runs = simulate(200, args.rollouts, args.steps, lr=0.1, seed=0, names=args.estimator)
    print(f"after {args.steps} steps, 200 prompts, {args.rollouts} rollouts each")
    print(table(runs))
    print(WORDS.format(rollouts=args.rollouts))
    if args.out:
        figure(runs, args.out / "toy.png")
        print(f"figure: {args.out / 'toy.png'}")


if __name__ == "__main__":
    plots.script(main)
