"""Mazes are made, stored and solved as they should be; test_maze_verdicts.py judges responses."""

import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data.maze import prepare
from maxrl.models.tokenizer import Tokenizer
from maxrl.sampling.rollouts import Rollouts
from maxrl.tasks import Example
from maxrl.tasks.maze import (
    VOCABULARY,
    Maze,
    draw,
    generate,
    pack,
    pack_squares,
    solve,
    to_prompt,
    unpack,
    verify,
)
from tests.helpers.pictures import looped, mazes, run, splits
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


def test_a_class_may_have_a_verdict_of_its_own(folder):
    class Half(Maze):
        reward_of = staticmethod(lambda prompt, response: 0.5)

    class Third(Maze):
        def verify(self, response, example):
            return 1 / 3

    class Quarter(Maze):
        def verify_all(self, responses, examples):
            return [0.25] * len(responses)

    words = Tokenizer.from_vocabulary(VOCABULARY)
    tokens = torch.tensor([words.encode("DONE")])[None]
    rollouts = Rollouts([], tokens, torch.ones(1, 1).long(), torch.ones(1, 1) > 0, words)
    for kind, reward, expected in (
        (Half, "goal", 0.5),
        (Half, "progress", 0),
        (Third, "goal", 1 / 3),
        (Third, "progress", 1 / 3),
    ):
        task = kind("train", 9, folder, reward)
        assert task.verify("DONE", task[0]) == expected
        assert task.rewards([task[0]], rollouts).item() == pytest.approx(expected)
    assert Quarter("train", 9, folder).rewards([task[0]], rollouts).item() == 0.25


def test_a_set_of_another_size(folder):
    with pytest.raises(ValueError, match="size 9"):
        Maze("test", 7, folder)


@pytest.mark.parametrize("size", (5, 7, 9))
def test_a_guess_is_one_of_the_shortest_walks_of_an_empty_maze(size):
    """Its chance is the share of these that are open, with loops or without, by trying them all."""
    sides = size - 3
    walks = set()
    for downs in itertools.combinations(range(0, 2 * sides, 2), sides // 2):
        steps = ["DOWN" if i - i % 2 in downs else "RIGHT" for i in range(2 * sides)]
        walks.add(" ".join([*steps, "DONE"]))
    assert len(walks) == math.comb(sides, sides // 2)
    for walls in (*mazes(size, 20), *looped(size, 20)):
        open_ones = sum(verify(to_prompt(walls), walk) for walk in walks)
        row = pack_squares(walls[None])[0]
        task = SimpleNamespace(size=size)
        found = Maze.guess(task, Example("", "", {"maze": row}))
        assert found * len(walks) == pytest.approx(open_ones)


def written(path, walls, form):
    """A file of mazes as their authors have it: grids as JSONL, or chat messages as parquet."""
    if form == "grid":
        rows = [{"prompt_id": i, "grid": each.astype(int).tolist()} for i, each in enumerate(walls)]
        path = path.with_suffix(".jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [to_prompt(each) for each in walls]
    rows = [{"prompt": [{"role": "user", "content": text}], "data_source": "m"} for text in texts]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


@pytest.mark.parametrize("form", ["grid", "prompt"])
def test_mazes_of_others(form, tmp_path, capsys):
    """In the order of their file; the same command again finds the set."""
    walls = looped(9, 12)
    words = ["--source", written(tmp_path / "mazes", walls, form), "--out", tmp_path / "set"]
    words += ["--size", 9, "--test", 5, "--validation", 3]
    assert run(capsys, *words)[0] == 0
    assert run(capsys, *words)[0] == 0
    found = [Maze(split, 9, tmp_path / "set") for split in prepare.SPLITS]
    assert [len(task) for task in found] == [5, 3, 4]
    prompts = [task[i].prompt for task in found for i in range(len(task))]
    assert prompts == [to_prompt(each) for each in walls]
    for task in found:
        assert task.verify(task[0].answer, task[0]) == 1
    refused(run(capsys, *words, "--test", 10, "--overwrite"), "12 mazes")


def test_mazes_that_a_file_has_twice(tmp_path, capsys):
    """One would be learned before it is asked."""
    walls = looped(9, 6)
    file = written(tmp_path / "mazes", np.concatenate([walls, walls[:2]]), "grid")
    words = ["--source", file, "--out", tmp_path / "set", "--size", 9, "--test", 2]
    code, said = run(capsys, *words, "--validation", 0)
    assert code == 0 and "left out 2 mazes" in said
    found = [Maze(split, 9, tmp_path / "set") for split in ("train", "test")]
    prompts = [task[i].prompt for task in found for i in range(len(task))]
    assert len(set(prompts)) == len(prompts) == 6


WRONG = {
    "another size": lambda walls: walls[:-2, :-2],
    "ragged": lambda walls: [[1] * 9] * 8 + [[1]],
    "no border": lambda walls: walls * (np.arange(9) < 8),
    "no way": lambda walls: np.ones((9, 9)),
    "a wall at the start": lambda walls: walls | (np.arange(81).reshape(9, 9) == 10),
    "no numbers": lambda walls: [["#"] * 9] * 9,
    "no list": lambda walls: 3,
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_maze(what, tmp_path, capsys):
    wrong = WRONG[what](mazes(9, 1)[0].astype(int))
    wrong = wrong.tolist() if hasattr(wrong, "tolist") else wrong
    file = tmp_path / "mazes.jsonl"
    right = mazes(9, 1)[0].astype(int).tolist()
    file.write_text(f"{json.dumps({'grid': right})}\n{json.dumps({'grid': wrong})}\n")
    said = run(capsys, "--source", file, "--size", 9, "--test", 1, "--out", tmp_path / "set")
    refused(said, f"{file}, line 2")
