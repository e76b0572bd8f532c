"""Progress for people, metrics.jsonl for programs; TensorBoard and Weights & Biases where --track asks for them."""

import contextlib
import json
import math
import os
import secrets
import sys
import time
import warnings
from pathlib import Path

from tqdm import tqdm

from maxrl import files
from maxrl.config import UsageError

SHOWN = {  # metric: what people read
    "reward": "reward",
    "frac_reward_zero_mean": "unsolved",
    "loss": "loss",
    "tokens_per_second": "tok/s",
    "images_per_second": "img/s",
    "eval/pass@1": "pass@1",
}
LINES = 10  # seconds between two lines where nobody watches a bar


class Unfailing:
    """A stream that people read: where it cannot be written to (a full disk, a reader that has gone), it is silent."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self.stream.write(text)
        return len(text)

    def flush(self):
        with contextlib.suppress(OSError):
            self.stream.flush()


def never_fail():
    """What a program says on its standard streams must not end its work; those that were closed get a place to go to."""
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:  # of 0, 1 and 2 those that are free, which no file of ours may get
        pass
    os.close(free)
    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), Unfailing):
            setattr(sys, name, Unfailing(stream or open(os.devnull, "w")))  # noqa: SIM115 (as long as all of it)


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
        self.writer.add_text("recipe", "    " + json.dumps(recipe, indent=2).replace("\n", "\n    "), first_step)

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
        *name, stamp, rest = file.name.split(".", 4)
        last = min(int(stamp), last) if stamp.isdecimal() else last
        file.rename(folder / ".".join([*name, f"{last:010d}", rest]))
        last -= 1


class WandB:
    """A run of Weights & Biases whose id is kept in RUN/wandb_id. Without a key (WANDB_API_KEY, or `wandb login` and
    WANDB_MODE=online) it stays in RUN/wandb, for `wandb sync` to send later.

    A resumed run goes on under the same id, and the server takes no step for a second time: what a killed run had sent
    already keeps its times. Offline each start has a folder of its own, so the steps between the last checkpoint and the
    end of a killed run are in two of them; how `wandb sync` joins these is not ours to promise.
    """

    @staticmethod
    def package():
        from wandb import init  # not the module: a folder called wandb, which W&B likes to make, can be imported too
        return init

    def __init__(self, run: Path, recipe: dict, first_step: int):
        file, own = run / "wandb_id", os.environ.get
        if not file.exists():
            file.write_text(secrets.token_hex(4) + "\n")
        mode = None if own("WANDB_MODE") or own("WANDB_API_KEY") else "offline"
        try:
            self.run = self.package()(project=own("WANDB_PROJECT", "maxrl"), name=own("WANDB_NAME", run.resolve().name),
                                      id=file.read_text().strip(), resume="allow", dir=str(run), config=recipe, mode=mode)
        except Exception as error:  # of a network there are many kinds
            raise UsageError(f"--track wandb: W&B does not start ({' '.join(str(error).split())[:200]}); WANDB_MODE=offline "
                             "keeps the run here") from None

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
            raise UsageError(f'--track {name} needs a package that is not installed: pip install -e ".[track]"') from None


class Logger:
    """Writes on the main rank only; the others hold one that does nothing."""

    def __init__(self, run, first_step: int, steps: int, name: str, main: bool, track=(), supervised: bool = False,
                 resumed: Path | None = None):
        """run: the run directory, whose metrics.jsonl becomes what it was at the checkpoint `resumed`. track: names in
        TRACKERS, which get the recipe from the directory's recipe.json. supervised: rewards say nothing and are not shown."""
        self.main = main
        if not main:
            return
        self.path, self.now, self.said = Path(run) / "metrics.jsonl", {}, set()
        self.shown = {key: name for key, name in SHOWN.items() if not (supervised and "reward" in key)}
        files.write_text(self.path, "".join(past(self.path, resumed)))
        self.open()
        recipe = json.loads((Path(run) / "recipe.json").read_text()) if track else {}
        self.trackers = [TRACKERS[tracker](Path(run), recipe, first_step) for tracker in dict.fromkeys(track)]
        self.first, self.steps, self.bar = first_step, steps, None
        self.began = self.told = time.monotonic()
        self.told_step = first_step
        if sys.stderr.isatty():
            self.bar = tqdm(total=steps, initial=first_step, desc=name, dynamic_ncols=True, mininterval=0.5)

    def open(self):
        self.file = self.path.open("a+", buffering=1, encoding="utf-8")  # a line is on disk when the step is over

    def history(self) -> str:
        """metrics.jsonl so far, which has reached the disk; one that somebody has taken away is there again."""
        if not self.main:
            return ""
        os.fsync(self.file.fileno())
        self.file.seek(0)
        text = self.file.read()
        if not (self.path.exists() and os.path.samestat(os.fstat(self.file.fileno()), self.path.stat())):
            warnings.warn(f"{self.path} has been taken away: it is written anew", stacklevel=2)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(self.path, text)
            self.file.close()
            self.open()
        return text

    def log(self, step: int, metrics: dict[str, float]):
        if not self.main:
            return
        known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        self.file.write(json.dumps({"step": step, **known}) + "\n")
        for tracker in self.trackers:
            tracker.log(step, metrics)
        self.now |= {name: f"{metrics[key]:.3g}" if metrics[key] < 1000 else f"{metrics[key]:,.0f}"
                     for key, name in self.shown.items() if key in metrics}
        if self.bar:
            self.bar.set_postfix(self.now, refresh=False)
            self.bar.update(1)
        elif (step in (self.first, self.steps - 1) or any(key.startswith("eval/") for key in metrics)
              or time.monotonic() - self.told > LINES):
            self.say(self.line(step + 1))

    def line(self, done: int) -> str:
        """A step as one line of a log file: where the run is, how long a step takes since the last line, what is left."""
        now = time.monotonic()
        each, mean = (now - self.told) / (done - self.told_step), (now - self.began) / (done - self.first)
        self.told, self.told_step = now, done
        values = "".join(f"  {name} {value}" for name, value in self.now.items())
        left = f"  {duration(mean * (self.steps - done))} left" if done < self.steps else ""
        return f"step {done}/{self.steps}{values}  {each:.2g} s{left}"

    def say(self, *lines: str, once: bool = False):
        """To people, on lines of their own."""
        if self.main and not (once and lines in self.said):
            self.said.add(lines)
            tqdm.write("\n".join(lines), file=sys.stderr)

    def close(self):
        if self.main:
            if self.bar:
                self.bar.close()
            for tracker in self.trackers:
                tracker.close()
            self.file.close()


