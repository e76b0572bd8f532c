"""Progress for people, metrics.jsonl for programs, and the trackers that --track names."""

import json
import math
import os
import sys
import time

from tqdm import tqdm

from maxrl.io import files
from maxrl.metrics import group_means, group_sums
from maxrl.parallel import distributed
from maxrl.run import samples
from maxrl.run.trackers import TRACKERS

# The metrics of the progress bar, and their names there.
SHOWN = {
    "reward": "reward",
    "frac_reward_zero_mean": "unsolved",
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
        "are not quite the policy's own",
    ),
    "completions/clipped_ratio": (
        0.5,
        "most responses are cut: raise --max-response, max_completion_length in a script",
    ),
    "rewards/groups_left_out": (
        0,
        "groups are left out because no reward function has a verdict on one of their rollouts: "
        "--no-verdict rollout leaves out that rollout alone",
    ),
}
BARREN = 10  # steps without any success before a warning
LINES = 10  # seconds between two lines where there is no terminal for a progress bar


class Clock:
    """The seconds that each part of a step takes."""

    def __init__(self):
        self.last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str):
        """Add the time since the last call to a part of the step."""
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.last
        self.last = now

    def metrics(self, policy, stats: dict[str, float]) -> dict[str, float]:
        """Seconds, tokens or images per second (stats has their number), and peak memory."""
        total = sum(self.seconds.values())
        parts = {f"seconds/{part}": seconds for part, seconds in self.seconds.items()}
        rate = {f"{policy.unit}_per_second": stats[policy.unit] / total}
        return {"seconds": total} | rate | parts | distributed.peak_memory(policy.device)


def step_metrics(sampled, judge) -> dict[str, float]:
    """Metrics of the rollouts of all ranks; maxrl/run/README.md defines them."""

    def sums(rewards):
        return group_sums(rewards[rewards.isfinite().any(1)])

    # Only the first round is the same for all prompts; later ones have the hard prompts alone.
    first = sums(sampled.first_rewards)
    last = sums(sampled.rewards)
    counts = distributed.all_reduce(
        {
            "rollouts": float(sampled.counts.sum()),
            "rounds": float(sampled.rounds.sum()),
            "prompts": len(sampled.counts),
            "unsolved": last["frac_reward_zero_mean"],
            "judged": last["groups"],
        }
    )
    metrics = group_means(distributed.all_reduce(first))
    metrics["frac_reward_zero_mean"] = counts["unsolved"] / (counts["judged"] or math.nan)
    metrics["rollouts"] = counts["rollouts"]
    metrics["rollouts/per_prompt"] = counts["rollouts"] / counts["prompts"]
    metrics["rounds"] = counts["rounds"] / counts["prompts"]
    if judge:
        metrics |= judge.over_ranks() | judge.faults()
    return metrics | sampled.first.statistics()


class Logger:
    """Writes metrics.jsonl, trackers and progress on the main rank; does nothing on the others."""

    def __init__(self, run, first_step: int):
        """Begin or resume a directory.Run at `first_step`."""
        cfg = run.cfg
        folder = run.start(first_step)
        self.run = run
        self.step = first_step  # the one in progress
        self.main = run.main
        if not self.main:
            return
        past = (run.resumed / "metrics.jsonl").read_text() if run.resumed else ""
        files.write_text(folder / "metrics.jsonl", past)
        samples.cut(folder, first_step)
        # Line buffering: a step is in the file as soon as it is logged.
        self.file = open(folder / "metrics.jsonl", "a+", buffering=1)  # noqa: SIM115
        self.trackers = [
            TRACKERS[name](folder, run.record, first_step) for name in dict.fromkeys(cfg.track)
        ]
        self.shown: dict[str, str] = {}
        self.said: set[str] = set()
        self.barren = 0  # consecutive steps without any success
        self.first = first_step
        self.began = self.last_line = time.monotonic()
        # Without a terminal there is no bar, and line() takes its place.
        self.bar = tqdm(
            total=cfg.steps,
            initial=first_step,
            desc=f"{run.recipe} {cfg.estimator}",
            dynamic_ncols=True,
            mininterval=0.5,
            disable=None,
        )

    def history(self) -> str:
        """metrics.jsonl so far, flushed to the disk before the checkpoint that copies it."""
        os.fsync(self.file.fileno())
        self.file.seek(0)
        return self.file.read()

    def show(self, examples, sampled):
        """Write the step's line of samples.jsonl if it is due. All ranks must call this."""
        samples.write(self.run, self.step, examples, sampled.first, sampled.first_rewards)

    def log(self, step: int, metrics: dict[str, float]):
        """Write the metrics of a step, and show progress."""
        self.step = step + 1
        if not self.main:
            return
        self.warn(metrics)
        # JSON has no NaN.
        known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self.file.write(json.dumps({"step": step} | known) + "\n")
        for tracker in self.trackers:
            tracker.log(step, metrics)
        for name, shown in SHOWN.items():
            # The rewards of a supervised run are all 1.
            if name in metrics and not (self.supervised and "reward" in name):
                value = metrics[name]
                self.shown[shown] = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
        self.bar.set_postfix(self.shown, refresh=False)
        self.bar.update(1)
        due = step in (self.first, self.run.cfg.steps - 1) or "eval/pass@1" in metrics
        if self.bar.disable and (due or time.monotonic() - self.last_line > LINES):
            self.say(self.line(step + 1))

    @property
    def supervised(self) -> bool:
        return self.run.cfg.estimator == "supervised"

    def warn(self, metrics: dict[str, float]):
        """Say what spoils a run without an error."""
        for name, (limit, sentence) in WARNINGS.items():
            if metrics.get(name, 0) > limit:
                self.say(f"warning: {sentence}", once=True)
        self.barren = self.barren + 1 if metrics.get("frac_reward_zero_mean") == 1 else 0
        if self.barren == BARREN and not self.supervised:
            # A KL penalty, an entropy bonus and maxrl_centered have a gradient all the same.
            zero = metrics.get("grad_norm") == 0
            self.say(
                f"warning: {BARREN} steps without a success: all rewards are 0, and the gradient "
                f"{'is exactly 0' if zero else 'comes from something else'}; look at responses "
                "with --show-every 1",
                once=True,
            )

    def line(self, done: int) -> str:
        """A step as one line of a log file, with the mean time of a step and the time left."""
        self.last_line = time.monotonic()
        each = (self.last_line - self.began) / (done - self.first)
        shown = "  ".join(f"{name} {value}" for name, value in self.shown.items())
        left = tqdm.format_interval(each * (self.run.cfg.steps - done))
        return f"step {done}/{self.run.cfg.steps}  {shown}  {each:.2g} s  {left} left"

    def say(self, *lines: str, once: bool = False):
        """Print lines for people, above the progress bar; with `once`, no second time."""
        text = "\n".join(lines)
        if self.main and not (once and text in self.said):
            self.said.add(text)
            tqdm.write(text, file=sys.stderr)

    def close(self):
        if self.main:
            self.bar.close()
            for tracker in self.trackers:
                tracker.close()
            self.file.close()
