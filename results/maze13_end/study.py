"""13x13 mazes to the end of learning: MaxRL, rounds, GRPO with and without a penalty, and what
others do: RLOO, PKPO, DAPO's and Reinforce-Ada's sampling; and demonstrations alone."""

import numpy as np

from results.lab import figures
from results.lab.data import by_seed, clock, evaluations, minus, paired, runs
from results.lab.guessing import guessing, of_list
from results.lab.intervals import interval, side_by_side
from results.lab.tables import corrected, equal, label_of, leads, pass_columns, searched, table

STEPS, EVERY, SAVED = 1500, 100, 300
PENALISED = "grpo-k3.04"
PRIMARY = ("maxrl", "grpo", PENALISED)
PRIMARY_PAIRS = [("maxrl", "grpo"), ("maxrl", PENALISED)]
MINUS = {
    "maxrl": f"grpo {PENALISED} grpo-k2.04 grpo-low rloo pkpo-k8",
    "grpo": "rloo dapo",
    PENALISED: "grpo grpo-k2.04",
    "grpo-k2.04": "grpo",
    "maxrl-k3.04": f"{PENALISED} grpo32x16-k3.04 maxrl",
    "rounds16": f"maxrl {PENALISED}",
    "rounds32": f"{PENALISED} grpo32x16-k3.04 dapo ada ada-half",
    "maxrl-n128": "grpo-n128 maxrl",
    "grpo-n128": "grpo",
    "maxrl-s3000": "grpo-s3000 grpo-k3.04-s3000 maxrl",
    "grpo-s3000": "grpo",
    "grpo-k3.04-s3000": f"grpo-s3000 {PENALISED}",
    "maxrl-k3.04-s3000": "grpo-k3.04-s3000 maxrl-k3.04",
}
PAIRS = [(own, other) for own, others in MINUS.items() for other in others.split()]
# A ladder: a search goes up and down from its middle until both neighbours of the best are worse.
RATES = ("2.5e-5", "5e-5", "1e-4", "2e-4", "4e-4")  # of AdamW's part; matrices have 4 times it
SEARCHED = 201
SEEDS = (220, 221, 222, 223, 224, 225)
KS = (1, 8)
# (rollouts, steps): equal steps, and after 400 of 128 rollouts about as many as of all with 32.
BY_ROLLOUTS = ((128, 400), (32, 1500), (128, 900), (32, 900))
TESTED = (1, 8, 64)
GUESSED = "2,048 13x13 mazes"
CURVE = (100, 300, 500, 700, 900, 1200, 1500)
SPENT = ("seconds", "seconds/rollout", "seconds/backward", "rollouts")
# Seeds whose runs of all these methods are made on one day, two at a time on the cores of one
# machine with no other load.
TIMED = (224, 225)
KEPT_STEPS = 50
# {method: rate} by pass@1 + pass@8 at the end of the search; of demonstrations the warm-up's.
BEST = {"maxrl": "2e-4", "grpo": "5e-5", "grpo-k3.04": "2e-4", "grpo-k2.04": "2e-4", "rloo": "5e-5"}
BEST |= {"pkpo-k8": "1e-4", "dapo": "5e-5", "ada": "4e-4", "supervised": "1e-3"}
BEST["grpo-low"] = "2.5e-5"
# Methods that have the best rate of another.
UNSEARCHED = {"rounds16": "maxrl", "rounds32": "maxrl", "maxrl-n128": "maxrl", "grpo-n128": "grpo"}
UNSEARCHED |= {"maxrl-s3000": "maxrl", "grpo-s3000": "grpo", "ada-half": "maxrl"}
UNSEARCHED |= {"maxrl-k3.04": PENALISED, "grpo32x16-k3.04": PENALISED}
UNSEARCHED |= {"maxrl-k3.04-s3000": PENALISED, "grpo-k3.04-s3000": PENALISED}
BEST |= {name: BEST[other] for name, other in UNSEARCHED.items()}


