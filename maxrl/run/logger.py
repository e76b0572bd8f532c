"""Progress for people, metrics.jsonl for programs, and the trackers that --track names."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
from torch import Tensor
from tqdm import tqdm

from maxrl.learning.rounds import Sampled
from maxrl.run import samples
from maxrl.run.cli import say
from maxrl.run.trackers import TRACKERS
from maxrl.system import distributed, files
from maxrl.system.errors import FAULTS, RunError, describe_error
from maxrl.system.totals import Metrics, Totals
from maxrl.tasks.base import is_success
from maxrl.tasks.rewards import Judge, count_faults

# The metrics of a line on the screen, and their names there.
SHOWN = {
    "reward": "reward",
    "frac_unsolved": "unsolved",
    "loss": "loss",
    "tokens_per_second": "tok/s",
    "images_per_second": "img/s",
    "eval/pass@1": "pass@1",
}
# Above such a value of a metric, a run says once what is wrong.
WARNINGS = {
    "sampling/logprob_abs_diff/mean": (
        0.02,
        "sampler and training forward differ by more than 0.02 in log-probability: the rollouts "
        "are not quite the policy's own, which --precision float32 cures (bf16=False in a script)",
    ),
    "completions/clipped_ratio": (
        0.5,
        "most responses are cut: raise --max-response, max_completion_length in a script",
    ),
    "rewards/groups_left_out": (
        0,
        "groups are left out because no reward function has a verdict on one of their rollouts "
        "(with --no-verdict rollout: on all of their rollouts but one)",
    ),
    "steps without a difference": (
        9,
        "in the last ten steps no response was right and the rewards of each prompt were equal, so "
        "nothing is learned: look at responses "
        "with --show-every 1, and see maxrl/run/troubleshooting.md",
    ),
}
LINES = 10  # seconds between two lines
BAR = "|{bar:20}| {elapsed} {desc}"
# The parts of a step as the progress bar calls them.
PARTS = {"data": "data", "rollout": "sampling", "reward": "rewards", "backward": "training"}


class Clock:
    """The seconds that each part of a step takes; `watch` is told which one begins."""

    def __init__(self, watch: Callable[[str], object]):
        self.watch = watch
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Time what is done within this context, a part of the step."""
        self.watch(PARTS[part])
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start

    def metrics(self, policy, stats: Metrics) -> Metrics:
        """Seconds of the step that ends, and items per second; stats has their number."""
        total = sum(self.seconds.values())
        parts = {f"seconds/{part}": seconds for part, seconds in self.seconds.items()}
        rate = {f"{policy.items}_per_second": stats[policy.items] / total}
        self.seconds.clear()
        return {"seconds": total} | rate | parts


def count_groups(totals: Totals, rewards: Tensor, last: Tensor) -> None:
    """Add the groups of rewards (P_local, N) to Totals, which make these metrics of them.

    A rollout without a verdict (NaN) counts nowhere, nor does a group without any.

    reward                  mean reward
    reward_std              std over all rollouts of the batch, with their number - 1 as divisor,
                            as TRL 1.16 has it; NaN for one rollout
    frac_unsolved           share of prompts without any success, among the rewards of their `last`
                            round, which are `rewards` if there is one round
    frac_reward_zero_mean   share of prompts whose rewards are all 0: Algorithm 1 learns nothing
    frac_reward_one_mean    share of prompts that always succeed: no estimator learns there
    frac_reward_zero_std    share of prompts whose rewards are all equal; for rewards of 0 and 1
                            the sum of the two shares before
    """
    values = judged_groups(rewards)  # (P_local, N)
    count = np.isfinite(values).sum()
    total = np.nansum(values)
    lowest = np.fmin.reduce(values, axis=1)  # (P_local,)
    highest = np.fmax.reduce(values, axis=1)
    totals.mean("reward", total, count)
    totals.std("reward_std", total, np.nansum(values**2), count)
    for name, prompts in {
        "frac_unsolved": ~is_success(judged_groups(last)).any(axis=1),
        "frac_reward_zero_mean": (lowest == 0) & (highest == 0),
        "frac_reward_one_mean": (lowest == 1) & (highest == 1),
        "frac_reward_zero_std": lowest == highest,
    }.items():
        totals.mean(name, prompts.sum(), len(prompts))


def judged_groups(rewards: Tensor) -> np.ndarray:
    """The groups of rewards (P_local, N) that have a verdict."""
    values = rewards.double().cpu().numpy()
    return values[np.isfinite(values).any(axis=1)]


def step_totals(sampled: Sampled, verdicts: Judge) -> Totals:
    """Totals of a step's rollouts; maxrl/run/README.md defines the metrics.

    verdicts  the judge's, with their statistics
    """
    totals = Totals()
    # Only the first round is the same for all prompts; later ones have the hard prompts alone.
    count_groups(totals, sampled.first_rewards, sampled.rewards)
    rollouts = sampled.num_rollouts.sum()
    prompts = len(sampled.num_rollouts)
    totals.sum("rollouts", rollouts)
    totals.mean("rollouts/per_prompt", rollouts, prompts)
    totals.mean("rounds", sampled.num_rounds.sum(), prompts)
    totals.take(verdicts.counted())
    count_faults(totals)
    sampled.first.count(totals)
    return totals


