"""The paper's Figure 4 with SmolLM2-135M: 30 epochs of 32 word problems.

seedSEED-MODEL.jsonl is what results/smollm2/verdicts.py wrote, a line a test problem; of a method
after fewer steps than its last MODEL-STEPS.
"""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import evaluations, paper, passed, read_lines, runs, tested
from results.lab.figures import guess_level, pair, seed_curves, seeds_said
from results.lab.intervals import side_by_side, with_error
from results.lab.runs import evaluation, product, seed_models
from results.lab.tables import label_of, pass_columns, summary, table
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
KS = (1, 8, 16)
SAMPLES = 32
KEPT_STEPS = 1
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
TEST = f"--directory word_problems_32 --prompts 96 --samples {SAMPLES} --max-response 64"
# What validation had before RL.
HOW = (
    "--task.directory word_problems_32 --split validation --prompts 64 --samples 16 "
    "--temperature 1 --top-p 1"
)
TESTS = {
    "bases.json": evaluation(HOW, seed_models("smollm2_few", ["base"]), seed=SEEDS),
}


def add_model(seed: int, model: str, where: str) -> None:
    words = f"results/smollm2/verdicts.py runs/smollm2_few/seed{seed}/{where} {TEST}"
    TESTS[f"seed{seed}-{model}.jsonl"] = words.split()


for seed in SEEDS:
    add_model(seed, "base", "base")
    for method in METHODS:
        add_model(seed, method, method)
for (seed, method), steps in BEST.items():
    add_model(seed, f"{method}-{steps}", f"{method}/step-{steps:06}")


def lines_of(seed: int, model: str) -> list[dict]:
    """A line of each test problem."""
    return read_lines(f"smollm2_few/seed{seed}-{model}.jsonl")


def best(seed: int, method: str) -> str:
    """The model of a method at its best."""
    steps = BEST.get((seed, method))
    return f"{method}-{steps}" if steps else method


def right(seed: int, model: str) -> np.ndarray:
    """pass@k and the verdict on the majority, (ks + 1, problems)."""
    lines = lines_of(seed, model)
    votes = [line["majority"] for line in lines]
    return np.concatenate([passed(lines, SAMPLES, KS), [votes]])


def training(key: str) -> dict[str, np.ndarray]:
    """{method: means over ten epochs, (seeds, 3)} of a metric of the training problems."""
    found = runs("smollm2_few")
    blocks = {}
    for method in METHODS:
        values = [[row[key] for row in rows] for rows in found[method].values()]
        blocks[method] = np.reshape(values, (len(values), -1, EVERY)).mean(2)
    return blocks


def few_validation(k: int) -> dict[str, np.ndarray]:
    """{method: pass@k (seeds, evaluations)}, the first that of the bases."""
    found = runs("smollm2_few")
    bases = coverage(tested("smollm2_few/bases.json"), [k])["base"].mean(1)  # (seeds, 1)
    return {
        method: np.concatenate(
            [bases, [evaluations(rows, k) for rows in found[method].values()]], 1
        )
        for method in METHODS
    }


def epochs() -> np.ndarray:
    return np.arange(0, STEPS + 1, EVERY) / EPOCH


def tables():
    levels, gaps, pooled = {}, {}, {}
    for seed in SEEDS:
        for model in ("base", *METHODS, *(best(seed, method) for method in METHODS)):
            name = label_of(model.partition("-")[0])
            steps = model.partition("-")[2] or (STEPS if model != "base" else "")
            after = f", {int(steps) // EPOCH} epochs" if steps else ""
            levels[f"seed {seed}, {name}{after}"] = right(seed, model)
        for title, models in {
            "after 30 epochs": METHODS,
            "each at its best": [best(seed, method) for method in METHODS],
        }.items():
            own, other = (right(seed, model) for model in models)
            gaps[f"seed {seed}, MaxRL minus GRPO, {title}"] = own - other
            pooled.setdefault(f"both seeds, MaxRL minus GRPO, {title}", []).append(own - other)
        for method in METHODS:
            gap = right(seed, method) - right(seed, "base")
            gaps[f"seed {seed}, {label_of(method)} minus before RL"] = gap
    columns = [*pass_columns(KS), f"majority of {SAMPLES}"]
    summary("test, standard error over problems", columns, levels, cell=with_error)
    # The problems are the same for both seeds.
    gaps |= {name: np.mean(some, 0) for name, some in pooled.items()}
    summary("test, paired over problems", columns, gaps, "+", with_error)
    for k in (1, 8):
        rows = []
        for method, values in few_validation(k).items():
            rows.append([label_of(method), *map(side_by_side, values.T)])
        heads = [f"epoch {epoch:.0f}" for epoch in epochs()]
        table([f"pass@{k}, validation, seed by seed", *heads], rows)
    rows = []
    for key, name in {"reward": "mean reward", "frac_unsolved": "no rollout is right"}.items():
        for method, values in training(key).items():
            rows.append([f"{label_of(method)}, {name}", *map(side_by_side, values.T)])
    spans = ["epochs 1 to 10", "11 to 20", "21 to 30"]
    table(["the 32 training problems, seed by seed", *spans], rows)
    boxes = []
    for seed in SEEDS:
        for model in ("base", *METHODS):
            lines = lines_of(seed, model)
            box = sum(line["with_box"] for line in lines) / SAMPLES / len(lines)
            published = with_error(passed(lines, SAMPLES, [1], "published")[0])
            boxes.append([f"seed {seed}, {label_of(model)}", f"{box:.3f}", published])
    table(["test", "with a box", "published verdict, pass@1"], boxes)


def few_epochs() -> dict:
    """Validation over epochs of few problems, the paper's and ours."""
    panels = []
    for theirs_k, k in (("pass@1", 1), ("pass@128", 8)):
        lines = [seed_curves(name, epochs(), each) for name, each in few_validation(k).items()]
        curves = {name: xy for name, xy in paper(4)[theirs_k].items() if name != "rloo"}
        left = ("paper: GSM8K, SmolLM2-360M", theirs_k, curves)
        ours = ("ours: 32 word problems, SmolLM2-135M (reduced scale)", f"pass@{k}", lines)
        panels += pair(left, ours, "epochs")
        panels[-1]["levels"] = guess_level("word problems up to 100", k)
    return {
        "title": "Over 30 epochs of 32 problems little tells MaxRL and GRPO apart",
        "caption": "Figure 4, held-out problems. Ours: after ten supervised steps 60 of 16 prompts "
        f"x 16 rollouts, 64 validation problems x 16 samples. Solid: ours, "
        f"{seeds_said(len(SEEDS))}; dashed: the paper's, on 7,473 problems",
        "panels": panels,
    }


FIGURES = {"few_epochs": few_epochs}
