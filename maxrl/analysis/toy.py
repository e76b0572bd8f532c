"""MaxRL without a model: softmax policies over a handful of outcomes, in seconds on one core.

    python -m maxrl toy --out toy      numbers, and the figure toy/toy.png (needs matplotlib)
    python -m maxrl toy --estimator rloo,maxrl,mine.py:root      these instead, one of them yours
    python -m maxrl toy --rewards 0,.25,.6,1      partial credit, one outcome of each reward

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
6. With partial credit a threshold t makes a verdict of the reward, and the exact gradient is the
   sum over thresholds of gap w(p_t) grad p_t. Each step up begins as hard as the others: .25, .6
   and 1 are reached with the chances p^(1/3), p^(2/3) and p. TailRL takes all thresholds along: in
   the hardest half the largest reward ends at .686 (RLOO .026, order 4 .273, GRPO .176). GRPO ends
   with more reward than order 4 (.814 against .787) and less of mean log p (-.998 against -.692).
"""

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from maxrl.advantages import ADVANTAGES, weight
from maxrl.advantages.registry import find
from maxrl.advantages.thresholds import over_thresholds
from maxrl.analysis import plots
from maxrl.system.arguments import Parser, check_least, parse, typed
from maxrl.system.errors import UsageError, refusing

# Methods and their options; the user's own estimators have none.
METHODS: dict[str, dict] = {"rloo": {}, "grpo": {}, "maxrl_order": {"order": 4}, "maxrl": {}}
# Of rewards that are not verdicts.
FOR_REWARDS = ["rloo", "grpo", "maxrl_order", "tailrl"]
EXACT_ML = "maximum likelihood"
# What each outcome is worth: two of eight are right.
VERDICTS = torch.tensor([1.0] * 2 + [0.0] * 6, dtype=torch.float64)
WORDS = """
rloo and so on      every step along the expected gradient w(p) grad p of {rollouts} rollouts
rloo-sampled        every step along the gradient of {rollouts} rollouts drawn from the policy
mean pass rate      p is the probability of a right outcome; its mean over the prompts
mean log p          what maximum likelihood maximises; 0 if every prompt is always solved
p of hardest half   the mean pass rate of the half of the prompts that began with the lowest p
maxrl_order         MaxRL of order T = 4; rloo has T = 1, and maxrl one less than the rollouts
maximum likelihood  the exact gradient of log p, which no number of rollouts gives
"""
WORDS_FOR_REWARDS = """
rloo and so on      every step along the expected gradient of {rollouts} rollouts, which is the sum
                    over the thresholds t of gap w(p_t) grad p_t, where p_t = P(reward >= t)
rloo-sampled        every step along the gradient of {rollouts} rollouts drawn from the policy
grpo-sampled        without an exact row: its division is no sum over thresholds, so no weight holds
mean reward         the expected reward, which RLOO maximises; its mean over the prompts
mean pass rate      p is the probability of the largest reward; its mean over the prompts
mean log p          the integral of log p_t over t, which maximum likelihood maximises
p of hardest half   the mean pass rate of the half of the prompts that began with the lowest p
maxrl_order         MaxRL of order T = 4 at every threshold; tailrl has one less than the rollouts
maximum likelihood  the exact gradient of mean log p, which no number of rollouts gives
"""


def initial_logits(prompts: int, worth: Tensor) -> Tensor:
    """Logits (P, O) in float64; of verdicts with pass rates log-spaced from 1e-3 to 0.5.

    These are the chances p of the largest reward. Each of the J steps up to it is as hard as the
    others: threshold j has the pass rate p^(j/J).
    """
    top = torch.log10(torch.tensor(0.5)).item()
    p = torch.logspace(-3, top, prompts, dtype=torch.float64)  # (P,)
    _, step, outcomes = worth.unique(return_inverse=True, return_counts=True)  # (O,), (J + 1,)
    share = torch.linspace(0, 1, len(outcomes), dtype=p.dtype)  # (J + 1,)  0, 1/J, ..., 1
    reached = p[:, None] ** share  # (P, J + 1)  from 1 to p
    stayed = reached - F.pad(reached[:, 1:], (0, 1))  # (P, J + 1)  chance of each reward
    return (stayed / outcomes)[:, step].log()  # (P, O)


