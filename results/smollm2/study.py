"""SmolLM2-135M on GSM8K: NAME-TEMPERATURE.jsonl is what verdicts.py wrote, a line a problem."""

import numpy as np

from results.lab.data import passed, read_lines
from results.lab.intervals import with_error
from results.lab.runs import product
from results.lab.tables import pass_columns, summary, table

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
DRAWN = {"maxrl_rare": "rounds"}
KS = [1, 2, 4, 8, 16]


def samples_of(model: str, temperature: str, how: str) -> list[str]:
    """The words of verdicts.py: at .6 with top-p .95, at 1 with all of it."""
    top_p = "0.95" if temperature == "0.6" else "1.0"
    words = f"results/smollm2/verdicts.py {model} --temperature {temperature} --top-p {top_p} {how}"
    return words.split()


CHECKPOINT = "data/smollm2/135m-instruct"
SHORT = "--samples 8 --max-response 256 --prompts"
WIDE = "--samples 16 --max-response 192 --prompts"
TESTS = {
    "before-0.6.jsonl": samples_of(CHECKPOINT, "0.6", f"{SHORT} 64"),
    "before-1.0.jsonl": samples_of(CHECKPOINT, "1.0", f"{SHORT} 32"),
    "base20-0.6.jsonl": samples_of("runs/smollm2/base20", "0.6", f"{WIDE} 128"),
    "base-0.6.jsonl": samples_of("runs/smollm2/base", "0.6", f"{WIDE} 128"),
    "base-1.0.jsonl": samples_of("runs/smollm2/base", "1.0", f"{WIDE} 64"),
}
TITLES = {
    "before": "as it is",
    "base20": "after 20 steps of warm-up",
    "base": "after 30 steps: the base",
}
TRAINED = {}  # {name of a run's tests: its method}
for run in sorted(RUNS["rounds"] | RUNS["at-once"]):
    name = run.replace("/", "-")
    TRAINED[name] = name.partition("-")[2]
    TESTS[f"{name}-0.6.jsonl"] = samples_of(f"runs/smollm2/{run}", "0.6", f"{WIDE} 128")


def samples():
    """Every file of samples; the errors are standard errors over problems."""
    rows = []
    for file, words in TESTS.items():
        name, _, temperature = file.removesuffix(".jsonl").rpartition("-")
        n = int(words[words.index("--samples") + 1])
        lines = read_lines(f"smollm2/{file}")
        cells = [temperature, f"{len(lines)} x {n}"]
        for verdict in ("boxed", "published"):
            cells += map(with_error, passed(lines, n, (1, 8), verdict))
        for key in ("with_box", "cut"):
            cells.append(f"{np.mean([line[key] for line in lines]) / n:.3f}")
        cells.append(f"{np.mean([line['tokens'] for line in lines]):.0f}")
        rows.append([TITLES.get(name, name.replace("-", " ")), *cells])
    verdicts = [f"{verdict} pass@{k}" for verdict in ("boxed", "published") for k in (1, 8)]
    columns = ["model, standard error over problems", "temperature", "problems x samples"]
    table([*columns, *verdicts, "with a box", "cut", "tokens"], rows)


def solved(name: str, ks) -> np.ndarray:
    """pass@k (ks, problems) by the boxed verdict, with 16 samples."""
    return passed(read_lines(f"smollm2/{name}-0.6.jsonl"), 16, ks)


def gains():
    """Each run minus the base and minus GRPO of its seed, by the boxed verdict; the errors are
    paired over problems."""
    ks = (1, 8, 16)
    of_base, of_grpo = {}, {}
    for name, method in TRAINED.items():
        row = name.replace("-", " ")
        of_base[row] = solved(name, ks) - solved("base", ks)
        if method != "grpo":
            of_grpo[row] = solved(name, ks) - solved(name.replace(method, "grpo"), ks)
    for what, gaps in (("the base", of_base), ("GRPO of its seed", of_grpo)):
        title = f"run minus {what}, paired over problems"
        summary(title, pass_columns(ks), gaps, "+", with_error)


def tables():
    samples()
    gains()
