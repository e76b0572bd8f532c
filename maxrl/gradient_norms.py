"""The norm of each prompt's gradient against its pass rate (Figures 6 and 8)."""

from collections.abc import Callable, Sequence

import torch

from maxrl.advantages import ADVANTAGES, weight
from maxrl.classifier import check_finite

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
    rewards = task.rewards(examples, drawn)  # (1, N)
    row = [rewards.mean().item()]
    for name in names:
        policy.model.zero_grad()
        policy.backward(drawn, ADVANTAGES[name](rewards, **ESTIMATORS.get(name, {})))
        row.append(_norm(policy.model))
    return row


def _norm(model: torch.nn.Module) -> float:
    squares = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    return torch.stack(squares).sum().sqrt().item()