def pass_rates(logits: Tensor, worth: Tensor) -> Tensor:
    """The chances (P, J) of each reward but the lowest, or a larger one."""
    clears = worth[:, None] >= worth.unique()[1:]  # (O, J)
    return logits.softmax(dim=1) @ clears.to(logits)  # (P, J)


def exact_gradient(logits: Tensor, worth: Tensor, name: str, **options) -> Tensor:
    """The sum over thresholds t of gap w(p_t) grad p_t, (P, O); for verdicts w(p) grad p.

    Without rollouts=N the weight is its limit of many rollouts: for maxrl this is grad log p.
    """
    logits = logits.detach().requires_grad_()
    p = pass_rates(logits, worth)  # (P, J)
    # All probabilities may add up to a rounding more than 1.
    w = weight(name, p.detach().clamp(max=1), **options)  # (P, J)
    gaps = worth.unique().diff()  # (J,)
    (gradient,) = torch.autograd.grad((w * gaps * p).sum(), logits)
    return gradient


def sampled_gradient(
    logits: Tensor, worth: Tensor, name: str, rollouts: int, generator: torch.Generator
) -> Tensor:
    """(1/N) sum_i A_i grad log m(z_i), (P, O).

    The score of outcome z of a softmax is onehot(z) - probabilities.
    """
    probabilities = logits.softmax(dim=1)  # (P, O)
    outcomes = torch.multinomial(probabilities, rollouts, True, generator=generator)  # (P, N)
    advantages = ADVANTAGES[name](worth[outcomes], **options_of(name))  # (P, N)
    scores = F.one_hot(outcomes, len(worth)) - probabilities[:, None]  # (P, N, O)
    return (advantages[..., None] * scores).mean(dim=1)  # Algorithm 1, line 8


def options_of(name: str) -> dict:
    """Those of METHODS, and thresholds=True, which changes nothing for verdicts."""
    lifted = {"thresholds": True} if "thresholds" in ADVANTAGES[name].known else {}
    return METHODS.get(name, {}) | lifted


def has_weights(worth: Tensor, name: str, rollouts: int) -> bool:
    """Whether an estimator has its weight at every threshold, as a sum over thresholds has."""
    if is_verdicts(worth):
        return True
    rewards = torch.rand(9, rollouts, generator=torch.Generator().manual_seed(0))
    rule = partial(ADVANTAGES[name], **options_of(name))
    return torch.allclose(rule(rewards), over_thresholds(rule, rewards), atol=1e-4)


def is_verdicts(worth: Tensor) -> bool:
    return worth.unique().tolist() == [0, 1]


def train(prompts: int, steps: int, lr: float, worth: Tensor, gradient, **options) -> Tensor:
    """The pass rates before each step of gradient ascent and after the last, (steps + 1, P, J)."""
    logits = initial_logits(prompts, worth)
    rates = [pass_rates(logits, worth)]
    for _ in range(steps):
        logits = logits + lr * gradient(logits, worth, **options)
        rates.append(pass_rates(logits, worth))
    return torch.stack(rates)


def simulate(
    prompts: int, rollouts: int, steps: int, lr: float, seed: int, names=METHODS, worth=VERDICTS
) -> dict[str, Tensor]:
    """{method, or method-sampled: pass rates (steps + 1, P, J)}."""
    size = (prompts, steps, lr, worth)
    runs = {}
    for name in names:
        generator = torch.Generator().manual_seed(seed)
        if has_weights(worth, name, rollouts):
            options = options_of(name)
            runs[name] = train(*size, exact_gradient, name=name, rollouts=rollouts, **options)
        sampled = train(*size, sampled_gradient, name=name, rollouts=rollouts, generator=generator)
        runs[f"{name}-sampled"] = sampled
    runs[EXACT_ML] = train(*size, exact_gradient, name="maxrl")
    return runs