def at_best() -> dict[str, dict[int, list[dict]]]:
    """{method: {seed: rows}} of the compared runs, each at its best rate."""
    every, found = runs("maze13_end"), {}
    for name, rate in BEST.items():
        seeds = every.get(f"{name}-lr{rate}", {})
        if compared := {seed: rows for seed, rows in seeds.items() if seed in SEEDS}:
            found[name] = compared
    return found


def passed(name: str = "test-.+", ks=TESTED) -> dict[str, dict[int, np.ndarray]]:
    """{method: {seed: pass@k, (ks,)}} on the test."""
    return by_seed("maze13_end", name, ks)


def named_before(title: str, pairs, found: dict):
    """Comparisons that were named before (part 12's when three seeds were known), corrected for
    their number, on the seeds that were promised."""
    named = {}
    for own, other in pairs:
        both = {name: {seed: found[name][seed] for seed in SEEDS} for name in (own, other)}
        for k, values in zip(TESTED, minus(both, own, other)):
            named[f"{label_of(own)} minus {label_of(other)}, pass@{k}"] = values
    corrected(title, named)


def best_checkpoints(found: dict):
    """Methods whose best saved checkpoint by validation is not the last on some seeds: it there,
    and the last on the others."""
    rows = []
    for name, earlier in passed("best-.+").items():
        seeds = found[name] | earlier
        rows.append(
            [label_of(name), len(seeds), len(earlier), *map(interval, zip(*seeds.values()))]
        )
    table(["test, best by validation", "seeds", "not the last", *pass_columns(TESTED)], rows)


