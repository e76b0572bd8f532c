"""Figures of the maze studies, with the paper's next to them. results/figures.py draws them."""

import numpy as np

from maxrl.metrics import times_fewer
from maxrl.run import table
from maxrl.plots import over_steps, smooth
from results.panels import (
    MAZE9,
    MAZE17,
    METHODS,
    SOLVED,
    level,
    line,
    over_seeds,
    seeds_said,
    theirs,
)
from results.price import summarise
from results.reading import (
    RESULTS,
    averaged,
    blocks,
    crossing,
    evaluated,
    headline,
    paired,
    paper,
    runs,
    solved,
)


def fewer_panels(results: dict, ks: list[int]) -> tuple[list, list[str]]:
    """How many times fewer samples MaxRL needs: the paper's against GRPO, ours against each; and sentences for the last k."""
    axes = {
        "xlabel": "k",
        "xscale": "log",
        "yscale": "log",
        "ylim": (0.4, 1.5 * ks[-1]),
        "ylabel": "times fewer samples for MaxRL",
    }
    diagonal = line("base", [1, ks[-1]], [1, ks[-1]], pale=True)
    lines = [diagonal]
    for curves in paper(5).values():
        (x, grpo), (_, maxrl) = curves["grpo"], curves["maxrl"]
        x, times = x[1:], times_fewer(x, grpo[None, None], maxrl[None, None], draws=1)[0][1:]
        lines.append(line("grpo", x[times > 0], times[times > 0], paper=True))
    left = {"lines": lines, "title": "paper: Qwen3-1.7B and 4B on four benchmarks", **axes}
    curves = table.coverage(results, ks)
    lines, says = [diagonal], []
    for name in curves:
        if name != "maxrl":
            times, low, high = times_fewer(ks, curves[name], curves["maxrl"])
            shown = (times > 0) & (np.array(ks) > 1)
            # 0 is "never": below the axis.
            lines.append(
                line(
                    name,
                    np.array(ks)[shown],
                    times[shown],
                    low=np.maximum(low, 0.01)[shown],
                    high=high[shown],
                )
            )
        if name in ("grpo", "rloo"):
            said = [table.bounded(value[-1], ks[-1], ks[-1]) for value in (times, low, high)]
            says.append(
                "MaxRL needs {} times fewer samples than {} for its pass@{}, 95 % interval {} to {}".format(
                    said[0], name.upper(), ks[-1], *said[1:]
                )
            )
    return [left, {"lines": lines, "title": MAZE9, **axes}], says


def figure5(file: str, what: str):
    """pass@k against k, and how many times fewer samples MaxRL needs."""
    results = evaluated(RESULTS / file)
    if results is None:
        return None
    ks = table.powers(results)
    curves = {
        name: values.mean(1) for name, values in table.coverage(results, ks).items()
    }  # (seeds, ks) each
    axes = {"xlabel": "k", "ylabel": "pass@k", "xscale": "log"}
    left = theirs(
        paper(5)["Qwen3-4B-Base / BeyondAIME"], title="paper: Qwen3-4B-Base, BeyondAIME", **axes
    )
    right = {
        "lines": [over_seeds(name, ks, values) for name, values in curves.items()],
        "title": MAZE9,
        **axes,
    }
    level(left, right)
    panels, says = fewer_panels(results, ks)
    count = len(curves["maxrl"])
    return {
        "caption": "Figure 5: coverage, and how many times fewer samples MaxRL needs for another one's pass@k (pale: one "
        f"sample is enough). Ours: {what}, {results['prompts']} test mazes x {results['samples']} samples",
        "told": f"solid: ours, above {seeds_said(count)}, below with 95 % bootstrap intervals over mazes and seeds; "
        "dashed: the paper's",
        "panels": [left, right, *panels],
        "says": says,
    }


