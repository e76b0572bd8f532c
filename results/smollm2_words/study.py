"""SmolLM2-135M on generated word problems: a real language model that learns in 40 steps."""

SEEDS = (0, 1, 2)
WORDS = ["--task.directory", "word_problems", "--max-response", "64", "--eval-every", "0"]
WARM_UP = ["train.py", "gsm8k_smollm2_135m_sft", *WORDS, "--steps", "10"]
RL = ["train.py", "gsm8k_smollm2_135m", *WORDS, "--prompts", "16", "--steps", "40", "--lr", "2e-5"]
ARMS = {
    "rounds": ["--estimator", "maxrl_rare", "--rollouts", "4,4,8"],
    "maxrl": ["--estimator", "maxrl", "--rollouts", "16"],
    "grpo": ["--estimator", "grpo", "--rollouts", "16"],
    "rloo": ["--estimator", "rloo", "--rollouts", "16"],
}


def seed_of(seed: int) -> dict:
    """Return {name: words} of one seed's base and of the runs from it."""
    chosen = ["--seed", str(seed)]
    base = f"seed{seed}/base"
    runs = {base: [*WARM_UP, *chosen]}
    for arm, options in ARMS.items():
        started = ["--init", f"runs/smollm2_words/{base}"]
        runs[f"seed{seed}/{arm}"] = [*RL, *options, *chosen, *started]
    return runs


RUNS = {f"seed{seed}": seed_of(seed) for seed in SEEDS}
