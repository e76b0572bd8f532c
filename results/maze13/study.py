"""13x13 mazes, where guesses solve little: MaxRL, rounds and GRPO with Muon, each at its best."""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import evaluations, means, paired, runs, tested
from results.lab.figures import (
    banded,
    curve,
    guess_curve,
    guess_level,
    level,
    panel,
    penalised,
)
from results.lab.intervals import side_by_side
from results.lab.runs import evaluation, product
from results.lab.tables import label_of, leads, pass_columns, summary, table

SIZE9 = "--task.directory data/maze/9x9-ten"
SIZE13 = "--task.size 13 --task.directory data/maze/13x13 --max-response 40"
# A 9x9 model of 400 batches, then demonstrations of 13x13 until pass@1 is .015 on 64 mazes.
SFT = "train.py maze9_laptop_sft --optimizer muon --seed {seed}"
SMALL = f"{SFT} {SIZE9} --stop-at-pass 0 --eval-every 100"
LARGE = f"{SFT} {SIZE13} --stop-at-pass .015 --steps 1000 --init runs/maze13/seed{{seed}}/small"
STEPS, EVERY = 350, 50
RL = (
    f"train.py maze9_laptop {SIZE13} {{method[1]}} --optimizer muon --lr {{rate}} --seed {{seed}} "
    f"--init runs/maze13/seed{{seed}}/base --steps {STEPS} "
    f"--eval-every {EVERY} --eval-prompts 256 --eval-samples 16 --eval-k 1,8"
)
METHODS = {
    "maxrl": "--estimator maxrl --prompts 16 --rollouts 32",
    "maxrl-kl.04": "--estimator maxrl --prompts 16 --rollouts 32 --beta .04",
    "rounds": "--estimator maxrl_rare --prompts 32 --rollouts 8,8,16",
    "grpo-kl.04": "--estimator grpo --prompts 16 --rollouts 32 --beta .04",
    "grpo": "--estimator grpo --prompts 16 --rollouts 32",
}
# Of AdamW's part; the matrices have four times it.
RATES = ("1e-4", "2e-4", "4e-4")
# None is a seed of another study; rates are chosen on the first.
SEARCHED = 201
SEEDS = (210, 211, 212, 213)
# Run when the others were known, to make the six of the plan.
LATER = (214, 215)
# On validation mazes, of 16 samples, and on the test, of 64.
KS = (1, 8)
TESTED = (1, 8, 64)
MOST = TESTED[-1]
KEPT_STEPS = 20


def warmed(seeds) -> dict:
    """The bases of these seeds, and the 9x9 models that they start from."""
    small = product("seed{seed}/small", SMALL, seed=seeds)
    return small | product("seed{seed}/base", LARGE, seed=seeds)


def from_bases13(seeds, methods, rates) -> dict:
    """These methods at these rates from the base of each seed."""
    chosen = [(name, METHODS[name]) for name in methods]
    return product("seed{seed}/{method[0]}-lr{rate}", RL, seed=seeds, rate=rates, method=chosen)


RUNS = {
    "search": warmed([SEARCHED])
    | from_bases13([SEARCHED], ["maxrl", "grpo"], ["5e-5"])
    | from_bases13([SEARCHED], ["maxrl", "maxrl-kl.04", "grpo-kl.04", "rounds"], RATES)
    | from_bases13([SEARCHED], ["grpo"], RATES[:2])
}
# By pass@1 + pass@8 at the end of the search.
BEST = {
    "maxrl": "2e-4",
    "rounds": "2e-4",
    "grpo-kl.04": "2e-4",
    "grpo": "1e-4",
    "maxrl-kl.04": "4e-4",
}
MODELS = {"base": "maze13/seed{seed}/base"}
RUNS |= {"comparison": warmed(SEEDS), "later": warmed(LATER)}
for name, rate in BEST.items():
    RUNS["comparison"] |= from_bases13(SEEDS, [name], [rate])
    RUNS["later"] |= from_bases13(LATER, [name], [rate])
    MODELS[name] = f"maze13/seed{{seed}}/{name}-lr{rate}"