class Logger:
    """Writes metrics.jsonl, trackers and progress on the main rank; does nothing on the others."""

    def __init__(self, run, first_step: int):
        """Begin or resume a directory.Run at `first_step`."""
        cfg = run.cfg
        folder = run.start(first_step)
        self.run = run
        self.clock = Clock(self.watch)
        self.step = first_step  # the one in progress
        self.main = run.main
        # Without a terminal it shows nothing.
        self.bar = tqdm(
            total=cfg.steps,
            initial=first_step,
            bar_format=BAR,
            leave=False,
            miniters=0,
            disable=None if run.main else True,
        )
        run.ending.callback(self.bar.close)
        self.part = ""  # that it shows
        if not self.main:
            return
        files.write_text(folder / "metrics.jsonl", run.past)
        samples.cut(folder, first_step)
        # Line buffering: a step is in the file as soon as it is logged.
        self.file = open(folder / "metrics.jsonl", "a+", buffering=1)  # noqa: SIM115
        self.trackers = [
            TRACKERS[name](folder, run.record, first_step) for name in dict.fromkeys(cfg.track)
        ]
        self.shown: dict[str, str] = {}
        self.warned: set[str] = set()
        self.barren = 0  # steps in which nothing differed, up to the last one
        self.first = first_step
        self.began = self.last_line = time.monotonic()

    def history(self) -> str:
        """metrics.jsonl so far."""
        self.file.seek(0)
        return self.file.read()

    def watch(self, where: str):
        """Show in a terminal where the step in progress is."""
        part = where.split()[0]
        said = f"step {self.step + 1}/{self.run.cfg.steps} {where}"
        # A part may be long from its first moment on; within one, ten times a second will do.
        self.bar.set_description_str(said, refresh=part != self.part)
        self.bar.update(0)
        self.part = part

    def report(self, policy, examples, sampled, verdicts, stats: dict, evaluated: dict) -> dict:
        """Record a step: its metrics, and samples if they are due. All ranks call this.

        verdicts   the judge's, with their statistics
        stats      of the update, the same on all ranks
        evaluated  of the evaluation after it, if there was one

        Returns the metrics that do not depend on the machine. UsageError after --max-skipped steps
        without a finite gradient.
        """
        self.run.count_skipped(self.step, stats)
        samples.write(self.run, self.step, examples, sampled.first, sampled.first_rewards)
        totals = step_totals(sampled, verdicts)
        peaks = distributed.peak_memory(policy.device)
        for name, peak in peaks.items():
            totals.highest(name, peak)
        metrics = totals.metrics() | stats
        memory = {name: metrics.pop(name) for name in peaks}
        self.log(self.step, metrics | self.clock.metrics(policy, stats) | memory | evaluated)
        return metrics | evaluated

    def log(self, step: int, metrics: Metrics):
        """Write the metrics of a step, and show progress."""
        self.step = step + 1
        self.bar.update()
        if not self.main:
            return
        self.warn(metrics)
        # JSON has no NaN.
        known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self.file.write(json.dumps({"step": step} | known) + "\n")
        for tracker in [*self.trackers]:
            if not self.tracked(tracker, "log", step, metrics):
                self.trackers.remove(tracker)
                self.tracked(tracker, "close")
        for name, shown in SHOWN.items():
            # The rewards of a supervised run are all 1.
            always = self.run.cfg.supervised and shown in ("reward", "unsolved")
            if name in metrics and not always:
                value = metrics[name]
                self.shown[shown] = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
        due = step in (self.first, self.run.cfg.steps - 1) or "eval/pass@1" in metrics
        if due or time.monotonic() - self.last_line > LINES:
            self.say(self.line(step + 1))

    def tracked(self, tracker, method: str, *arguments) -> bool:
        """Call a method of a tracker, and return whether it has not failed."""
        try:
            getattr(tracker, method)(*arguments)
        # A service that has gone is no reason to lose the run.
        except FAULTS as error:
            self.say(f"warning: {type(tracker).__name__} is left out: it {describe_error(error)}")
            return False
        return True

    def warn(self, metrics: Metrics):
        """Say once what spoils a run without an error."""
        # Partial credit counts if it differs; single rollouts are compared with other prompts'.
        same = metrics.get("frac_reward_zero_std") == 1
        if self.run.cfg.rollouts == (1,):
            same = metrics.get("reward_std") == 0
        self.barren = self.barren + 1 if same and metrics.get("frac_unsolved") == 1 else 0
        metrics = metrics | {"steps without a difference": self.barren}
        for name, (limit, sentence) in WARNINGS.items():
            # A call that failed has had a warning of its own.
            known = name == "rewards/groups_left_out" and metrics.get("rewards/failed_calls")
            if metrics.get(name, 0) > limit and not known and name not in self.warned:
                self.warned.add(name)
                self.say(f"warning: {sentence}")

    def line(self, done: int) -> str:
        """A step as one line, with the mean time of a step and the time left."""
        self.last_line = time.monotonic()
        each = (self.last_line - self.began) / (done - self.first)
        shown = "  ".join(f"{name} {value}" for name, value in self.shown.items())
        cfg = self.run.cfg
        left = f"{timedelta(seconds=round(each * (cfg.steps - done)))} left"
        if cfg.stop_at_pass:
            left = f"at most {left}, until pass@1 {cfg.stop_at_pass}"
        return f"step {done}/{cfg.steps}  {shown}  {each:.2g} s  {left}"

    def say(self, *lines: str):
        """Print lines for people."""
        if self.main:
            say("\n".join(lines))

    def close(self):
        """Close the files; RunError if the run has ended and none of its steps had a verdict."""
        if not self.main:
            return
        rows = [json.loads(line) for line in self.history().splitlines()]
        for tracker in self.trackers:
            self.tracked(tracker, "close")
        self.file.close()
        if rows and not self.run.stopped and all(row.get("tokens") == 0 for row in rows):
            raise RunError(
                "no rollout of this run had a verdict, so nothing was learned: mend the reward "
                "function, and start another run with --out DIR"
            )
