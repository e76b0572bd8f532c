"""The figures of language models: generated word problems, SmolLM2-135M on GSM8K."""

import numpy as np

from maxrl.metrics import pass_at_k
from maxrl.plots import over_steps
from maxrl.run import table
from results.panels import SOLVED, level, line, over_seeds, panel, seeds_said
from results.reading import RESULTS, blocks, evaluated, paired, runs, solved
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


def word_problems() -> dict:
    """MaxRL and GRPO on generated word problems: over training, and the test."""
    pattern = r"seed(?P<seed>\d)-(?P<method>maxrl|grpo)"
    found = paired(runs(RESULTS / "word_problems/runs", pattern, 160), ("maxrl", "grpo"))
    panels = []
    for key, label in (("reward", "pass@1, training problems"), ("solved", SOLVED)):
        lines = []
        for name, seeds in found.items():
            means = blocks(*over_steps([solved(rows) for rows in seeds], key), 20)
            lines.append(over_seeds(name, 10 + 20 * np.arange(means.shape[1]), means))
        panels += level(panel("ours (reduced scale): training", "step", label, lines))
    results = evaluated(RESULTS / "word_problems/test.json")
    ks = table.powers(results)
    lines = []
    for name, values in table.coverage(results, ks).items():
        lines.append(over_seeds(name, ks, values.mean(1)))
    panels += level(panel("ours (reduced scale): test", "k", "pass@k", lines, xscale="log"))
    return {
        "title": "Word problems: GRPO is ahead at one try, MaxRL within eight tries on every seed",
        "caption": "Generated problems of one and two steps, a transformer of .66M parameters: "
        "160 steps at 3e-4, means of 20 steps; 256 test problems x 64 samples. "
        f"{seeds_said(len(found['maxrl'])).capitalize()}",
        "columns": 3,
        "panels": panels,
    }


FIGURES = {"smollm2": smollm2, "word_problems": word_problems}