def by_rollouts(found: dict):
    """MaxRL minus GRPO with 128 rollouts and with 32, on the seeds of both: on validation mazes
    after as many steps and after about as many rollouts, and at the end on the test."""
    arms = {size: (f"maxrl{end}", f"grpo{end}") for size, end in ((128, "-n128"), (32, ""))}
    every = [name for pair in arms.values() for name in pair]
    trained, both = paired(at_best(), every), paired(found, every)
    rows = {}
    for size, at in BY_ROLLOUTS:
        then: dict[str, dict] = {name: {} for name in arms[size]}
        for name, seeds in then.items():
            for seed, run in trained[name].items():
                seeds[seed] = [evaluations(run, k)[at // EVERY - 1] for k in KS]
        rows[f"{size} rollouts, after {at:,} steps"] = minus(then, *arms[size])
    leads("MaxRL minus GRPO, validation", pass_columns(KS), rows)
    many, few = (minus(both, *pair) for pair in arms.values())
    rows = {"128 rollouts, 900 steps": many, "32 rollouts, 1,500 steps": few}
    rows["the first minus the second"] = many - few
    leads("MaxRL minus GRPO, test", pass_columns(TESTED), rows)


def curves():
    """Means over seeds of what the evaluations on the way found, and their rise at the end."""
    columns = [*(f"{step} steps" for step in CURVE), f"rise over the last {SAVED} steps"]
    for k in KS:
        rows = []
        for name, seeds in at_best().items():
            values = np.mean([evaluations(rows, k) for rows in seeds.values()], axis=0)
            at = {EVERY * (i + 1): f"{value:.3f}" for i, value in enumerate(values)}
            rise = f"{values[-1] - values[-1 - SAVED // EVERY]:+.3f}"
            # Some runs have fewer steps.
            cells = [at.get(step, "") for step in CURVE]
            rows.append([label_of(name), len(seeds), *cells, rise])
        table([f"pass@{k}, validation, after", "seeds", *columns], rows)


def of_one_day() -> dict[str, dict[int, list[dict]]]:
    """at_best() of the runs that were made under the same load."""
    found = at_best()
    return {
        name: {seed: found[name][seed] for seed in TIMED}
        for name in PRIMARY
        if name in found and set(TIMED) <= set(found[name])
    }


def spent_on(seeds: dict[int, list[dict]]) -> dict[str, float]:
    """Means over runs, by what is kept of each 50 steps."""
    rows = [row for rows in seeds.values() for row in rows]
    return {key: float(np.mean([row[key] for row in rows])) for key in SPENT}


def prices():
    """What a step takes, and what its seconds are spent on."""
    rows = []
    for name, seeds in of_one_day().items():
        *seconds, rollouts = spent_on(seeds).values()
        cells = [f"{value:.2f}" for value in seconds]
        rows.append([label_of(name), len(seeds), *cells, f"{rollouts:.0f}"])
    table(["a step", "runs of one day", *SPENT], rows)


def paced() -> dict[str, dict[int, list[dict]]]:
    """at_best() with the seconds of a step that its method takes in the mean."""
    found = {}
    for name, seeds in of_one_day().items():
        pace = {"seconds": spent_on(seeds)["seconds"]}
        every = at_best()[name].items()
        found[name] = {seed: [row | pace for row in rows] for seed, rows in every}
    return found


def tables():
    """The search; then each method at its best rate, tested once."""
    searched("maze13_end", SEARCHED, KS)
    found = passed()
    levels = [
        [label_of(name), len(seeds), *map(interval, zip(*seeds.values()))]
        for name, seeds in found.items()
    ]
    for said, blind in (("a random shortest walk", guessing), ("the commonest walks", of_list)):
        levels.append([said, "", *(f"{value:.3f}" for value in blind(GUESSED, TESTED))])
    table(["test, 95 %", "seeds", *pass_columns(TESTED)], levels)
    named_before("test, primary", PRIMARY_PAIRS, found)
    named_before("test, with the penalty for both", [("maxrl-k3.04", PENALISED)], found)
    pairs = [pair for pair in PAIRS if set(pair) <= set(found)]
    named = {
        f"{label_of(own)} minus {label_of(other)}": minus(found, own, other) for own, other in pairs
    }
    leads("test, paired by seed", pass_columns(TESTED), named)
    best_checkpoints(found)
    if "grpo-n128" in found:
        by_rollouts(found)
    curves()
    if of_one_day():
        prices()
        equal("seconds", paced(), PAIRS, EVERY, KS)
    equal("rollouts", at_best(), PAIRS, EVERY, KS)
    each = [
        [label_of(name), ", ".join(map(str, seeds)), *map(side_by_side, zip(*seeds.values()))]
        for name, seeds in found.items()
    ]
    table(["test, seed by seed", "seeds", *pass_columns(TESTED)], each)


# In the figures: how a method is called and drawn.
DRAWN = {
    "maxrl": ("MaxRL", {"like": "maxrl"}),
    "grpo": ("GRPO, no KL", {"like": "grpo"}),
    "grpo-k3.04": ("GRPO, KL (k3)", figures.penalised({}, "grpo")),
    "maxrl-k3.04": ("MaxRL, KL (k3)", figures.penalised({}, "maxrl")),
    "grpo-k2.04": ("GRPO, KL (k2)", figures.penalised({}, "dr_grpo")),
    "rounds16": ("rounds, 16 prompts", {"like": "rare"}),
    "rounds32": ("rounds, 32 prompts", {"like": "rounds"}),
    "grpo32x16-k3.04": ("GRPO, KL (k3), 32 x 16", figures.penalised({}, "rloo")),
}
LEADS = {
    ("maxrl", "grpo"): ("no KL", {"like": "maxrl"}),
    ("maxrl", PENALISED): ("KL .04 for GRPO alone", DRAWN[PENALISED][1]),
    ("maxrl-k3.04", PENALISED): ("KL .04 for both", DRAWN["maxrl-k3.04"][1]),
}
MANY = {
    "maxrl": ("MaxRL, 32 rollouts", {"like": "maxrl"}),
    "grpo": ("GRPO, 32 rollouts", {"like": "grpo"}),
    "maxrl-n128": ("MaxRL, 128 rollouts", {"like": "tailrl"}),
    "grpo-n128": ("GRPO, 128 rollouts", {"like": "dr_grpo"}),
}
LONG = {
    "maxrl-s3000": ("MaxRL, no KL", {"like": "maxrl"}),
    "grpo-s3000": ("GRPO, no KL", {"like": "grpo"}),
    "grpo-k3.04-s3000": DRAWN[PENALISED],
}
SCALE = (
    "13x13 mazes, .3M parameters (reduced scale), weak bases (pass@1 .015 before RL), "
    f"{STEPS:,} steps of 16 prompts x 32 rollouts"
)


def learning() -> dict:
    """What the evaluations on the way found."""
    found, panels = at_best(), []
    seeds = len(found["maxrl"])
    for k in KS:
        lines = []
        for name, (said, style) in DRAWN.items():
            if name in found:
                values = [evaluations(rows, k) for rows in found[name].values()]
                steps = EVERY * np.arange(1, len(values[0]) + 1)
                line = figures.banded(said, steps, values)
                if len(values) < seeds:
                    # Of three seeds an interval hides all other lines.
                    line = figures.curve(f"{said}, {len(values)} seeds", steps, line["y"])
                lines.append(line | style)
        title = f"pass@{k} on validation mazes"
        panels.append(figures.panel(title, "steps", f"pass@{k}", lines))
        panels[-1]["levels"] = figures.guess_level(GUESSED, k)
    return {
        "title": "With KL for both MaxRL learns more per step than GRPO within 8 samples",
        "caption": f"{SCALE} where no other number is named, each method at the best of its rates "
        "on another seed; rounds, 32 x 16 and MaxRL with KL at that of another method. Bands: "
        f"95 % t intervals over {seeds} seeds. KL: a penalty of .04. Lines of 3 seeds lack 224, "
        "the best one",
        "panels": panels,
    }


def lead() -> dict:
    """The differences in pass@k of the test against k."""
    ks = np.array([1, 2, 4, 8, 16, 32, 64])
    found = passed(ks=ks)
    lines = []
    for (pair, (said, style)), beside in zip(LEADS.items(), (0.95, 1, 1.05)):
        gap = minus(found, *pair).T
        said = f"{said}, {len(gap)} seeds"
        lines.append(figures.banded(said, ks * beside, gap, bars=True) | style)
    return {
        "title": "At larger k a lead is shown if both or neither have KL, not if only GRPO has it",
        "caption": f"{SCALE}; bars: 95 % t intervals over seeds; points of one k stand side by "
        "side. The commonest walks, a list blind to the maze, have .007, .072 and .35 at k = 1, 8 "
        "and 64",
        "panels": [figures.gap_panel(ks, lines)],
    }


def together(title: str, more: str, names: dict, panels) -> dict:
    """A figure of methods on the seeds that all of them have; `panels` are pairs (k, x)."""
    drawn = []
    for k, x in panels:
        lines = []
        for name, seeds in paired(at_best(), names).items():
            said, style = names[name]
            values = [evaluations(rows, k) for rows in seeds.values()]
            at = EVERY * np.arange(1, len(values[0]) + 1)
            if x != "steps":
                at = clock(next(iter(seeds.values())), EVERY, "rollouts") / 1e6
            lines.append(figures.seed_curves(said, at, values) | style)
        drawn.append(figures.panel(f"pass@{k} on validation mazes", x, f"pass@{k}", lines))
    caption = f"{SCALE}{more}; {figures.seeds_said(len(seeds))}"
    return {"title": title, "caption": caption, "panels": drawn}


def many() -> dict:
    """128 rollouts and 32."""
    title = "With 128 rollouts MaxRL leads GRPO within 8 samples, too"
    more = ", with 128 rollouts 900; no KL, each method at its best rate with 32 on another seed"
    return together(title, more, MANY, [(8, "steps"), (8, "rollouts, millions")])


def longer() -> dict:
    """3,000 steps."""
    title = "With 3,000 steps MaxRL leads GRPO without KL in pass@1, too, but not GRPO with KL"
    more = ", here twice as many; each method at its best rate for 1,500 on another seed"
    return together(title, more, LONG, [(k, "steps") for k in KS])


FIGURES = {"learning": learning, "lead": lead, "rollouts": many, "longer": longer}
