"""The norm of each prompt's gradient against its pass rate, for each estimator (Figures 6 and 8).

    PYTHONPATH=. python results/gradients/norms.py runs/imagenet --split validation --plot norms.png

Exact for a classifier, from --samples rollouts for a language model (the same rollouts for every
estimator), in float32 unless --precision says otherwise. The sampling is that of training.
"""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from maxrl import checkpoint, plots
from maxrl.advantages import ADVANTAGES, weight
from maxrl.classifier import check_finite
from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.io import files
from maxrl.io.arguments import named, parse
from maxrl.parallel import distributed
from maxrl.run import cli, sampling_options, setup, table
from results.lab.keep import digits

# GRPO's divisor N and the plain mean as baseline are what the ratios between the panels of
# Figure 6 imply.
ESTIMATORS: dict[str, dict] = {
    "supervised": {},
    "maxrl": {},
    "grpo": {"ddof": 0},
    "reinforce_mean": {},
}
# Bins of the pass rate in the table.
EDGES = (0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1)
ASKED = ("task", "task_options", "split", "reward", "prompts", "samples", "rollouts", "seed")


def gradient_norms(
    policy,
    task,
    prompts: int,
    names: Sequence[str],
    rollouts: int | None = None,
    *,
    progress: Callable[[int], object] | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Pass rates (prompts,) of a task's first prompts, and {estimator: gradient norms (prompts,)}.

    Those of a classifier are exact: the expected gradient of an estimator is w(p) grad p, with
    the weight of N rollouts, or without `rollouts` with its limit of many. (The paper draws
    131,072 rollouts, which is the limit where p is well above 1e-5.) Those of a language model
    come from `rollouts` rollouts, the same ones for every estimator, and its pass rates are K / N.

    Works in eval mode, one prompt at a time, leaves .grad empty and returns float64.
    """
    policy.model.eval()
    rows = []
    for i in range(prompts):
        row = (
            _exact(policy, task, i) if task.classes else _sampled(policy, task, i, names, rollouts)
        )
        rows.append(row)
        if progress:
            progress(1)
    policy.model.zero_grad()
    rates, *norms = torch.tensor(rows, dtype=torch.float64).T.contiguous()  # (prompts,) each
    if task.classes:
        # w(p) grad p is w(p) p grad log p.
        norms = [norms[0] * rates * _weight(name, rates, rollouts) for name in names]
    return rates, dict(zip(names, norms))


def _exact(policy, task, i: int) -> list[float]:
    """p and |grad log p| of a classifier."""
    examples = task.batch([i]).to(policy.device)
    log_p = policy.logits(examples.images).double().log_softmax(-1)[0, examples.labels[0]]  # ()
    check_finite(log_p)
    # GRPO's weight is infinite at p = 0 and p = 1.
    p = log_p.detach().exp().clamp(1e-300, 1 - 1e-16).item()
    policy.model.zero_grad()
    log_p.backward()
    return [p, _norm(policy.model)]


def _weight(name: str, p: torch.Tensor, rollouts: int | None) -> torch.Tensor:
    if name == "supervised":
        return 1 / p
    return weight(name, p, rollouts=rollouts, **ESTIMATORS.get(name, {}))


def _sampled(policy, task, i: int, names: Sequence[str], rollouts: int | None) -> list[float]:
    """K / N of a language model, and the norm of each estimator's gradient."""
    examples = task.batch([i])
    drawn = policy.rollout(examples, rollouts, indices=[i])
    rewards = task.rewards(examples, drawn).double()  # (1, N)
    row = [rewards.mean().item()]
    first, norm = None, 0.0
    for name in names:
        advantages = ADVANTAGES[name](rewards, **ESTIMATORS.get(name, {}))
        if not advantages.any():
            row.append(0.0)
            continue
        # Centred rewards differ by a factor alone, and so do their gradients: one backward.
        if first is None or not torch.allclose(
            advantages / advantages.norm(), first / first.norm()
        ):
            policy.model.zero_grad()
            policy.backward(drawn, advantages)
            first, norm = advantages, _norm(policy.model)
        row.append(norm * (advantages.norm() / first.norm()).item())
    return row


def _norm(model: torch.nn.Module) -> float:
    squares = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    return torch.stack(squares).sum().sqrt().item()


def read_arguments(arguments: list[str]):
    """Return the options; args.checkpoints is a list of (name, directory)."""
    parser = sampling_options.option_parser("norms.py", __doc__, "test")
    add = parser.add_argument
    add("checkpoints", nargs="+", metavar="[NAME=]PATH", help="checkpoint or run directory")
    add("--prompts", type=int, default=256, help="number of prompts (256)")
    add("--samples", type=int, default=64, help="rollouts per prompt of a language model (64)")
    add("--rollouts", type=int, help="N of a classifier's weights (infinite)")
    default = Config.micro_batch_tokens
    add("--micro-batch-tokens", type=int, default=default, help=f"of a backward ({default})")
    names = partial(parse, tuple[str, ...])
    add("--estimators", type=names, metavar="E,E", help=f"({','.join(ESTIMATORS)})")
    add("--json", type=Path, help="write the norms to this file")
    add("--plot", type=Path, help="draw them into this file (needs matplotlib)")
    args = sampling_options.read_options(parser, arguments)
    args.temperature = args.top_p = 1.0
    args.given.setdefault("precision", "float32")
    if args.plot:
        plots.require(args.plot)
    args.checkpoints = [
        (name, checkpoint.find(path)) for name, path in map(named, args.checkpoints)
    ]
    sampling_options.complete(args, args.checkpoints[0][1])
    return args


def measure(args) -> dict:
    """Return pass rates and norms of all checkpoints, over the same prompts and the same noise."""
    device = distributed.setup(args.device)[2]
    task = setup.find_task(args, args.checkpoints[0][1])
    names = args.estimators or [n for n in ESTIMATORS if task.classes or n != "supervised"]
    rollouts = args.rollouts if task.classes else args.samples
    args.prompts = min(args.prompts, len(task))
    for name in names:
        if name == "supervised" and not task.classes:
            raise UsageError("--estimators supervised is for a classifier")
        setup.check_estimator("--estimators", name, (rollouts or 2,), ESTIMATORS.get(name, {}))
    rows = []
    for name, path in args.checkpoints:
        args.init = str(path)
        policy = setup.start_policy(args, task, None, None, device)
        with tqdm(total=args.prompts, desc=name, unit=" prompts", leave=False) as bar:
            p, norms = gradient_norms(
                policy, task, args.prompts, names, rollouts, progress=bar.update
            )
        row = {"name": name, "path": str(path), "pass_rates": digits(p.tolist(), 6)}
        rows.append(
            row | {"norms": {name: digits(values.tolist(), 6) for name, values in norms.items()}}
        )
    return {
        "command": shlex.join(["python", *sys.argv]),
        "torch": torch.__version__,
        **{name: getattr(args, name) for name in ASKED},
        "of": len(task),
        "source": task.source,
        "classes": len(task.classes),
        "checkpoints": rows,
    }


def print_norms(results: dict):
    """Print the median gradient norm of the prompts whose pass rate lies between two edges."""
    print(f"{table.where(results)}: median gradient norm by pass rate, up to")
    print(f"{'':30}" + "".join(f"{edge:>9g}" for edge in EDGES))
    for row in results["checkpoints"]:
        # Bin i is above edge i-1, up to edge i.
        bins = np.searchsorted(EDGES, row["pass_rates"])
        counts = np.bincount(bins, minlength=len(EDGES))
        print(f"{row['name'] + ', prompts':30}" + "".join(f"{n:9}" for n in counts))
        for name, norms in row["norms"].items():
            groups = [np.array(norms)[bins == i] for i in range(len(EDGES))]
            cells = [f"{np.median(group):.3g}" if len(group) else "-" for group in groups]
            print(f"{row['name'] + ', ' + name:30}" + "".join(f"{cell:>9}" for cell in cells))


def draw(rows: list[dict], file: Path, caption: str):
    """Draw one point per prompt, gradient norm against pass rate.

    Every checkpoint and estimator has a panel of its own; all of them have one scale.
    """
    panels = [(row, name) for row in rows for name in row["norms"]]
    fig, axes = plots.figure(len(panels))
    for ax, (row, name) in zip(axes, panels):
        if ax is not axes[0]:
            ax.sharey(axes[0])
        points = row["pass_rates"], row["norms"][name]
        ax.plot(*points, ".", ms=3, alpha=0.4, color=plots.colour(name))
        title = f"{plots.called(row['name'])}: gradient of {plots.called(name)}"
        ax.set(xlabel="pass rate", ylabel="gradient norm of a prompt", title=title)
        ax.set_xlim(-0.02, 1.02)
    plots.save(fig, file, caption)


def main(arguments: list[str]):
    args = read_arguments(arguments)
    results = measure(args)
    print_norms(results)
    if args.json:
        files.write_text(args.json, json.dumps(results, allow_nan=False) + "\n")
    if args.plot:
        draw(results["checkpoints"], args.plot, f"{results['task']}, {table.where(results)}")
        print(f"drew {args.plot}")


if __name__ == "__main__":
    with cli.script("norms.py", OSError):
        main(sys.argv[1:])
