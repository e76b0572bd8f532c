"""The paper's Figure 3: more rollouts a prompt, for MaxRL and for GRPO with a KL penalty."""

from results.lab.runs import evaluation, product
from results.maze13.study import BEST, METHODS, RL, SEEDS

# The first seeds of the 13x13 mazes, whose models with 32 rollouts are those of that study.
SEEDS = SEEDS[:3]
ROLLOUTS = (4, 16, 64, 128)
KNOWN = 32
SCALED = ("maxrl", "grpo-kl.04")
KEPT_STEPS = 20
RUNS = {}
MODELS = {}
# A stage a number of rollouts; the rate is the best one of 32.
for count in ROLLOUTS:
    RUNS[f"{count}"] = {}
    for name in SCALED:
        words = METHODS[name].replace(f"--rollouts {KNOWN}", f"--rollouts {count}")
        arm = f"{name}-{count}"
        RUNS[f"{count}"] |= product(
            f"seed{{seed}}/{arm}", RL, seed=SEEDS, rate=[BEST[name]], method=[(arm, words)]
        )
        MODELS[arm] = f"rollouts/seed{{seed}}/{arm}"
TESTS = {"test.json": evaluation("--prompts 256 --samples 64", MODELS, seed=SEEDS)}
