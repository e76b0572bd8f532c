"""GRPO and MaxRL from weak bases of 9x9 mazes, each with the best settings of one search."""

import numpy as np

from results.lab.data import RESULTS, evaluations, means, read_json, runs
from results.lab.intervals import side_by_side
from results.lab.runs import product
from results.lab.tables import label_of, table

DATA = "--task.directory data/maze/9x9-ten"
# Neither is a seed of another study.
SEARCHED = (101, 102)
METHODS = ("grpo", "maxrl")
RATES = ("1e-5", "3e-5", "1e-4", "3e-4")
# What is added to a method's loss at 1e-4: a KL penalty to the base, an entropy bonus, or both.
ADDED = {
    "kl.01": "--beta .01",
    "kl.04": "--beta .04",
    "kl.1": "--beta .1",
    "entropy.003": "--entropy-bonus .003",
    "entropy.01": "--entropy-bonus .01",
    "kl.04-entropy.003": "--beta .04 --entropy-bonus .003",
    "kl.04-entropy.01": "--beta .04 --entropy-bonus .01",
}
RL = (
    f"train.py maze9_laptop {DATA} --estimator {{method}} --prompts 16 --rollouts 32 "
    "--steps 500 --eval-every 250 --eval-prompts 256 --eval-samples 32 --eval-k 1,8 "
    "--init runs/opponent/seed{seed}/base --seed {seed} --lr {rate} {added[1]}"
)


# The best additions by pass@1 and by pass@8 at 1e-4.
BEST = {
    "grpo": ("kl.04-entropy.003", "kl.04-entropy.01"),
    "maxrl": ("entropy.01", "kl.04-entropy.01"),
}


def searched(rates, added: dict, methods=METHODS) -> dict:
    """These methods on both seeds, at these rates and with these additions."""
    name = "seed{seed}/{method}-{added[0]}-lr{rate}"
    values = {"seed": SEARCHED, "method": methods, "rate": rates, "added": added.items()}
    return product(name, RL, **values)


WARM_UP = f"train.py maze9_laptop_sft {DATA} --stop-at-pass .015 --seed {{seed}}"
BASES = product("seed{seed}/base", WARM_UP, seed=SEARCHED)
RUNS = {
    "rates": BASES | searched(RATES, {"plain": ""}),
    "additions": BASES | searched(["1e-4"], ADDED),
    "chosen": dict(BASES),
}
for method, names in BEST.items():
    added = {name: ADDED[name] for name in names}
    RUNS["chosen"] |= searched(["3e-5", "3e-4"], added, [method])
KEPT_STEPS = 20
KS = (1, 8)


def made_on(arm: str, seeds) -> str:
    """The processor of each seed's run."""
    kept = read_json("opponent/runs.json")["runs"]
    names = [kept[f"seed{seed}/{arm}"]["machine"] for seed in seeds]
    return " / ".join("EPYC" if "EPYC" in name else "Xeon" for name in names)


def tables():
    """Every arm of the search, seed by seed, on 256 validation mazes after 500 steps; of arms that
    were made on two processors both.
    """
    if not (RESULTS / "opponent/runs.json").exists():
        return
    found = runs("opponent", steps=500)
    lines = []
    for arm in sorted(found):
        seeds = found[arm].values()
        cells = []
        for k in KS:
            ends = [evaluations(rows, k)[-1] for rows in seeds]
            cells += [side_by_side(ends), f"{np.mean(ends):.3f}"]
        for key in ("solved", "entropy"):
            ends = [means(rows, key, 2 * KEPT_STEPS)[-1] for rows in seeds]
            cells.append(" / ".join(f"{end:.2f}" for end in ends))
        cells.append(made_on(arm, found[arm]))
        lines.append([called_arm(arm), ", ".join(map(str, found[arm])), *cells])
    heads = ("seeds", "pass@1", "mean", "pass@8", "mean", "prompts with a success", "entropy", "on")
    table(["500 steps from weak bases, last 40 steps", *heads], lines)
    lines = []
    for arm, seeds in runs("opponent", before="earlier/", steps=500).items():
        row = [called_arm(arm)]
        for k in KS:
            for rows in (found[arm].values(), seeds.values()):
                row.append(side_by_side([evaluations(run, k)[-1] for run in rows]))
        lines.append(row)
    heads = [f"pass@{k} on {name}" for k in KS for name in ("an EPYC", "a Xeon")]
    table(["the same arms on two processors, seeds 101 and 102", *heads], lines)


def called_arm(arm: str) -> str:
    method, _, rest = arm.partition("-")
    return f"{label_of(method)}, {rest.replace('-lr', ', rate ')}"
