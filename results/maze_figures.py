"""Figures of the maze studies, with the paper's next to them."""

import numpy as np

from maxrl.metrics import times_fewer
from maxrl.plots import over_steps, smooth
from maxrl.run import table
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
    theirs,
)
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
from results.tables import price as price_tables


def fewer_panels(results: dict, ks: list[int]) -> tuple[list, list[str]]:
    """How many times fewer samples MaxRL needs, and sentences for the last k.

    The paper's panel is against GRPO alone, ours against each method.
    """
    labels = ("k", "times fewer samples for MaxRL")
    axes = {"xscale": "log", "yscale": "log", "ylim": (0.4, 1.5 * ks[-1])}
    diagonal = line("base", [1, ks[-1]], [1, ks[-1]], pale=True)
    lines = [diagonal]
    for curves in paper(5).values():
        (x, grpo), (_, maxrl) = curves["grpo"], curves["maxrl"]
        x, times = x[1:], times_fewer(x, grpo[None, None], maxrl[None, None], draws=1)[0][1:]
        lines.append(line("grpo", x[times > 0], times[times > 0], paper=True))
    left = panel("paper: Qwen3-1.7B and 4B on four benchmarks", *labels, lines, **axes)
    curves = table.coverage(results, ks)
    lines, says = [diagonal], []
    for name in curves:
        if name == "maxrl":
            continue
        times, low, high = times_fewer(ks, curves[name], curves["maxrl"])
        shown = (times > 0) & (np.array(ks) > 1)
        # 0 means "never", which lies below the axis.
        band = {"low": np.maximum(low, 0.01)[shown], "high": high[shown]}
        lines.append(line(name, np.array(ks)[shown], times[shown], **band))
        if name in ("grpo", "rloo"):
            said = [table.bounded(value[-1], ks[-1], ks[-1]) for value in (times, low, high)]
            says.append(
                f"MaxRL needs {said[0]} times fewer samples than {name.upper()} for its "
                f"pass@{ks[-1]}, 95 % interval {said[1]} to {said[2]}"
            )
    return [left, panel(MAZE9, *labels, lines, **axes)], says


def figure5(file: str, what: str) -> dict:
    """pass@k against k, and how many times fewer samples MaxRL needs."""
    results = evaluated(RESULTS / file)
    ks = table.powers(results)
    lines = []
    for name, values in table.coverage(results, ks).items():
        lines.append(over_seeds(name, ks, values.mean(1)))
    curves = paper(5)["Qwen3-4B-Base / BeyondAIME"]
    left = ("paper: Qwen3-4B-Base, BeyondAIME", "pass@k", curves)
    fewer, says = fewer_panels(results, ks)
    count = sum(row["name"] == "maxrl" for row in results["checkpoints"])
    return {
        "caption": "Figure 5: coverage, and how many times fewer samples MaxRL needs for another "
        f"one's pass@k (pale: one sample is enough). Ours: {what}, {results['prompts']} test mazes "
        f"x {results['samples']} samples",
        "told": f"solid: ours, above {seeds_said(count)}, below with 95 % bootstrap intervals over "
        "mazes and seeds; dashed: the paper's",
        "panels": [*pair(left, (MAZE9, "pass@k", lines), "k", xscale="log"), *fewer],
        "says": says,
    }


def figure3() -> dict | None:
    """-log pass@k against the rollouts of training, which 32 of are the headline's runs."""
    steps = 500
    counts = [4, 8, 16, 32, 64]
    found = {}
    for method in METHODS:
        for n in counts:
            folder = "headline" if n == 32 else "planned"
            name = f"(?P<method>{method})"
            pattern = rf"seed(?P<seed>[01])-{name}-{n}"
            if n == 32:
                pattern = rf"weak-seed(?P<seed>[01])-{name}-lr1e-4"
            found[method, n] = runs(RESULTS / folder / "runs", pattern, steps).get(method)
    if None in found.values():
        return None
    axes = {"xscale": "log", "yscale": "log", "ylim": (0.01, 6), "xticks": [4, 8, 16, 32, 64, 128]}
    label = "rollouts of a prompt in training"
    panels = []
    for theirs_k, ours_k in (("k=1", "pass@1"), ("k=128", "pass@64")):
        of_paper = theirs(paper(3)[theirs_k])
        panels.append(panel(MAZE17, label, f"-log pass@{theirs_k[2:]}", of_paper, **axes))
        lines = []
        for method in METHODS:
            values = []
            for n in counts:
                for rows in found[method, n].values():
                    last = {row["step"]: row for row in rows}[steps - 1]
                    values.append(last[f"eval/{ours_k}"])
            logs = -np.log(np.array(values).reshape(len(counts), -1).T)
            lines.append(over_seeds(method, counts, logs))
        panels.append(panel(MAZE9, label, f"-log {ours_k}", lines, **axes))
    return {
        "caption": "Figure 3: what more rollouts bring, paper after 9,000 steps. Ours: weak base, "
        "500 steps, 64 validation mazes x 64 samples",
        "told": f"solid: ours, {seeds_said(2)}; dashed: the paper's",
        "panels": panels,
    }


