"""What is kept of the ten seeds: arms and pairs, finished runs, and pass@k of the tests."""

from functools import cache

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import RESULTS, means, paired, runs, tested

# Bases by where their warm-up stops: pass@1 on 64 validation mazes.
BASES = {"weak": ".015", "strong": ".08"}
# The name of an arm, and its options.
ARMS = {
    "maxrl": "--estimator maxrl --prompts 16 --rollouts 32",
    "rare": "--estimator maxrl_rare --prompts 16 --rollouts 32",
    "rounds": "--estimator maxrl_rare --prompts 32 --rollouts 8,8,16",
    "grpo": "--estimator grpo --prompts 16 --rollouts 32",
    "rloo": "--estimator rloo --prompts 16 --rollouts 32",
}
RATES = ("3e-5", "1e-4", "3e-4")
# The best of RATES on seed 100: of two arms from the stage `rates`, of the others from an earlier
# study (results/mazes in 5bb7515).
OWN = {
    "weak": dict.fromkeys(ARMS, "1e-4"),
    "strong": dict.fromkeys(ARMS, "3e-4") | {"grpo": "1e-4", "rloo": "3e-5"},
}
# What is compared with what.
PAIRS = [
    ("maxrl", "grpo"),
    ("maxrl", "rloo"),
    ("rare", "maxrl"),
    ("rounds", "maxrl"),
    ("rare", "grpo"),
    ("rounds", "grpo"),
]
STEPS, BLOCK = 1000, 100
KS = (1, 8, 64)
# In 64 tries a model that gives one answer a maze solves hardly more than at the first one.
ONE_ANSWER = 0.01
# None of them is a seed of another study.
SEEDS = range(10, 20)
EQUAL = ("rollouts", "seconds")
# Twenty steps from each of these steps of seed 10 were timed on a quiet machine.
TIMED = (0, 300, 600, 900)


@cache
def finished(base: str) -> dict[str, dict[int, list[dict]]]:
    """{arm: {seed: rows}} of the seeds with all of their arms."""
    if not (RESULTS / "ten_seeds/runs.json").exists():
        return {arm: {} for arm in OWN[base]}
    return paired(runs("ten_seeds", f"{base}/", "-lr.*", STEPS), OWN[base])


@cache
def step_seconds(base: str) -> dict[str, list[float]]:
    """{arm: the seconds of a step} at each of TIMED."""
    found = runs("ten_seeds", f"{base}/seconds/")
    return {
        arm: [found[f"{arm}-from{step}"][10][0]["seconds"] for step in TIMED] for arm in OWN[base]
    }


def spent(base: str, arm: str, rows: list[dict], what: str) -> np.ndarray:
    """Steps, rollouts or seconds after each block of steps of a run."""
    ends = np.arange(BLOCK, STEPS + 1, BLOCK)
    if what == "rollouts":
        return BLOCK * means(rows, what, BLOCK).cumsum()
    if what == "seconds":
        return BLOCK * np.interp(ends - BLOCK / 2, TIMED, step_seconds(base)[arm]).cumsum()
    return ends


def same(base: str, pair: tuple[str, str], seed: int, what: str) -> list[tuple[str, int]]:
    """(arm, step) of the checkpoints of a pair that are equal in steps, rollouts or seconds.

    They are the last one of the arm that has used less, and of the other one the last of which this
    is still so.
    """
    found = finished(base)
    used = [spent(base, arm, found[arm][seed], what) for arm in pair]
    most = min(each[-1] for each in used)
    return [(arm, BLOCK * int((each <= most).sum())) for arm, each in zip(pair, used)]


@cache
def test_rates(base: str, seed: int, kind: str, ks: tuple) -> dict[str, np.ndarray]:
    """{row: pass@k (ks,)} of a test file, nothing if it is not there."""
    name = f"ten_seeds/{base}{seed}-{kind}.json"
    if not (RESULTS / name).exists():
        return {}
    return {row: found[0].mean(0) for row, found in coverage(tested(name), ks).items()}


def seeds_of(base: str) -> list[int]:
    """The seeds that are finished and tested."""
    return [seed for seed in finished(base)["maxrl"] if test_rates(base, seed, "test", (1,))]


def at(base: str, seed: int, arm: str, step: int, ks: tuple) -> np.ndarray:
    """pass@k (ks,) of an arm at a checkpoint."""
    if step == STEPS:
        return test_rates(base, seed, "test", ks)[arm]
    return test_rates(base, seed, "equal", ks)[f"{arm}@{step}"]
