"""Figures of the maze studies, with the paper's next to them."""

import numpy as np

from maxrl.plots import over_steps, smooth
from maxrl.run import table
from results.fewer import times_fewer
from results.panels import (
    MAZE9,
    MAZE17,
    METHODS,
    SOLVED,
    level,
    line,
    over_seeds,
    pair,
    panel,
    seeds_said,
)
from results.reading import RESULTS, blocks, evaluated, headline, paired, paper, runs, solved
from results.tables import price as price_tables


def times_lines(name: str, ks, times, **more) -> list[dict]:
    """How many times fewer samples MaxRL needs at each of ks: a line, and triangles where one
    sample of MaxRL is enough, so that the number is a lower bound."""
    ks, times = np.array(ks), np.array(times)
    bound, shown = times >= ks, (times > 0) & (times < ks)
    lines = [line(name, ks[shown], times[shown], unnamed=True, **more)]
    if bound.any() and not more:
        # Beside each other: several methods have the same bound.
        beside = ks[bound] * BESIDE[name]
        lines.append(line(name, beside, times[bound], points="^", unnamed=True))
    return lines


def fewer_panels(results: dict, ks: list[int]) -> list[dict]:
    """How many times fewer samples MaxRL needs: the paper's against GRPO, ours against each."""
    labels = ("k", "times fewer samples for MaxRL")
    axes = {"xscale": "log", "yscale": "log", "ylim": (0.4, 1.5 * ks[-1])}
    lines = []
    for curves in paper(5).values():
        (x, grpo), (_, maxrl) = curves["grpo"], curves["maxrl"]
        times = times_fewer(x, grpo[None, None], maxrl[None, None], draws=1)[0]
        lines += times_lines("grpo", x[1:], times[1:], paper=True, lw=1)
    left = panel("paper: eight settings of Qwen3, each against GRPO", *labels, lines, **axes)
    curves = table.coverage(results, ks)
    lines = []
    for name, values in curves.items():
        if name != "maxrl":
            times = times_fewer(ks, values, curves["maxrl"], draws=1)[0]
            lines += times_lines(name, ks[1:], times[1:])
    return [left, panel(MAZE9, *labels, lines, **axes)]


def figure5(file: str, what: str, title: str, together: str) -> dict:
    """pass@k against k, and how many times fewer samples MaxRL needs."""
    results = evaluated(RESULTS / file)
    ks = table.powers(results)
    lines = []
    for name, values in table.coverage(results, ks).items():
        lines.append(over_seeds(name, ks, values.mean(1)))
    curves = paper(5)["Qwen3-4B-Base / BeyondAIME"]
    left = ("paper: Qwen3-4B-Base, BeyondAIME", "pass@k", curves)
    count = sum(row["name"] == "maxrl" for row in results["checkpoints"])
    return {
        "title": title,
        "caption": "Figure 5: coverage, and how many times fewer samples MaxRL needs for another "
        "one's pass@k (triangles, side by side: one sample is enough). Ours: "
        f"{what}, {results['prompts']} test mazes x {results['samples']} samples, above "
        f"{seeds_said(count)}, below of the mean over seeds, as far as MaxRL reaches the other. "
        f"Lines that lie together: {together}. Dashed: the paper's",
        "panels": [
            *pair(left, (MAZE9, "pass@k", lines), "k", xscale="log"),
            *fewer_panels(results, ks),
        ],
    }


def figure4() -> dict:
    """Many epochs over few problems, from the bases on."""
    every = runs(RESULTS / "fixed_set/runs", r"seed(?P<seed>\d+)-(?P<method>[a-z]+)", 480)
    found = paired(every, METHODS)
    seeds = sorted(set.intersection(*(set(every[method]) for method in METHODS)))
    bases = evaluated(RESULTS / "fixed_set/bases.json")
    start = table.coverage(bases, [1, 64])["base"].mean(1)[seeds]  # (seeds, 2)
    panels = []
    for place, (theirs_k, ours_k) in enumerate((("pass@1", "pass@1"), ("pass@128", "pass@64"))):
        lines = []
        for name, rows in found.items():
            steps, values = over_steps(rows, f"eval/{ours_k}")
            values = np.concatenate([start[:, place, None], values], 1)
            lines.append(over_seeds(name, np.array([0, *steps / 8]), values))
        left = ("paper: GSM8K, SmolLM2-360M", theirs_k, paper(4)[theirs_k])
        right = ("ours: 128 mazes of 9x9 (reduced scale)", ours_k, lines)
        panels += pair(left, right, "epochs")
        panels[-1]["levels"] = {str(round(start[:, place].mean(), 3)): "before RL"}
    return {
        "title": "Over 60 epochs MaxRL keeps most of its base's pass@64, GRPO and RLOO lose it",
        "caption": "Figure 4, held-out problems. Ours: strong base, .3M parameters, 128 validation "
        f"mazes x 64 samples. Solid: ours, {seeds_said(len(seeds))}; dashed: the paper's",
        "panels": panels,
    }


