"""When do runs of MaxRL fail on 9x9 mazes? Ten weak bases, four arms, two rates; and one cure."""

from functools import cache

import numpy as np

from maxrl.analysis import plots
from results.lab.data import evaluations, means, runs
from results.lab.figures import curve, panel
from results.lab.intervals import interval
from results.lab.runs import from_bases
from results.lab.tables import leads, table
from results.ten_seeds.found import finished

DATA = "--task.directory data/maze/9x9-ten"
SFT = f"train.py maze9_laptop_sft {DATA} --stop-at-pass .015"
RL = f"maze9_laptop {DATA} --steps 300 --schedule constant --eval-every 50"
# The name of an arm, and its options. Prompts x rollouts are 512 but in rounds of 32 prompts.
ARMS = {
    "maxrl-16x32": "--estimator maxrl --prompts 16 --rollouts 32",
    "maxrl-32x16": "--estimator maxrl --prompts 32 --rollouts 16",
    "rounds-16": "--estimator maxrl_rare --prompts 16 --rollouts 8,8,16",
    "rounds-32": "--estimator maxrl_rare --prompts 32 --rollouts 8,8,16",
}
# At 1e-4 ten_seeds has the same first steps of two arms, by these names.
ELSEWHERE = {"maxrl-16x32": "maxrl", "rounds-32": "rounds"}
SMALL = ("maxrl-32x16", "rounds-16")
EVERY = "results/failures/every_round.py"
CURE = f"--estimator {EVERY}:centered --prompts 16 --rollouts 8,8,16"
KEPT_STEPS = 10
# What tables and figures call them.
SAID = {
    "maxrl-16x32": "Algorithm 1, 16 x 32",
    "maxrl-32x16": "Algorithm 1, 32 x 16",
    "rounds-16": "rounds of 16 prompts",
    "rounds-32": "rounds of 32 prompts",
    "every-16": "every round, 16 prompts",
}
plots.STYLE |= {
    "rate 1e-4": ("rate 1e-4", "#74a9cf", "o"),
    "rate 2e-4": ("rate 2e-4", "#023858", "s"),
}
LOSE = "lose more than .1 in 64 tries"
# Steps of a run, those at its ends that are compared, and those of a mean length of walks.
STEPS, ENDS, BLOCK = 300, 40, 20
LONGEST = 16  # tokens of a right walk
LOST = 0.1  # of pass@64: more than six of 64 mazes


def at_rates(program: str, arms: dict[str, str], rates, seeds) -> dict:
    """The bases of the seeds, and from there every arm at every rate."""
    options = {}
    for arm, words in arms.items():
        for rate in rates:
            options[f"{arm}-lr{rate}"] = f"{words} --lr {rate}"
    return from_bases("failures", SFT, f"{program} {RL}", options, seeds)


RUNS = {
    # 1: how many of the runs fail. At 1e-4 those of two arms are in ten_seeds.
    "count": at_rates("train.py", ARMS, ["2e-4"], range(10, 20)),
    "slow": at_rates("train.py", {arm: ARMS[arm] for arm in SMALL}, ["1e-4"], range(10, 20)),
    # 2: Eq. (10) in rounds, where rounds fail.
    "cure": at_rates("train.py", {"rounds-16": ARMS["rounds-16"]}, ["2e-4", "3e-4"], range(10, 14))
    | at_rates(EVERY, {"every-16": CURE}, ["2e-4", "3e-4"], range(10, 14)),
}


def until(rows: list[dict]) -> list[dict]:
    """The rows of a longer run up to step 300."""
    return [row for row in rows if row["step"] < STEPS]


def counted() -> dict[tuple[str, str], dict[int, list[dict]]]:
    """{(arm, rate): {seed: rows}} of all runs of 300 steps, those of ten_seeds among them."""
    found = {}
    for arm, name in ELSEWHERE.items():
        whole = finished("weak")[name]
        found[arm, "1e-4"] = {seed: until(rows) for seed, rows in whole.items()}
    for name, seeds in runs("failures", steps=STEPS).items():
        arm, _, rate = name.partition("-lr")
        found[arm, rate] = seeds
    return {key: found[key] for key in sorted(found, key=order)}


def order(key: tuple[str, str]) -> tuple[str, int]:
    """Rates before arms."""
    arm, rate = key
    return rate, list(SAID).index(arm)


def before(arm: str, rate: str, seed: int) -> float:
    """pass@64 of the base that a run started from."""
    elsewhere = rate == "1e-4" and arm in ELSEWHERE
    study, folder = ("ten_seeds", "weak/") if elsewhere else ("failures", "")
    return evaluations(warmed_up(study, folder)[seed], 64)[-1]


@cache
def warmed_up(study: str, folder: str) -> dict[int, list[dict]]:
    return runs(study, folder)["base"]


def ends(rows: list[dict]) -> tuple[float, float]:
    """The share of prompts with a success in the first and in the last 40 steps."""
    count = ENDS // (rows[0]["step"] + 1)
    solved = [row["solved"] for row in rows]
    return np.mean(solved[:count]), np.mean(solved[-count:])


def failed(rows: list[dict]) -> bool:
    """Whether fewer than half as many prompts have a success in the end as in the beginning."""
    first, last = ends(rows)
    return last < first / 2


def has_long_walks(rows: list[dict]) -> bool:
    """Whether walks are longer than any right one on average, in some block of 20 steps."""
    return means(rows, "completions/mean_length", BLOCK).max() > LONGEST


