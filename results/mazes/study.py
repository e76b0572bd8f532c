"""MaxRL, GRPO and RLOO on 9x9 mazes: 1,000 steps, fresh seeds, the demo, and 160 steps."""

import itertools
import statistics

import numpy as np

from maxrl.run.table import coverage
from results.lab.data import evaluations, means, runs, tested
from results.lab.intervals import crossing, side_by_side
from results.lab.runs import evaluation, from_bases, seed_models
from results.lab.tables import METHODS, differences, levels, over_blocks, table
from results.mazes.curves import BASES, FIGURES, PANELS, STEPS, long_runs

__all__ = ["FIGURES"]
OTHERS = ("grpo", "rloo")
ONE_RATE = dict.fromkeys(METHODS, ["1e-4"])
THREE_RATES = dict.fromkeys(METHODS, ["3e-5", "1e-4", "3e-4"])
# The rates that seed 100 chose, of three for each method.
OWN = {"weak": ONE_RATE, "strong": {"maxrl": ["3e-4"], "grpo": ["1e-4"], "rloo": ["3e-5"]}}
SHORT_OWN = ONE_RATE | {"maxrl": ["3e-4"]}
SEEDS = {"weak": range(4, 8), "strong": range(3, 7)}  # fresh ones

SFT = "train.py maze9_laptop_sft"
RL = "train.py maze9_laptop"
LONG = f"{RL} --steps 1000 --eval-every 100"
SHORT = f"{RL} --steps 160 --schedule constant --eval-every 40"
FRESH = "--task.directory data/maze/9x9-fresh"
STRONG = "--stop-at-pass 0.08 --eval-every 20"


def arms(folder: str, rl: str, rates: dict, seeds, sft: str, more: str = "") -> dict:
    """The warm-up of each seed in a folder, and from there every method at its rates."""
    options = {}
    for method, some in rates.items():
        for rate in some:
            options[f"{method}-lr{rate}"] = f"--estimator {method} --lr {rate}"
    return from_bases(f"mazes/{folder}", f"{SFT} {sft} {more}", f"{rl} {more}", options, seeds)


def mazes_test(folder: str, rates: dict, seeds, samples: int) -> list[str]:
    """The test of the bases and of every method at its rate."""
    models = seed_models(f"mazes/{folder}", ["base"])
    for method, (rate,) in rates.items():
        models |= seed_models(f"mazes/{folder}", [method], f"-lr{rate}")
    return evaluation(f"--prompts 256 --samples {samples}", models, seed=seeds)


RUNS = {
    "weak": arms("weak", LONG, ONE_RATE, range(4), "--stop-at-pass .015"),
    "strong": arms("strong", LONG, ONE_RATE, range(3), "--stop-at-pass .08"),
    "fresh-rates": {},
    "fresh": {},
    "demo": from_bases("mazes/demo", SFT, RL, {m: f"--estimator {m}" for m in METHODS}, range(3)),
    "short": arms("short", SHORT, SHORT_OWN, range(3), STRONG),
}
for base, stop in BASES.items():
    sft = f"--stop-at-pass {stop}"
    RUNS["fresh-rates"] |= arms(f"fresh/{base}", LONG, THREE_RATES, [100], sft, FRESH)
    RUNS["fresh"] |= arms(f"fresh/{base}", LONG, OWN[base], SEEDS[base], sft, FRESH)
TESTS = {
    "weak-test.json": mazes_test("weak", ONE_RATE, range(4), 512),
    "strong-test.json": mazes_test("strong", ONE_RATE, range(3), 512),
    "fresh-weak-test.json": mazes_test("fresh/weak", OWN["weak"], SEEDS["weak"], 512),
    "fresh-strong-test.json": mazes_test("fresh/strong", OWN["strong"], SEEDS["strong"], 512),
    "demo-test.json": evaluation(
        "--prompts 256 --samples 256",
        seed_models("mazes/demo", ["base", *METHODS]),
        seed=range(3),
    ),
    "short-test.json": mazes_test("short", SHORT_OWN, range(3), 128),
}