def smoothed(found: dict[str, list], key: str) -> list[dict]:
    """A metric of each method's runs, as means of nine lines of metrics.jsonl."""
    lines = []
    for name, seeds in found.items():
        steps, values = over_steps([solved(rows) for rows in seeds], key)
        # A mean of nine points has all nine there.
        lines.append(over_seeds(name, steps[4:-4], smooth(values, 9)[:, 4:-4]))
    return lines


def figure12(base: str, title: str) -> dict:
    """Prompts that are solved at least once."""
    ours = paired(headline(base), METHODS)
    lines = []
    for name, seeds in ours.items():
        means = blocks(*over_steps([solved(rows) for rows in seeds], "solved"), 50)
        lines.append(over_seeds(name, 25 + 50 * np.arange(means.shape[1]), means))
    left = (f"{MAZE17}, 256 prompts", SOLVED, paper(12)["17x17 maze"])
    return {
        "title": title,
        "caption": "Figure 12: training prompts with at least one success. Ours: bases stopped at "
        f"pass@1 {BASES[base]}, 16 prompts x 32 rollouts a step, rate falling to 0 from step 500 "
        f"on, means of 50 steps, {seeds_said(len(ours['maxrl']))}. Dashed: the paper's, smoothed "
        "with decay .99 a step",
        "panels": pair(left, (MAZE9, SOLVED, lines), "step"),
    }


def figure17(base: str, title: str) -> dict:
    """pass@1 and pass@32 over training."""
    ours = paired(headline(base), METHODS)
    panels = []
    for k, key in (("pass@1", "reward"), ("pass@32", "solved")):
        curves = {name: points for name, points in paper(17)[k].items() if name != "base"}
        left = (MAZE17, f"{k}, held-out mazes", curves)
        panels += pair(left, (MAZE9, f"{k}, training mazes", smoothed(ours, key)), "step")
    panels[-1]["levels"] = {BEFORE[base]: "before RL, test mazes"}
    return {
        "title": title,
        "caption": f"Figure 17. Ours: {base} base, a warm-up stopped at pass@1 {BASES[base]}; 16 "
        "prompts x 32 rollouts a step; no maze comes twice in RL, 4 to 14 % were seen in the "
        f"warm-up; means of 45 steps, in blocks of 100 the title; {seeds_said(len(ours['maxrl']))}"
        ". Dashed: the paper's 9,000 steps, from a base of .012",
        "panels": panels,
    }


def fresh() -> dict:
    """pass@1 and pass@32 over training of the seeds that no other study uses."""
    panels, counts = [], {}
    for base in ("weak", "strong"):
        # Seed 100 chose the rates.
        pattern = rf"{base}-seed(?P<seed>\d)-(?P<method>maxrl|grpo|rloo)-lr.*"
        ours = paired(runs(RESULTS / "fresh/runs", pattern, 1000), METHODS)
        counts[base] = len(ours["maxrl"])
        for k, key in (("pass@1", "reward"), ("pass@32", "solved")):
            title = f"ours: {base} base (reduced scale)"
            label = f"{k}, training mazes"
            panels += level(panel(title, "step", label, smoothed(ours, key)))
        tested = evaluated(RESULTS / f"fresh/{base}-test.json")
        before = table.coverage(tested, [32])["base"].mean()
        panels[-1]["levels"] = {f"{before:.3f}": "before RL, test mazes"}
    seeds = " and ".join(f"{count} seeds of the {base} base" for base, count in counts.items())
    return {
        "title": "Fresh seeds, own rates: MaxRL leads GRPO in 32 tries in all eight pairs of runs",
        "caption": "9x9 mazes, .3M parameters, 16 prompts x 32 rollouts a step, rate falling to 0 "
        "from step 500 on: 1e-4, but from the strong base MaxRL 3e-4 and RLOO 3e-5; means of 45 "
        f"steps; {seeds}, bold: their mean. Collapsed runs of GRPO and RLOO lie together at .06",
        "panels": panels,
    }


