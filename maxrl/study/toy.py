"""MaxRL without a model: softmax policies over a handful of outcomes. Seconds on one core.

    python -m maxrl.toy --out toy        numbers, and the figure toy/toy.png (needs matplotlib)
    python -m maxrl.toy --estimator rloo,maxrl,mine.py:root        these instead, one of them yours

P prompts, each a softmax over 8 outcomes of which 2 are right, with pass rates from 1e-3 to 0.5. Every method takes the
same number of gradient steps of the same size, twice:
    exact     grad = weight(name, p, rollouts=N) * grad p    what the estimator does in expectation: lines
    sampled   grad = 1/N sum_i A_i grad log m(z_i)           N outcomes drawn, ADVANTAGES[name](rewards): dots
and maximum likelihood has weight 1/p, which no number of rollouts gives exactly.

What to see.
1. The dots follow the lines: an estimator does what its weight says. (They run a little ahead, less so with a smaller
   --lr: a lucky success raises p, and the next success is likelier.)
2. RLOO (weight 1) leaves the hard prompts behind, maximum likelihood takes all of them along. With the same rollouts
   MaxRL comes closest to it. The hardest tenth, p near 1e-3, stays behind even so: there its weight is at most
   N - 1 = 15 where 1/p is 1000. More --rollouts raise that bound.
3. GRPO weighs hard prompts more than RLOO and less than MaxRL, and certain ones (p near 1) more again: the last panel.
   Its dashed limit is far from what 16 rollouts give.
4. The methods take steps of one size, and MaxRL's weights are up to N - 1 = 15 times RLOO's: a part of its lead is
   longer steps. (Adam, which the recipes use, cancels a constant factor.)
5. The order is a dial between RLOO (T = 1) and Algorithm 1 (T = N - 1): maxrl_order with T = 4 lies between.
"""

import argparse
from pathlib import Path

import torch

from maxrl.advantages import ADVANTAGES, weight
from maxrl.errors import UsageError
from maxrl.registry import find

