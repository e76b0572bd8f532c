"""MaxRL, GRPO and RLOO on 9x9 mazes from strong bases: 1,000 steps, fresh seeds, 160 steps."""

import itertools
import statistics

import numpy as np

from maxrl.run.table import coverage
from results.lab.data import evaluations, means, runs, tested
from results.lab.intervals import crossing, side_by_side
from results.lab.runs import evaluation, from_bases, seed_models
from results.lab.tables import METHODS, differences, levels, over_blocks, table
from results.mazes.curves import FIGURES, FRESH_SEEDS, PANELS, STEPS, fresh_runs, long_runs

__all__ = ["FIGURES"]
OTHERS = ("grpo", "rloo")
ONE_RATE = dict.fromkeys(METHODS, ["1e-4"])
THREE_RATES = dict.fromkeys(METHODS, ["3e-5", "1e-4", "3e-4"])
# The rates that seed 100 chose, of three for each method.
OWN = {"maxrl": ["3e-4"], "grpo": ["1e-4"], "rloo": ["3e-5"]}
SHORT_OWN = ONE_RATE | {"maxrl": ["3e-4"]}

SFT = "train.py maze9_laptop_sft"
RL = "train.py maze9_laptop"
LONG = f"{RL} --steps 1000 --eval-every 100"
SHORT = f"{RL} --steps 160 --schedule constant --eval-every 40"
FRESH = "--task.directory data/maze/9x9-fresh"
STOP = "--stop-at-pass .08"


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
    # For results/gradients.
    "weak": arms("weak", LONG, {}, [0], "--stop-at-pass .015"),
    "strong": arms("strong", LONG, ONE_RATE, range(3), STOP),
    "fresh-rates": arms("fresh/strong", LONG, THREE_RATES, [100], STOP, FRESH),
    "fresh": arms("fresh/strong", LONG, OWN, FRESH_SEEDS, STOP, FRESH),
    "short": arms("short", SHORT, SHORT_OWN, range(3), f"{STOP} --eval-every 20"),
}
TESTS = {
    "strong-test.json": mazes_test("strong", ONE_RATE, range(3), 512),
    "fresh-strong-test.json": mazes_test("fresh/strong", OWN, FRESH_SEEDS, 512),
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


def training():
    """The blocks of all runs over seeds, and who leads when."""
    found = long_runs()
    seeds = list(found["maxrl"])
    print(f"\n## One rate, seeds {', '.join(map(str, seeds))}")
    curves = {}
    for name, key in PANELS.items():
        curves[name] = {
            method: np.stack([means(rows, key, BLOCK) for rows in some.values()])
            for method, some in found.items()
        }
        over_blocks(f"{name}, {len(seeds)} seeds", curves[name], WHEN)
    crossings(curves, seeds)
    equal_seconds(found, seeds)


def chosen_rates():
    """Validation at every rate on seed 100: the mean of the last two evaluations."""
    rows = []
    for method, rates in THREE_RATES.items():
        cells = []
        for rate in rates:
            run = runs("mazes", "fresh/strong/", f"-lr{rate}")[method][100]
            cells.append(f"{statistics.mean(evaluations(run, 1)[-2:]):.3f}")
        rows.append([METHODS[method], *cells])
    table(["seed 100: pass@1 on validation by learning rate", *rates], rows)


def tables():
    training()
    found = coverage(tested("mazes/strong-test.json"), KS)
    levels(found, KS, runs("mazes", "strong/", "(-lr1e-4)?"))
    differences(found, KS, "one rate, ")
    print("\n## Fresh seeds, own rates")
    chosen_rates()
    found = coverage(tested("mazes/fresh-strong-test.json"), KS)
    first = FRESH_SEEDS[0]
    levels(found, KS, runs("mazes", "fresh/strong/", "(-lr.*)?"), first)
    differences(found, KS, "fresh seeds: ", first)
    equal_seconds(fresh_runs(), FRESH_SEEDS)