def clipping() -> dict:
    """MaxRL and GRPO with and without norm clipping: one seed from the weak base."""
    pattern = r"weak-seed(?P<seed>\d+)-(?P<method>maxrl|grpo)-lr1e-4-unclipped"
    found, clipped = runs(RESULTS / "headline/runs", pattern, 1000), headline("weak")
    panels = []
    for k, key in (("pass@1", "reward"), ("pass@32", "solved")):
        lines = []
        for method, seeds in found.items():
            (seed,) = seeds
            both = {method: clipped[method][seed], f"{method}-not clipped": seeds[seed]}
            for name, run in both.items():
                steps, values = over_steps([solved(run)], key)
                lines.append(line(name, steps[4:-4], smooth(values, 9)[0][4:-4]))
        panels += level(panel(MAZE9, "step", f"{k}, training mazes", lines))
    return {
        "title": f"Without norm clipping MaxRL still leads on seed {seed}, where GRPO collapses",
        "caption": "With and without clipping the gradient at norm 1: weak base, 16 prompts x 32 "
        f"rollouts a step. Seed {seed} alone, means of 45 steps",
        "panels": panels,
    }


def demo() -> dict:
    """The training curves of `make demo`."""
    pattern = r"seed(?P<seed>\d+)-(?P<method>maxrl|grpo|rloo)"
    found = paired(runs(RESULTS / "demo/runs", pattern, 400), METHODS)
    panels = []
    for key, label in (("reward", "pass@1, training mazes"), ("solved", SOLVED)):
        panels += level(panel(MAZE9, "step", label, smoothed(found, key)))
    return {
        "title": "In 400 steps MaxRL solves more and more prompts; no lead shows at one try",
        "caption": "`make demo`: weak base, 16 prompts x 32 rollouts a step, means of 45 steps, "
        f"{seeds_said(len(found['maxrl']))}",
        "panels": panels,
    }


def base17() -> dict:
    """The base at full size, in the paper's axes, and how its warm-up went."""
    ks, seeds = [], []
    for file in ("test", "test_seed1", "test_seed2"):
        results = evaluated(RESULTS / f"maze17/{file}.json")
        ks = table.powers(results)
        seeds += [values.mean(1)[0] for values in table.coverage(results, ks).values()]
    known = {k: paper(17)[f"pass@{k}"]["base"][1][0] for k in (1, 32, 128, 256)}
    lines = [
        over_seeds("base", ks, np.array(seeds)),
        line("base", list(known), list(known.values()), paper=True, points=True, unnamed=True),
    ]
    axes = {"xscale": "log", "ylim": (0, 1)}
    panels = [panel("ours, points: the paper's; full size", "k", "pass@k", lines, **axes)]
    warm_ups = runs(RESULTS / "maze17/runs", r"(?P<method>seed)(?P<seed>\d+)", 1000)["seed"]
    for key, label, limits, levels, said in (
        ("loss", "loss per token", (0, 0.5), {".294": "blind walk"}, "right"),
        ("eval/pass@1", "pass@1, validation", (0, 0.016), {".012": "the paper's base"}, "left"),
    ):
        lines = []
        for seed, rows in warm_ups.items():
            steps, values = over_steps([rows], key)
            if key == "loss":
                values = smooth(values, 9)
            lines.append(line(f"seed {seed}", steps, values[0]))
        title = "ours: full size, a line a seed"
        axes = {"ylim": limits, "levels": levels, "said": said}
        panels.append(panel(title, "step of the warm-up", label, lines, **axes))
    return {
        "title": "The warm-up reaches the paper's base at one try, not quite in 256 tries",
        "caption": "17x17 mazes, 3.9M parameters, 3 seeds. Left: 256 test mazes x 256 samples, "
        "mean and each seed. Middle: means of 45 steps; .294 is the loss of the best walk that "
        "does not see walls. Right: a run stops at .012",
        "columns": 3,
        "panels": panels,
    }


