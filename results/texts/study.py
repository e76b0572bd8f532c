"""MaxRL and GRPO on texts: generated word problems, subset sums and reversed texts."""

import numpy as np

from maxrl.plots import called
from maxrl.run.table import coverage, powers
from results.lab.data import by_seed, paired, runs, tested
from results.lab.figures import SOLVED, block_curves, level, panel, seed_curves, seeds_said
from results.lab.intervals import ahead, interval, with_error
from results.lab.runs import evaluation, product
from results.lab.tables import differences, lead_cells, lead_columns, levels, pass_columns, table

TASKS = {"subset_sum": "SubsetSum", "reverse_text": "ReverseText"}
KS = [1, 8, 64, 256]
METHODS = ("maxrl", "grpo")
FILE = "results/texts/tasks.py"
SEED = "--seed {seed}"


def of_task(name: str, base: str, rl: str, seeds) -> dict:
    """The warm-up of each seed, and both methods from there."""
    made = product(f"{name}/seed{{seed}}/base", f"train.py {base} {SEED}", seed=seeds)
    words = (
        f"train.py {rl} {SEED} --estimator {{method}} --init runs/texts/{name}/seed{{seed}}/base"
    )
    return made | product(f"{name}/seed{{seed}}/{{method}}", words, seed=seeds, method=METHODS)


RUNS = {"words": of_task("words", "gsm8k_laptop_sft", "gsm8k_laptop", range(3))}
MODELS = {name: f"texts/words/seed{{seed}}/{name}" for name in ("base", "grpo", "maxrl")}
TESTS = {
    "words-test.json": evaluation("--prompts 256 --samples 64 --k 1,8,64", MODELS, seed=range(3))
}
for task, named in TASKS.items():
    RUNS[task] = of_task(task, f"{FILE}:{task}_sft", f"{FILE}:{task}", range(5))
    for seed in range(5):
        models = {name: f"texts/{task}/seed{seed}/{name}" for name in MODELS}
        words = evaluation(f"--task {FILE}:{named} --prompts 256 --samples 256", models)
        TESTS[f"{task}-test-seed{seed}.json"] = words


def small_task(task: str, ks) -> dict[str, np.ndarray]:
    """{model: pass@k, (seeds, prompts, ks)} of a small task."""
    found = by_seed("texts", f"{task}-test", ks)
    return {name: np.stack(list(seeds.values())) for name, seeds in found.items()}


def small_tables():
    found = {task: small_task(task, KS) for task in TASKS}
    rows = []
    for task, models in found.items():
        kept = runs("texts", f"{task}/")
        for name, seeds in models.items():
            shares = [row["clipped"] for rows in kept[name].values() for row in rows]
            means = map(interval, seeds.mean(1).T)
            rows.append([f"`{task}`", called(name), *means, f"{np.mean(shares):.0%}"])
    table(["task", "model, 95 % over seeds", *pass_columns(KS), "steps clipped"], rows)
    gaps = {f"`{task}`": models["maxrl"] - models["grpo"] for task, models in found.items()}
    over_all = ([task, *lead_cells(gap.mean(1).T)] for task, gap in gaps.items())
    table(["MaxRL minus GRPO, 95 % over seeds", *lead_columns(KS)], over_all)
    rows = []
    for task, gap in gaps.items():
        for seed, values in enumerate(gap):
            cells = [with_error(column, "+") for column in values.T]
            rows.append([f"{task}, seed {seed}", *cells])
    table(["MaxRL minus GRPO, standard error over prompts", *pass_columns(KS)], rows)


def tables():
    results = tested("texts/words-test.json")
    ks = [1, 8, 64]
    found = coverage(results, ks)
    levels(found, ks, runs("texts", "words/"), prompts="problems")
    differences(found, ks, "word problems, ", prompts="problems")
    votes: dict[str, list] = {}  # {name: right votes, (seeds,)}
    for row in results["checkpoints"]:
        votes.setdefault(row["name"], []).append(np.mean(row["majority"]))
    rows = []
    for name, right in votes.items():
        rows.append([called(name), interval(right), " / ".join(f"{value:.3f}" for value in right)])
    gap = np.array(votes["maxrl"]) - votes["grpo"]
    rows.append(["MaxRL minus GRPO", interval(gap, "+"), ahead(gap)])
    title = f"majority vote of {results['samples']}, 95 % over seeds"
    table([title, "right", "each seed"], rows)
    small_tables()


def word_problems() -> dict:
    """MaxRL and GRPO on generated word problems: over training, and the test."""
    found = paired(runs("texts", "words/"), METHODS)
    panels = []
    for key, label in (("reward", "pass@1, training problems"), ("solved", SOLVED)):
        lines = block_curves(found, key, 20)
        panels += level(panel("ours (reduced scale): training", "step", label, lines))
    results = tested("texts/words-test.json")
    ks = powers(results)
    curves = coverage(results, ks)
    lines = [seed_curves(name, ks, values.mean(1)) for name, values in curves.items()]
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
