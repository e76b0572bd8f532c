"""Mazes are made, stored and solved as they should be; test_maze_verdicts.py judges responses."""

import math

import numpy as np
import pytest

from data.maze import prepare
from maxrl.tasks import Example
from maxrl.tasks.maze import (
    VOCABULARY,
    Maze,
    draw,
    generate,
    pack,
    solve,
    to_prompt,
    unpack,
    verify,
)
from tests.helpers.pictures import mazes, run, splits
from tests.helpers.runs import refused

SIZES = (5, 7, 9, 11, 17)


def neighbours(squares):
    """How many of the four squares beside each inner one are marked, (M, n - 2, n - 2)."""
    up, down = squares[:, :-2, 1:-1], squares[:, 2:, 1:-1]
    return up + down + squares[:, 1:-1, :-2] + squares[:, 1:-1, 2:]


def flood(walls):
    """Distances in moves from (1, 1) in every maze (M, n, n) by dilation, -1 where none leads."""
    distance = np.where(walls, -2, -1)
    distance[:, 1, 1] = 0
    moves = 0
    while (distance == moves).any():
        here = np.pad(distance == moves, ((0, 0), (1, 1), (1, 1)))
        moves += 1
        distance[neighbours(here) & (distance == -1)] = moves
    return distance


@pytest.mark.parametrize("size", SIZES)
def test_every_maze_is_a_spanning_tree(size):
    """In one piece with c * c - 1 openings: connected with one edge fewer than nodes is a tree.
    A packed row holds all of it."""
    packed = generate(size, 500, np.random.default_rng(0))
    walls = unpack(packed, size)
    c = (size - 1) // 2
    assert packed.dtype == np.uint8
    assert packed.shape == (500, -(-2 * c * (c - 1) // 8))
    assert (pack(walls) == packed).all()
    assert not walls[:, 1::2, 1::2].any()
    assert walls[:, ::2, ::2].all()
    assert walls[:, [0, -1]].all()
    assert walls[:, :, [0, -1]].all()
    assert ((~walls).sum((1, 2)) == c * c + c * c - 1).all()
    assert (flood(walls) != -1).all()


def test_statistics_of_17x17():
    """The published mazes: shortest path 29.05 moves (sd 2.08), 22.04 dead ends (sd 2.15).

    Five standard errors of a difference of two such means of 20,000 are 0.10. Prim over frontier
    walls is 0.2 and 1.4 off, Prim over frontier cells from a random cell 1.0 and 0.6.
    """
    walls = mazes(17, 20_000)
    path = flood(walls)[:, 15, 15]
    dead_ends = (neighbours((~walls).astype(int))[:, ::2, ::2] == 1).sum((1, 2))
    for values, mean, deviation in ((path, 29.05, 2.08), (dead_ends, 22.04, 2.15)):
        assert abs(values.mean() - mean) < 0.1
        assert abs(values.std() - deviation) < 0.1


@pytest.mark.parametrize("size", SIZES)
def test_the_answer_is_the_shortest_path(size):
    walls = mazes(size, 30, seed=2)
    for maze, distance in zip(walls, flood(walls)[:, -2, -2], strict=True):
        moves = solve(maze)
        assert len(moves) == distance
        assert verify(to_prompt(maze), " ".join([*moves, "DONE", "<eos>"])) == 1.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("maze") / "9x9"
    counts = ["--train", "300", "--test", "20", "--validation", "30"]
    prepare.main(["--size", "9", *counts, "--out", str(out)])
    return out


def test_prepare_writes_distinct_mazes(folder):
    parts = splits(folder)
    counts = {split: len(rows) for split, rows in parts.items()}
    assert counts == {"test": 20, "validation": 30, "train": 300}
    assert len(np.unique(np.concatenate([*parts.values()]), axis=0)) == 350


def test_the_seed_alone_decides_the_stream(folder, monkeypatch):
    """The held-out mazes are its first, so that the number of training mazes does not change them,
    and neither does that of the workers."""
    parts = splits(folder)
    drawn = prepare.draw_mazes(9, 50, seed=0, workers=1)
    assert (drawn == np.concatenate([parts["test"], parts["validation"]])).all()
    assert (drawn != prepare.draw_mazes(9, 50, seed=1, workers=1)).any()
    monkeypatch.setattr(prepare, "CHUNK", 64)
    one = prepare.draw_mazes(9, 3000, seed=3, workers=1)
    assert one.shape == (3000, 3)
    assert (one == prepare.draw_mazes(9, 3000, seed=3, workers=3)).all()


def test_mazes_that_do_not_exist_are_refused(tmp_path, capsys):
    """All 192 of 7x7 can be drawn; Prim makes some 750 times as often as others."""
    args = ("--size", 7, "--test", 10, "--validation", 10, "--workers", 1, "--out", tmp_path)
    refused(run(capsys, *args, "--train", 173), "the draws ended at 192 distinct mazes")
    refused(run(capsys, *args, "--size", 8), "odd")
    assert not [*tmp_path.iterdir()]
    assert run(capsys, *args, "--train", 172)[0] == 0
    assert len(np.unique(np.concatenate([*splits(tmp_path).values()]), axis=0)) == 192


@pytest.mark.parametrize("index", [0, 299])
def test_examples(folder, index):
    task = Maze("train", 9, folder)
    assert task.stop_tokens == ("DONE", "<eos>")
    example = task[index]
    words = example.prompt.split(" ")
    assert len(words) == 9 * 10 + 4
    assert {*words, *example.answer.split(" ")} <= {*VOCABULARY}
    assert words[:2] == ["<bos>", "GRID_START"]
    assert words[-2:] == ["GRID_END", "PATH_START"]
    assert example.answer.endswith(" DONE <eos>")
    assert task.verify(example.answer, example) == 1
    assert verify(task[1].prompt, example.answer) == 0
    lines = draw(example.prompt, "").splitlines()[:9]
    walls = unpack(example.columns["maze"][None], 9)[0].tolist()
    assert [[line[i : i + 2] == "##" for i in range(0, 18, 2)] for line in lines] == walls


def test_a_set_of_another_size(folder):
    with pytest.raises(ValueError, match="size 9"):
        Maze("test", 7, folder)


@pytest.mark.parametrize("size", SIZES)
def test_a_guess_is_right_in_mazes_of_the_shortest_walk_alone(size, folder):
    """It is one of the shortest walks of an empty maze, so in a maze with a longer one, which few
    have, it is never right."""
    task = Maze("train", 9, folder)
    task.size = size
    sides = (size - 3) // 2
    for moves in (4 * sides - 4, 4 * sides, 4 * sides + 4, 4 * sides + 8):
        answer = " ".join([*["UP"] * moves, "DONE", "<eos>"])
        expected = 1 / math.comb(2 * sides, sides) if moves == 4 * sides else 0
        assert task.guess(Example("", answer)) == pytest.approx(expected)
