"""Progress for people, metrics.jsonl for programs; TensorBoard and Weights & Biases where --track asks for them."""

import json
import math
import os
import sys
import time
import warnings
from pathlib import Path

from tqdm import tqdm

from maxrl.io import files
from maxrl.metrics import group_means, group_sums
from maxrl.parallel import distributed
from maxrl.run import samples
from maxrl.run.trackers import TRACKERS

SHOWN = {  # metric: what people read
    "reward": "reward",
    "frac_reward_zero_mean": "unsolved",
    "loss": "loss",
    "tokens_per_second": "tok/s",
    "images_per_second": "img/s",
    "eval/pass@1": "pass@1",
}
LINES = 10  # seconds between two lines where nobody watches a bar
PATIENCE = 10  # steps without any success before a warning


class Clock:
    """The seconds that each part of a step takes."""

    def __init__(self):
        self.last = time.perf_counter()
        self.seconds = {}

    def lap(self, part: str):
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.last
        self.last = now

    def metrics(self, policy, stats: dict[str, float]) -> dict[str, float]:
        """Seconds, the policy's tokens or images per second, which `stats` counts, and the most memory of a rank."""
        total = sum(self.seconds.values())
        parts = {f"seconds/{part}": seconds for part, seconds in self.seconds.items()}
        rate = {f"{policy.unit}_per_second": stats[policy.unit] / total}
        return {"seconds": total} | rate | parts | distributed.peak_memory(policy.device)


def step_metrics(sampled, judge) -> dict[str, float]:
    """Metrics of all ranks' rollouts, groups without advantages included; maxrl/run/README.md defines them."""

    def sums(rewards):
        return group_sums(rewards[rewards.isfinite().any(1)])

    # The first round is the same for all prompts: what comes after it are the hard ones.
    last = sums(sampled.rewards)
    found = distributed.all_reduce(
        sums(sampled.first_rewards)
        | {
            "sampled": float(sampled.counts.sum()),
            "rounds": float(sampled.rounds.sum()),
            "prompts": len(sampled.counts),
            "unsolved": last["frac_reward_zero_mean"],
            "judged": last["groups"],
        }
    )
    rollouts, rounds, prompts, unsolved, judged = (
        found.pop(name) for name in ("sampled", "rounds", "prompts", "unsolved", "judged")
    )
    metrics = group_means(found)
    metrics["frac_reward_zero_mean"] = unsolved / (judged or math.nan)
    metrics |= {
        "rollouts": rollouts,
        "rollouts/per_prompt": rollouts / prompts,
        "rounds": rounds / prompts,
    }
    said = judge.over_ranks() | judge.faults() if judge else {}
    return metrics | said | sampled.first.statistics()


