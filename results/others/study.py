"""Other methods of the paper's Table 3 on 9x9 mazes from strong bases, beside MaxRL and GRPO."""

from results.lab.runs import evaluation, product
from results.muon.study import OPTIMIZERS, RL, SEEDS

# PKPO's k and the smoothing's gamma (.05, as it is without an option) are the paper's.
OTHERS = {
    "pkpo": "--estimator pkpo --estimator.k 16 --prompts 16 --rollouts 32",
    "smoothing": "--estimator differential_smoothing --prompts 16 --rollouts 32",
    "grpo-entropy.003": "--estimator grpo --entropy-bonus .003 --prompts 16 --rollouts 32",
    "grpo-entropy.01": "--estimator grpo --entropy-bonus .01 --prompts 16 --rollouts 32",
}
# The best rates of MaxRL and of GRPO with a penalty there.
RATES = ("muon-3e-4-x4", "muon-3e-4-x8")
KEPT_STEPS = 20


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
# By pass@1 + pass@8 at the end of the search.
BEST = {"pkpo": RATES[0], "smoothing": RATES[0], "grpo-entropy.003": RATES[0]}
RUNS["comparison"] = {}
MODELS = {}
for name, rate in BEST.items():
    RUNS["comparison"] |= others(SEEDS[1:], [name], [rate])
    MODELS[name] = f"others/seed{{seed}}/{name}-{rate}"
TESTS = {"test.json": evaluation("--prompts 256 --samples 64", MODELS, seed=SEEDS)}
