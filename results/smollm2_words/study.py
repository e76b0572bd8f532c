"""SmolLM2-135M on generated word problems: a real language model that learns in 40 steps."""

from results.lab.runs import product

WORDS = "--task.directory word_problems --max-response 64 --eval-every 0 --seed {seed}"
BASE = "seed{seed}/base"
SFT = f"train.py gsm8k_smollm2_135m_sft {WORDS} --steps 10"
RL = (
    f"train.py gsm8k_smollm2_135m {WORDS} --prompts 16 --steps 40 --lr 2e-5 "
    f"--init runs/smollm2_words/{BASE} --estimator {{arm[1]}} --rollouts {{arm[2]}}"
)
ARMS = (
    ("rounds", "maxrl_rare", "4,4,8"),
    ("maxrl", "maxrl", "16"),
    ("grpo", "grpo", "16"),
    ("rloo", "rloo", "16"),
)
RUNS = {}
for seed in (0, 1, 2):
    runs = product("seed{seed}/{arm[0]}", RL, seed=[seed], arm=ARMS)
    RUNS[f"seed{seed}"] = product(BASE, SFT, seed=[seed]) | runs