def duration(seconds: float) -> str:
    """As people say it: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def past(path: Path, resumed: Path | None) -> list[str]:
    """The lines of metrics.jsonl from before the checkpoint that a run goes on from, one a step and in order: those of the
    checkpoint's copy, then what the file alone has. What was wrong with the file is said."""
    done = files.read_json(resumed / "state.json")["step"] if resumed else 0
    rows = [(step, line) for step, line in readable(path) if step < done]
    found, copy = dict(rows), dict(readable(resumed / path.name)) if resumed else {}
    kept = found | copy
    for what, steps in {"lacked step {}, put back from the checkpoint": sorted(set(copy) - set(found)),
                        "had another line for step {}, put right from the checkpoint": [
                            step for step, line in sorted(found.items()) if copy.get(step, line) != line],
                        "lacks step {}, which no copy has": sorted(set(range(done)) - set(kept))}.items():
        if steps:
            warnings.warn(f"{path} {what.format(spans(steps))}", stacklevel=2)
    if [step for step, _ in rows] != sorted(found):
        warnings.warn(f"{path} had lines twice or in another order, put right", stacklevel=2)
    return [kept[step] for step in sorted(kept)]


def readable(path: Path) -> list[tuple[int, str]]:
    return [(row["step"], line) for row, line in files.json_lines(path)]


def spans(steps: list[int]) -> str:
    """Ascending numbers as "0 to 3, 7"."""
    known = set(steps)
    starts = [step for step in steps if step - 1 not in known]
    ends = [step for step in steps if step + 1 not in known]
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, ends))
