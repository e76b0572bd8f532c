"""The figure of SmolLM2-135M on GSM8K."""

import numpy as np

from maxrl.metrics import pass_at_k
from results.panels import SOLVED, level, line, panel
from results.reading import RESULTS, blocks
from results.tables.smollm2 import read

STUDY = RESULTS / "smollm2"
RUNS = [
    ("rounds", "seed0-maxrl_rare"),
    ("rounds", "seed1-maxrl_rare"),
    ("grpo", "seed0-grpo"),
    ("grpo", "seed1-grpo"),
    ("maxrl", "seed0-maxrl"),
    ("rloo", "seed0-rloo"),
]
KS = [1, 2, 4, 8, 16]


def coverage(name: str, file: str) -> dict:
    """pass@k by the boxed verdict, with 16 samples a problem."""
    counts = np.array([row["boxed"] for row in read(STUDY / f"{file}-0.6.jsonl")])
    return line(name, KS, [pass_at_k(16, counts, k).mean() for k in KS])


def smollm2() -> dict:
    """A real model: test problems, and the training prompts with a success."""
    tested = [coverage("base", "base")]
    trained = []
    for name, run in RUNS:
        if (STUDY / f"{run}-0.6.jsonl").exists():
            tested.append(coverage(name, run))
        if (STUDY / f"runs/{run}.jsonl").exists():
            rows = read(STUDY / f"runs/{run}.jsonl")
            solved = np.array([[1 - row["frac_reward_zero_mean"] for row in rows]])
            means = blocks(1 + np.arange(len(rows)), solved, 10)[0]
            trained.append(line(name, 5 + 10 * np.arange(len(means)), means))
    return {
        "title": "SmolLM2-135M on GSM8K: no clear gain, and seeds differ more than methods",
        "caption": "Warm-up of 30 steps, then 60 steps of 8 prompts x 16 rollouts (rounds: 4, 4 "
        "and 8), rate 1e-5, a line a seed (paper, Figure 4: 360M, 256 x 128, 1,500 steps). Left: "
        "128 test problems x 16 samples, temperature .6, top-p .95, standard errors .005 at k = 1 "
        "and .04 at 16. Right: training prompts, means of 10 steps",
        "panels": [
            *level(
                panel(
                    "ours (reduced scale): test problems",
                    "k",
                    "pass@k",
                    tested,
                    xscale="log",
                    xticks=KS,
                )
            ),
            *level(panel("ours (reduced scale): training", "step", SOLVED, trained)),
        ],
    }


FIGURES = {"smollm2": smollm2}
