"""SmolLM2-135M on generated word problems: a real language model that learns in 40 steps.

seedSEED-MODEL.jsonl is what results/smollm2/verdicts.py wrote, a line a problem.
"""

from collections import Counter

import numpy as np

from maxrl.plots import called
from results.lab.data import RESULTS, passed, read_lines, runs
from results.lab.figures import block_curves, level, panel, seed_curves
from results.lab.intervals import with_error
from results.lab.runs import from_bases, product
from results.lab.tables import pass_columns, summary, table

WORDS = "--task.directory word_problems --max-response 64 --eval-every 0"
SFT = f"train.py gsm8k_smollm2_135m_sft {WORDS} --steps 10"
RL = f"train.py gsm8k_smollm2_135m {WORDS} --prompts 16 --steps 40 --lr 2e-5"
ARMS = {
    "rounds": "--estimator maxrl_rare --rollouts 4,4,8",
    "maxrl": "--estimator maxrl --rollouts 16",
    "grpo": "--estimator grpo --rollouts 16",
    "rloo": "--estimator rloo --rollouts 16",
}
MODELS = ("base", *ARMS)
TEST = "--prompts 96 --samples 64 --max-response 64"
KS = (1, 8, 16, 64)
KEPT_STEPS = 1
RUNS = {}
TESTS = {}


def test(file: str, model: str, data: str = "word_problems") -> None:
    words = f"results/smollm2/verdicts.py runs/smollm2_words/{model} --directory {data} {TEST}"
    TESTS[f"{file}.jsonl"] = words.split()


for seed in (0, 1, 2):
    # The checkpoints between are for the test at equal seconds.
    rl = RL if seed < 2 else f"{RL} --save-every 2"
    RUNS[f"seed{seed}"] = from_bases("smollm2_words", SFT, rl, ARMS, [seed])
    for model in MODELS:
        test(f"seed{seed}-{model}", f"seed{seed}/{model}")

# Results up to 100 in place of 20, from the bases of the first set.
HARD = "word_problems_100"
for seed in (2, 3):
    base = product("seed{seed}/base", f"{SFT} --seed {{seed}}", seed=[seed])
    words = f"{RL.replace('word_problems', HARD)} --save-every 2 --seed {{seed}}"
    words = f"{words} --init runs/smollm2_words/seed{{seed}}/base {{arm[1]}}"
    arms = product("hard/seed{seed}/{arm[0]}", words, seed=[seed], arm=ARMS.items())
    RUNS[f"hard{seed}"] = base | arms
    test(f"hard{seed}-base", f"seed{seed}/base", HARD)
    for arm in ARMS:
        test(f"hard{seed}-{arm}", f"hard/seed{seed}/{arm}", HARD)


def samples_by_model() -> dict[tuple[int, str], list[dict]]:
    """{(seed, model): a line of each test problem} of what has been tested."""
    found = {}
    for name in TESTS:
        if (RESULTS / "smollm2_words" / name).exists():
            seed, model = name.removeprefix("seed").removesuffix(".jsonl").split("-")
            found[int(seed), model] = read_lines(f"smollm2_words/{name}")
    return found


def tables():
    found = samples_by_model()
    levels = []
    form = []
    gaps = {}
    for (seed, model), lines in found.items():
        title = f"seed {seed}, {called(model)}"
        right = passed(lines, 64, KS)
        levels.append([title, *map(with_error, [*right, [line["majority"] for line in lines]])])
        published = with_error(passed(lines, 64, [1], "published")[0])
        boxes = np.sum([line["with_box"] for line in lines]) / 64
        tokens = np.mean([line["tokens"] for line in lines])
        form.append([title, published, f"{boxes / len(lines):.3f}", f"{tokens:.0f}"])
        for other in ("base", "grpo"):
            if model not in ("base", other) and (seed, other) in found:
                gap = right - passed(found[seed, other], 64, KS)
                gaps[f"{title} minus {called(other)}"] = gap
    head = "model, standard error over problems"
    table([head, *pass_columns(KS), "majority of 64"], levels)
    table([head, "published verdict, pass@1", "with a box", "tokens"], form)
    summary("paired over problems", pass_columns(KS), gaps, "+", with_error)


def learning() -> dict:
    """Rewards in training, and the test."""
    trained = runs("smollm2_words")
    lines = block_curves({name: trained[name] for name in ARMS if name in trained}, "reward", 5)
    panels = level(panel("ours (reduced scale): training", "step", "pass@1", lines))
    found = samples_by_model()
    lines = []
    for name in MODELS:
        tested = [rows for (_, model), rows in found.items() if model == name]
        if tested:
            curves = [passed(rows, 64, KS).mean(1) for rows in tested]
            lines.append(seed_curves(name, KS, curves))
    axes = {"xscale": "log", "xticks": KS}
    panels += level(panel("ours (reduced scale): test", "k", "pass@k", lines, **axes))
    counts = Counter(model for _, model in found)
    seeds = ", ".join(f"{called(model)} {counts[model]}" for model in MODELS if counts[model])
    return {
        "title": "SmolLM2-135M learns word problems in 40 steps",
        "caption": "Ten supervised steps (base), then 40 of 16 prompts x 16 rollouts (rounds: 4, 4 "
        "and 8) at 2e-5; rewards are means of 5 steps, of rounds those of the first. Test: 96 "
        f"problems x 64 samples at temperature 1. Seeds (thin, and their mean): {seeds}",
        "panels": panels,
    }


FIGURES = {"learning": learning}
