"""The price of a hard prompt, from runs/ (results/keep.py) and test-SEED.json, test200.json,
test1000.json (eval.py)."""

from pathlib import Path

import numpy as np

from maxrl.run import table
from results.reading import RESULTS, evaluated, runs
from results.tables.cells import ahead, head, line, over_seeds

STUDY = RESULTS / "price"
STEPS, KEPT, BLOCK = 1000, 5, 100
ARMS = {  # as people read them
    "maxrl-16x32": "MaxRL 16 x 32",
    "maxrl_rare-16x32": "rare side 16 x 32",
    "maxrl_rare-16x8,8,16": "in rounds 16 x (8, 8, 16)",
    "maxrl-32x16": "MaxRL 32 x 16",
    "maxrl_rare-32x16": "rare side 32 x 16",
    "maxrl_rare-32x8,8,16": "in rounds 32 x (8, 8, 16)",
    "grpo-16x32": "GRPO 16 x 32",
    "grpo-32x16": "GRPO 32 x 16",
    "rloo-16x32": "RLOO 16 x 32",
}
PAIRS = [  # what is compared with what
    ("maxrl_rare-16x32", "maxrl-16x32"),
    ("maxrl_rare-16x8,8,16", "maxrl-16x32"),
    ("maxrl_rare-32x16", "maxrl-32x16"),
    ("maxrl_rare-32x8,8,16", "maxrl-32x16"),
    ("maxrl_rare-32x8,8,16", "maxrl-16x32"),
    ("maxrl_rare-32x8,8,16", "grpo-32x16"),
    ("maxrl-16x32", "grpo-16x32"),
    ("maxrl-32x16", "grpo-32x16"),
    ("maxrl-16x32", "rloo-16x32"),
]
TIMED = (4, 5)  # the seeds whose runs had a core for themselves
KS = [1, 8, 64, 512]


def read(study: Path = STUDY) -> dict[str, dict[int, list[dict]]]:
    """{arm: {seed: rows}} of the complete runs, the seeds in their order."""
    found = runs(study / "runs", r"seed(?P<seed>\d+)-(?P<method>\w+-\d+x[\d,]+)", STEPS)
    return {arm: dict(sorted(found[arm].items())) for arm in ARMS if arm in found}


def tests(ks: list[int], study: Path = STUDY) -> dict[str, dict[int, np.ndarray]]:
    """{arm: {seed: pass@k on the test mazes, (ks,)}} of test-SEED.json, and "base"."""
    found = {}
    for file in sorted(study.glob("test-*.json")):
        for name, values in table.coverage(evaluated(file), ks).items():
            found.setdefault(name, {})[int(file.stem.removeprefix("test-"))] = values.mean((0, 1))
    return {name: found[name] for name in ("base", *ARMS) if name in found}


