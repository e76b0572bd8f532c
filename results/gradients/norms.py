"""The norm of each prompt's gradient against its pass rate, for each estimator (Figures 6 and 8).

    PYTHONPATH=. python results/gradients/norms.py runs/imagenet --json norms.json

Exact for a classifier, from --samples rollouts for a language model (the same rollouts for every
estimator), in float32 unless --precision says otherwise. The sampling is that of training.
"""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from maxrl.advantages import ADVANTAGES, weight
from maxrl.learning.classifier import check_finite
from maxrl.learning.config import Config
from maxrl.models import checkpoint
from maxrl.run import build, cli, evaluation_options
from maxrl.system import distributed, files
from maxrl.system.arguments import name_and_path
from results.lab.keep import digits

# GRPO's divisor N and the plain mean as baseline are what the ratios between the panels of
# Figure 6 imply.
ESTIMATORS: dict[str, dict] = {
    "supervised": {},
    "maxrl": {},
    "grpo": {"ddof": 0},
    "reinforce_mean": {},
}


def gradient_norms(
    policy,
    task,
    prompts: int,
    names: Sequence[str],
    rollouts: int | None = None,
    *,
    judge: Callable | None = None,
    said: str = "",
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
    for i in tqdm(range(prompts), desc=said, unit=" prompts", leave=False):
        if task.classes:
            rows.append(_exact(policy, task, i))
        else:
            rows.append(_sampled(policy, task, judge or task.rewards, i, names, rollouts))
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


def _sampled(policy, task, judge, i: int, names, rollouts: int | None) -> list[float]:
    """K / N of a language model, and the norm of each estimator's gradient."""
    examples = task.batch([i])
    drawn = policy.rollout(examples, rollouts, indices=[i])
    rewards = judge(examples, drawn).double()  # (1, N)
    row = [rewards.mean().item()]
    for name in names:
        policy.model.zero_grad()
        advantages = ADVANTAGES[name](rewards, **ESTIMATORS.get(name, {}))
        # Where all of them are 0, so is the gradient.
        if advantages.any():
            policy.backward(drawn, advantages)
        row.append(_norm(policy.model))
    return row


def _norm(model: torch.nn.Module) -> float:
    squares = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    return sum(squares, torch.zeros(())).sqrt().item()


def read_arguments(arguments: list[str]):
    """Return the options, and what they ask of the recipe.

    args.checkpoints is a list of (name, directory).
    """
    parser = evaluation_options.option_parser("norms.py", __doc__, "test")
    add = parser.add_argument
    add("checkpoints", nargs="+", metavar="[NAME=]PATH", help="checkpoint or run directory")
    add("--prompts", type=int, default=256, help="number of prompts (256)")
    add("--samples", type=int, default=64, help="rollouts per prompt of a language model (64)")
    add("--rollouts", type=int, help="N of a classifier's weights (infinite)")
    add("--micro-batch-tokens", type=int, default=Config.micro_batch_tokens, help="of a backward")
    add("--json", type=Path, required=True, help="write the norms to this file")
    args, given = evaluation_options.read_options(parser, arguments)
    args.temperature = args.top_p = 1.0
    given.setdefault("precision", "float32")
    args.checkpoints = [
        (name, checkpoint.find(path)) for name, path in map(name_and_path, args.checkpoints)
    ]
    asked = evaluation_options.complete(args, given, args.checkpoints[0][1])
    asked.cfg = replace(asked.cfg, micro_batch_tokens=args.micro_batch_tokens)
    return args, asked


def measure(args, asked) -> dict:
    """Return pass rates and norms of all checkpoints, over the same prompts and the same noise."""
    device = distributed.setup(asked.cfg.device)[2]
    task, judge = evaluation_options.find_task(asked)
    names = [name for name in ESTIMATORS if task.classes or name != "supervised"]
    rollouts = args.rollouts if task.classes else args.samples
    prompts = min(args.prompts, len(task))
    rows = []
    for name, path in args.checkpoints:
        policy = build.policy_from(asked.of(path), task, None, None, device)
        p, norms = gradient_norms(policy, task, prompts, names, rollouts, judge=judge, said=name)
        row = {"name": name, "path": str(path), "pass_rates": digits(p.tolist(), 6)}
        row["norms"] = {name: digits(values.tolist(), 6) for name, values in norms.items()}
        rows.append(row)
    return {
        "command": shlex.join(["python", *sys.argv]),
        "torch": torch.__version__,
        "task": asked.cfg.task,
        "split": asked.split,
        "prompts": prompts,
        "samples": args.samples,
        "rollouts": args.rollouts,
        "seed": asked.cfg.seed,
        "classes": len(task.classes),
        "checkpoints": rows,
    }


def main(arguments: list[str]):
    args, asked = read_arguments(arguments)
    files.write_text(args.json, json.dumps(measure(args, asked), allow_nan=False) + "\n")


if __name__ == "__main__":
    with cli.script("norms.py", OSError):
        main(sys.argv[1:])
