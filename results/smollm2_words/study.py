"""SmolLM2-135M on generated word problems: a real language model that learns in 40 steps.

seedSEED-MODEL.jsonl, of the harder set hardSEED-MODEL.jsonl, is what results/smollm2/verdicts.py
wrote, a line a problem; MODEL-STEPS is a shorter run.
"""

import numpy as np

from maxrl.analysis import plots
from results.lab.data import RESULTS, passed, read_lines, runs
from results.lab.figures import curve, guess_level, level, panel
from results.lab.intervals import side_by_side, with_error
from results.lab.runs import from_bases, product
from results.lab.tables import label_of, leads, pass_columns, summary, table

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
SHOWN = (1, 8)
SETS = {"seed": "first set", "hard": "harder set"}
GUESSED = {"seed": "word problems", "hard": "word problems up to 100"}
RUNS = {}
TESTS = {}


def add_test(file: str, model: str, data: str = "word_problems") -> None:
    words = f"results/smollm2/verdicts.py runs/smollm2_words/{model} --directory {data} {TEST}"
    TESTS[f"{file}.jsonl"] = words.split()


for seed in (0, 1, 2):
    # For the test at equal seconds, but the recipe keeps the last checkpoint alone: see EQUAL.
    rl = RL if seed < 2 else f"{RL} --save-every 2"
    RUNS[f"seed{seed}"] = from_bases("smollm2_words", SFT, rl, ARMS, [seed])
    for model in MODELS:
        add_test(f"seed{seed}-{model}", f"seed{seed}/{model}")

# Results up to 100 in place of 20, from the bases of the first set.
HARD = "word_problems_100"
for seed in (2, 3):
    base = product("seed{seed}/base", f"{SFT} --seed {{seed}}", seed=[seed])
    words = f"{RL.replace('word_problems', HARD)} --save-every 2 --seed {{seed}}"
    words = f"{words} --init runs/smollm2_words/seed{{seed}}/base {{arm[1]}}"
    arms = product("hard/seed{seed}/{arm[0]}", words, seed=[seed], arm=ARMS.items())
    RUNS[f"hard{seed}"] = base | arms
    add_test(f"hard{seed}-base", f"seed{seed}/base", HARD)
    for arm in ARMS:
        add_test(f"hard{seed}-{arm}", f"hard/seed{seed}/{arm}", HARD)

# The last even step within the seconds of the 40 of rounds; of rounds (LONGER) within those of the
# 40 of GRPO, by the mean of their first 40. At a constant rate these 40 are the same.
EQUAL = {"seed2/grpo": 12, "seed2/maxrl": 12, "seed2/rloo": 14}
EQUAL |= {"hard/seed2/grpo": 22, "hard/seed3/grpo": 18}
LONGER = {"seed2/rounds": 102, "hard/seed2/rounds": 70, "hard/seed3/rounds": 78}
RUNS |= {"equal": {}, "longer": {}}
every = {name: words for some in RUNS.values() for name, words in some.items()}
for name, steps in (EQUAL | LONGER).items():
    words = " ".join(every[name]).replace("--steps 40", f"--steps {steps}")
    stage = "longer" if name in LONGER else "equal"
    RUNS[stage][f"{name}-{steps}"] = words.split()
    file = f"{name}-{steps}".replace("hard/seed", "hard").replace("/", "-")
    add_test(file, f"{name}-{steps}", HARD if name.startswith("hard") else "word_problems")

# What is compared: a model minus another.
PAIRS = [("rounds", "grpo"), ("maxrl", "grpo"), ("rloo", "grpo"), ("maxrl", "rounds")]
PAIRS += [(arm, "base") for arm in ARMS]
PAIRS += [("rounds", f"{name.rpartition('/')[2]}-{steps}") for name, steps in EQUAL.items()]
PAIRS += [(f"rounds-{steps}", other) for steps in LONGER.values() for other in ("grpo", "rounds")]
PAIRS += [("maxrl-12", "grpo-12"), ("grpo-12", "base"), ("rloo-14", "base")]


def trained(where: str) -> dict[str, dict]:
    """{arm: {seed: rows}} of the runs that were kept, of one of SETS."""
    found = runs("smollm2_words", "" if where == "seed" else f"{where}/")
    return {name: found[name] for name in sorted(found) if name.partition("-")[0] in ARMS}


def samples_by_model(where: str) -> dict[tuple[int, str], list[dict]]:
    """{(seed, model): a line of each test problem} of what has been tested in SETS[where]."""
    found = {}
    for name in TESTS:
        tested, model = name.removesuffix(".jsonl").split("-", 1)
        if tested.rstrip("0123456789") == where and (RESULTS / "smollm2_words" / name).exists():
            lines = read_lines(f"smollm2_words/{name}")
            found[int(tested.removeprefix(where)), model] = lines
    return found


def named(model: str) -> str:
    return f"{label_of(model)} steps" if "-" in model else label_of(model)


