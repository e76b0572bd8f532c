"""The norm of each prompt's gradient against its pass rate: what an estimator cares about (Figures 6 and 8)."""

import torch

from maxrl.advantages import ADVANTAGES, weight

# GRPO's divisor N and the plain mean as baseline are what the ratios between the panels of Figure 6 imply.
ESTIMATORS = {"supervised": {}, "maxrl": {}, "grpo": {"ddof": 0}, "reinforce_mean": {}}


def gradient_norms(policy, task, prompts: int, names, rollouts: int | None = None, *, progress=None):
    """Pass rates (prompts,) of the first prompts of a task, and {estimator: gradient norms (prompts,)}, in float64.

    A classifier's are exact: an estimator's expected gradient is w(p) grad p, of `rollouts` rollouts, or without them its
    limit of many (the paper draws 131,072). A language model's come from `rollouts` rollouts, the same for every
    estimator, and its pass rates are K / N. One prompt at a time, in eval mode; the parameters' .grad is left empty.
    """
    one = _exact if task.classes else _sampled
    policy.model.eval()
    rows = []
    for i in range(prompts):
        rows.append(one(policy, task, i, names, rollouts))
        if progress:
            progress(1)
    policy.model.zero_grad(set_to_none=True)
    rates, norms = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows))            # (M,), (M, names)
    return rates, dict(zip(names, norms.T))


def _exact(policy, task, i: int, names, rollouts: int | None):
    """w(p) |grad p| = w(p) p |grad log p|: one backward for all estimators."""
    examples = task.batch([i]).to(policy.device)
    log_p = policy.logits(examples.images).double().log_softmax(-1)[0, examples.labels[0]]         # ()
    p = log_p.detach().exp().clamp(1e-300, 1 - 1e-16).item()  # GRPO's weight is infinite at both ends
    of_log_p = _norm(policy.model, lambda: log_p.backward())
    weights = [1 / p if name == "supervised" else weight(name, p, rollouts=rollouts, **ESTIMATORS.get(name, {}))
               for name in names]
    return p, [w * p * of_log_p for w in weights]


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
