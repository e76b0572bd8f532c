"""The paper's Figure 4 with SmolLM2-135M: 30 epochs of 32 word problems.

seedSEED-MODEL.jsonl is what results/smollm2/verdicts.py wrote, a line a test problem.
"""

from results.lab.runs import product
from results.smollm2_words.study import SFT, WORDS

FEW = WORDS.replace("word_problems", "word_problems_32").replace("--eval-every 0", "")
STEPS, EVERY = 60, 20
EPOCH = 2  # steps of 16 prompts, in which each of 32 problems is seen once
VALIDATED = "--eval-prompts 64 --eval-samples 16 --eval-temperature 1 --eval-top-p 1 --eval-k 1,8"
RL = (
    f"train.py gsm8k_smollm2_135m {FEW} --prompts 16 --rollouts 16 --lr 2e-5 --steps {STEPS} "
    f"--eval-every {EVERY} {VALIDATED} --save-every {EVERY} --keep 0 --seed {{seed}} "
    "--init runs/smollm2_few/seed{seed}/base --estimator {method}"
)
METHODS = ("maxrl", "grpo")
SEEDS = (4, 5)  # no other study has them
# Every checkpoint is kept, so that none is written between those of --save-every: 1.6 GB each.
TRAINED = product("seed{seed}/{method}", RL, seed=SEEDS, method=METHODS)
RUNS = {
    "bases": product("seed{seed}/base", f"{SFT} --seed {{seed}}", seed=SEEDS),
    "comparison": {
        name: words[: words.index("--save-every-minutes")] + ["--save-every-minutes", "0"]
        for name, words in TRAINED.items()
    },
}

# The checkpoint with the largest pass@1 + pass@8 on validation, where it is not the last.
BEST = {(4, "grpo"): 40, (5, "grpo"): 20}
TEST = "--directory word_problems_32 --prompts 96 --samples 32 --max-response 64"
TESTS = {}


def add_test(seed: int, model: str, where: str) -> None:
    words = f"results/smollm2/verdicts.py runs/smollm2_few/seed{seed}/{where} {TEST}"
    TESTS[f"seed{seed}-{model}.jsonl"] = words.split()


for seed in SEEDS:
    add_test(seed, "base", "base")
    for method in METHODS:
        add_test(seed, method, method)
for (seed, method), steps in BEST.items():
    add_test(seed, f"{method}-{steps}", f"{method}/step-{steps:06}")