def statistics(p: Tensor, worth: Tensor) -> dict[str, Tensor]:
    """Means (...) over the prompts of pass rates (..., P, J)."""
    gaps = worth.unique().diff()  # (J,)
    rate = p[..., -1]  # (..., P)
    hardest = rate[..., : -(-rate.shape[-1] // 2)]  # (..., half of P)
    values = {"mean reward": worth.min() + p @ gaps} if not is_verdicts(worth) else {}
    values |= {"mean pass rate": rate, "mean log p": p.log() @ gaps, "p of hardest half": hardest}
    return {what: value.mean(dim=-1) for what, value in values.items()}


def table(runs: dict[str, Tensor], worth: Tensor) -> str:
    """The statistics after the last step."""
    lines = []
    for name, rates in runs.items():
        last = statistics(rates[-1], worth)
        lines.append(f"{name:20}" + "".join(f"{value:20.3f}" for value in last.values()))
    heads = f"{'':20}" + "".join(f"{what:>20}" for what in last)
    return "\n".join([heads, *lines])


def figure(runs: dict[str, Tensor], worth: Tensor, path: Path):
    """Draw the statistics over the steps into a file."""
    curves: dict[str, list] = {}
    for name, rates in runs.items():
        # After i steps, of which the first is step 0.
        rows = [{"step": i - 1, **statistics(p, worth)} for i, p in enumerate(rates)]
        # The line of samples is dashed, as the second of its method, also where there is no first.
        curves.setdefault(Path(name.removesuffix("-sampled")).name, [])
        curves[Path(name).name] = [rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    plots.training(curves, path, panels=[*statistics(rates, worth)])


def main(arguments: list[str]):
    """Run the command line."""
    parser = Parser("python -m maxrl toy", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--out", type=Path, help="directory of toy.png; numbers only when left out")
    add("--estimator", type=plots.comma_list, help="NAME,FILE.py:FUNCTION")
    add("--rollouts", type=int, default=16, help="N")
    add("--steps", type=int, default=300, help="gradient steps of every method")
    floats = partial(parse, tuple[float, ...])
    of_outcomes = "of the outcomes, from 0 to 1, instead of verdicts: 0,.25,.6,1"
    add("--rewards", type=floats, default=VERDICTS.tolist(), help=of_outcomes)
    args = parser.parse_options(arguments)
    check_least("rollouts", args.rollouts, 1, plots.MOST)
    check_least("steps", args.steps, 0)
    worth = torch.tensor(args.rewards, dtype=torch.float64)  # (O,)
    if not 0 <= worth.min() < worth.max() <= 1:
        wish = "must be from 0 to 1 and not all equal, such as 0,.25,.6,1"
        raise UsageError(f"--rewards {typed(args.rewards)} {wish}")
    names = args.estimator or ([*METHODS] if is_verdicts(worth) else FOR_REWARDS)
    plots.check_curves("estimator", names)
    for name in names:
        with refusing(f"--estimator {name}: ", KeyError, TypeError, ValueError):
            ADVANTAGES[name] = find(name)
            weight(name, 0.5, rollouts=args.rollouts, **options_of(name))
            ADVANTAGES[name](worth[:, None].expand(-1, args.rollouts), **options_of(name))
    if args.out:
        plots.require(args.out / "toy.png")
    runs = simulate(200, args.rollouts, args.steps, lr=0.1, seed=0, names=names, worth=worth)
    print(f"after {args.steps} steps, 200 prompts, {args.rollouts} rollouts each")
    print(table(runs, worth))
    words = WORDS if is_verdicts(worth) else WORDS_FOR_REWARDS
    print(words.format(rollouts=args.rollouts))
    if args.out:
        figure(runs, worth, args.out / "toy.png")
        print(f"figure: {args.out / 'toy.png'}")


if __name__ == "__main__":
    plots.script(main)
