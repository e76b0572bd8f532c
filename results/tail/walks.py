"""What fixed walks, blind to the maze, have on the test mazes: `python -m results.tail.walks`.

A walk has the same moves in every maze. The first one is that with the largest mean reward, and
each further one adds most to the mean of the best reward so far.
"""

import itertools
import json
from pathlib import Path

import numpy as np

from maxrl.system.files import write_text
from maxrl.tasks.maze import MOVES, all_moves_left, unpack
from results.lab.guessing import maze_set

FILE = Path(__file__).with_name("walks.json")
SIZE, SEED, MAZES = 13, 3, 512
CELLS = 7  # from cell to cell are two moves; longer walks hit a wall in nearly all mazes
WALKS = 8


def reward_of(cells: tuple[str, ...], left: np.ndarray) -> np.ndarray:
    """Rewards (M,) of the walk from cell to cell that ends without the goal, then DONE."""
    start = SIZE + 1
    here = start
    alive = np.ones(len(left), bool)
    for move in cells:
        down, right = MOVES[move]
        for _ in range(2):
            here += down * SIZE + right
            if not 0 <= here < SIZE * SIZE:
                return np.zeros(len(left))
            alive &= left[:, here] >= 0
    gained = np.maximum(0, left[:, start] - left[:, here]) / left[:, start]
    return np.where(alive, gained / 2, 0.0)


def main():
    task = maze_set(SIZE, SEED, MAZES)
    left = all_moves_left(unpack(np.array(task.mazes[:MAZES]), SIZE))  # (M, n * n)
    walks = [
        cells
        for length in range(1, CELLS + 1)
        for cells in itertools.product(("RIGHT", "DOWN", "LEFT", "UP"), repeat=length)
        if reward_of(cells, left).any()
    ]
    rewards = np.stack([reward_of(cells, left) for cells in walks])  # (walks, M)
    best = np.zeros(MAZES)
    found = []
    for _ in range(WALKS):
        chosen = int(np.maximum(rewards, best).mean(1).argmax())
        best = np.maximum(best, rewards[chosen])
        found.append({"cells": " ".join(walks[chosen]), "best": round(float(best.mean()), 4)})
        print(found[-1])
    about = {"command": "python -m results.tail.walks", "mazes": MAZES, "walks": found}
    write_text(FILE, json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
