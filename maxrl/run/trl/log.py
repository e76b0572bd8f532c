"""The metrics of a run as state.log_history has them."""

from maxrl.learning.config import Config
from maxrl.system.totals import Metrics


def history(rows: list[dict], cfg: Config, logging_steps: int, examples: int) -> list[Metrics]:
    """Return the entries of log_history, each with the updates and epochs so far.

    rows           the metrics of each step
    logging_steps  updates whose mean is one entry
    examples       prompts of the training
    """
    updates = cfg.minibatches * cfg.passes
    every = per_entry(cfg, logging_steps)
    result = []
    for first in range(0, len(rows), every):
        some = rows[first : first + every]
        steps = some[-1]["step"] + 1
        now = {"step": steps * updates, "epoch": steps * cfg.prompts / examples}
        result.append(underscored(means(some)) | now)
    return result


def per_entry(cfg: Config, logging_steps: int) -> int:
    """Return how many steps are one entry."""
    return max(1, round(logging_steps / (cfg.minibatches * cfg.passes)))


def means(rows: list[dict]) -> Metrics:
    """Return the mean of each metric over the steps that have it."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def underscored(metrics: Metrics) -> Metrics:
    """Return the metrics with evaluations as transformers logs them: eval_NAME."""
    return {name.replace("eval/", "eval_", 1): value for name, value in metrics.items()}
