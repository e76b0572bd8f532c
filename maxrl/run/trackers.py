"""TensorBoard and Weights & Biases, where --track asks for them."""

import json
import os
import secrets
import time
from pathlib import Path

from maxrl.errors import UsageError


class TensorBoard:
    """Event files in RUN/tensorboard, as float32. What a killed run wrote from first_step on stays in its file, and every
    reader of TensorBoard's own takes it back."""

    @staticmethod
    def package():
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter

    def __init__(self, run: Path, recipe: dict, first_step: int):
        in_order(run / "tensorboard", int(time.time()))
        self.writer = self.package()(str(run / "tensorboard"), purge_step=first_step)
        self.writer.add_text(
            "recipe", "    " + json.dumps(recipe, indent=2).replace("\n", "\n    "), first_step
        )

    def log(self, step: int, metrics: dict[str, float]):
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # a killed run has every step, as metrics.jsonl has: the next one goes on without a gap

    def close(self):
        self.writer.close()


def in_order(folder: Path, now: int):
    """Readers take event files by the time in their names, events.out.tfevents.TIME.rest: where the clock has been put back
    the earlier ones get earlier names."""
    last = now - 1
    for file in sorted(folder.glob("events.out.tfevents.*"), reverse=True):
        stamp, rest = file.name.split(".", 4)[3:]
        last = min(int(stamp), last) if stamp.isdecimal() else last
        file.rename(folder / f"events.out.tfevents.{last:010d}.{rest}")
        last -= 1


class WandB:
    """A run of Weights & Biases whose id is kept in RUN/wandb_id. Without a key (WANDB_API_KEY, or
    `wandb login`) it stays in RUN/wandb, for `wandb sync` to send later.

    A resumed run goes on under the same id, and the server takes no step for a second time: what a killed run had sent
    already keeps its times. Offline each start has a folder of its own, so the steps between the last checkpoint and the
    end of a killed run are in two of them; how `wandb sync` joins these is not ours to promise.
    """

    @staticmethod
    def package():
        # Not the module: a folder called wandb, which W&B likes to make, can be imported too.
        from wandb import init, login

        return init, login

    def __init__(self, run: Path, recipe: dict, first_step: int):
        file = run / "wandb_id"
        own = os.environ.get
        if not file.exists():
            file.write_text(secrets.token_hex(4) + "\n")
        try:
            init, login = self.package()
            known = own("WANDB_MODE") or own("WANDB_API_KEY") or login(prompt=False)
            mode = None if known else "offline"  # None: W&B decides
            self.run = init(
                project=own("WANDB_PROJECT", "maxrl"),
                name=own("WANDB_NAME", run.resolve().name),
                id=file.read_text().strip(),
                resume="allow",
                dir=str(run),
                config=recipe,
                mode=mode,
            )
        except Exception as error:  # of a network there are many kinds
            raise UsageError(
                f"--track wandb: W&B does not start ({' '.join(str(error).split())[:200]}); WANDB_MODE=offline "
                "keeps the run here"
            ) from None

    def log(self, step: int, metrics: dict[str, float]):
        self.run.log(metrics, step=step, commit=True)

    def close(self):
        self.run.finish()


TRACKERS = {"tensorboard": TensorBoard, "wandb": WandB}


def check_trackers(names):
    """Refuse before any work a tracker whose package is not there."""
    for name in names:
        try:
            TRACKERS[name].package()
        except ImportError:
            raise UsageError(
                f'--track {name} needs a package that is not installed: pip install -e ".[track]"'
            ) from None