def figure3():
    """-log pass@k against the rollouts of training: planned/runs/seedS-METHOD-N, and the headline's for N = 32."""
    steps, found = 500, {}
    for method in METHODS:
        for rollouts in (4, 8, 16, 64):
            pattern = rf"seed(?P<seed>[01])-(?P<method>{method})-{rollouts}"
            found[method, rollouts] = runs(RESULTS / "planned/runs", pattern, steps).get(method)
        pattern = rf"weak-seed(?P<seed>[01])-(?P<method>{method})-lr1e-4"
        found[method, 32] = runs(RESULTS / "headline/runs", pattern, steps).get(method)
    if None in found.values():
        return None
    panels = []
    for theirs_k, ours_k in (("k=1", "pass@1"), ("k=128", "pass@64")):
        axes = {
            "xlabel": "rollouts of a prompt in training",
            "xscale": "log",
            "yscale": "log",
            "ylim": (0.01, 6),
            "xticks": [4, 8, 16, 32, 64, 128],
        }
        left = theirs(paper(3)[theirs_k], title=MAZE17, ylabel=f"-log pass@{theirs_k[2:]}", **axes)
        lines = []
        for method in METHODS:
            counts = [4, 8, 16, 32, 64]
            values = [
                [
                    row[f"eval/{ours_k}"]
                    for row in rows
                    if row["step"] == steps - 1 and f"eval/{ours_k}" in row
                ]
                for n in counts
                for rows in found[method, n].values()
            ]
            lines.append(
                over_seeds(method, counts, -np.log(np.array(values).reshape(len(counts), -1).T))
            )
        panels += [left, {"lines": lines, "title": MAZE9, "ylabel": f"-log {ours_k}", **axes}]
    return {
        "caption": "Figure 3: what more rollouts bring, paper after 9,000 steps. Ours: weak base, 500 steps, 64 validation "
        "mazes x 64 samples",
        "told": f"solid: ours, {seeds_said(2)}; dashed: the paper's",
        "panels": panels,
    }


def figure4():
    """Many epochs over few problems: fixed_set/runs/seedS-METHOD, and fixed_set/bases.json for epoch 0."""
    every = runs(RESULTS / "fixed_set/runs", r"seed(?P<seed>\d+)-(?P<method>[a-z]+)", 480)
    found = paired(every, METHODS)
    bases = evaluated(RESULTS / "fixed_set/bases.json")
    if not found or bases is None:
        return None
    seeds = sorted(set.intersection(*(set(every[method]) for method in METHODS)))
    start = table.coverage(bases, [1, 64])["base"].mean(1)[seeds]  # (seeds, 2)
    panels = []
    for place, (theirs_k, ours_k) in enumerate((("pass@1", "pass@1"), ("pass@128", "pass@64"))):
        left = theirs(
            paper(4)[theirs_k], title="paper: GSM8K, SmolLM2-360M", xlabel="epochs", ylabel=theirs_k
        )
        lines = []
        for name, rows in found.items():
            steps, values = over_steps(rows, f"eval/{ours_k}")
            values = np.concatenate([start[:, place, None], values], 1)
            lines.append(over_seeds(name, np.array([0, *steps / 8]), values))
        right = {
            "lines": lines,
            "title": "ours: 128 mazes of 9x9 (reduced scale)",
            "xlabel": "epochs",
            "ylabel": ours_k,
        }
        level(left, right)
        panels += [left, right]
    count = len(found["maxrl"])
    return {
        "caption": "Figure 4: many epochs over few problems, held-out problems. Ours: strong base, 128 validation mazes "
        "x 64 samples",
        "told": f"solid: ours, {seeds_said(count)}; dashed: the paper's",
        "panels": panels,
    }


def figure12(base: str):
    """Prompts that are solved at least once, smoothed as the paper's."""
    ours = {
        name: [solved(rows) for rows in seeds]
        for name, seeds in paired(headline(base), METHODS).items()
    }
    if not ours:
        return None
    left = theirs(
        paper(12)["17x17 maze"], title=f"{MAZE17}, 256 prompts", xlabel="step", ylabel=SOLVED
    )
    lines = []
    for name, seeds in ours.items():
        steps, values = over_steps(seeds, "solved")
        lines += [
            line(name, steps, values.mean(0), pale=True),
            over_seeds(name, steps, averaged(values, int(steps[1] - steps[0]))),
        ]
    right = {"lines": lines, "title": MAZE9, "xlabel": "step", "ylabel": SOLVED}
    level(left, right)
    count = len(ours["maxrl"])
    return {
        "caption": f"Figure 12: training prompts with at least one success, smoothed with decay .99 a step. Ours: "
        f"{base} base, 16 prompts x 32 rollouts a step, mazes never repeat",
        "told": f"solid: ours, {seeds_said(count)}, pale: not smoothed; dashed: the paper's",
        "panels": [left, right],
    }


