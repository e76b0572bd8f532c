"""The norm of each prompt's gradient against its pass rate: what an estimator cares about (Figures 6 and 8)."""

import torch

from maxrl.advantages import ADVANTAGES, weight
from maxrl.classifier import check_finite

# GRPO's divisor N and the plain mean as baseline are what the ratios between the panels of Figure 6 imply.
ESTIMATORS = {"supervised": {}, "maxrl": {}, "grpo": {"ddof": 0}, "reinforce_mean": {}}


def gradient_norms(
    policy, task, prompts: int, names, rollouts: int | None = None, *, progress=None
):
    """Pass rates (prompts,) of the first prompts of a task, and {estimator: gradient norms (prompts,)}, in float64.

    A classifier's are exact: an estimator's expected gradient is w(p) grad p, of `rollouts` rollouts, or without them its
    limit of many (the paper draws 131,072, which is the limit where p is well above 1e-5). A language model's come from
    `rollouts` rollouts, the same for every estimator; its pass rates are K / N. One prompt at a time, in eval mode; the
    parameters' .grad is left empty.
    """
    policy.model.eval()
    rows = []
    for i in range(prompts):
        if task.classes:
            rows.append(_exact(policy, task, i))
        else:
            rows.append(_sampled(policy, task, i, names, rollouts))
        if progress:
            progress(1)
    policy.model.zero_grad()
    rates, *norms = torch.tensor(rows, dtype=torch.float64).T.contiguous()  # (prompts,) each
    if task.classes:
        # w(p) grad p is w(p) p grad log p.
        norms = [norms[0] * rates * _weight(name, rates, rollouts) for name in names]
    return rates, dict(zip(names, norms))


def _exact(policy, task, i: int) -> list[float]:
    """p and |grad log p|."""
    examples = task.batch([i]).to(policy.device)
    log_p = policy.logits(examples.images).double().log_softmax(-1)[0, examples.labels[0]]  # ()
    check_finite(log_p)
    p = (
        log_p.detach().exp().clamp(1e-300, 1 - 1e-16).item()
    )  # GRPO's weight is infinite at both ends
    policy.model.zero_grad()
    log_p.backward()
    return [p, _norm(policy.model)]


def _weight(name: str, p, rollouts: int | None):
    if name == "supervised":
        return 1 / p
    return weight(name, p, rollouts=rollouts, **ESTIMATORS.get(name, {}))


def _sampled(policy, task, i: int, names, rollouts: int) -> list[float]:
    """K / N, and each estimator's norm."""
    examples = task.batch([i])
    drawn = policy.rollout(examples, rollouts, indices=[i])
    rewards = task.rewards(examples, drawn)  # (1, N)
    row = [rewards.mean().item()]
    for name in names:
        policy.model.zero_grad()
        policy.backward(drawn, ADVANTAGES[name](rewards, **ESTIMATORS.get(name, {})))
        row.append(_norm(policy.model))
    return row


def _norm(model) -> float:
    return (
        sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None)
        .sqrt()
        .item()
    )