METHODS = {
    "rloo": {},
    "grpo": {},
    "maxrl_order": {"order": 4},
    "maxrl": {},
}  # name -> options; the options are ours
EXACT_ML = "maximum likelihood"
STATISTICS = {  # of pass rates (..., P)
    "mean pass rate": lambda p: p.mean(dim=-1),
    "mean log p": lambda p: p.log().mean(dim=-1),
    "p of hardest tenth": lambda p: p[..., : max(p.shape[-1] // 10, 1)].mean(dim=-1),
}
OUTCOMES = 8
RIGHT = 2  # outcomes 0 and 1 are right


def initial_logits(prompts: int) -> torch.Tensor:
    """Logits (P, 8) with pass rates log-spaced from 1e-3 to 0.5; float64, so that only sampling is noisy."""
    p = torch.logspace(
        -3, torch.log10(torch.tensor(0.5)).item(), prompts, dtype=torch.float64
    )  # (P,)
    wrong = OUTCOMES - RIGHT
    return torch.stack([p / RIGHT] * RIGHT + [(1 - p) / wrong] * wrong, dim=1).log()  # (P, 8)


def pass_rate(logits: torch.Tensor) -> torch.Tensor:
    """The pass rates (P,) of logits (P, 8)."""
    return logits.softmax(dim=1)[:, :RIGHT].sum(dim=1)  # (P,)


def exact_gradient(logits: torch.Tensor, name: str, **options) -> torch.Tensor:
    """w(p) grad p (P, 8), grad p by autograd. Without rollouts=N it is the limit of many: for maxrl grad log p."""
    logits = logits.detach().requires_grad_()
    p = pass_rate(logits)
    (grad_p,) = torch.autograd.grad(p.sum(), logits)  # (P, 8)
    return weight(name, p.detach(), **options)[:, None] * grad_p


def sampled_gradient(
    logits: torch.Tensor, name: str, rollouts: int, generator: torch.Generator
) -> torch.Tensor:
    """(1/N) sum_i A_i grad log m(z_i) (P, 8); for a softmax the score of outcome z is onehot(z) - probabilities."""
    probabilities = logits.softmax(dim=1)  # (P, 8)
    outcomes = torch.multinomial(
        probabilities, rollouts, replacement=True, generator=generator
    )  # (P, N)
    rewards = (outcomes < RIGHT).to(logits.dtype)  # (P, N)
    advantages = ADVANTAGES[name](rewards, **METHODS.get(name, {}))  # (P, N)
    scores = torch.nn.functional.one_hot(outcomes, OUTCOMES) - probabilities[:, None]  # (P, N, 8)
    return (advantages[..., None] * scores).mean(dim=1)  # Algorithm 1, line 8


def train(prompts: int, steps: int, lr: float, gradient, **options) -> torch.Tensor:
    """Gradient ascent; returns the pass rates before each step and after the last (steps + 1, P)."""
    logits = initial_logits(prompts)
    rates = [pass_rate(logits)]
    for _ in range(steps):
        logits = logits + lr * gradient(logits, **options)
        rates.append(pass_rate(logits))
    return torch.stack(rates)


def simulate(prompts: int, rollouts: int, steps: int, lr: float, seed: int, names=METHODS) -> dict:
    """{method: (exact rates, sampled rates or None)}, each (steps + 1, P)."""
    size = (prompts, steps, lr)
    runs = {}
    for name in names:
        options = METHODS.get(name, {})
        generator = torch.Generator().manual_seed(seed)
        exact = train(*size, exact_gradient, name=name, rollouts=rollouts, **options)
        sampled = train(*size, sampled_gradient, name=name, rollouts=rollouts, generator=generator)
        runs[name] = (exact, sampled)
    runs[EXACT_ML] = (train(*size, exact_gradient, name="maxrl"), None)
    return runs


def table(runs: dict) -> str:
    """Mean pass rate and mean log p after the last step, and the pass rate of the hardest tenth of the prompts."""
    lines = [
        " " * 20 + "".join(f"{what:>20}" for what in STATISTICS),
        " " * 20 + f"{'exact   sampled':>20}" * 3,
    ]
    for name, pair in runs.items():
        line = f"{name:20}"
        for statistic in STATISTICS.values():
            for rates in pair:
                line += f"{'-':>10}" if rates is None else f"{statistic(rates[-1]):10.3f}"
        lines.append(line)
    return "\n".join(lines)


def figure(runs: dict, rollouts: int, path: Path):
    """Draws pass rates, log p and weights into the file `path`."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SystemExit("the figure needs matplotlib: pip install matplotlib") from None
    from maxrl.study import plots

    fig, (*panels, last) = plots.figure(4)
    lines = []
    for place, (name, (exact, sampled)) in enumerate(runs.items()):
        color = plots.colour(name) or plots.OWN[place % 4]
        options = METHODS.get(name, {})
        label = f"MaxRL, T = {options['order']}" if options else plots.called(Path(name).name)
        for ax, (what, statistic) in zip(panels, STATISTICS.items()):
            ax.set(xlabel="step", ylabel=what)
            (line,) = ax.plot(statistic(exact), color=color, label=label)
            if sampled is not None:
                every = max(len(sampled) // 30, 1)
                ax.plot(
                    range(0, len(sampled), every), statistic(sampled)[::every], ".", color=color
                )
        lines.append(line)
        if sampled is not None:
            plots.weight_line(last, ADVANTAGES[name], rollouts, {"color": color}, **options)
    panels[-1].set_yscale("log")
    last.plot([1e-3, 1], [1e3, 1], "--", color=plots.colour(EXACT_ML), lw=1)  # 1/p
    last.set(
        xlabel="pass rate p",
        xscale="log",
        yscale="log",
        ylabel=f"weight w(p), N = {rollouts}; dashed: limit",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    plots.save(fig, lines, path, "", "lines: exact; dots: sampled")


def main(argv: list | None = None):
    """Runs the simulation from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m maxrl.toy", description="MaxRL without a model: exact and sampled"
    )
    parser.add_argument(
        "--out", type=Path, help="directory for toy.png; numbers only when left out"
    )
    parser.add_argument(
        "--estimator",
        default=METHODS,
        type=lambda text: text.split(","),
        metavar="NAME,FILE.py:FUNCTION",
        help=f"{','.join(METHODS)} when left out; maxrl_order with T = 4",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sampled runs")
    parser.add_argument("--prompts", type=int, default=200, help="P")
    parser.add_argument("--rollouts", type=int, default=16, help="N")
    parser.add_argument("--steps", type=int, default=300, help="gradient steps of every method")
    parser.add_argument("--lr", type=float, default=0.1, help="step size, equal for every method")
    args = parser.parse_args(argv)
    if args.rollouts < 4 and "maxrl_order" in args.estimator:
        parser.error(
            f"--rollouts {args.rollouts} is too few for maxrl_order with T = 4; use 4 or more"
        )
    for name in args.estimator:
        try:
            ADVANTAGES[name] = find(name)
            weight(name, 0.5, rollouts=args.rollouts, **METHODS.get(name, {}))
        except (KeyError, TypeError, ValueError, UsageError) as error:
            parser.error(f"--estimator {name}: {error.args[0]}")
    runs = simulate(args.prompts, args.rollouts, args.steps, args.lr, args.seed, args.estimator)
    print(
        f"after {args.steps} steps, {args.prompts} prompts, {args.rollouts} rollouts each\n{table(runs)}"
    )
    if args.out:
        file = args.out / "toy.png"
        figure(runs, args.rollouts, file)
        print(f"figure: {file}")