def figure4() -> dict:
    """Many epochs over few problems, with the bases as epoch 0."""
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
    return {
        "caption": "Figure 4: many epochs over few problems, held-out problems. Ours: strong base, "
        "128 validation mazes x 64 samples",
        "told": f"solid: ours, {seeds_said(len(seeds))}; dashed: the paper's",
        "panels": panels,
    }


def headline_runs(base: str) -> dict[str, list]:
    """{method: rows of each seed, with `solved`} of the headline study."""
    found = paired(headline(base), METHODS)
    return {name: [solved(rows) for rows in seeds] for name, seeds in found.items()}


def figure12(base: str) -> dict:
    """Prompts that are solved at least once, smoothed as the paper's."""
    ours = headline_runs(base)
    lines = []
    for name, seeds in ours.items():
        steps, values = over_steps(seeds, "solved")
        lines.append(line(name, steps, values.mean(0), pale=True))
        lines.append(over_seeds(name, steps, averaged(values, int(steps[1] - steps[0]))))
    left = (f"{MAZE17}, 256 prompts", SOLVED, paper(12)["17x17 maze"])
    return {
        "caption": "Figure 12: training prompts with at least one success, smoothed with decay .99 "
        f"a step. Ours: {base} base, 16 prompts x 32 rollouts a step, mazes never repeat",
        "told": f"solid: ours, {seeds_said(len(ours['maxrl']))}, pale: not smoothed; dashed: the "
        "paper's",
        "panels": pair(left, (MAZE9, SOLVED, lines), "step"),
    }


def lead_panels(curves: dict, lead: np.ndarray) -> list[dict]:
    """MaxRL's pass@1 minus GRPO's, the paper's and ours (seeds, blocks)."""
    (x, maxrl), (_, grpo) = curves["maxrl"], curves["grpo"]
    label = "pass@1, MaxRL minus GRPO"
    ours = over_seeds("maxrl", 50 + 100 * np.arange(lead.shape[1]), lead)
    left = (MAZE17, label, {"maxrl": (x, maxrl - grpo)})
    right = ("ours: means of 100 steps (reduced scale)", label, [ours])
    return pair(left, right, "step", zero=True)