def paired(ours: dict, theirs: dict) -> np.ndarray:
    """Ours minus theirs, (seeds, ...), of the seeds that both have."""
    return np.array([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


def curve(rows: list[dict], what: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps, rollouts or seconds after each block of steps, and the mean reward of the block."""
    reward = np.array([row["reward"] for row in rows]).reshape(-1, BLOCK // KEPT).mean(1)
    ends = np.arange(BLOCK, STEPS + 1, BLOCK)
    if what != "steps":
        each = np.array([row[what] for row in rows])
        if what == "seconds":  # of a block's median step: the machine had other work in some
            each = np.median(each.reshape(-1, BLOCK // KEPT), axis=1).repeat(BLOCK // KEPT)
        ends = KEPT * each.cumsum()[BLOCK // KEPT - 1 :: BLOCK // KEPT]
    return ends, reward


def at(rows: list[dict], what: str, budget: float) -> float:
    """The mean reward when so many rollouts or seconds are used, between two blocks by a straight
    line."""
    return float(np.interp(budget, *curve(rows, what)))


def cost(found: dict):
    """What a step costs by method, and where a run stands after all its steps."""
    timed = ", ".join(map(str, TIMED))
    head(
        "arm",
        "seeds",
        "rollouts a step: first, last 100",
        f"seconds a step, median of seeds {timed}",
        "minutes in all",
        "pass@1 of the last 100 steps",
        "with a success",
    )
    for arm, seeds in found.items():
        rollouts = np.array([[row["rollouts"] for row in rows] for rows in seeds.values()]).mean(0)
        last = [rows[-BLOCK // KEPT :] for rows in seeds.values()]
        timed = [rows for seed, rows in seeds.items() if seed in TIMED]
        seconds = np.median([[row["seconds"] for row in rows] for rows in timed])
        minutes = np.mean([curve(rows, "seconds")[0][-1] for rows in timed]) / 60
        solved = np.mean([[1 - row["frac_reward_zero_mean"] for row in rows] for rows in last])
        line(
            ARMS[arm],
            len(seeds),
            f"{rollouts[: BLOCK // KEPT].mean():.0f}, {rollouts[-BLOCK // KEPT :].mean():.0f}",
            f"{seconds:.2f}",
            f"{minutes:.1f}",
            over_seeds([np.mean([row["reward"] for row in rows]) for rows in last]),
            f"{solved:.3f}",
        )


def by_seed(found: dict):
    """pass@1 / share with a success, and tokens of a response, of the last 100 steps of every
    run."""
    head(
        "last 100 steps: pass@1 / with a success, tokens",
        *(f"seed {seed}" for seed in found["maxrl-16x32"]),
    )
    for arm, seeds in found.items():
        cells = []
        for seed in found["maxrl-16x32"]:
            rows = seeds.get(seed, [])[-BLOCK // KEPT :]
            keys = ("reward", "frac_reward_zero_mean", "completions/mean_length")
            means = [np.mean([row[key] for row in rows]) for key in keys if rows]
            cells.append(
                f"{means[0]:.3f} / {1 - means[1]:.2f}, {means[2]:.0f}" if rows else "not run"
            )
        line(ARMS[arm], *cells)


def budgets(found: dict) -> dict[str, float]:
    """What all arms have used at least: rollouts of all seeds, seconds of the timed ones."""

    def least(what, seeds):
        return min(
            curve(rows, what)[0][-1]
            for arm in found.values()
            for seed, rows in arm.items()
            if seed in seeds
        )

    everyone = set(found["maxrl-16x32"])
    return {"rollouts": least("rollouts", everyone), "seconds": least("seconds", TIMED)}


def equal(found: dict):
    """pass@1 of training after equal steps, rollouts and seconds: as much as every arm has used."""
    limits = budgets(found)
    head(
        "pass@1 of training",
        f"after {STEPS} steps",
        f"after {limits['rollouts'] / 1000:.0f},000 rollouts",
        f"after {limits['seconds']:.0f} s (seeds {', '.join(map(str, TIMED))})",
    )
    for arm, seeds in found.items():
        timed = [
            at(rows, "seconds", limits["seconds"]) for seed, rows in seeds.items() if seed in TIMED
        ]
        line(
            ARMS[arm],
            over_seeds([curve(rows, "steps")[1][-1] for rows in seeds.values()]),
            over_seeds([at(rows, "rollouts", limits["rollouts"]) for rows in seeds.values()]),
            " / ".join(f"{value:.3f}" for value in timed),
        )


def tested(found: dict):
    """pass@k on the test mazes, and differences paired by seed."""
    head("test", "seeds", *(f"pass@{k}" for k in KS))
    for name, seeds in found.items():
        said = ", ".join(map(str, seeds))
        line(
            ARMS.get(name, "before RL"),
            said,
            *(over_seeds(column) for column in np.array(list(seeds.values())).T),
        )
    head("test, paired by seed", *(cell for k in KS for cell in (f"pass@{k}", "ahead on")))
    for ours, theirs in PAIRS:
        gaps = paired(found.get(ours, {}), found.get(theirs, {}))
        if len(gaps):
            cells = [cell for column in gaps.T for cell in (over_seeds(column, "+"), ahead(column))]
            line(f"{ARMS[ours]} minus {ARMS[theirs]}", *cells)


def images(file: Path, k: int):
    """Exact pass@1 and pass@k of drawn images, every arm with the same seeds."""
    results = evaluated(file)
    if results is None:
        return
    curves = {name: values.mean(1) for name, values in table.coverage(results, [1, k]).items()}
    head(
        f"{file.stem.removeprefix('test')} classes, {len(curves['maxrl-1024'])} seeds",
        "pass@1",
        f"pass@{k}",
        "pass@1 minus MaxRL's",
        "ahead on",
    )
    for name, values in curves.items():
        gaps = values[:, 0] - curves["maxrl-1024"][:, 0]
        line(
            name,
            over_seeds(values[:, 0]),
            over_seeds(values[:, 1]),
            over_seeds(gaps, "+"),
            ahead(gaps),
        )


def main(study: Path = STUDY):
    found = read(study)
    if found:
        cost(found)
        by_seed(found)
        equal(found)
    if evaluations := tests(KS, study):
        tested(evaluations)
    images(study / "test200.json", 25)
    images(study / "test1000.json", 128)