def side_by_side_rows(found: dict, title: str) -> list[list]:
    """A row a model, its seeds side by side."""
    rows = []
    for model in dict.fromkeys(model for _, model in found):
        tested = {seed: lines for (seed, name), lines in found.items() if name == model}
        values = [passed(lines, 64, KS).mean(1) for lines in tested.values()]
        seeds = ", ".join(map(str, tested))
        rows.append([f"{title}, {named(model)}", seeds, *map(side_by_side, np.transpose(values))])
    return rows


def over_problems(found: dict, title: str):
    """A row a model, with errors over problems."""
    levels = []
    form = []
    gaps = {}
    for (seed, model), lines in found.items():
        name = f"{title}, seed {seed}, {named(model)}"
        right = passed(lines, 64, KS)
        levels.append([name, *map(with_error, [*right, [line["majority"] for line in lines]])])
        published = with_error(passed(lines, 64, [1], "published")[0])
        boxes = np.sum([line["with_box"] for line in lines]) / 64
        tokens = np.mean([line["tokens"] for line in lines])
        form.append([name, published, f"{boxes / len(lines):.3f}", f"{tokens:.0f}"])
        for other in [other for one, other in PAIRS if one == model and (seed, other) in found]:
            gaps[f"{name} minus {named(other)}"] = right - passed(found[seed, other], 64, KS)
    head = "model, standard error over problems"
    table([head, *pass_columns(KS), "majority of 64"], levels)
    table([head, "published verdict, pass@1", "with a box", "tokens"], form)
    summary("paired over problems", pass_columns(KS), gaps, "+", with_error)


def over_seeds(found: dict, title: str):
    """What two models differ by on the seeds that have both, where these are three or more."""
    gaps = {}
    for model, other in PAIRS:
        seeds = [seed for seed, name in found if name == model and (seed, other) in found]
        if len(seeds) > 2:
            gap = [
                passed(found[seed, model], 64, KS) - passed(found[seed, other], 64, KS)
                for seed in seeds
            ]
            gaps[f"{label_of(model)} minus {label_of(other)}"] = np.mean(gap, 2).T
    if gaps:
        leads(f"{title}, 95 % over seeds", pass_columns(KS), gaps)


def over_runs():
    """Algorithm 1 minus GRPO on the runs of both sets that have both."""
    gaps = []
    for where in SETS:
        found = samples_by_model(where)
        for seed, name in found:
            if name == "maxrl" and (seed, "grpo") in found:
                own, other = (passed(found[seed, arm], 64, KS) for arm in ("maxrl", "grpo"))
                gaps.append((own - other).mean(1))
    title = "both sets, after 40 steps, 95 % over runs"
    leads(title, pass_columns(KS), {"MaxRL minus GRPO": np.transpose(gaps)})


def costs(kept: dict, title: str):
    """What each run took."""
    rows = []
    for name, seeds in kept.items():
        for seed, metrics in seeds.items():
            sums = [f"{sum(row[key] for row in metrics):,.0f}" for key in ("rollouts", "seconds")]
            rows.append([f"{title}, seed {seed}, {named(name)}", *sums])
    table(["steps of RL", "rollouts", "seconds"], rows)


def tables():
    rows = []
    for where, title in SETS.items():
        rows += side_by_side_rows(samples_by_model(where), title)
    table(["model", "seeds", *pass_columns(KS)], rows)
    for where, title in SETS.items():
        found = samples_by_model(where)
        over_problems(found, title)
        over_seeds(found, title)
        costs(trained(where), title)
    over_runs()


def seed_by_seed() -> dict:
    """pass@1 and pass@8 of every tested model, seed by seed, of both sets."""
    panels = []
    for where, title in SETS.items():
        found = samples_by_model(where)
        seeds = sorted({seed for seed, _ in found})
        for k in SHOWN:
            lines = []
            for place, name in enumerate(MODELS):
                known = [seed for seed in seeds if (seed, name) in found]
                # Side by side, so that no point lies on another.
                x = [seeds.index(seed) + 0.12 * (place - 2) for seed in known]
                y = [passed(found[seed, name], 64, [k]).mean() for seed in known]
                if known:
                    lines.append(curve(name, x, y, points=plots.look(name).marker or "_"))
            ticks = {"xticks": [*range(len(seeds))], "xticklabels": [f"seed {i}" for i in seeds]}
            each = panel(title, "", f"pass@{k}, test", lines, **ticks)
            each["levels"] = guess_level(GUESSED[where], k)
            panels += level(each)
    return {
        "title": "In 40 steps SmolLM2-135M improves at one try, most with GRPO on four of five",
        "caption": "Ours (reduced scale); results up to 20, on the harder set up to 100. After ten "
        "supervised steps (before RL), 40 of 16 prompts x 16 rollouts, in rounds 4, 4 and 8 until "
        "one is right: a third of the rollouts, on the harder set two thirds. 96 test problems x "
        "64 samples, temperature 1. Guessing: a number up to 20 or 100",
        "panels": panels,
    }


FIGURES = {"tested": seed_by_seed}
