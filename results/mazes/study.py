"""MaxRL, GRPO and RLOO on 9x9 mazes: 1,000 steps, fresh seeds, the demo, and 160 steps."""

import statistics

import numpy as np

from maxrl.metrics import samples_to_match
from maxrl.run.table import coverage
from results.lab import tables as lab
from results.lab.data import means, runs, tested
from results.lab.fewer import times_fewer
from results.lab.intervals import crossing
from results.lab.runs import evaluation, product
from results.lab.tables import METHODS, table
from results.mazes.curves import BASES, FIGURES, PANELS, STEPS, long_runs

__all__ = ["FIGURES"]
OTHERS = ("grpo", "rloo")
ONE_RATE = dict.fromkeys(METHODS, ["1e-4"])
THREE_RATES = dict.fromkeys(METHODS, ["3e-5", "1e-4", "3e-4"])
# The rates that seed 100 chose, of three for each method.
OWN = {"weak": ONE_RATE, "strong": {"maxrl": ["3e-4"], "grpo": ["1e-4"], "rloo": ["3e-5"]}}
SHORT_OWN = ONE_RATE | {"maxrl": ["3e-4"]}
SEEDS = {"weak": range(4, 8), "strong": range(3, 7)}  # fresh ones

SFT = "train.py maze9_laptop_sft --seed {seed}"
RL = "train.py maze9_laptop --seed {seed}"
LONG = f"{RL} --steps 1000 --eval-every 100 --lr {{rate}}"
SHORT = f"{RL} --steps 160 --schedule constant --eval-every 40 --lr {{rate}}"
FRESH = "--task.directory data/maze/9x9-fresh"
STRONG = "--stop-at-pass 0.08 --eval-every 20"
WEAK = "--init runs/mazes/weak/seed{seed}/base"


def arms(folder: str, rl: str, rates: dict, seeds, sft: str, more: str = "") -> dict:
    """The warm-up of each seed in a folder, and from there every method at its rates."""
    base = f"{folder}/seed{{seed}}/base"
    made = product(base, f"{SFT} {sft} {more}", seed=seeds)
    for method, some in rates.items():
        name = f"{folder}/seed{{seed}}/{method}-lr{{rate}}"
        words = f"{rl} --estimator {method} --init runs/mazes/{base} {more}"
        made |= product(name, words, seed=seeds, rate=some)
    return made


def mazes_test(folder: str, rates: dict, seeds, how: str) -> list[str]:
    """The test of the bases and of every method at its rate."""
    models = {"base": f"mazes/{folder}/seed{{seed}}/base"}
    for method, (rate,) in rates.items():
        models[method] = f"mazes/{folder}/seed{{seed}}/{method}-lr{rate}"
    return evaluation(f"--prompts 256 --samples {how}", models, seed=seeds)


def weak(name: str, more: str, **values) -> dict:
    """Runs from the weak bases that change something."""
    return product(f"changed/seed{{seed}}/{name}", f"{RL} {WEAK} --lr 1e-4 {more}", **values)