def figure17(base: str):
    """pass@1 and pass@32 over training, and MaxRL's lead over GRPO; where it passes GRPO for good is marked."""
    ours = {
        name: [solved(rows) for rows in seeds]
        for name, seeds in paired(headline(base), METHODS).items()
    }
    if not ours:
        return None
    panels, says = [], []
    for k, key in (("pass@1", "reward"), ("pass@32", "solved")):
        curves = {name: points for name, points in paper(17)[k].items() if name != "base"}
        left = theirs(curves, title=MAZE17, xlabel="step", ylabel=f"{k}, held-out mazes")
        found = {name: over_steps(seeds, key) for name, seeds in ours.items()}
        whole = slice(4, -4)  # where a mean of nine points has all nine
        lines = [
            over_seeds(name, steps[whole], smooth(values, 9)[:, whole])
            for name, (steps, values) in found.items()
        ]
        right = {"lines": lines, "title": MAZE9, "xlabel": "step", "ylabel": f"{k}, training mazes"}
        level(left, right)
        panels += [left, right]
        steps, values = found["maxrl"]
        lead = blocks(steps, values - found["grpo"][1])  # (seeds, blocks)
        passed = crossing(lead.mean(0))
        since = (
            f"ahead of GRPO from step {passed} on" if passed else "ahead of GRPO in every 100 steps"
        )
        if passed is None:
            since = "not ahead of GRPO at the end"
        right["marks"] = {str(passed or 0): f"MaxRL {since}"}
        says.append(f"{k}, means of 100 steps: MaxRL is {since}")
        if k == "pass@1":
            (x, maxrl), (_, grpo) = curves["maxrl"], curves["grpo"]
            axes = {"xlabel": "step", "ylabel": "pass@1, MaxRL minus GRPO", "zero": True}
            ahead = [
                theirs({"maxrl": (x, maxrl - grpo)}, title=MAZE17, **axes),
                {
                    "lines": [over_seeds("maxrl", 50 + 100 * np.arange(lead.shape[1]), lead)],
                    "title": "ours: means of 100 steps (reduced scale)",
                    **axes,
                },
            ]
            level(*ahead)
    count = len(ours["maxrl"])
    return {
        "caption": f"Figure 17: who leads when. Ours: {base} base, 16 prompts x 32 rollouts a step; training mazes never "
        "repeat, so all are held out",
        "told": f"solid: ours, 1,000 steps, means of 45, {seeds_said(count)}; dashed: the paper's 9,000 steps",
        "panels": panels + ahead,
        "says": says,
    }


def clipping():
    """MaxRL and GRPO with and without norm clipping: one seed from the weak base."""
    pattern = r"weak-seed(?P<seed>\d+)-(?P<method>maxrl|grpo)-lr1e-4-unclipped"
    found, clipped = runs(RESULTS / "headline/runs", pattern, 1000), headline("weak")
    if not found:
        return None
    panels = []
    for k, key in (("pass@1", "reward"), ("pass@32", "solved")):
        lines = []
        for method, seeds in found.items():
            (seed,) = seeds
            both = {method: clipped[method][seed], f"{method}-not clipped": seeds[seed]}
            for name, run in both.items():
                steps, values = over_steps([solved(run)], key)
                lines.append(line(name, steps, smooth(values, 9)[0]))
        panels.append(
            {"lines": lines, "title": MAZE9, "xlabel": "step", "ylabel": f"{k}, training mazes"}
        )
        level(panels[-1])
    return {
        "caption": "With and without clipping the gradient at norm 1: weak base, 16 prompts x 32 rollouts a step",
        "told": "ours, one seed, means of 45 steps",
        "panels": panels,
    }


