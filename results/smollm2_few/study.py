"""The paper's Figure 4 with SmolLM2-135M: 40 epochs of 64 word problems.

seedSEED-MODEL.jsonl is what results/smollm2/verdicts.py wrote, a line a test problem.
"""

import numpy as np

from maxrl.plots import called
from results.lab.data import evaluations, passed, read_lines, runs
from results.lab.intervals import side_by_side, with_error
from results.lab.runs import product
from results.lab.tables import pass_columns, summary, table
from results.smollm2_words.study import HARD, SFT, TEST, WORDS

FEW = WORDS.replace("word_problems", "word_problems_64").replace("--eval-every 0", "")
STEPS, PROMPTS = 160, 16
VALIDATED = "--eval-prompts 64 --eval-samples 16 --eval-temperature 1 --eval-top-p 1 --eval-k 1,8"
RL = (
    f"train.py gsm8k_smollm2_135m {FEW} --prompts {PROMPTS} --rollouts 16 --lr 2e-5 "
    f"--eval-every 20 {VALIDATED} --seed {{seed}} --init runs/smollm2_few/seed{{seed}}/base"
)
METHODS = {
    "maxrl": "--estimator maxrl",
    "grpo": "--estimator grpo",
    "grpo-kl.04": "--estimator grpo --beta .04",
}
# No other study has them; GRPO's penalty is chosen on the first, after a quarter of the steps.
SEEDS = (4, 5)
SEARCH_STEPS = 40
BASES = product("seed{seed}/base", f"{SFT} --seed {{seed}}", seed=SEEDS)


def after_base(name: str, seeds, methods, steps: int) -> dict:
    """These methods from the base of each seed."""
    words = f"{RL} --steps {steps} {{method[1]}}"
    return product(name, words, seed=seeds, method=[(key, METHODS[key]) for key in methods])


RUNS = {
    "bases": BASES,
    "search": after_base(
        "search/seed{seed}/{method[0]}", SEEDS[:1], ["grpo", "grpo-kl.04"], SEARCH_STEPS
    ),
    "maxrl": after_base("seed{seed}/{method[0]}", SEEDS, ["maxrl"], STEPS),
}
