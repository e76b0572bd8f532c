"""MaxRL and GRPO on texts: generated word problems, subset sums and reversed texts."""

import numpy as np

from maxrl.analysis.table import coverage, over_seeds
from results.lab.data import by_seed, paired, runs, tested
from results.lab.figures import (
    SOLVED,
    block_curves,
    coverage_curves,
    guess_curve,
    level,
    panel,
    seeds_said,
)
from results.lab.intervals import ahead, interval, side_by_side, with_error
from results.lab.runs import evaluation, from_bases, seed_models
from results.lab.tables import differences, label_of, leads, levels, pass_columns, summary, table

TASKS = {"subset_sum": "SubsetSum", "reverse_text": "ReverseText"}
KS = [1, 8, 64, 256]
METHODS = {name: f"--estimator {name}" for name in ("maxrl", "grpo")}
MODELS = ("base", "grpo", "maxrl")
FILE = "results/texts/tasks.py"
WORDS = ("train.py gsm8k_laptop_sft", "train.py gsm8k_laptop")
RUNS = {"words": from_bases("texts/words", *WORDS, METHODS, range(3))}
TESTS = {
    "words-test.json": evaluation(
        "--prompts 256 --samples 64 --k 1,8,64", seed_models("texts/words", MODELS), seed=range(3)
    )
}
for task, named in TASKS.items():
    recipes = f"train.py {FILE}:{task}_sft", f"train.py {FILE}:{task}"
    RUNS[task] = from_bases(f"texts/{task}", *recipes, METHODS, range(5))
    how = f"--task {FILE}:{named} --prompts 256 --samples 256"
    for seed in range(5):
        words = evaluation(how, seed_models(f"texts/{task}", MODELS), seed=[seed])
        TESTS[f"{task}-test-seed{seed}.json"] = words


def word_problem_tables():
    results = tested("texts/words-test.json")
    ks = [1, 8, 64]
    found = coverage(results, ks)
    levels(found, ks, runs("texts", "words/"), prompts="problems")
    differences(found, ks, "word problems, ", prompts="problems")
    votes = over_seeds(results, lambda row: np.mean(row["majority"]))  # {name: (seeds,)}
    rows = [[label_of(name), interval(right), side_by_side(right)] for name, right in votes.items()]
    gap = votes["maxrl"] - votes["grpo"]
    rows.append(["MaxRL minus GRPO", interval(gap, "+"), ahead(gap)])
    title = f"majority vote of {results['samples']}, 95 % over seeds"
    table([title, "right", "each seed"], rows)


def small_tables():
    rows, gaps, each = [], {}, {}
    for task in TASKS:
        kept = runs("texts", f"{task}/")
        found = by_seed("texts", f"{task}-test", KS)
        for name, seeds in found.items():
            shares = [row["clipped"] for rows in kept[name].values() for row in rows]
            means = np.array([values.mean(0) for values in seeds.values()])  # (seeds, ks)
            rows.append(
                [f"`{task}`", label_of(name), *map(interval, means.T), f"{np.mean(shares):.0%}"]
            )
        for seed, values in found["maxrl"].items():
            each[f"`{task}`, seed {seed}"] = (values - found["grpo"][seed]).T  # (ks, prompts)
        own = [gap.mean(1) for name, gap in each.items() if task in name]
        gaps[f"`{task}`"] = np.transpose(own)
    columns = pass_columns(KS)
    table(["task", "model, 95 % over seeds", *columns, "steps clipped"], rows)
    leads("MaxRL minus GRPO, 95 % over seeds", columns, gaps)
    summary("MaxRL minus GRPO, standard error over prompts", columns, each, "+", with_error)


def tables():
    word_problem_tables()
    small_tables()


def word_problems() -> dict:
    """MaxRL and GRPO on generated word problems: over training, and the test."""
    found = paired(runs("texts", "words/"), METHODS)
    panels = []
    for key, label in (("reward", "pass@1, training problems"), ("solved", SOLVED)):
        lines = block_curves(found, key, 20)
        panels += level(panel("ours (reduced scale): training", "step", label, lines))
    lines = coverage_curves(tested("texts/words-test.json"))
    lines.append(guess_curve("word problems", [2**i for i in range(7)]))
    panels += level(panel("ours (reduced scale): test", "k", "pass@k", lines, xscale="log"))
    return {
        "title": "Word problems: GRPO is ahead at one try, MaxRL within eight tries on every seed",
        "caption": "Generated problems of one and two steps, a transformer of .66M parameters: "
        "160 steps at 3e-4, means of 20 steps; 256 test problems x 64 samples. "
        f"{seeds_said(len(found['maxrl'])).capitalize()}",
        "columns": 3,
        "panels": panels,
    }


FIGURES = {"word_problems": word_problems}