HOW = "--prompts 256 --samples 64"
TESTS = {
    "test.json": evaluation(HOW, MODELS, seed=SEEDS),
    "test-later.json": evaluation(HOW, MODELS, seed=LATER),
}
GUESSED = "13x13 mazes"
# MaxRL with the penalty is level with it in the search (.453 and .452) and takes twice the time.
OWN = "maxrl"
PAIRS = [
    (name, other) for name in (OWN, "rounds", "maxrl-kl.04") for other in ("grpo-kl.04", "grpo")
]
# A step of GRPO with the penalty in steps of Algorithm 1, where every row would be trained on
# (step_parts()), and in between.
PRICES = (1.22, 1.5)
MEASURED = {"solved": "prompts with a success", "completions/mean_length": "length"}


def with_all_methods() -> dict[str, dict[int, list[dict]]]:
    """{method: {seed: rows}} of the seeds with all methods, each at its best rate."""
    found = runs("maze13", steps=STEPS)
    kept = {name: found.get(f"{name}-lr{rate}", {}) for name, rate in BEST.items()}
    chosen = {
        name: {n: rows for n, rows in seeds.items() if n in SEEDS + LATER}
        for name, seeds in kept.items()
    }
    return paired(chosen, BEST)


def search():
    """Every arm of the first seed on validation mazes."""
    rows = []
    for arm, seeds in sorted(runs("maze13", steps=STEPS).items()):
        if SEARCHED in seeds and "-lr" in arm:
            ends = [evaluations(seeds[SEARCHED], k)[-1] for k in KS]
            last = [means(seeds[SEARCHED], key, 50)[-1] for key in MEASURED]
            rows.append([arm, *(f"{value:.3f}" for value in ends + last)])
    table([f"search, seed {SEARCHED}, validation", *pass_columns(KS), *MEASURED.values()], rows)