def figure17(base: str) -> dict:
    """pass@1 and pass@32 over training, and MaxRL's lead over GRPO, with the step it starts at."""
    ours = headline_runs(base)
    panels, says, ahead = [], [], []
    for k, key in (("pass@1", "reward"), ("pass@32", "solved")):
        curves = {name: points for name, points in paper(17)[k].items() if name != "base"}
        found = {name: over_steps(seeds, key) for name, seeds in ours.items()}
        # A mean of nine points has all nine there.
        whole = slice(4, -4)
        lines = []
        for name, (steps, values) in found.items():
            lines.append(over_seeds(name, steps[whole], smooth(values, 9)[:, whole]))
        left = (MAZE17, f"{k}, held-out mazes", curves)
        panels += pair(left, (MAZE9, f"{k}, training mazes", lines), "step")
        steps, values = found["maxrl"]
        lead = blocks(steps, values - found["grpo"][1])  # (seeds, blocks)
        passed = crossing(lead.mean(0))
        since = "ahead of GRPO in every 100 steps"
        if passed is None:
            since = "not ahead of GRPO at the end"
        elif passed:
            since = f"ahead of GRPO from step {passed} on"
        panels[-1]["marks"] = {str(passed or 0): f"MaxRL {since}"}
        says.append(f"{k}, means of 100 steps: MaxRL is {since}")
        ahead = ahead or lead_panels(curves, lead)
    return {
        "caption": f"Figure 17: who leads when. Ours: {base} base, 16 prompts x 32 rollouts a "
        "step; training mazes never repeat, so all are held out",
        "told": f"solid: ours, 1,000 steps, means of 45, {seeds_said(len(ours['maxrl']))}; dashed: "
        "the paper's 9,000 steps",
        "panels": panels + ahead,
        "says": says,
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
                lines.append(line(name, steps, smooth(values, 9)[0]))
        panels += level(panel(MAZE9, "step", f"{k}, training mazes", lines))
    return {
        "caption": "With and without clipping the gradient at norm 1: weak base, 16 prompts x 32 "
        "rollouts a step",
        "told": "ours, one seed, means of 45 steps",
        "panels": panels,
    }


def figure18() -> dict | None:
    """Other baselines: the planned runs, and the headline's."""
    names = {"pkpo": "pkpo", "smoothing": "differential_smoothing", "entropy": "grpo-entropy bonus"}
    pattern = r"seed(?P<seed>\d+)-(?P<method>pkpo|smoothing|entropy)"
    found = runs(RESULTS / "planned/runs", pattern, 1000)
    found = {names[name]: seeds for name, seeds in found.items()} | headline("weak")
    ours = paired(found, (*METHODS, *names.values()))
    if not ours:
        return None
    panels = []
    for theirs_k, ours_k, key in (
        ("pass@1", "pass@1", "reward"),
        ("pass@128", "pass@32", "solved"),
    ):
        lines = []
        for name, seeds in ours.items():
            steps, values = over_steps([solved(rows) for rows in seeds], key)
            lines.append(line(name, steps, smooth(values, 9).mean(0)))
        left = (f"{MAZE17}, 32 x 128", f"{theirs_k}, held-out mazes", paper(18)[theirs_k])
        panels += pair(left, (MAZE9, f"{ours_k}, training mazes", lines), "step")
    return {
        "caption": "Figure 18: other baselines. Ours: weak base, 16 prompts x 32 rollouts a step, "
        "PKPO k = 8, gamma .05, entropy bonus .01",
        "panels": panels,
        "told": f"solid: ours, means of 45 steps and of {len(ours['maxrl'])} seeds; dashed: the "
        "paper's",
    }


def base17() -> dict:
    """The base at full size, in the paper's axes, and how its warm-up went."""
    ks, seeds = [], []
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
    title = "ours and the paper's: 17x17 mazes, full size, before RL"
    left = panel(title, "k", "pass@k", lines, xscale="log", ylim=(0, 1))
    lines = []
    warm_ups = runs(RESULTS / "maze17_base/runs", r"(?P<method>seed)(?P<seed>\d+)", 1000)["seed"]
    for seed, rows in warm_ups.items():
        steps, values = over_steps([rows], "loss")
        lines.append(line(f"seed {seed}", steps, smooth(values, 9)[0]))
    labels = ("ours: full size, one line a seed", "step of the warm-up", "loss per token")
    right = panel(*labels, lines, ylim=(0, 0.5))
    return {
        "caption": "Figures 3 and 17, the base (points: the paper's). Ours: 256 test mazes x 256 "
        "samples. On the right the model walks blind at .29, and then learns to read walls",
        "told": f"left: {seeds_said(len(seeds))}; right: means of 45 steps",
        "panels": [left, right],
    }


def rl17() -> dict | None:
    """The first steps at full size, in the paper's axes."""
    found = runs(RESULTS / "maze17_rl/runs", r"(?P<method>maxrl|grpo)(?P<seed>)", 1)
    if not found:
        return None
    left, right = [], []
    for name, seeds in found.items():
        rows = [solved(rows) for rows in seeds.values()]
        steps, values = over_steps(rows, "solved")
        left.append(line(name, steps, values.mean(0), pale=True))
        left.append(line(name, steps, averaged(values, int(steps[1] - steps[0]))[0]))
        steps, values = over_steps(rows, "reward")
        right.append(line(name, steps, smooth(values, 9).mean(0)))
    last = max(one["x"][-1] for one in left)
    for name in found:
        x, y = paper(12)["17x17 maze"][name]
        left.append(line(name, x[x <= last], y[x <= last], paper=True))
        x, y = paper(17)["pass@1"][name]
        right.append(line(name, x[x <= max(last, 1000)], y[x <= max(last, 1000)], paper=True))
    title = "ours: fresh mazes, paper: held-out; full size"
    return {
        "caption": "Figures 12 and 17, first points at full size. A step of ours has an eighth of "
        "the paper's prompts",
        "told": "solid: ours, one seed; left: smoothed with decay .99 a step, pale: not smoothed, "
        "right: mean of 45 steps; dashed: the paper's",
        "panels": [
            *level(panel("ours 32 x 32, paper 256 x about 32; full size", "step", SOLVED, left)),
            *level(panel(title, "step", "pass@1", right)),
        ],
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
            x, y = (np.mean(values, 0) for values in zip(*curves))
            lines.append(line(name, x, y))
        title = f"ours: equal {what} (reduced scale)"
        panels.append(panel(title, label, "pass@1, fresh mazes", lines))
    end = min(max(one["x"]) for one in panels[2]["lines"])
    panels[2]["xlim"] = (0, 1.6 * end)
    lines = [line(name, ks, np.mean(list(tested[arm].values()), 0)) for arm, name in shown.items()]
    labels = ("ours: after 1,000 steps (reduced scale)", "k", "pass@k, test mazes")
    return {
        "caption": "The price of a hard prompt: 9x9 mazes from weak bases. Prompts x rollouts; "
        "16x8,8,16 are rounds of 8, 8 and 16 rollouts until one has a success",
        "told": f"means of {count} seeds, of {len(price_tables.TIMED)} for seconds; blocks of 100 "
        "steps",
        "panels": [*level(*panels), panel(*labels, lines, xscale="log")],
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
