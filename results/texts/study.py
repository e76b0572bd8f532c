"""MaxRL and GRPO on texts: generated word problems, subset sums and reversed texts."""

import numpy as np

from maxrl.analysis.table import coverage, over_seeds
from results.lab.data import by_seed, runs, tested
from results.lab.figures import guess_curve, level, panel, seed_curves, seeds_said
from results.lab.intervals import ahead, interval, side_by_side, with_error
from results.lab.runs import recorded
from results.lab.tables import differences, label_of, leads, levels, pass_columns, summary, table

TASKS = ("subset_sum", "reverse_text")
KS = [1, 8, 64, 256]
POWERS = [2**i for i in range(7)]
RUNS, TESTS = {"all": recorded("texts")}, recorded("texts", "tests")


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
    """pass@k of MaxRL and GRPO on generated word problems."""
    found = coverage(tested("texts/words-test.json"), POWERS)
    lines = [seed_curves(name, POWERS, values.mean(1)) for name, values in found.items()]
    lines.append(guess_curve("word problems", POWERS))
    title = "ours (reduced scale): test"
    return {
        "title": "Word problems: GRPO is ahead at one try, MaxRL within eight tries on every seed",
        "caption": "Generated problems of one and two steps, a transformer of .66M parameters: "
        f"160 steps at 3e-4; 256 test problems x 64 samples, {seeds_said(3)}",
        "panels": level(panel(title, "k", "pass@k", lines, xscale="log")),
    }


FIGURES = {"word_problems": word_problems}