def clock(rows: list[dict], of: str = "seconds") -> np.ndarray:
    """Seconds, or rollouts, of a run's steps up to each of its evaluations."""
    ends = np.array([0, *(row["step"] + 1 for row in rows)])
    spent = np.cumsum([0, *(np.diff(ends) * [row[of] for row in rows])])
    return np.interp(EVERY * np.arange(1, STEPS // EVERY + 1), ends, spent)


def at_clocks(own: list, theirs: list) -> np.ndarray:
    """Differences (ks, seeds) on validation mazes when the shorter run of each seed ends, on the
    line between two evaluations of the longer one.

    own, theirs  (clock, rows) of each seed's run
    """
    ends = [min(mine[-1], other[-1]) for (mine, _), (other, _) in zip(own, theirs)]
    at = [
        [np.interp(end, spent, evaluations(rows, k)) for end, (spent, rows) in zip(ends, side)]
        for side in (own, theirs)
        for k in KS
    ]
    mine, other = np.reshape(at, (2, len(KS), -1))
    return mine - other


def at_equal(of: str, found: dict) -> dict:
    """{pair: at_clocks()} at equal seconds or rollouts."""
    gaps = {}
    for pair in PAIRS:
        own, theirs = ([(clock(rows, of), rows) for rows in found[name].values()] for name in pair)
        gaps[" minus ".join(map(label_of, pair))] = at_clocks(own, theirs)
    return gaps


def at_prices(found: dict) -> dict:
    """{price: at_clocks()} of Algorithm 1 and GRPO with the penalty, if all steps of the latter
    took so many times as long as those of the former on the same seed."""
    own = [(clock(rows), rows) for rows in found[OWN].values()]
    gaps = {}
    for price in PRICES:
        theirs = []
        for (mine, _), rows in zip(own, found["grpo-kl.04"].values()):
            spent = clock(rows)
            theirs.append((spent * price * mine[-1] / spent[-1], rows))
        gaps[f"{price} times"] = at_clocks(own, theirs)
    return gaps


def step_parts(found: dict):
    """What a step of GRPO with the penalty takes longer for, in its first 20 steps, in which both
    methods have nearly the same model.

    Both sample alike. Algorithm 1 trains on the rows of groups with an advantage, GRPO with the
    penalty on all of them, after one more forward of the reference, which is taken to be a third of
    a forward with its backward. So seconds of sampling and of training follow from the two steps.
    """
    rows = []
    for own, theirs in zip(found[OWN].values(), found["grpo-kl.04"].values()):
        (first, other), whole = (own[0], theirs[0]), clock(theirs)[-1] / clock(own)[-1]
        trained = 1 - first["frac_reward_zero_mean"] - first["frac_reward_one_mean"]
        more = other["seconds"] - first["seconds"]
        training = more / (4 / 3 - trained)
        every = first["seconds"] + (1 - trained) * training
        cut = np.interp(clock(own)[-1], clock(theirs), EVERY * np.arange(1, STEPS // EVERY + 1))
        rows.append([whole, first["seconds"], other["seconds"], trained])
        rows[-1] += [training / 3 / more, other["seconds"] / every, cut / STEPS]
    heads = [
        "all steps, times Algorithm 1's",
        "first 20: seconds of Algorithm 1",
        "of GRPO",
        "rows that Algorithm 1 trains on",
        "the reference's share of the difference",
        "times Algorithm 1's if it trained on all rows",
        "share of its steps when Algorithm 1 has ended",
    ]
    lines = [
        [head, f"{np.mean(each):.2f}", side_by_side(each)] for head, each in zip(heads, zip(*rows))
    ]
    table(["a step of GRPO, kl.04", "mean", "seed by seed"], lines)


def samples_for(curve: np.ndarray, level: float) -> float:
    """The samples with which pass@k (1 to MOST) has reached a level, on the line between two of
    them; nan if it is not reached."""
    if curve[-1] < level:
        return np.nan
    return np.interp(level, curve, np.arange(1, MOST + 1))


def samples_to_match():
    """How many samples of one method solve as many mazes as MOST of the other."""
    curves = {
        name: values.mean(1)
        for name, values in coverage(tested("maze13/test.json"), range(1, MOST + 1)).items()
    }
    lines = []
    for pair in PAIRS:
        for one, other in (pair, pair[::-1]):
            needed = samples_for(curves[one].mean(0), curves[other].mean(0)[-1])
            each = [
                samples_for(mine, theirs[-1]) for mine, theirs in zip(curves[one], curves[other])
            ]
            cells = ["more than 64" if np.isnan(k) else f"{k:.1f}" for k in [needed, *each]]
            times = "" if np.isnan(needed) else f"{MOST / needed:.1f}"
            title = f"{label_of(one)} for {MOST} of {label_of(other)}"
            lines.append([title, cells[0], times, " / ".join(cells[1:])])
    table(["samples to match, test", "of the mean curves", "times fewer", "seed by seed"], lines)


def noise(values: dict):
    """The spread of a difference over seeds, and the error of one seed's over its mazes."""
    rows = []
    for name, other in PAIRS:
        gaps = values[name] - values[other]  # (seeds, mazes, ks)
        spread = gaps.mean(1).std(0, ddof=1)
        error = (gaps.var(1, ddof=1) / gaps.shape[1]).mean(0) ** 0.5
        cells = [f"{cell:.3f}" for both in zip(spread, error) for cell in both]
        rows.append([f"{label_of(name)} minus {label_of(other)}", *cells])
    heads = [head for k in TESTED for head in (f"pass@{k}, spread over seeds", "error over mazes")]
    table(["standard deviations, test", *heads], rows)


def tables():
    """The search; then each method at its best rate, tested once."""
    search()
    found = with_all_methods()
    seeds = list(found[OWN])
    values = coverage(tested("maze13/test.json"), TESTED)
    passed = {name: each.mean(1).T for name, each in values.items()}
    summary(f"seeds {seeds}, test, 95 %", pass_columns(TESTED), passed)
    gaps = {}
    for name, other in PAIRS:
        gaps[f"{label_of(name)} minus {label_of(other)}"] = passed[name] - passed[other]
    leads("test, paired by seed", pass_columns(TESTED), gaps)
    gained = {label_of(name): passed[name] - passed["base"] for name in found}
    leads("test, minus before RL", pass_columns(TESTED), gained)
    samples_to_match()
    for of in ("seconds", "rollouts"):
        used = {
            name: [clock(rows, of)[-1] for rows in each.values()] for name, each in found.items()
        }
        table(
            [f"{of} of all steps, seed by seed", ""],
            [[name, " / ".join(f"{at:,.0f}" for at in ends)] for name, ends in used.items()],
        )
    step_parts(found)
    for of in ("seconds", "rollouts"):
        leads(f"equal {of}, validation", pass_columns(KS), at_equal(of, found))
    priced = "MaxRL minus GRPO, kl.04, validation, equal time if a step of GRPO took"
    leads(priced, pass_columns(KS), at_prices(found))
    each = [[name, *(side_by_side(values) for values in passed[name])] for name in passed]
    table(["test, seed by seed", *pass_columns(TESTED)], each)
    noise(values)


# In the figure of gaps: what is compared, its name, how it is drawn, and where beside k.
GAPS = {
    ("maxrl", "grpo"): ("MaxRL minus GRPO, no penalty", {"like": "maxrl"}, 0.94),
    ("maxrl", "grpo-kl.04"): ("MaxRL minus GRPO with KL", penalised({}, "grpo"), 0.98),
    ("maxrl-kl.04", "grpo-kl.04"): ("both with KL", penalised({}, "maxrl"), 1.02),
}


def gap_k() -> dict:
    """The differences in pass@k of the test against k."""
    ks = np.array([1, 2, 4, 8, 16, 32, 64])
    found = coverage(tested("maze13/test.json"), ks)
    passed = {name: values.mean(1) for name, values in found.items()}
    lines = []
    for (name, other), (said, style, beside) in GAPS.items():
        line = banded(said, ks * beside, passed[name] - passed[other], bars=True)
        lines.append(line | style)
    axes = {"xscale": "log", "xticks": ks, "xlim": (0.85, 75), "zero": True}
    title = "above 0: MaxRL has the higher pass@k; below: GRPO"
    return {
        "title": "MaxRL leads GRPO without a penalty from k = 2, and GRPO with a penalty nowhere",
        "caption": "13x13 mazes, .3M parameters (reduced scale), weak bases (pass@1 .015 before "
        f"RL), {STEPS} steps of 16 prompts with 32 rollouts each; bars: 95 % t intervals over "
        f"{len(passed[OWN])} seeds; points of one k stand side by side. KL: a penalty of .04. "
        "Guessing has .003, .028 and .20 at k = 1, 8 and 64",
        "columns": 1,
        "panels": [panel(title, "k, samples", "difference in pass@k", lines, **axes)],
    }


def drawn(name: str, x, y) -> dict:
    """The line of a method, with a penalty or without."""
    line = curve(name, x, y)
    return penalised(line, name.partition("-")[0]) if "-kl" in name else line


def covered13() -> dict:
    """pass@k of the test; pass@8 on validation mazes against seconds."""
    found = with_all_methods()
    ks = [1, 2, 4, 8, 16, 32, 64]
    curves = coverage(tested("maze13/test.json"), ks)
    lines = [guess_curve(GUESSED, ks)]
    lines += [drawn(name, ks, values.mean((0, 1))) for name, values in curves.items()]
    axes = {"xscale": "log", "xticks": [1, 4, 16, 64]}
    panels = [panel("test", "k, samples", "pass@k, 13x13 mazes", lines, **axes)]
    lines = []
    for name, seeds in found.items():
        x = np.mean([clock(rows) for rows in seeds.values()], axis=0)
        lines.append(drawn(name, x, np.mean([evaluations(rows, 8) for rows in seeds.values()], 0)))
    panels.append(panel("training", "seconds of one core", "pass@8, validation", lines))
    panels[-1]["levels"] = guess_level(GUESSED, 8)
    return {
        "title": "In pass@64 GRPO with a penalty ends above MaxRL, without one below its base",
        "caption": "13x13 mazes, .3M parameters (reduced scale), Muon, weak bases (pass@1 .015 "
        f"before RL), {STEPS} steps of 16 prompts with 32 rollouts each (in rounds 32 "
        "prompts with 8, 16 or 32), each method at its best learning rate on one other seed; "
        f"means of {len(found[OWN])} seeds. kl.04: with a KL penalty. "
        "Guessing: one of the 252 shortest walks, blind to the maze",
        "panels": level(*panels),
    }


FIGURES = {"gap_k": gap_k, "coverage13": covered13}
