"""Other methods of the paper's Table 3 on 9x9 mazes from strong bases, beside MaxRL and GRPO."""

from maxrl.analysis.table import coverage
from results.lab.data import runs, tested
from results.lab.runs import evaluation, product
from results.lab.tables import label_of, leads, pass_columns, summary, table
from results.muon.study import KS, MEASURED, OPTIMIZERS, RL, SEEDS, arm_rows

# PKPO's k and the smoothing's gamma (.05, as it is without an option) are the paper's.
OTHERS = {
    "pkpo": "--estimator pkpo --estimator.k 16 --prompts 16 --rollouts 32",
    "smoothing": "--estimator differential_smoothing --prompts 16 --rollouts 32",
    "grpo-entropy.003": "--estimator grpo --entropy-bonus .003 --prompts 16 --rollouts 32",
    "grpo-entropy.01": "--estimator grpo --entropy-bonus .01 --prompts 16 --rollouts 32",
}
# The best rates of MaxRL and of GRPO with a penalty there.
RATES = ("muon-3e-4-x4", "muon-3e-4-x8")
# Of the study of Muon, whose runs and tests these stand beside.
KNOWN = {
    "base": "base",
    "maxrl": "maxrl-muon-3e-4-x4",
    "rounds": "rounds-muon-3e-4-x4",
    "grpo-kl.04": "grpo-muon-3e-4-x8",
}
KEPT_STEPS = 20
TESTED = (*KS, 16)  # PKPO trains for pass@16


def others(seeds, methods, rates) -> dict:
    """These methods at these rates from the strong base of each seed."""
    return product(
        "seed{seed}/{method[0]}-{optimizer[0]}",
        RL,
        base=[("strong",)],
        seed=seeds,
        method=[(name, OTHERS[name]) for name in methods],
        optimizer=[(name, OPTIMIZERS[name]) for name in rates],
    )


RUNS = {"search": others(SEEDS[:1], OTHERS, RATES)}
# Left out when the smaller bonus had lost everything at this rate.
del RUNS["search"][f"seed{SEEDS[0]}/grpo-entropy.01-{RATES[1]}"]
# By pass@1 + pass@8 at the end of the search.
BEST = {"pkpo": RATES[0], "smoothing": RATES[0], "grpo-entropy.003": RATES[0]}
RUNS["comparison"] = {}
MODELS = {}
for name, rate in BEST.items():
    RUNS["comparison"] |= others(SEEDS[1:], [name], [rate])
    MODELS[name] = f"others/seed{{seed}}/{name}-{rate}"
TESTS = {"test.json": evaluation("--prompts 256 --samples 64", MODELS, seed=SEEDS)}


def tables():
    """The search; then each method and those of the study of Muon, tested once on three seeds."""
    found = {arm: {SEEDS[0]: of[SEEDS[0]]} for arm, of in runs("others", steps=350).items()}
    heads = [*pass_columns(KS), *MEASURED.values()]
    table([f"search, seed {SEEDS[0]}, validation", *heads], arm_rows(found, sorted(found)))
    known = coverage(tested("muon/mazes-test.json"), TESTED)
    every = {name: known[row] for name, row in KNOWN.items()}
    every |= coverage(tested("others/test.json"), TESTED)
    passed = {name: values.mean(1).T for name, values in every.items()}
    summary("test, 95 % over seeds", pass_columns(TESTED), passed)
    gaps = {}
    for other in [*BEST, "grpo-kl.04"]:
        gaps[f"MaxRL minus {label_of(other)}"] = passed["maxrl"] - passed[other]
    for name in BEST:
        gaps[f"{label_of(name)} minus GRPO, kl.04"] = passed[name] - passed["grpo-kl.04"]
    leads("test, paired by seed", pass_columns(TESTED), gaps)
