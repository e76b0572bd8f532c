"""TensorBoard and Weights & Biases, for --track."""

import importlib.util
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from maxrl.system.errors import UsageError
from maxrl.system.totals import Metrics

# What TRL calls a metric.
RENAMED = {
    "lr": "learning_rate",
    "seconds": "step_time",
    "sampling/logprob_abs_diff/mean": "sampling/sampling_logp_difference/mean",
    "sampling/logprob_abs_diff/max": "sampling/sampling_logp_difference/max",
}


class TensorBoard:
    """Event files in RUN/tensorboard.

    A resumed run repeats the steps after its checkpoint; readers of TensorBoard drop the old ones.
    """

    def __init__(self, run: Path, recipe: dict, first_step: int):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=first_step)

    def log(self, step: int, metrics: Metrics):
        for name, value in prefixed(metrics).items():
            self.writer.add_scalar(name, value, step)
        # A killed run would otherwise lose the last steps before its checkpoint.
        self.writer.flush()

    def close(self):
        self.writer.close()


class WandB:
    """A run of Weights & Biases, whose id is in RUN/wandb_id, so that a resumed run continues it.

    Without a key (WANDB_API_KEY, or `wandb login`), it stays in RUN/wandb for `wandb sync`.
    """

    def __init__(self, run: Path, recipe: dict, first_step: int):
        from wandb import init, login

        file = run / "wandb_id"
        if not file.exists():
            file.write_text(secrets.token_hex(4) + "\n")
        own = os.environ.get
        known = own("WANDB_MODE") or own("WANDB_API_KEY") or login(prompt=False)
        self.run = init(
            project=own("WANDB_PROJECT", "maxrl"),
            name=own("WANDB_NAME") or recipe.get("name") or run.resolve().name,
            id=file.read_text().strip(),
            resume="allow",
            dir=str(run),
            config=recipe,
            # None leaves the mode to W&B.
            mode=None if known else "offline",
        )

    def log(self, step: int, metrics: Metrics):
        self.run.log(prefixed(metrics), step=step, commit=True)

    def close(self):
        self.run.finish()


def renamed(metrics: Metrics) -> Metrics:
    """Return the metrics by the names that they have in a run of TRL's, where both log them."""
    return {RENAMED.get(name, name): value for name, value in metrics.items()}


def prefixed(metrics: Metrics) -> Metrics:
    """Return the metrics as transformers names them for a tracker: train/NAME or eval/NAME."""
    return {
        name if name.startswith("eval/") else f"train/{name}": value
        for name, value in renamed(metrics).items()
    }


TRACKERS: dict = {"tensorboard": TensorBoard, "wandb": WandB}


def check_trackers(names: Iterable[str]):
    """Refuse a tracker whose package is not installed."""
    for name in names:
        if not importlib.util.find_spec(name):
            raise UsageError(f'--track {name} needs pip install -e ".[track]"')