RUNS = {
    "weak": arms("weak", LONG, ONE_RATE, range(4), "--stop-at-pass .015"),
    "strong": arms("strong", LONG, ONE_RATE, range(3), "--stop-at-pass .08"),
    "unclipped": product(
        "weak/seed{seed}/{method}-lr{rate}-unclipped",
        f"{LONG} {WEAK} --estimator {{method}} --max-grad-norm 1e9",
        seed=[3],
        method=["maxrl", "grpo"],
        rate=["1e-4"],
    ),
    "fresh-rates": {},
    "fresh": {},
    "demo": product("demo/seed{seed}/base", SFT, seed=range(3))
    | product(
        "demo/seed{seed}/{method}",
        f"{RL} --init runs/mazes/demo/seed{{seed}}/base --estimator {{method}}",
        seed=range(3),
        method=METHODS,
    ),
    "short-rates": arms("short", SHORT, THREE_RATES, [100], STRONG),
    "short": arms("short", SHORT, SHORT_OWN, range(3), STRONG),
    "baselines": weak("pkpo", "--steps 1000 --estimator pkpo --estimator.k 8", seed=range(3))
    | weak(
        "smoothing",
        "--steps 1000 --estimator differential_smoothing --estimator.gamma .05",
        seed=range(3),
    )
    | weak("entropy", "--steps 1000 --estimator grpo --entropy-bonus .01", seed=range(3)),
    "rollouts": weak(
        "{method}-{n}",
        "--steps 500 --schedule constant --estimator {method} --rollouts {n}",
        seed=range(2),
        method=METHODS,
        n=[4, 8, 16, 64],
    ),
    "batch": weak(
        "{method}-64x32",
        "--steps 1000 --estimator {method} --prompts 64",
        seed=[0],
        method=METHODS,
    ),
}
for base, stop in BASES.items():
    sft = f"--stop-at-pass {stop}"
    RUNS["fresh-rates"] |= arms(f"fresh/{base}", LONG, THREE_RATES, [100], sft, FRESH)
    RUNS["fresh"] |= arms(f"fresh/{base}", LONG, OWN[base], SEEDS[base], sft, FRESH)
# Never run: what is missing, and core-hours.
PLANNED = {
    "baselines": "other baselines (Figure 18, Table 3), three seeds: 2",
    "rollouts": "4, 8, 16 and 64 rollouts (Figure 3), two seeds: 1.7",
    "batch": "64 prompts a step, one seed: 2",
}
TESTS = {
    "weak-test.json": mazes_test("weak", ONE_RATE, range(4), "512"),
    "strong-test.json": mazes_test("strong", ONE_RATE, range(3), "512"),
    "fresh-weak-test.json": mazes_test("fresh/weak", OWN["weak"], SEEDS["weak"], "512"),
    "fresh-strong-test.json": mazes_test("fresh/strong", OWN["strong"], SEEDS["strong"], "512"),
    "demo-test.json": evaluation(
        "--prompts 256 --samples 256",
        {name: f"mazes/demo/seed{{seed}}/{name}" for name in ("base", *METHODS)},
        seed=range(3),
    ),
    "short-rates.json": evaluation(
        "--split validation --prompts 256 --samples 128",
        {"{method}-lr{rate}": "mazes/short/seed100/{method}-lr{rate}"},
        method=METHODS,
        rate=THREE_RATES["maxrl"],
    ),
    "short-test.json": mazes_test("short", SHORT_OWN, range(3), "128"),
}

BLOCK, KEPT = 100, 5
ROWS = BLOCK // KEPT
WHEN = [f"{i}-{i + BLOCK}" for i in range(0, STEPS, BLOCK)]
KS = [1, 8, 64, 256, 512]


def each(found: dict):
    """(seed, method, rows) of every run, by seed."""
    for seed in found["maxrl"]:
        for method in found:
            yield seed, method, found[method][seed]


def by_block(rows: list[dict]) -> list[str]:
    """pass@1 / pass@32 of every block of steps."""
    one, many = (means(rows, key, BLOCK) for key in PANELS.values())
    return [f"{a:.3f} / {b:.2f}" for a, b in zip(one, many)]


def crossings(curves: dict, seeds):
    """The step from which on every block of MaxRL is above that of another method."""

    def cells(*place) -> list:
        leads = []
        for found in curves.values():
            for method in OTHERS:
                ours, other = found["maxrl"], found[method]
                # Of the mean over seeds the difference comes last, without rounding of it.
                lead = (ours - other)[place] if place else ours.mean(0) - other.mean(0)
                leads.append(crossing(lead))
        return ["never" if step is None else step for step in leads]

    rows = [[f"seed {seed}", *cells(place)] for place, seed in enumerate(seeds)]
    names = [f"{METHODS[method]}, {name}" for name in curves for method in OTHERS]
    title = "MaxRL ahead from step ... on, of"
    table([title, *names], [*rows, ["mean over seeds", *cells()]])


