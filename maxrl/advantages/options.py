"""What a recipe (`Config`) asks of its estimator: the options that it gets, and what cannot be."""

from typing import Any

import torch

from maxrl.advantages.formulas import ADVANTAGES
from maxrl.advantages.registry import check_sizes
from maxrl.system.arguments import typed
from maxrl.system.errors import UsageError, refusing


def estimator_options(cfg: Any, rollouts: Any = None) -> dict:
    """Return the recipe's estimator options, and what the estimator must know about the rollouts.

    rollouts  of a step; mean_log_probs() gives a value for each of them, (P_local, N)

    Without rollouts, the values are zeros for a single group. An unknown estimator has no options;
    check_estimation refuses it.
    """
    options = dict(cfg.estimator_options)
    known = getattr(ADVANTAGES.get(cfg.estimator), "known", ())
    if "mean_log_probs" in known:
        options["mean_log_probs"] = torch.zeros(1, max(cfg.rollouts))
        if rollouts is not None:
            options["mean_log_probs"] = rollouts.mean_log_probs()
    if cfg.thresholds and "thresholds" in known:
        options["thresholds"] = True
    if cfg.no_verdict == "rollout" or len(cfg.rollouts) > 1:
        options["allow_missing"] = True
    return options


def check_estimation(cfg: Any) -> None:
    """Raise UsageError for an estimator that cannot be, without weights, data or user code."""
    if cfg.supervised and cfg.rollouts != (1,):
        raise UsageError(
            "--estimator supervised has one answer per prompt, not --rollouts "
            f"{typed(cfg.rollouts)}; use --rollouts 1"
        )
    options = estimator_options(cfg)
    # An estimator of the user's may not have been imported yet.
    if ":" not in cfg.estimator or cfg.estimator in ADVANTAGES:
        with refusing(f"--estimator {cfg.estimator}: ", KeyError, TypeError, ValueError):
            rule = ADVANTAGES[cfg.estimator]
            check_sizes(rule, cfg.rollouts, options)
            rule(torch.zeros(1, max(cfg.rollouts)), **options)
            if cfg.thresholds and "thresholds" not in rule.known:
                takes = "takes any reward" if rule.takes == "any" else "is exact for 0 and 1 alone"
                raise ValueError(f"{rule.__name__} {takes}: leave out --thresholds true")
    fixed = options.keys() & {"order", "k", "mean_log_probs"}
    if cfg.no_verdict == "rollout" and fixed:
        raise UsageError(
            "--no-verdict rollout changes N from group to group, which "
            f"{cfg.estimator} with {', '.join(fixed)} does not take; use --no-verdict group"
        )
