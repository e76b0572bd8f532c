"""SmolLM2-135M on GSM8K.

NAME-TEMPERATURE.jsonl is what verdicts.py wrote, a line a problem, and runs/NAME.jsonl a run's
metrics.jsonl. `python -m results.tables.smollm2` writes solutions.md, which has the problems' text
from data/gsm8k.
"""

import json
import sys
from pathlib import Path

import numpy as np

from maxrl.io.files import write_text
from maxrl.metrics import mean_and_se, pass_at_k
from maxrl.tasks.base import DATA
from results.reading import RESULTS
from results.tables.cells import head, line, with_error

# How a file is called, and how many samples a problem has there.
SAMPLED = {
    "before": ("as it is", 8),
    "base20": ("after 20 steps of warm-up", 16),
    "base": ("after 30 steps: the base", 16),
}
SHOWN = 2  # problems on solutions.md


def read(file: Path) -> list[dict]:
    return [json.loads(row) for row in file.read_text().splitlines()]


def named(file: Path) -> tuple[str, int, str]:
    """What a file of samples is of: the model's name, samples a problem, temperature."""
    name, temperature = file.stem.rsplit("-", 1)
    return *SAMPLED.get(name, (name.replace("-", " "), 16)), temperature


def place(file: Path) -> tuple[int, str]:
    """Models in the order of SAMPLED, and what was trained from them last."""
    name = file.stem.rsplit("-", 1)[0]
    return [*SAMPLED, name].index(name), file.stem


def samples(study: Path):
    """Every file of samples; the errors are standard errors over problems."""
    verdicts = [f"{verdict} pass@{k}" for verdict in ("boxed", "published") for k in (1, 8)]
    head(
        "model, standard error over problems",
        "temperature",
        "problems x samples",
        *verdicts,
        "with a box",
        "cut",
        "tokens",
    )
    for file in sorted(study.glob("*-*.jsonl"), key=place):
        name, n, temperature = named(file)
        rows = read(file)
        rates = []
        for verdict in ("boxed", "published"):
            counts = np.array([row[verdict] for row in rows])
            rates += [with_error(pass_at_k(n, counts, k)) for k in (1, 8)]
        shares = [f"{np.mean([row[key] for row in rows]) / n:.3f}" for key in ("with_box", "cut")]
        tokens = f"{np.mean([row['tokens'] for row in rows]):.0f}"
        line(name, temperature, f"{len(rows)} x {n}", *rates, *shares, tokens)


def trained(study: Path):
    """Every run of RL: rewards and shares of prompts with a success are means of thirds."""
    head("run", "steps", "hours", "rollouts", "reward, by thirds", "prompts with a success")
    for file in sorted((study / "runs").glob("seed*.jsonl")):
        rows = read(file)
        reward = np.array([row["reward"] for row in rows])
        solved = 1 - np.array([row["frac_reward_zero_mean"] for row in rows])
        thirds = [
            ", ".join(f"{part.mean():.3f}" for part in np.array_split(values, 3))
            for values in (reward, solved)
        ]
        hours = sum(row["seconds"] for row in rows) / 3600
        rollouts = f"{sum(row['rollouts'] for row in rows):.0f}"
        line(file.stem.replace("-", " "), len(rows), f"{hours:.2f}", rollouts, *thirds)


def gains(study: Path):
    """Each run minus the base and minus GRPO of its seed, by the boxed verdict; the errors are
    paired over problems."""

    def solved(name: str, k: int) -> np.ndarray:
        counts = np.array([row["boxed"] for row in read(study / f"{name}-0.6.jsonl")])
        return pass_at_k(16, counts, k)

    names = [file.stem.removesuffix("-0.6") for file in sorted(study.glob("seed*-0.6.jsonl"))]
    for against in ("base", "grpo"):
        what = "the base" if against == "base" else "GRPO of its seed"
        head(f"run minus {what}, paired over problems", "pass@1", "pass@8", "pass@16")
        for name in names:
            seed, method = name.split("-")
            other = against if against == "base" else f"{seed}-{against}"
            if method == against:
                continue
            cells = []
            for k in (1, 8, 16):
                mean, se = mean_and_se(solved(name, k) - solved(other, k))
                cells.append(f"{mean:+.3f} ± {se:.3f}")
            line(name.replace("-", " "), *cells)


def main(study: Path):
    samples(study)
    gains(study)
    trained(study)


def solutions(file: Path) -> str:
    """A right and a wrong solution of the first problems that have both."""
    problems = read(DATA / "gsm8k/test.jsonl")
    text = f"# Right and wrong solutions\n\nFrom {file.name}: the first test problems with both.\n"
    for row in [row for row in read(file) if "right" in row][:SHOWN]:
        problem = problems[row["prompt"]]
        text += f"\n**{problem['problem']}** Answer: {problem['answer']}.\n"
        for verdict in ("right", "wrong"):
            text += f"\n{verdict.capitalize()}:\n\n```\n{row[verdict].strip()}\n```\n"
    return text


if __name__ == "__main__":
    file = RESULTS / "smollm2" / (sys.argv[1] if len(sys.argv) > 1 else "base-0.6.jsonl")
    write_text(RESULTS / "smollm2/solutions.md", solutions(file))
