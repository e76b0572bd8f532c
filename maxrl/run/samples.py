"""samples.jsonl of a run directory: what the model writes.

A line is a step with a few of its prompts, each with the rollouts of the highest and the lowest
reward: a right and a wrong one if the prompt has both.
"""

import contextlib
import json
from pathlib import Path

import torch

from maxrl.system import files
from maxrl.system.errors import FAULTS
from maxrl.tasks.base import Task, is_success
from maxrl.tasks.rewards import task_class

NAME = "samples.jsonl"
PROMPTS = 2  # of a line


def write(run, step: int, examples: list, rollouts, rewards: torch.Tensor):
    """Append the line of a step if it is due, with prompts of rank 0.

    rewards (P_local, N), of the first P_local examples, are NaN where there is no verdict.
    """
    if run.task.classes or not run.main or not run.cfg.shows(step):
        return
    rewards = rewards.cpu()
    line: dict = {"step": step, "rollouts": rewards.shape[1], "prompts": []}
    chosen = list(map(best_and_worst, rewards))
    # Prompts with different rewards have more to show, and come first.
    order = sorted(range(len(chosen)), key=lambda i: -len(chosen[i]))
    for i in order[:PROMPTS]:
        line["prompts"].append(
            {
                "prompt": rollouts.prompt_text(i),
                "answer": str(examples[i].columns.get("answer", examples[i].answer)),
                "right": int(is_success(rewards[i]).sum()),
                "responses": [
                    response(run.task, examples[i], rollouts, i, j, float(rewards[i, j]))
                    for j in chosen[i]
                ],
            }
        )
    with open(run.path / NAME, "a") as file:
        file.write(json.dumps(line) + "\n")


def best_and_worst(rewards: torch.Tensor) -> list[int]:
    """Return the rollouts of the highest and the lowest of rewards (N,); one if all are equal.

    Those without a verdict (NaN) are neither.
    """
    best = int(rewards.nan_to_num(-torch.inf).argmax())
    worst = int(rewards.nan_to_num(torch.inf).argmin())
    return [*dict.fromkeys([best, worst])]


def cut(folder: Path, step: int):
    """Remove the lines from `step` on, which a resumed run writes again."""
    file = folder / NAME
    if file.exists():
        kept = [line for row, line in files.json_lines(file) if row["step"] < step]
        files.write_text(file, "".join(kept))


def response(task: Task, example, rollouts, i: int, j: int, reward: float) -> dict:
    """Rollout j of prompt i, with the answer that the verifier reads and a drawing, if any."""
    text = rollouts.text(i, j)
    read = drawn = None
    # An error in the code of a task must not end the run.
    with contextlib.suppress(*FAULTS):
        read = task.final and task.final(task.response(rollouts, i, j))
    with contextlib.suppress(*FAULTS):
        if getattr(task_class(task), "show", None) is not Task.show:
            drawn = task.show(text, example)
    return {
        "reward": None if reward != reward else reward,
        "length": int(rollouts.lengths[i, j]),
        "response": text,
        "read": read and str(read),
        "drawn": drawn,
    }
