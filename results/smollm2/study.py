"""SmolLM2-135M on GSM8K: NAME-TEMPERATURE.jsonl is what verdicts.py wrote, a line a problem."""

import json
from pathlib import Path

import numpy as np

from maxrl.metrics import pass_at_k
from results.lab.data import RESULTS, means, runs
from results.lab.figures import SOLVED, curve, level, panel
from results.lab.intervals import with_error
from results.lab.runs import product
from results.lab.tables import pass_columns, table

STUDY = RESULTS / "smollm2"
SFT = "train.py gsm8k_smollm2_135m_sft --steps"
RL = "train.py gsm8k_smollm2_135m --init runs/smollm2/base --seed {seed} --estimator {method}"
RUNS = {
    "warm-up": product("base", f"{SFT} 30") | product("base20", f"{SFT} 20"),
    "rounds": product(
        "seed{seed}/{method}", f"{RL} --rollouts 4,4,8", seed=[0, 1], method=["maxrl_rare"]
    ),
    "at-once": product("seed{seed}/{method}", RL, seed=[0, 1], method=["grpo"])
    | product("seed{seed}/{method}", RL, seed=[0], method=["maxrl", "rloo"]),
}
KEPT_STEPS = 1
# How a file is called, and how many samples a problem has there.
SAMPLED = {
    "before": ("as it is", 8),
    "base20": ("after 20 steps of warm-up", 16),
    "base": ("after 30 steps: the base", 16),
}
DRAWN = {"maxrl_rare": "rounds"}
KS = [1, 2, 4, 8, 16]


def samples_of(model: str, temperature: str, how: str) -> list[str]:
    """The words of verdicts.py: at .6 with top-p .95, at 1 with all of it."""
    top_p = "0.95" if temperature == "0.6" else "1.0"
    words = f"results/smollm2/verdicts.py {model} --temperature {temperature} --top-p {top_p} {how}"
    return words.split()


WIDE = "--prompts 128 --samples 16 --max-response 192"
TESTS = {
    "before-0.6.jsonl": samples_of(
        "data/smollm2/135m-instruct", "0.6", "--prompts 64 --samples 8 --max-response 256"
    ),
    "before-1.0.jsonl": samples_of(
        "data/smollm2/135m-instruct", "1.0", "--prompts 32 --samples 8 --max-response 256"
    ),
    "base-1.0.jsonl": samples_of(
        "runs/smollm2/base", "1.0", "--prompts 64 --samples 16 --max-response 192"
    ),
}
for stage in RUNS.values():
    for name in stage:
        words = samples_of(f"runs/smollm2/{name}", "0.6", WIDE)
        TESTS[f"{name.replace('/', '-')}-0.6.jsonl"] = words


def read_lines(name: str) -> list[dict]:
    return [json.loads(row) for row in (STUDY / name).read_text().splitlines()]


def samples():
    """Every file of samples; the errors are standard errors over problems."""

    def place(file: Path) -> tuple[int, str]:
        name = file.stem.rsplit("-", 1)[0]
        return [*SAMPLED, name].index(name), file.stem

    rows = []
    for file in sorted(STUDY.glob("*-*.jsonl"), key=place):
        name, temperature = file.stem.rsplit("-", 1)
        title, n = SAMPLED.get(name, (name.replace("-", " "), 16))
        lines = read_lines(file.name)
        cells = [temperature, f"{len(lines)} x {n}"]
        for verdict in ("boxed", "published"):
            counts = np.array([line[verdict] for line in lines])
            cells += [with_error(pass_at_k(n, counts, k)) for k in (1, 8)]
        for key in ("with_box", "cut"):
            cells.append(f"{np.mean([line[key] for line in lines]) / n:.3f}")
        rows.append([title, *cells, f"{np.mean([line['tokens'] for line in lines]):.0f}"])
    verdicts = [f"{verdict} pass@{k}" for verdict in ("boxed", "published") for k in (1, 8)]
    columns = ["model, standard error over problems", "temperature", "problems x samples"]
    table([*columns, *verdicts, "with a box", "cut", "tokens"], rows)