def figure18():
    """Other baselines: planned/runs/seedS-pkpo, -smoothing and -entropy, and the headline's runs."""
    names = {"pkpo": "pkpo", "smoothing": "differential_smoothing", "entropy": "grpo-entropy bonus"}
    found = runs(
        RESULTS / "planned/runs", r"seed(?P<seed>\d+)-(?P<method>pkpo|smoothing|entropy)", 1000
    )
    found = {names[name]: seeds for name, seeds in found.items()} | headline("weak")
    ours = paired(found, (*METHODS, *names.values()))
    if not ours:
        return None
    panels = []
    for theirs_k, ours_k, key in (
        ("pass@1", "pass@1", "reward"),
        ("pass@128", "pass@32", "solved"),
    ):
        left = theirs(
            paper(18)[theirs_k],
            title=f"{MAZE17}, 32 x 128",
            xlabel="step",
            ylabel=f"{theirs_k}, held-out mazes",
        )
        lines = []
        for name, seeds in ours.items():
            steps, values = over_steps([solved(rows) for rows in seeds], key)
            mean = over_seeds(name, steps, smooth(values, 9))
            lines.append(line(name, steps, mean["y"]))
        right = {
            "lines": lines,
            "title": MAZE9,
            "xlabel": "step",
            "ylabel": f"{ours_k}, training mazes",
        }
        level(left, right)
        panels += [left, right]
    return {
        "caption": "Figure 18: other baselines. Ours: weak base, 16 prompts x 32 rollouts a step, PKPO k = 8, gamma .05, "
        "entropy bonus .01",
        "panels": panels,
        "told": f"solid: ours, means of 45 steps and of {len(ours['maxrl'])} seeds; dashed: the paper's",
    }


def base17():
    """The base at full size, in the paper's axes, and how its warm-up went."""
    ks, seeds = None, []
    for file in ("test", "test_seed1", "test_seed2"):
        results = evaluated(RESULTS / f"maze17_base/{file}.json")
        ks = table.powers(results)
        seeds += [values.mean(1)[0] for values in table.coverage(results, ks).values()]
    known = {k: paper(17)[f"pass@{k}"]["base"][1][0] for k in (1, 32, 128, 256)}
    known |= {k: np.exp(-paper(3)[f"k={k}"]["base"][1][0]) for k in (1024, 2048)}
    lines = [
        over_seeds("base", ks, np.array(seeds)),
        line("base", list(known), list(known.values()), paper=True, points=True),
    ]
    left = {
        "lines": lines,
        "xlabel": "k",
        "ylabel": "pass@k",
        "xscale": "log",
        "ylim": (0, 1),
        "title": "ours and the paper's: 17x17 mazes, full size, before RL",
    }
    lines = []
    for seed, rows in runs(RESULTS / "maze17_base/runs", r"(?P<method>seed)(?P<seed>\d+)", 1000)[
        "seed"
    ].items():
        steps, values = over_steps([rows], "loss")
        lines.append(line(f"seed {seed}", steps, smooth(values, 9)[0]))
    right = {
        "lines": lines,
        "xlabel": "step of the warm-up",
        "ylabel": "loss per token",
        "ylim": (0, 0.5),
        "title": "ours: full size, one line a seed",
    }
    return {
        "caption": "Figures 3 and 17, the base (points: the paper's). Ours: 256 test mazes x 256 samples. On the right the "
        "model walks blind at .29, and then learns to read walls",
        "told": f"left: {seeds_said(len(seeds))}; right: means of 45 steps",
        "panels": [left, right],
    }


