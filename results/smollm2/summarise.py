"""The tables of README.md from the files beside it, and solutions.md: right and wrong solutions.

    PYTHONPATH=. python results/smollm2/summarise.py

NAME-TEMPERATURE.jsonl is what verdicts.py wrote; runs/seedS-ESTIMATOR.jsonl are metrics.jsonl.
"""

import json
from pathlib import Path

import numpy as np

from maxrl.metrics import pass_at_k
from maxrl.tasks.base import DATA

STUDY = Path(__file__).parent
NAMES = {"before": "as it is", "base": "after the warm-up"}


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def with_error(values: np.ndarray) -> str:
    """Mean and standard error over prompts."""
    return f"{values.mean():.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


def row(file: Path) -> str:
    """A line of the table of samples."""
    name, temperature = file.stem.rsplit("-", 1)
    lines = read(file)
    samples = 16 if "seed" in name or name == "base" else 8
    cells = [NAMES.get(name, name), temperature, f"{len(lines)} x {samples}"]
    for verdict in ("boxed", "published"):
        counts = np.array([line[verdict] for line in lines])
        for k in (1, 8):
            cells.append(with_error(pass_at_k(samples, counts, k)))
    for share in ("with_box", "cut"):
        cells.append(f"{np.mean([line[share] for line in lines]) / samples:.3f}")
    cells.append(f"{np.mean([line['tokens'] for line in lines]):.0f}")
    return f"| {' | '.join(cells)} |"


def table_of_samples() -> list[str]:
    head = ["model", "temperature", "problems x samples", "boxed pass@1", "boxed pass@8"]
    head += ["published pass@1", "published pass@8", "with a box", "cut", "tokens"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [row(file) for file in sorted(STUDY.glob("*-*.jsonl"), reverse=True)]


def table_of_runs() -> list[str]:
    """Steps, seconds, rollouts, reward and share of solved prompts of every run, by thirds."""
    head = ["run", "steps", "hours", "rollouts", "reward, by thirds", "prompts with a success"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for file in sorted((STUDY / "runs").glob("seed*.jsonl")):
        steps = read(file)
        reward = np.array([step["reward"] for step in steps])
        solved = 1 - np.array([step["frac_reward_zero_mean"] for step in steps])
        cells = [file.stem, str(len(steps))]
        cells.append(f"{sum(step['seconds'] for step in steps) / 3600:.2f}")
        cells.append(f"{sum(step['rollouts'] for step in steps):.0f}")
        for values in (reward, solved):
            cells.append(", ".join(f"{part.mean():.3f}" for part in np.array_split(values, 3)))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def solutions(file: Path) -> list[str]:
    """A right and a wrong solution of the first problems that have both."""
    problems = read(DATA / "gsm8k/test.jsonl")
    lines = [
        "# Right and wrong solutions",
        "",
        f"From {file.name}, of GSM8K's first test problems.",
        "",
    ]
    for line in read(file):
        if line.get("right") and line.get("wrong"):
            problem = problems[line["prompt"]]
            lines += [f"**{problem['problem']}** Answer: {problem['answer']}.", ""]
            for verdict in ("right", "wrong"):
                lines += [f"{verdict.capitalize()}:", "", "```", line[verdict].strip(), "```", ""]
    return lines


def main():
    print("\n".join(table_of_samples()), end="\n\n")
    print("\n".join(table_of_runs()))
    tested = sorted(STUDY.glob("seed*-0.6.jsonl")) or [STUDY / "base-0.6.jsonl"]
    if tested[0].exists():
        lines = solutions(tested[0])
        (STUDY / "solutions.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