class Logger:
    """Writes on the main rank only; the others hold one that does nothing."""

    def __init__(self, run, first_step: int):
        """run: a directory.Run, which starts or resumes at this step; its metrics.jsonl becomes what it was at the checkpoint
        that it resumes from."""
        cfg = run.cfg
        folder = run.start(first_step)
        self.run = run
        self.step = first_step  # the one under way
        self.main = run.main
        if not self.main:
            return
        self.path = folder / "metrics.jsonl"
        self.limit = cfg.max_response
        self.now = {}
        self.said = set()
        self.barren = 0  # steps in a row without any success
        # Of a supervised run rewards say nothing.
        self.shown = {
            key: name
            for key, name in SHOWN.items()
            if not (cfg.estimator == "supervised" and "reward" in key)
        }
        files.write_text(self.path, "".join(past(self.path, run.resumed)))
        samples.cut(folder, first_step)
        self.open()
        self.trackers = [
            TRACKERS[tracker](folder, run.record, first_step)
            for tracker in dict.fromkeys(cfg.track)
        ]
        self.steps = cfg.steps
        self.first = self.last_line_step = first_step
        self.began = self.last_line = time.monotonic()
        # Without a terminal there is no bar: `line` takes its place.
        self.bar = tqdm(
            total=cfg.steps,
            initial=first_step,
            desc=f"{run.recipe} {cfg.estimator}",
            dynamic_ncols=True,
            mininterval=0.5,
            disable=None,
        )

    def open(self):
        self.file = self.path.open(
            "a+", buffering=1, encoding="utf-8"
        )  # a line is on disk when the step is over

    def history(self) -> str:
        """metrics.jsonl so far, which has reached the disk; one that somebody has taken away is there again."""
        if not self.main:
            return ""
        os.fsync(self.file.fileno())
        self.file.seek(0)
        text = self.file.read()
        if not (
            self.path.exists() and os.path.samestat(os.fstat(self.file.fileno()), self.path.stat())
        ):
            warnings.warn(f"{self.path} has been taken away: it is written anew", stacklevel=2)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(self.path, text)
            self.file.close()
            self.open()
        return text

    def show(self, examples, sampled):
        """What the model writes in the step under way: a line of samples.jsonl, if it is due. All ranks must call this."""
        samples.write(self.run, self.step, examples, sampled.first, sampled.first_rewards)

    def log(self, step: int, metrics: dict[str, float]):
        self.step = step + 1
        if not self.main:
            return
        self.warn_of(metrics)
        known = {
            name: value if math.isfinite(value) else None for name, value in metrics.items()
        }  # JSON has no NaN
        self.file.write(json.dumps({"step": step, **known}) + "\n")
        for tracker in self.trackers:
            tracker.log(step, metrics)
        self.now |= {
            name: f"{metrics[key]:.3g}" if metrics[key] < 1000 else f"{metrics[key]:,.0f}"
            for key, name in self.shown.items()
            if key in metrics
        }
        self.bar.set_postfix(self.now, refresh=False)
        self.bar.update(1)
        if self.bar.disable and (
            step in (self.first, self.steps - 1)
            or any(key.startswith("eval/") for key in metrics)
            or time.monotonic() - self.last_line > LINES
        ):
            self.say(self.line(step + 1))

    def warn_of(self, metrics: dict[str, float]):
        """Say what spoils a run without an error."""
        if metrics.get("sampling/logprob_abs_diff/mean", 0) > 0.02:
            warnings.warn(
                "sampler and training forward differ by more than .02 in log-probability: the rollouts are not "
                "quite the policy's own",
                stacklevel=2,
            )
        if metrics.get("completions/clipped_ratio", 0) > 0.5:
            self.say(
                f"warning: most responses are cut at --max-response {self.limit}, before the model has ended them: "
                "raise it",
                once=True,
            )
        if metrics.get("rewards/groups_left_out", 0) > 0:
            self.say(
                "warning: groups are left out because no reward function has a verdict on one of their rollouts "
                "(rewards/groups_left_out): --no-verdict rollout leaves out the rollout alone",
                once=True,
            )
        self.barren = self.barren + 1 if metrics.get("frac_reward_zero_mean") == 1 else 0
        if self.barren == PATIENCE and self.run.cfg.estimator != "supervised":
            # KL, an entropy bonus and maxrl_centered have a gradient all the same.
            zero = metrics.get("grad_norm") == 0
            gradient = "is exactly 0" if zero else "comes from something else"
            self.say(
                f"warning: {PATIENCE} steps without a success: all rewards are 0, and the "
                f"gradient {gradient}. Look at responses and verdicts (--show-every 1, "
                "samples.jsonl), warm up on demonstrations (--estimator supervised), or take "
                "easier prompts or more --rollouts",
                once=True,
            )

    def line(self, done: int) -> str:
        """A step as one line of a log file: where the run is, how long a step takes since the last line, what is left."""
        now = time.monotonic()
        each = (now - self.last_line) / (done - self.last_line_step)
        self.last_line = now
        self.last_line_step = done
        parts = [
            f"step {done}/{self.steps}",
            *(f"{name} {value}" for name, value in self.now.items()),
            f"{each:.2g} s",
        ]
        if done < self.steps:
            mean = (now - self.began) / (done - self.first)
            parts.append(f"{duration(mean * (self.steps - done))} left")
        return "  ".join(parts)

    def say(self, *lines: str, once: bool = False):
        """To people, on lines of their own."""
        if self.main and not (once and lines in self.said):
            self.said.add(lines)
            tqdm.write("\n".join(lines), file=sys.stderr)

    def close(self):
        if self.main:
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
    found = dict(rows)
    copy = dict(readable(resumed / path.name)) if resumed else {}
    kept = found | copy
    for what, steps in {
        "lacked step {}, put back from the checkpoint": sorted(copy.keys() - found),
        "had another line for step {}, put right from the checkpoint": [
            step for step, line in sorted(found.items()) if copy.get(step, line) != line
        ],
        "lacks step {}, which no copy has": sorted(set(range(done)).difference(kept)),
    }.items():
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
