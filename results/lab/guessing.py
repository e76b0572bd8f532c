"""What guesses blind to the prompt solve of each test set: `python -m results.lab.guessing`.

The sets in guessing.json are {test set: {pass rate of a guess: problems}}. They are made again from
their seeds: mazes and Countdown by their tasks (Task.guess), word problems by the range of answers.
A guess is drawn with equal chances. Whoever knows the generator does better with a list of the
commonest walks, results or expressions: `lists` has {test set: {k: share of its problems that the
first k solve}}.
"""

import json
import tempfile
from collections import Counter
from functools import cache, partial
from pathlib import Path

import numpy as np

from data.maze import prepare as mazes
from data.word_problems import prepare as word_problems
from maxrl.analysis.metrics import exact_pass_at_k
from maxrl.system.files import write_text
from maxrl.tasks.base import Task
from maxrl.tasks.countdown import Countdown, values_of
from maxrl.tasks.maze import Maze
from results.lab.data import read_json

FILE = Path(__file__).with_name("guessing.json")
LISTED = (1, 2, 4, 8, 16, 32, 64)


def maze_sets(size: int, seed: int, count: int, others: int) -> tuple[Task, Task]:
    """The first mazes of a seed's stream, which are its test set, and others."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--size", size, "--seed", seed, "--test", count, "--train", others]
        words += ["--validation", 1, "--workers", 1, "--out", folder]
        mazes.main([*map(str, words)])
        return Maze("test", size, folder), Maze("train", size, folder)


def maze_set(size: int, seed: int, count: int) -> Task:
    return maze_sets(size, seed, count, 1)[0]


def common_walks(size: int, seed: int, count: int, others: int = 10_000) -> dict[str, float]:
    """{k: share of the test mazes that the k commonest solutions of other mazes solve}."""
    test, train = maze_sets(size, seed, count, others)
    walks = [task[i].answer for task, size in ((train, others), (test, count)) for i in range(size)]
    return commonest(walks[:others], walks[others:])


def common_results(largest: int, count: int, others: int = 10_000) -> dict[str, float]:
    """{k: share of the word problems that the k commonest results of others solve}."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--largest", largest, "--train", others, "--test", count, "--out", folder]
        word_problems.main([*map(str, words)])
        train, test = (
            [json.loads(line)["answer"] for line in Path(folder, name).read_text().splitlines()]
            for name in ("train.jsonl", "test.jsonl")
        )
    return commonest(train, test)


def commonest(others: list[str], test: list[str]) -> dict[str, float]:
    """{k: share of the test's answers that are among the k commonest of the others}."""
    common = [answer for answer, _ in Counter(others).most_common(max(LISTED))]
    return {str(k): sum(answer in common[:k] for answer in test) / len(test) for k in LISTED}


def common_expressions(count: int, others: int = 3_000) -> dict[str, float]:
    """{k: share of the test problems that k expressions solve}: each solves the most of those other
    problems that the ones before it do not."""

    def right(split, size):  # (problems, expressions)
        found = [example.columns for example in map(Countdown(split).__getitem__, range(size))]
        return np.array([values_of(each["numbers"]) == each["target"] for each in found])

    test, left = right("test", count), right("train", others)
    solved = np.zeros(count, bool)
    found = {}
    for k in range(1, max(LISTED) + 1):
        best = left.sum(0).argmax()
        left = left[~left[:, best]]
        solved |= test[:, best]
        if k in LISTED:
            found[str(k)] = float(solved.mean())
    return found


def numbers(answers: int, count: int) -> list[float]:
    """So many problems with so many answers: word problems have the numbers from 1 to 100."""
    return [1 / answers] * count


# Rates of a guess at each problem, or a task that knows them.
SETS = {
    "9x9 mazes of ten seeds": partial(maze_set, 9, 3, 512),
    "9x9 mazes": partial(maze_set, 9, 0, 256),
    "13x13 mazes": partial(maze_set, 13, 3, 512),
    "2,048 13x13 mazes": partial(maze_set, 13, 3, 2048),
    "17x17 mazes": partial(maze_set, 17, 1, 256),
    "1,000 classes": partial(numbers, 1000, 1),
    "word problems up to 20": partial(numbers, 20, 96),
    "word problems up to 100": partial(numbers, 100, 96),
    "Countdown": partial(Countdown, "test", 1024),
}


# Test sets with a list.
LISTS = {
    "9x9 mazes of ten seeds": partial(common_walks, 9, 3, 512),
    "9x9 mazes": partial(common_walks, 9, 0, 256),
    "13x13 mazes": partial(common_walks, 13, 3, 512),
    "2,048 13x13 mazes": partial(common_walks, 13, 3, 2048),
    "17x17 mazes": partial(common_walks, 17, 1, 256),
    "word problems up to 20": partial(common_results, 20, 96),
    "word problems up to 100": partial(common_results, 100, 96),
    "Countdown": partial(common_expressions, 1024),
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


def of_list(name: str, ks) -> list[float]:
    """The shares (ks,) of a test set that the first k of its list solve."""
    found = read_json("lab/guessing.json")["lists"][name]
    return [found[str(k)] for k in ks]


def best_guess(name: str, ks) -> np.ndarray:
    """pass@k (ks,) of what solves more of a test set at each k, guesses or the list."""
    guesses = guessing(name, ks)
    return np.maximum(guesses, of_list(name, ks)) if name in LISTS else guesses


def guessing(name: str, ks) -> np.ndarray:
    """pass@k (ks,) of guesses at a test set."""
    p = np.array(list(map(float, of_guesses()[name])))
    problems = np.array(list(of_guesses()[name].values()))
    return exact_pass_at_k(p[:, None], ks).T @ problems / problems.sum()


if __name__ == "__main__":
    about = {
        "command": "python -m results.lab.guessing",
        "sets": {name: histogram(name) for name in SETS},
        "lists": {name: make() for name, make in LISTS.items()},
    }
    write_text(FILE, json.dumps(about, indent=1) + "\n")
    for name in SETS:
        shown = ", ".join(f"{value:.3f}" for value in guessing(name, (1, 8, 32, 64)))
        print(f"{name}: {shown} within 1, 8, 32 and 64 tries")
