"""What guesses blind to the prompt solve of each test set: `python -m results.lab.guessing`.

The sets in guessing.json are {test set: {pass rate of a guess: problems}}. They are made again from
their seeds: mazes, Countdown and subset sums by their tasks (Task.guess), word problems by the
range of answers.
"""

import json
import tempfile
from collections import Counter
from functools import cache, partial
from pathlib import Path

import numpy as np

from data.maze import prepare as mazes
from maxrl.analysis.metrics import exact_pass_at_k
from maxrl.system.files import write_text
from maxrl.tasks import Task
from maxrl.tasks.countdown import Countdown
from maxrl.tasks.maze import Maze
from results.lab.data import read_json
from results.texts.tasks import SubsetSum

FILE = Path(__file__).with_name("guessing.json")


def maze_set(size: int, seed: int, count: int) -> Task:
    """The first mazes of a seed's stream, which are its test set."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--size", size, "--seed", seed, "--test", count, "--train", 1, "--validation", 1]
        mazes.main([*map(str, words), "--workers", "1", "--out", folder])
        return Maze("test", size, folder)


def numbers(answers: int, count: int) -> list[float]:
    """So many problems with so many answers: word problems have the numbers from 1 to 20 or 100."""
    return [1 / answers] * count


# Rates of a guess at each problem, or a task that knows them.
SETS = {
    "9x9 mazes of ten seeds": partial(maze_set, 9, 3, 512),
    "9x9 mazes": partial(maze_set, 9, 0, 256),
    "13x13 mazes": partial(maze_set, 13, 3, 512),
    "17x17 mazes": partial(maze_set, 17, 1, 256),
    "1,000 classes": partial(numbers, 1000, 1),
    "word problems": partial(numbers, 20, 256),
    "word problems up to 100": partial(numbers, 100, 96),
    "Countdown": partial(Countdown, "test", 1024),
    "subset sums": partial(SubsetSum, "test", 256),
    "reversed texts": partial(numbers, 70**4, 256),
}


def rates(name: str) -> list[float]:
    """The pass rate of a guess at each problem of a test set."""
    found = SETS[name]()
    if isinstance(found, list):
        return found
    count = SETS[name].args[-1]
    return [found.guess(found[i]) or 0.0 for i in range(count)]


def histogram(name: str) -> dict[str, int]:
    """{pass rate of a guess: problems} of a test set."""
    return dict(sorted(Counter(f"{rate:.6g}" for rate in rates(name)).items()))


@cache
def of_guesses() -> dict[str, dict[str, int]]:
    return read_json("lab/guessing.json")["sets"]


def guessing(name: str, ks) -> np.ndarray:
    """pass@k (ks,) of guesses at a test set."""
    p = np.array(list(map(float, of_guesses()[name])))
    problems = np.array(list(of_guesses()[name].values()))
    return exact_pass_at_k(p[:, None], ks).T @ problems / problems.sum()


if __name__ == "__main__":
    sets = {name: histogram(name) for name in SETS}
    about = {"command": "python -m results.lab.guessing", "sets": sets}
    write_text(FILE, json.dumps(about, indent=1) + "\n")
    for name in SETS:
        shown = ", ".join(f"{value:.3f}" for value in guessing(name, (1, 8, 32, 64)))
        print(f"{name}: {shown} within 1, 8, 32 and 64 tries")
