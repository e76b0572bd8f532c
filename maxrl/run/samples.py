"""What the model writes: samples.jsonl of a run directory. A line is a step, with a few of its prompts and, of each, the
rollouts of the highest and of the lowest reward: a right and a wrong one, where there are both."""

import json
import os
from pathlib import Path

import torch

from maxrl.errors import FAULTS
from maxrl.io import files
from maxrl.parallel import distributed
from maxrl.rewards.functions import kind
from maxrl.tasks.base import Task

NAME = "samples.jsonl"
PROMPTS = 2  # of a line


def write(run, step: int, examples, rollouts, rewards):
    """Adds the line of a step if it is due; all ranks must call this. rewards (P_local, N), NaN where there is no verdict."""
    if run.task.classes or not run.cfg.shows(step):
        return
    rewards = rewards.cpu()
    line = {"step": step, "rollouts": rewards.shape[1], "successes": histogram(rewards)}
    if not run.main:
        return
    # Prompts with different rewards come first: they have more to show. No verdict is neither the best nor the worst one.
    differ = (
        rewards.nan_to_num(-torch.inf).amax(1) > rewards.nan_to_num(torch.inf).amin(1)
    ).tolist()
    shown = sorted(range(len(examples)), key=lambda i: not differ[i])[:PROMPTS]
    line["prompts"] = [prompt(run.task, examples[i], rollouts, i, rewards[i]) for i in shown]
    run.path.mkdir(parents=True, exist_ok=True)
    with open(run.path / NAME, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def cut(folder: Path, step: int):
    """Takes out the lines from `step` on, which a resumed run writes again."""
    file = folder / NAME
    if file.exists():
        files.write_text(
            file, "".join(line for row, line in files.json_lines(file) if row["step"] < step)
        )


def histogram(rewards) -> dict[int, int]:
    """{K: how many prompts of all ranks have K successes}, without those that have no verdict; rewards (P_local, N)."""
    judged = rewards[rewards.isfinite().all(1)]
    counts = torch.bincount((judged == 1).sum(1), minlength=rewards.shape[1] + 1)
    counts = distributed.all_reduce(dict(enumerate(counts.tolist())))
    return {successes: int(prompts) for successes, prompts in counts.items() if prompts}


def prompt(task, example, rollouts, i: int, rewards) -> dict:
    """Prompt i of this rank, with its rewards (N,)."""
    best = int(rewards.nan_to_num(-torch.inf).argmax())
    worst = int(rewards.nan_to_num(torch.inf).argmin())
    return {
        "prompt": rollouts.row(i, 0)["prompt"],
        "answer": str(example.columns.get("answer", example.answer)),
        "right": int((rewards == 1).sum()),
        "responses": [
            response(task, example, rollouts, i, j, float(rewards[j]))
            for j in dict.fromkeys([best, worst])
        ],
    }


def response(task, example, rollouts, i: int, j: int, reward: float) -> dict:
    """Rollout j of prompt i. "read" is the answer that the verifier reads in it, and "drawn" a picture in letters, where the
    task has such things."""
    text = rollouts.text(i, j)
    drawn = None
    if kind(task).show is not Task.show:
        drawn = harmless(task.show, text, example, False)
    return {
        "reward": None if reward != reward else reward,
        "length": int(rollouts.lengths[i, j]),
        "response": text,
        "read": harmless(task.final, task.response(rollouts, i, j)) if task.final else None,
        "drawn": drawn,
    }


def harmless(function, *arguments) -> str | None:
    """What somebody's code says; what is only looked at must not end a run."""
    try:
        said = function(*arguments)
    except FAULTS:
        return None
    return None if said is None else str(said)