def rl17():
    """The first steps at full size, in the paper's axes: maze17_rl/runs/maxrl and grpo."""
    found = runs(RESULTS / "maze17_rl/runs", r"(?P<method>maxrl|grpo)(?P<seed>)", 1)
    if not found:
        return None
    left, right = [], []
    for name, seeds in found.items():
        rows = [solved(rows) for rows in seeds.values()]
        steps, values = over_steps(rows, "solved")
        left += [
            line(name, steps, values.mean(0), pale=True),
            line(name, steps, averaged(values, int(steps[1] - steps[0]))[0]),
        ]
        steps, values = over_steps(rows, "reward")
        right.append(line(name, steps, smooth(values, 9).mean(0)))
    last = max(one["x"][-1] for one in left)
    for name in found:
        x, y = paper(12)["17x17 maze"][name]
        left.append(line(name, x[x <= last], y[x <= last], paper=True))
        x, y = paper(17)["pass@1"][name]
        right.append(line(name, x[x <= max(last, 1000)], y[x <= max(last, 1000)], paper=True))
    panels = [
        {
            "lines": left,
            "xlabel": "step",
            "ylabel": SOLVED,
            "title": "ours 32 x 32, paper 256 x about 32; full size",
        },
        {
            "lines": right,
            "xlabel": "step",
            "ylabel": "pass@1",
            "title": "ours: fresh mazes, paper: held-out; full size",
        },
    ]
    for panel in panels:
        level(panel)
    return {
        "caption": "Figures 12 and 17, first points at full size. A step of ours has an eighth of the paper's prompts",
        "told": "solid: ours, one seed; left: smoothed with decay .99 a step, pale: not smoothed, right: mean of 45 steps; "
        "dashed: the paper's",
        "panels": panels,
    }


def price():
    """Equal steps, equal rollouts, equal seconds, and the test: price/runs and price/test-SEED.json."""
    found = summarise.read()
    ks = [2**i for i in range(10)]
    tested = summarise.tests(ks)
    if not (found and tested):
        return None
    count = max(map(len, found.values()))
    shown = {
        arm: arm.replace("maxrl_rare-16x8", "rounds-16x8").replace("maxrl_rare-32x8", "rounds-32x8")
        for arm, seeds in found.items()
        if len(seeds) == count
    }
    panels = []
    for what, label in (
        ("steps", "step"),
        ("rollouts", "rollouts"),
        ("seconds", "seconds of rollouts and updates, one core"),
    ):
        lines = []
        for arm, name in shown.items():
            seeds = [
                rows
                for seed, rows in found[arm].items()
                if what != "seconds" or seed in summarise.TIMED
            ]
            x, y = (
                np.mean(values, 0)
                for values in zip(*(summarise.curve(rows, what) for rows in seeds))
            )
            lines.append(line(name, x, y))
        panels.append(
            {
                "lines": lines,
                "xlabel": label,
                "ylabel": "pass@1, fresh mazes",
                "title": f"ours: equal {what} (reduced scale)",
            }
        )
    end = min(max(one["x"]) for one in panels[2]["lines"])
    panels[2]["xlim"] = (0, 1.6 * end)
    lines = [line(name, ks, np.mean(list(tested[arm].values()), 0)) for arm, name in shown.items()]
    panels.append(
        {
            "lines": lines,
            "xlabel": "k",
            "xscale": "log",
            "ylabel": "pass@k, test mazes",
            "title": "ours: after 1,000 steps (reduced scale)",
        }
    )
    level(*panels[:3])
    return {
        "caption": "The price of a hard prompt: 9x9 mazes from weak bases. Prompts x rollouts; 16x8,8,16 are rounds of 8, "
        "8 and 16 rollouts until one has a success",
        "told": f"means of {count} seeds, of {len(summarise.TIMED)} for seconds; blocks of 100 steps",
        "panels": panels,
    }


FIGURES = {
    "price": price,
    "figure3": figure3,
    "figure4": figure4,
    "figure5_demo": lambda: figure5("demo/test.json", "400 steps from the weak base"),
    "figure5_160_steps": lambda: figure5(
        "maze9_laptop/test.json", "160 steps from a stronger base, a rate a method"
    ),
    "figure5_weak": lambda: figure5("headline/weak-test.json", "1,000 steps from the weak base"),
    "figure5_strong": lambda: figure5(
        "headline/strong-test.json", "1,000 steps from the strong base"
    ),
    "figure12_weak": lambda: figure12("weak"),
    "figure12_strong": lambda: figure12("strong"),
    "figure17_weak": lambda: figure17("weak"),
    "figure17_strong": lambda: figure17("strong"),
    "clipping": clipping,
    "figure17_full_size_base": base17,
    "figure17_full_size": rl17,
    "figure18": figure18,
}