def per_run(found: dict, base: str):
    """Clipped steps and seconds of every run, entropy and response length in its last block."""
    rows = []
    for seed, method, run in each(found):
        times = [row["seconds"] for row in run]
        cells = [lab.clipped(run), f"{statistics.median(times):.2f}"]
        cells.append(f"{np.quantile(times, 0.1):.2f}")
        for key, form in (("entropy", ".3f"), ("completions/mean_length", ".1f")):
            cells.append(f"{statistics.mean(row[key] for row in run[-ROWS:]):{form}}")
        rows.append([f"seed {seed} {METHODS[method]}", *cells])
    seconds = ("seconds per step, median", "lower decile")
    ends = ("entropy at the end", "tokens at the end")
    table([f"{base} base", "steps clipped", *seconds, *ends], rows)


def decile(rows: list[dict]) -> np.ndarray:
    """Seconds after each line, by the lower decile of each block: the machine had other work."""
    seconds = np.array([row["seconds"] for row in rows]).reshape(-1, ROWS)
    return KEPT * np.cumsum(np.repeat(np.quantile(seconds, 0.1, axis=1), ROWS))


def everything(rows: list[dict]) -> np.ndarray:
    """Seconds after each line, by all steps."""
    return KEPT * np.cumsum([row["seconds"] for row in rows])


def at_the_end(rows: list[dict]) -> str:
    """pass@1 / pass@32, means of the last block of steps."""
    last = rows[-ROWS:]
    return " / ".join(f"{statistics.mean(row[key] for row in last):.3f}" for key in PANELS.values())


def equal_seconds(found: dict):
    """MaxRL after as many seconds as the other took for all of its steps, by two clocks."""
    rows = []
    for seed, method, other in each(found):
        if method in OTHERS:
            maxrl = found["maxrl"][seed]
            cells = [f"{decile(other)[-1] / 60:.1f}", at_the_end(other)]
            for clock in (decile, everything):
                done = int((clock(maxrl) <= clock(other)[-1]).sum())
                cells += [KEPT * done, at_the_end(maxrl[:done])]
            rows.append([f"seed {seed} {METHODS[method]}", *cells])
    ours = ("MaxRL's steps", "MaxRL's pass@1 / pass@32")
    by_all = [f"by all seconds: {name}" for name in ours]
    table(["in the seconds of", "minutes", "its pass@1 / pass@32", *ours, *by_all], rows)


def training(base: str):
    """The blocks of all runs of a base, over seeds and of each."""
    found = long_runs(base)
    seeds = list(found["maxrl"])
    print(f"\n## {base} base, seeds {', '.join(map(str, seeds))}")
    curves = {}
    for name, key in PANELS.items():
        curves[name] = {
            method: np.stack([means(rows, key, BLOCK) for rows in some.values()])
            for method, some in found.items()
        }
        lab.over_blocks(f"{name}, {len(seeds)} seeds", curves[name], WHEN)
    names = [f"seed {seed}: {METHODS[method]}" for seed, method, _ in each(found)]
    table(["pass@1 / pass@32", *names], zip(WHEN, *(by_block(rows) for *_, rows in each(found))))
    crossings(curves, seeds)
    per_run(found, base)
    equal_seconds(found)


def needed(times: float, k: int) -> str:
    """k times fewer is one sample, and fewer may do; 0 is never within the samples taken."""
    return "< 1" if times == 0 else f"≥ {k}" if times == k else f"{times:.1f}"