def solves_nothing(rows: list[dict]) -> bool:
    """Whether no validation maze is solved within 64 tries in the end."""
    return evaluations(rows, 64)[-1] == 0


def share(values) -> str:
    """How many of them are true."""
    values = list(values)
    return f"{sum(values)} of {len(values)}"


def from_base(arm: str, rate: str, seeds: dict[int, list[dict]]) -> np.ndarray:
    """pass@64 of each run less its base's, (seeds,)."""
    return np.array([evaluations(seeds[i], 64)[-1] - before(arm, rate, i) for i in seeds])


def arms(found: dict):
    """How many runs of each arm fail, and where they end."""
    lines = []
    for (arm, rate), seeds in found.items():
        every = list(seeds.values())
        first, last = np.transpose([ends(rows) for rows in every])
        gained = from_base(arm, rate, seeds)
        counts = [map(failed, every), gained < -LOST, map(solves_nothing, every)]
        cells = [interval(first, digits=2), interval(last, digits=2)]
        cells += [interval([evaluations(rows, 1)[-1] for rows in every]), interval(gained, "+")]
        lines.append([f"{rate}, {SAID[arm]}", *map(share, counts), *cells])
    heads = ("failed", LOSE, "solve nothing")
    ends_ = ("first 40 steps", "last 40 steps", "pass@1", "pass@64 minus the base's")
    table(["rate, arm: 300 steps from weak bases", *heads, *ends_], lines)


def long_walks(found: dict):
    """Do runs with walks that do not end lose more?"""
    gains: dict[tuple[str, bool], list[float]] = {}
    for (arm, rate), seeds in found.items():
        for gain, rows in zip(from_base(arm, rate, seeds), seeds.values()):
            if arm in ARMS:
                gains.setdefault((rate, has_long_walks(rows)), []).append(gain)
    lines = []
    for (rate, long), some in sorted(gains.items()):
        lost = share(gain < -LOST for gain in some)
        lines.append([rate, "some" if long else "none", len(some), lost, f"{np.mean(some):+.3f}"])
    heads = ("runs", LOSE, "pass@64 minus the base's")
    table(["rate", f"blocks with walks above {LONGEST} tokens", *heads], lines)


def rollouts(rows: list[dict]) -> float:
    """Rollouts of a step, the mean of a run."""
    return np.mean([row["rollouts"] for row in rows])


def minus(ours: dict[int, list[dict]], theirs: dict[int, list[dict]]) -> list[np.ndarray]:
    """Differences of pass@1 and pass@64 in the end, on the seeds that both have."""
    both = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    gaps = []
    for k in (1, 64):
        gaps.append(np.array([evaluations(a, k)[-1] - evaluations(b, k)[-1] for a, b in both]))
    return gaps


def compared(found: dict):
    """What the rate, the arm and a gradient in every round change, paired by seed."""
    by_rate, by_arm, cures, forms = {}, {}, {}, {}
    for (arm, rate), seeds in found.items():
        if arm == "every-16":
            cures[f"rate {rate}"] = minus(seeds, found["rounds-16", rate])
        elif rate == "2e-4" and (arm, "1e-4") in found:
            by_rate[SAID[arm]] = minus(seeds, found[arm, "1e-4"])
        if arm == "rounds-16" and ("maxrl-16x32", rate) in found:
            other = found["maxrl-16x32", rate]
            both = [seed for seed in seeds if seed in other]
            used = [[rollouts(some[seed]) for seed in both] for some in (seeds, other)]
            forms[f"{rate}, {np.sum(used[0]) / np.sum(used[1]):.2f} of the rollouts"] = minus(
                seeds, other
            )
        if arm in ARMS and arm != "rounds-32" and ("rounds-32", rate) in found:
            by_arm[f"{rate}, {SAID[arm]}"] = minus(found["rounds-32", rate], seeds)
    columns = ["pass@1", "pass@64"]
    leads("2e-4 minus 1e-4", columns, by_rate)
    leads("rounds of 32 prompts minus", columns, by_arm)
    leads("rounds of 16 prompts minus Algorithm 1, 16 x 32", columns, forms)
    leads("every round minus rounds, 16 prompts", columns, cures)


def tables():
    found = counted()
    arms(found)
    long_walks(found)
    compared(found)


def losing() -> dict:
    """How many of the runs of each arm and rate lose more than .1 of pass@64."""
    found = counted()
    lines = []
    for place, rate in enumerate(("1e-4", "2e-4")):
        lost = [(from_base(arm, rate, found[arm, rate]) < -LOST).sum() for arm in ARMS]
        x = np.arange(len(ARMS)) + 0.1 * place
        lines.append(curve(f"rate {rate}", x, lost, points=True))
    said = [SAID[arm] for arm in ARMS]
    axes = {"xticks": [*range(len(ARMS))], "xticklabels": said, "ylim": (-0.3, 10)}
    title = "ours: 9x9 mazes, .3M parameters (reduced scale)"
    return {
        "title": "At twice the rate more runs of MaxRL lose what their base solves",
        "caption": "Runs of ten that solve .1 less within 64 tries than their base after 300 steps "
        "from weak bases at a constant rate; 64 validation mazes",
        "columns": 1,
        "panels": [panel(title, "", "runs of ten that lose", lines, **axes)],
    }


FIGURES = {"losing": losing}
