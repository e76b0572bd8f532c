"""The norm of each prompt's gradient against its pass rate: what an estimator cares about (Figures 6 and 8)."""

import torch

from maxrl.advantages import ADVANTAGES, weight
from maxrl.errors import UsageError

# GRPO's divisor N and the plain mean as baseline are what the ratios between the panels of Figure 6 imply.
ESTIMATORS = {"supervised": {}, "maxrl": {}, "grpo": {"ddof": 0}, "reinforce_mean": {}}


def gradient_norms(policy, task, prompts: int, names, rollouts: int | None = None, *, progress=None):
    """Pass rates (prompts,) of the first prompts of a task, and {estimator: gradient norms (prompts,)}, in float64.

    A classifier's are exact: an estimator's expected gradient is w(p) grad p, of `rollouts` rollouts, or without them its
    limit of many (the paper draws 131,072, which is the limit where p is well above 1e-5). A language model's come from
    `rollouts` rollouts, the same for every estimator; its pass rates are K / N. One prompt at a time, in eval mode; the
    parameters' .grad is left empty.
    """
    policy.model.eval()
    rates, norms = [], []
    for i in range(prompts):
        p, values = _exact(policy, task, i) if task.classes else _sampled(policy, task, i, names, rollouts)
        rates.append(p)
        norms.append(values)
        if progress:
            progress(1)
    policy.model.zero_grad(set_to_none=True)
    rates, norms = torch.tensor(rates, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64)
    if not task.classes:
        return rates, dict(zip(names, norms.T))
    return rates, {name: norms * rates * _weight(name, rates, rollouts) for name in names}


def _exact(policy, task, i: int) -> tuple[float, float]:
    """p and |grad log p|; an estimator's expected gradient w(p) grad p is w(p) p grad log p."""
    examples = task.batch([i]).to(policy.device)
    log_p = policy.logits(examples.images).double().log_softmax(-1)[0, examples.labels[0]]         # ()
    if not log_p.isfinite():
        raise UsageError("the classifier's logits are not finite: its training has diverged, try a lower --lr")
    p = log_p.detach().exp().clamp(1e-300, 1 - 1e-16).item()  # GRPO's weight is infinite at both ends
    return p, _norm(policy.model, lambda: log_p.backward())


def _weight(name: str, p, rollouts: int | None):
    return 1 / p if name == "supervised" else weight(name, p, rollouts=rollouts, **ESTIMATORS.get(name, {}))


def _sampled(policy, task, i: int, names, rollouts: int):
    examples = task.batch([i])
    drawn = policy.rollout(examples, rollouts, indices=[i])
    rewards = task.rewards(examples, drawn)                                                        # (1, N)
    return rewards.mean().item(), [
        _norm(policy.model, lambda name=name: policy.backward(drawn, ADVANTAGES[name](rewards, **ESTIMATORS.get(name, {}))))
        for name in names]


def _norm(model, backward) -> float:
    model.zero_grad(set_to_none=True)
    backward()
    return sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None).sqrt().item()