def fewer_samples(results: dict):
    """The samples that one method needs for another's pass@k (Figure 5)."""
    # Straight lines between powers of two.
    powers = [2**i for i in range(10)]
    curves = coverage(results, powers)
    shown = [3, 6, 8, 9]
    columns = [f"k = {powers[i]}" for i in shown]
    rows = []
    for name in ("base", "rloo", "grpo"):
        times = times_fewer(powers, curves[name], curves["maxrl"])  # (3, ks)
        cells = [[needed(value, powers[i]) for value in times[:, i]] for i in shown]
        rows.append([name, *(f"{mean} [{least}, {most}]" for mean, least, most in cells)])
    table(["times fewer samples MaxRL needs for the pass@k of", *columns], rows)
    for name, whose in (("base", "its base's"), ("grpo", "GRPO's")):
        rows = []
        for seed, (one, ours) in enumerate(zip(curves[name], curves["maxrl"])):
            times = times_fewer(powers, one[None], ours[None], draws=1)[0]
            rows.append([f"seed {seed}", *(needed(times[i], powers[i]) for i in shown)])
        table([f"times fewer samples MaxRL needs for {whose} pass@k, by seed", *columns], rows)
    shown = [0, 1, 3, 6]
    rows = []
    for name in ("base", "rloo", "grpo"):
        need = samples_to_match(powers, curves["maxrl"].mean((0, 1)), curves[name].mean((0, 1)))
        cells = [f"{need[i]:.0f}" if need[i] < np.inf else "over 512" for i in shown]
        rows.append([name, *cells])
    table(["samples needed for MaxRL's pass@k, by", *(f"k = {powers[i]}" for i in shown)], rows)


def unclipped():
    """pass@1 / pass@32 of one seed of the weak base, with and without clipping at norm 1."""
    found, clipped = long_runs("weak", "1e-4-unclipped", ["maxrl", "grpo"]), long_runs("weak")
    names, columns = [], []
    for seed, method, rows in each(found):
        names += [METHODS[method], f"{METHODS[method]}, not clipped"]
        columns += [by_block(clipped[method][seed]), by_block(rows)]
    print("\n## Clipping")
    table([f"weak base, seed {seed}", *names], zip(WHEN, *columns))


def chosen_rates(base: str):
    """Validation at every rate on seed 100: the mean of the last two evaluations."""
    rows = []
    for method, rates in THREE_RATES.items():
        cells = []
        for rate in rates:
            (run,) = (runs("mazes", f"fresh/{base}/", f"-lr{rate}")[method][100],)
            passed = [row["eval/pass@1"] for row in run if "eval/pass@1" in row]
            cells.append(f"{statistics.mean(passed[-2:]):.3f}")
        rows.append([METHODS[method], *cells])
    table([f"{base} base, seed 100: pass@1 on validation by learning rate", *rates], rows)


def fresh_tables(base: str):
    chosen_rates(base)
    results = tested(f"mazes/fresh-{base}-test.json")
    found = coverage(results, KS)
    print(
        f"\n## {base} base: {results['prompts']} test mazes x {results['samples']} samples, "
        f"torch {results['torch']}"
    )
    first = SEEDS[base][0]
    lab.levels(found, KS, runs("mazes", f"fresh/{base}/", "(-lr.*)?"), first)
    lab.differences(found, KS, f"{base} base, fresh seeds: ", first)
    kept = runs("mazes", f"fresh/{base}/", "-lr.*", STEPS)
    # Seed 100 has three rates, each later seed the chosen one.
    equal_seconds({name: {seed: kept[name][seed] for seed in SEEDS[base]} for name in METHODS})


def one_file(name: str, kept: dict):
    """The demo, or a part of the 160 steps."""
    results = tested(f"mazes/{name}")
    ks = [k for k in (1, 8, 64, 256) if k <= results["samples"]]
    found = coverage(results, ks)
    print(
        f"\n{name}: {results['split']}, {results['prompts']} mazes x "
        f"{results['samples']} samples, torch {results['torch']}"
    )
    lab.levels(found, ks, kept)
    if all(len(seeds) > 1 for seeds in found.values()):
        lab.differences(found, ks)


def tables():
    for base in BASES:
        training(base)
        results = tested(f"mazes/{base}-test.json")
        found = coverage(results, KS)
        lab.levels(found, KS, runs("mazes", f"{base}/", "(-lr1e-4)?"))
        lab.differences(found, KS, f"{base} base, ")
        fewer_samples(results)
    unclipped()
    for base in BASES:
        fresh_tables(base)
    one_file("demo-test.json", runs("mazes", "demo/"))
    one_file("short-rates.json", {})
    one_file("short-test.json", {})