def solved(name: str, k: int) -> np.ndarray:
    """pass@k of every problem by the boxed verdict, with 16 samples."""
    counts = [row["boxed"] for row in read_lines(f"{name}-0.6.jsonl")]
    return pass_at_k(16, np.array(counts), k)


def gains():
    """Each run minus the base and minus GRPO of its seed, by the boxed verdict; the errors are
    paired over problems."""
    names = [file.stem.removesuffix("-0.6") for file in sorted(STUDY.glob("seed*-0.6.jsonl"))]
    for against in ("base", "grpo"):
        rows = []
        for name in names:
            seed, method = name.split("-")
            other = against if against == "base" else f"{seed}-{against}"
            if method != against:
                gaps = [solved(name, k) - solved(other, k) for k in (1, 8, 16)]
                rows.append([name.replace("-", " "), *(with_error(gap, "+") for gap in gaps)])
        what = "the base" if against == "base" else "GRPO of its seed"
        table([f"run minus {what}, paired over problems", *pass_columns((1, 8, 16))], rows)


def in_seed_order() -> list[tuple[str, str, list[dict]]]:
    """(method, run, its steps) by seed."""
    found = [
        (f"seed{seed}-{method}", method, rows)
        for method, seeds in runs("smollm2").items()
        for seed, rows in seeds.items()
    ]
    return sorted(found, key=lambda run: run[0])


def by_thirds():
    """Every run of RL: rewards and shares of prompts with a success are means of thirds."""
    rows = []
    for name, _, run in in_seed_order():
        cells = [len(run), f"{sum(row['seconds'] for row in run) / 3600:.2f}"]
        cells.append(f"{sum(row['rollouts'] for row in run):.0f}")
        for key in ("reward", "solved"):
            thirds = np.array_split([row[key] for row in run], 3)
            cells.append(", ".join(f"{part.mean():.3f}" for part in thirds))
        rows.append([name.replace("-", " "), *cells])
    thirds = ("reward, by thirds", "prompts with a success")
    table(["run", "steps", "hours", "rollouts", *thirds], rows)


def tables():
    samples()
    gains()
    by_thirds()


def smollm2() -> dict:
    """A real model: test problems, and the training prompts with a success."""
    tested = [curve("base", KS, [solved("base", k).mean() for k in KS])]
    trained = []
    order = ("maxrl_rare", "grpo", "maxrl", "rloo")
    for name, method, rows in sorted(in_seed_order(), key=lambda run: order.index(run[1])):
        drawn = DRAWN.get(method, method)
        if (STUDY / f"{name}-0.6.jsonl").exists():
            tested.append(curve(drawn, KS, [solved(name, k).mean() for k in KS]))
        values = means(rows, "solved", 10)
        trained.append(curve(drawn, 5 + 10 * np.arange(len(values)), values))
    axes = {"xscale": "log", "xticks": KS}
    return {
        "title": "SmolLM2-135M on GSM8K: no clear gain, and seeds differ more than methods",
        "caption": "Warm-up of 30 steps, then 60 steps of 8 prompts x 16 rollouts (rounds: 4, 4 "
        "and 8), rate 1e-5, a line a seed (paper, Figure 4: 360M, 256 x 128, 1,500 steps). Left: "
        "128 test problems x 16 samples, temperature .6, top-p .95, standard errors .005 at k = 1 "
        "and .04 at 16. Right: training prompts, means of 10 steps",
        "panels": [
            *level(panel("ours (reduced scale): test problems", "k", "pass@k", tested, **axes)),
            *level(panel("ours (reduced scale): training", "step", SOLVED, trained)),
        ],
    }


FIGURES = {"smollm2": smollm2}
