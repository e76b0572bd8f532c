"""SmolLM2-135M on generated word problems: a real language model that learns in 40 steps.

seedSEED-MODEL.jsonl is what results/smollm2/verdicts.py wrote, a line a problem.
"""

import json

import numpy as np

from maxrl.metrics import pass_at_k
from maxrl.plots import called
from results.lab.data import RESULTS, runs
from results.lab.figures import block_curves, level, panel, seed_curves, seeds_said
from results.lab.intervals import with_error
from results.lab.runs import product
from results.lab.tables import pass_columns, summary, table

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
MODELS = ("base", *(arm[0] for arm in ARMS))
TEST = "--directory word_problems --prompts 96 --samples 64 --max-response 64"
KS = (1, 8, 16, 64)
KEPT_STEPS = 1
RUNS = {}
TESTS = {}
for seed in (0, 1, 2):
    arms = product("seed{seed}/{arm[0]}", RL, seed=[seed], arm=ARMS)
    RUNS[f"seed{seed}"] = product(BASE, SFT, seed=[seed]) | arms
    for model in MODELS:
        words = f"results/smollm2/verdicts.py runs/smollm2_words/seed{seed}/{model} {TEST}"
        TESTS[f"seed{seed}-{model}.jsonl"] = words.split()


def counted_by_model() -> dict[tuple[int, str], dict[str, np.ndarray]]:
    """{(seed, model): {key: a value of each test problem}} of what has been tested."""
    found = {}
    for name in TESTS:
        file = RESULTS / "smollm2_words" / name
        if file.exists():
            lines = [json.loads(row) for row in file.read_text().splitlines()]
            seed, model = file.stem.removeprefix("seed").split("-")
            keys = ("boxed", "published", "with_box", "tokens", "majority")
            found[int(seed), model] = {key: np.array([row[key] for row in lines]) for key in keys}
    return found


def right_within(counts: dict) -> np.ndarray:
    """pass@k (ks, problems) by the boxed verdict."""
    return np.array([pass_at_k(64, counts["boxed"], k) for k in KS])


def tables():
    found = counted_by_model()
    levels = []
    form = []
    gaps = {}
    for (seed, model), counts in found.items():
        title = f"seed {seed}, {called(model)}"
        shares = [*right_within(counts), counts["majority"]]
        levels.append([title, *map(with_error, shares)])
        # Of the responses that write a box, how many have the right number there?
        right = counts["boxed"].sum() / counts["with_box"].sum()
        boxed = counts["with_box"].mean() / 64
        published = with_error(counts["published"] / 64)
        form.append(
            [title, published, f"{boxed:.3f}", f"{right:.3f}", f"{counts['tokens'].mean():.0f}"]
        )
        for other in ("base", "grpo"):
            if model not in ("base", other) and (seed, other) in found:
                gap = right_within(counts) - right_within(found[seed, other])
                gaps[f"{title} minus {called(other)}"] = gap
    head = "model, standard error over problems"
    table([head, *pass_columns(KS), "majority of 64"], levels)
    table([head, "published verdict, pass@1", "with a box", "right, of these", "tokens"], form)
    summary("paired over problems", pass_columns(KS), gaps, "+", with_error)


def learning() -> dict:
    """Rewards in training, and the test."""
    trained = runs("smollm2_words")
    lines = block_curves(
        {name: trained[name] for name in MODELS[1:] if name in trained}, "reward", 5
    )
    panels = level(panel("ours (reduced scale): training", "step", "pass@1", lines))
    found = counted_by_model()
    lines = []
    for name in MODELS:
        seeds = [
            right_within(counts).mean(1) for (_, model), counts in found.items() if model == name
        ]
        if seeds:
            lines.append(seed_curves(name, KS, seeds))
    axes = {"xscale": "log", "xticks": KS}
    panels += level(panel("ours (reduced scale): test", "k", "pass@k", lines, **axes))
    count = len({seed for seed, _ in found})
    return {
        "title": "SmolLM2-135M learns word problems in 40 steps",
        "caption": "Ten supervised steps (base), then 40 of 16 prompts x 16 rollouts (rounds: 4, 4 "
        "and 8) at 2e-5; rewards are means of 5 steps, of rounds those of the first. Test: 96 problems x 64 samples "
        f"at temperature 1. {seeds_said(count).capitalize()}",
        "panels": panels,
    }


FIGURES = {}
if (RESULTS / "smollm2_words" / "runs.json").exists():
    FIGURES["learning"] = learning