def price() -> dict:
    """Equal steps, equal rollouts, equal seconds, and the test."""
    found = price_tables.read()
    ks = [2**i for i in range(10)]
    tested = price_tables.tests(ks)
    count = max(map(len, found.values()))
    shown = {}
    for arm, seeds in found.items():
        if len(seeds) == count:
            rounds = arm.startswith("maxrl_rare") and "8,8,16" in arm
            shown[arm] = arm.replace("maxrl_rare", "rounds") if rounds else arm
    panels = []
    for what, label in (
        ("steps", "step"),
        ("rollouts", "rollouts"),
        ("seconds", "seconds of rollouts and updates, one core"),
    ):
        lines = []
        for arm, name in shown.items():
            timed = price_tables.TIMED if what == "seconds" else found[arm]
            curves = [
                price_tables.curve(found[arm][seed], what) for seed in found[arm] if seed in timed
            ]
            # As far as all seeds go.
            first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
            x = np.linspace(first, last, 10)
            each = np.array([np.interp(x, *curve) for curve in curves])
            lines.append(over_seeds(name, x, each))
        title = f"ours: equal {what} (reduced scale)"
        panels.append(panel(title, label, "pass@1, training mazes", lines))
    lines = [
        over_seeds(name, ks, np.array(list(tested[arm].values()))) for arm, name in shown.items()
    ]
    labels = ("ours: after 1,000 steps (reduced scale)", "k", "pass@k, test mazes")
    return {
        "title": "On average rounds with 32 prompts lead at equal steps, with 16 at equal rollouts",
        "caption": "9x9 mazes from weak bases, .3M parameters. Prompts x rollouts; 16x8,8,16 are "
        "rounds of 8, 8 and 16 rollouts until one has a success; with 32 prompts they begin with "
        f"764 rollouts a step, where the others have 512. Means of {count} seeds, of "
        f"{len(price_tables.TIMED)} for seconds, and each (thin), as far as all of them go; blocks "
        "of 100 steps",
        "panels": [*level(*panels), panel(*labels, lines, xscale="log", ylim=(0, 1))],
    }


BESIDE = {"base": 0.87, "rloo": 1, "grpo": 1.15}
BASES = {"weak": ".015", "strong": ".08"}
BEFORE = {"weak": ".433", "strong": ".700"}  # pass@32 of the bases on test mazes
FIGURES = {
    "demo": demo,
    "price": price,
    "figure4": figure4,
    "figure5_demo": lambda: figure5(
        "demo/test.json",
        "400 steps from the weak base",
        "After 400 steps MaxRL solves on average more than its base at every k, GRPO up to k = 8",
        "seeds of GRPO and RLOO near .09",
    ),
    "figure5_160_steps": lambda: figure5(
        "maze9_laptop/test.json",
        "160 steps from a base of pass@1 .12, a rate a method",
        "After 160 steps GRPO and RLOO are ahead at one try, MaxRL from a few tries on",
        "GRPO and RLOO",
    ),
    "figure5_weak": lambda: figure5(
        "headline/weak-test.json",
        "1,000 steps from the weak base",
        "512 samples of GRPO are worth one of MaxRL on three of four seeds (on the other 3.2)",
        "seeds 1 and 3 of GRPO and three of RLOO, at .09",
    ),
    "figure5_strong": lambda: figure5(
        "headline/strong-test.json",
        "1,000 steps from the strong base",
        "From the strong base seeds disagree at one try; within 8 tries MaxRL leads GRPO and RLOO",
        "GRPO and RLOO at the bottom right",
    ),
    "figure12_weak": lambda: figure12(
        "weak",
        "MaxRL solves ever more prompts; GRPO falls on three of four seeds, not in the paper",
    ),
    "figure12_strong": lambda: figure12(
        "strong", "From the strong base GRPO and RLOO lose prompts, MaxRL gains some"
    ),
    "figure17_weak": lambda: figure17(
        "weak", "MaxRL leads in 32 tries at once, at one try on all four seeds from step 400 on"
    ),
    "figure17_strong": lambda: figure17(
        "strong", "From the strong base MaxRL leads in 32 tries; at one try no lead shows"
    ),
    "figure17_fresh": fresh,
    "clipping": clipping,
    "figure17_full_size_base": base17,
}
