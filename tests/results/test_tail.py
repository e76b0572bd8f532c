"""Walks that are blind to the maze, in results/tail."""

import itertools

import numpy as np

from maxrl.tasks.maze import all_moves_left, progress, to_prompt, unpack
from results.lab.guessing import maze_set
from results.tail import walks


def test_a_walk_has_the_tasks_own_reward():
    task = maze_set(walks.SIZE, walks.SEED, 5)
    mazes = unpack(np.array(task.mazes[:5]), walks.SIZE)
    left = all_moves_left(mazes)
    seen = set()
    for cells in itertools.product(("RIGHT", "DOWN", "LEFT"), repeat=3):
        response = " ".join(move for move in cells for _ in range(2)) + " DONE"
        expected = [progress(to_prompt(maze), response) for maze in mazes]
        assert walks.reward_of(cells, left).tolist() == expected
        seen |= set(expected)
    assert len(seen) > 2