BLOCK, KEPT = 100, 5
ROWS = BLOCK // KEPT
WHEN = [f"{i}-{i + BLOCK}" for i in range(0, STEPS, BLOCK)]
KS = [1, 8, 64, 256, 512]


def crossings(curves: dict, seeds):
    """The step from which on every block of MaxRL is above that of another method."""
    names, columns = [], []
    for name, found in curves.items():
        for method in OTHERS:
            leads = [*(found["maxrl"] - found[method])]
            # Of the mean over seeds the difference comes last, without rounding of it.
            leads.append(found["maxrl"].mean(0) - found[method].mean(0))
            steps = map(crossing, leads)
            columns.append(["never" if step is None else step for step in steps])
            names.append(f"{METHODS[method]}, {name}")
    rows = [*(f"seed {seed}" for seed in seeds), "mean over seeds"]
    table(["MaxRL ahead from step ... on, of", *names], zip(rows, *columns))


def clock(rows: list[dict]) -> np.ndarray:
    """Seconds after each line, by the lower decile of each block: the machine had other work."""
    seconds = np.array([row["seconds"] for row in rows]).reshape(-1, ROWS)
    return KEPT * np.cumsum(np.repeat(np.quantile(seconds, 0.1, axis=1), ROWS))


def at_the_end(rows: list[dict]) -> str:
    """pass@1 / pass@32, means of the last block of steps."""
    last = rows[-ROWS:]
    return side_by_side(statistics.mean(row[key] for row in last) for key in PANELS.values())


def equal_seconds(found: dict, seeds):
    """MaxRL after as many seconds as the other took for all of its steps."""
    rows = []
    for seed, method in itertools.product(seeds, OTHERS):
        maxrl, other = found["maxrl"][seed], found[method][seed]
        end = clock(other)[-1]
        done = int((clock(maxrl) <= end).sum())
        cells = [f"{end / 60:.1f}", at_the_end(other), KEPT * done, at_the_end(maxrl[:done])]
        rows.append([f"seed {seed} {METHODS[method]}", *cells])
    ours = ("MaxRL's steps", "MaxRL's pass@1 / pass@32")
    table(["in the seconds of", "minutes", "its pass@1 / pass@32", *ours], rows)


def training(base: str):
    """The blocks of all runs of a base over seeds, and who leads when."""
    found = long_runs(base)
    seeds = list(found["maxrl"])
    print(f"\n## {base} base, seeds {', '.join(map(str, seeds))}")
    curves = {}
    for name, key in PANELS.items():
        curves[name] = {
            method: np.stack([means(rows, key, BLOCK) for rows in some.values()])
            for method, some in found.items()
        }
        over_blocks(f"{name}, {len(seeds)} seeds", curves[name], WHEN)
    crossings(curves, seeds)
    equal_seconds(found, seeds)


def chosen_rates(base: str):
    """Validation at every rate on seed 100: the mean of the last two evaluations."""
    rows = []
    for method, rates in THREE_RATES.items():
        cells = []
        for rate in rates:
            run = runs("mazes", f"fresh/{base}/", f"-lr{rate}")[method][100]
            cells.append(f"{statistics.mean(evaluations(run, 1)[-2:]):.3f}")
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
    levels(found, KS, runs("mazes", f"fresh/{base}/", "(-lr.*)?"), first)
    differences(found, KS, f"{base} base, fresh seeds: ", first)
    equal_seconds(runs("mazes", f"fresh/{base}/", "-lr.*", STEPS), SEEDS[base])


def tables():
    for base in BASES:
        training(base)
        found = coverage(tested(f"mazes/{base}-test.json"), KS)
        levels(found, KS, runs("mazes", f"{base}/", "(-lr1e-4)?"))
        differences(found, KS, f"{base} base, ")
    for base in BASES:
        fresh_tables(base)
