"""Mazes: made, stored, solved and judged as they should be (maxrl/tasks/maze.py, data/maze/prepare.py)."""

import json
import random
import re

import numpy as np
import pytest
import torch
from pictures import CORRIDOR, OPEN, mazes, run, splits

from data.maze import prepare
from maxrl.io.files import checksum
from maxrl.io.tokenizer import Tokenizer
from maxrl.rollouts import Rollouts
from maxrl.tasks.maze import (
    ID,
    MOVES,
    VOCABULARY,
    Maze,
    draw,
    generate,
    solve,
    to_prompt,
    unpack,
    verify,
    walk,
)

SIZES = (5, 7, 9, 11, 13, 15, 17)


def flood(walls):
    """Distances in moves from (1, 1) within every maze, -1 where it does not come: (M, n, n), by dilation."""
    distance = np.where(walls, -2, -1)
    distance[:, 1, 1] = 0
    moves = 0
    while (distance == moves).any():
        here = np.pad(distance == moves, ((0, 0), (1, 1), (1, 1)))
        near = here[:, :-2, 1:-1] | here[:, 2:, 1:-1] | here[:, 1:-1, :-2] | here[:, 1:-1, 2:]
        moves += 1
        distance[near & (distance == -1)] = moves
    return distance


@pytest.mark.parametrize("size", SIZES)
def test_every_maze_is_a_spanning_tree(size):
    """c * c cells in one piece with c * c - 1 openings: connected with one edge fewer than nodes is a tree."""
    walls, c = mazes(size, 500), (size - 1) // 2
    assert not walls[:, 1::2, 1::2].any() and walls[:, ::2, ::2].all()
    assert (
        walls[:, 0].all() and walls[:, -1].all() and walls[:, :, 0].all() and walls[:, :, -1].all()
    )
    assert ((~walls).sum((1, 2)) == c * c + c * c - 1).all()
    assert (flood(walls) != -1).all()


@pytest.mark.parametrize("size", SIZES)
def test_packed_rows_hold_everything(size):
    c = (size - 1) // 2
    packed = generate(size, 100, np.random.default_rng(1))
    assert packed.dtype == np.uint8 and packed.shape == (100, -(-2 * c * (c - 1) // 8))
    walls = unpack(packed, size)
    right, down = ~walls[:, 1::2, 2:-1:2], ~walls[:, 2:-1:2, 1::2]
    assert (
        np.packbits(np.concatenate([right.reshape(100, -1), down.reshape(100, -1)], 1), axis=1)
        == packed
    ).all()


def test_statistics_of_17x17():
    """The published mazes: shortest path 29.05 moves (sd 2.08), 22.04 dead ends (sd 2.15), each over 20,000 of them.

    Five standard errors of a difference of two such means are 0.10. Prim over frontier walls is 0.2 and 1.4 off, Prim
    over frontier cells from a random cell 1.0 and 0.6.
    """
    walls = mazes(17, 20_000)
    path, opened = flood(walls)[:, 15, 15], (~walls).astype(int)
    ways = opened[:, :-2, 1:-1] + opened[:, 2:, 1:-1] + opened[:, 1:-1, :-2] + opened[:, 1:-1, 2:]
    dead_ends = (ways[:, ::2, ::2] == 1).sum((1, 2))
    assert abs(path.mean() - 29.05) < 0.1 and abs(path.std() - 2.08) < 0.1
    assert abs(dead_ends.mean() - 22.04) < 0.1 and abs(dead_ends.std() - 2.15) < 0.1


def test_the_answer_is_the_shortest_path():
    for size in SIZES:
        walls = mazes(size, 30, seed=2)
        for maze, distance in zip(walls, flood(walls)[:, -2, -2], strict=True):
            moves = solve(maze)
            assert len(moves) == distance
            assert verify(to_prompt(maze), " ".join([*moves, "DONE", "<eos>"])) == 1.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("maze") / "9x9"
    prepare.main(
        ["--size", "9", "--train", "300", "--test", "20", "--validation", "30", "--out", str(out)]
    )
    return out


def count_mazes(size):
    """Spanning trees of the c x c grid: any cofactor of its Laplacian (Kirchhoff).

    The determinant in exact integers by Bareiss' elimination; every division is without remainder.
    """
    c = (size - 1) // 2
    path = np.diag([1] * (c - 1), 1) + np.diag([1] * (c - 1), -1)
    adjacent = np.kron(path, np.eye(c, dtype=int)) + np.kron(np.eye(c, dtype=int), path)
    matrix = (np.diag(adjacent.sum(0)) - adjacent)[1:, 1:].astype(object)  # Python's integers
    pivot = 1
    while len(matrix):
        last, pivot = pivot, matrix[0, 0]  # never 0: the matrix is positive definite
        matrix = (pivot * matrix[1:, 1:] - np.outer(matrix[1:, 0], matrix[0, 1:])) // last
    return pivot


def test_number_of_mazes():
    """By the matrix-tree theorem; 5x5 and 7x7 also by looking at all sets of c * c - 1 openings."""
    assert {size: count_mazes(size) for size in SIZES} == prepare.EXIST
    for size, edges in ((5, 4), (7, 12)):
        bits = (np.arange(2**edges)[:, None] >> np.arange(edges)) & 1
        walls = unpack(np.packbits(bits.astype(bool), axis=1), size)
        tree = (bits.sum(1) == ((size - 1) // 2) ** 2 - 1) & (flood(walls) != -1).all((1, 2))
        assert tree.sum() == prepare.EXIST[size]


def test_prepare_writes_distinct_mazes(folder):
    parts = splits(folder)
    assert {split: rows.shape for split, rows in parts.items()} == {
        "test": (20, 3),
        "validation": (30, 3),
        "train": (300, 3),
    }
    assert len(np.unique(np.concatenate([*parts.values()]), axis=0)) == 350
    info = json.loads((folder / "info.json").read_text())
    assert info["size"] == 9 and info["counts"] == {"test": 20, "validation": 30, "train": 300}
    assert info["sha256"]["train.npy"] == checksum(folder / "train.npy")
    assert sorted(file.name for file in folder.iterdir()) == [
        "info.json",
        "test.npy",
        "train.npy",
        "validation.npy",
    ]


def test_held_out_mazes_depend_on_the_seed_alone(folder, tmp_path, capsys):
    """Neither the number of training mazes nor that of the workers changes them, and a smaller set is a prefix."""
    few, other = tmp_path / "few", tmp_path / "other"
    args = ("--size", 9, "--test", 20, "--validation", 30, "--out")
    assert run(capsys, *args, few, "--train", 5, "--workers", 1)[0] == 0
    assert run(capsys, *args, other, "--train", 5, "--seed", 1)[0] == 0
    assert all(
        (rows == splits(folder)[split][: len(rows)]).all() for split, rows in splits(few).items()
    )
    assert (splits(few)["test"] != splits(other)["test"]).any()


def test_workers_do_not_change_the_mazes(monkeypatch):
    monkeypatch.setattr(prepare, "CHUNK", 64)
    one, three = (prepare.draw_mazes(9, 3000, seed=3, workers=workers) for workers in (1, 3))
    assert one.shape == (3000, 3) and (one == three).all()


def test_all_mazes_of_7x7(tmp_path, capsys):
    args = ("--size", 7, "--test", 10, "--validation", 10, "--workers", 1, "--out", tmp_path)
    assert run(capsys, *args, "--train", 172)[0] == 0
    assert len(np.unique(np.concatenate([*splits(tmp_path).values()]), axis=0)) == 192
    code, said = run(capsys, *args, "--train", 173)
    assert code == 2 and "only 192 distinct mazes" in said and "193 were asked for" in said


def test_drawing_ends(monkeypatch, tmp_path, capsys):
    """Prim makes some mazes 750 times as often as others: 20 draws for each of the 192 of 7x7 do not find them all."""
    monkeypatch.setattr(prepare, "FEWEST_TRIES", 0)
    code, said = run(
        capsys, "--size", 7, "--train", 192, "--test", 0, "--validation", 0, "--out", tmp_path
    )
    reached = int(re.search(r"ended at (\d+) distinct", said)[1])
    assert code == 1 and 100 < reached < 192 and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("args", "words"), [
    (["--size", 8], ["--size 8", "--size 9"]), (["--size", 3], ["--size 3", "--size 5"]),
    (["--size", -7], ["--size -7", "--size 5"]), (["--train", 0], ["--train", "got 0"]),
    (["--test", -1], ["--test", "got -1"]), (["--validation", -2], ["--validation", "got -2"]),
    (["--seed", -1], ["--seed", "got -1"]), (["--workers", 0], ["--workers", "got 0"]),
    (["--size", 5, "--train", 3, "--test", 1, "--validation", 1], ["only 4 distinct", "5 were asked"]),
])  # fmt: skip
def test_prepare_refuses_in_one_sentence(tmp_path, capsys, args, words):
    code, said = run(capsys, *args, "--out", tmp_path / "none")
    assert code == 2 and said.count("\n") == 1 and all(word in said for word in words)
    assert not (tmp_path / "none").exists()


def test_prepare_never_overwrites_silently(tmp_path, capsys):
    args = [
        "--size",
        5,
        "--train",
        2,
        "--test",
        1,
        "--validation",
        0,
        "--workers",
        1,
        "--out",
        tmp_path,
    ]
    assert run(capsys, *args)[0] == 0
    train = tmp_path / "train.npy"
    assert run(capsys, *args) == (0, f"{tmp_path} holds this set already\n")
    assert len(Maze("validation", 5, tmp_path)) == 0
    code, said = run(capsys, *args, "--seed", 1)
    assert code == 2 and "another set" in said and "--out" in said and "--overwrite" in said
    assert run(capsys, *args)[0] == 0  # still the first set
    train.write_bytes(b"damage")
    assert run(capsys, *args)[0] == 2
    (tmp_path / "info.json").unlink()
    assert "half-written" in run(capsys, *args)[1]
    assert run(capsys, *args, "--overwrite")[0] == 0
    assert len(Maze("train", 5, tmp_path)) == 2
    assert "cannot read or write" in run(capsys, *args[:-1], train)[1]


def test_what_a_killed_command_left_is_cleared(tmp_path, capsys):
    (tmp_path / ".unfinished-x").mkdir()
    (tmp_path / ".unfinished-x" / "train.npy").touch()
    args = [
        "--size",
        5,
        "--train",
        2,
        "--test",
        1,
        "--validation",
        0,
        "--workers",
        1,
        "--out",
        tmp_path,
    ]
    assert run(capsys, *args)[0] == 0 and not list(tmp_path.glob(".*"))


def test_a_set_is_never_half_old_half_new(tmp_path, capsys, monkeypatch):
    """Old training mazes beside new test mazes would leak: what a crash between two renames leaves is no set."""
    args = [
        "--size",
        5,
        "--train",
        2,
        "--test",
        1,
        "--validation",
        0,
        "--workers",
        1,
        "--out",
        tmp_path,
    ]
    assert run(capsys, *args)[0] == 0
    replace = prepare.os.replace

    def full(source, target):
        if target.name == "train.npy":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(prepare.os, "replace", full)
    assert "No space left" in run(capsys, *args, "--seed", 5, "--overwrite")[1]
    with pytest.raises(FileNotFoundError, match="no complete"):
        Maze("train", 5, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "test.npy",
        "train.npy",
        "validation.npy",
    ]


def test_vocabulary():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 32
    assert " ".join(VOCABULARY[:17]) == ("<pad> <bos> <eos> <unk> GRID_START GRID_END PATH_START DONE PATH WALL GOAL "
                                         "START NEWLINE UP DOWN LEFT RIGHT")  # fmt: skip
    assert VOCABULARY[17:] == ("\n", *(f"RESERVED_{i}" for i in range(14)))


def test_examples(folder):
    task = Maze("train", 9, folder)
    assert len(task) == 300 and task.stop_tokens == ("DONE", "<eos>")
    for example in (task[0], task[299]):
        words = example.prompt.split(" ")
        assert len(words) == 9 * 10 + 4 and set(words) | set(example.answer.split(" ")) <= set(
            VOCABULARY
        )
        assert words[:2] == ["<bos>", "GRID_START"] and words[-2:] == ["GRID_END", "PATH_START"]
        assert (
            example.answer.endswith(" DONE <eos>") and task.verify(example.answer, example) == 1.0
        )
        assert verify(task[1].prompt, example.answer) == 0.0
        lines = draw(example.prompt, "", False).splitlines()[:9]
        walls = unpack(example.columns["maze"][None], 9)[0]
        assert [
            [line[i : i + 2] == "##" for i in range(0, 18, 2)] for line in lines
        ] == walls.tolist()
    for index in (-1, 300):
        pytest.raises(IndexError, task.__getitem__, index)
    assert len(to_prompt(mazes(17, 1)[0]).split()) == 310


def test_missing_and_mistaken_sets(folder, tmp_path):
    for size, out, command in (
        (7, tmp_path / "none", "--size 7 --out .*none"),
        (99, None, "--size 99"),
    ):
        with pytest.raises(
            FileNotFoundError, match=rf"run python -m data\.maze\.prepare {command}$"
        ):
            Maze("test", size, out)
    for split, size, word in (
        ("test", 7, "9x9"),
        ("dev", 9, "dev"),
        ("test", 8, "8"),
        ("test", 3, "3"),
    ):
        with pytest.raises(ValueError, match=word):
            Maze(split, size, folder)


TRUTH = [
    (CORRIDOR, "RIGHT DOWN DOWN RIGHT DONE <eos>", 1),
    (CORRIDOR, "RIGHT LEFT RIGHT DOWN UP DOWN DOWN RIGHT DONE", 1),  # squares may be visited again
    (
        CORRIDOR,
        "RIGHT DOWN DOWN RIGHT RIGHT RIGHT UP DONE",
        1,
    ),  # the walk ended at the goal, walls are no matter
    (CORRIDOR, "RIGHT DOWN DOWN RIGHT DONE PATH any thing", 1),  # what follows DONE is no matter
    (CORRIDOR, "  RIGHT DOWN DOWN RIGHT DONE\n", 1),  # space around tokens is not a token
    (CORRIDOR, "RIGHT DOWN DOWN RIGHT", 0),  # DONE is missing
    (CORRIDOR, "RIGHT DOWN DOWN RIGHT <eos> DONE", 0),  # not a move, although after the goal
    (CORRIDOR, "RIGHT <eos> DOWN DOWN RIGHT DONE", 0),
    (CORRIDOR, "RIGHT \n DOWN DOWN RIGHT DONE", 0),  # the vocabulary's newline token is not a move
    (CORRIDOR, "<bos> RIGHT DOWN DOWN RIGHT DONE", 0),
    (CORRIDOR, "RIGHT DOWN DOWN DONE RIGHT DONE", 0),  # DONE before the goal
    (
        CORRIDOR,
        "RIGHT RIGHT DOWN DOWN RIGHT DONE",
        0,
    ),  # a wall, even where the rest would be right without it
    (CORRIDOR, "DOWN RIGHT RIGHT DOWN DONE", 0),
    (CORRIDOR, "right down down right done", 0),
    (CORRIDOR, "", 0),
    (OPEN, "RIGHT RIGHT DOWN DOWN DONE", 1),
    (OPEN, "DOWN RIGHT DOWN RIGHT UP DONE", 1),
    (
        OPEN,
        "UP RIGHT RIGHT DOWN DOWN DONE",
        0,
    ),  # a Python index of -1 would come in again on the other side
    (OPEN, "LEFT DOWN DOWN DONE", 0),
    (OPEN, "RIGHT RIGHT RIGHT DOWN DONE", 0),
    ("GRID_START START GOAL GRID_END", "RIGHT DONE", 1),  # one row is a maze too
    *(
        (prompt, "RIGHT DONE", 0)
        for prompt in (
            "",
            "START GOAL",
            "GRID_START GRID_END",
            "GRID_END START GOAL GRID_START",
            "GRID_START START PATH GRID_END",
            "GRID_START START GOAL GOAL GRID_END",
            "GRID_START START START GOAL GRID_END",
            "GRID_START START GOAL NEWLINE PATH GRID_END",
            "GRID_START START GOAL SEA GRID_END",
        )
    ),
]


@pytest.mark.parametrize(("prompt", "response", "verdict"), TRUTH)
def test_truth_table(prompt, response, verdict):
    assert verify(prompt, response) == verdict and type(verify(prompt, response)) is float
    assert (
        draw(prompt, response, False).splitlines()[-1].startswith("right" if verdict else "wrong")
    )


def test_the_truth_table_tells_the_forgiving_judge():
    """Wrong: words that are no moves are skipped and DONE is not asked for, as in the published warm-up script."""
    forgiven = [
        " ".join([*(word for word in response.split() if word in MOVES), "DONE"])
        for _, response, _ in TRUTH
    ]
    assert (
        sum(
            verify(row[0], response) != row[2]
            for row, response in zip(TRUTH, forgiven, strict=True)
        )
        == 6
    )


def perturbed(moves, rng):
    """A response near the right one: pieces put in, changed or dropped, detours, the end cut off."""
    words = [*moves, "DONE", "<eos>"]
    back = {"UP": "DOWN", "DOWN": "UP", "LEFT": "RIGHT", "RIGHT": "LEFT"}
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(words) + 1)
        piece = rng.choice(
            (VOCABULARY[rng.randrange(32)], rng.choice([*MOVES]), "DONE", "<eos>", "\n")
        )
        detour = (
            [words[at], back[words[at]]] if at < len(words) and words[at] in MOVES else []
        )  # still right
        beyond = rng.choices([*MOVES], k=rng.randrange(4))  # moves after the goal: still right
        start, end, new = rng.choice(((at, at, [piece]), (at, at + 1, [piece]), (at, at + 1, []), (at, None, []),
                                      (at, at, detour), (-2, -2, beyond)))  # fmt: skip
        words[start:end] = new
    return words


def drunken(rng):
    """A random walk: many of these reach the goal of 5x5, some revisit it, some do not write DONE."""
    return rng.choices([*MOVES], k=rng.randrange(30)) + rng.choice((["DONE"], ["DONE"], []))


def batch(walls, N, rng):
    """Responses to (P, n, n) mazes as tokens (P, N, L), lengths (P, N) and texts; the padding is full of traps."""
    words = [
        [perturbed(solve(m), rng) if rng.random() < 0.8 else drunken(rng) for _ in range(N)]
        for m in walls
    ]
    lengths = torch.tensor([[len(w) for w in row] for row in words])
    L = int(lengths.max()) + 3
    tokens = torch.tensor([[[ID[v] for v in w] + rng.choices((7, 13, 14, 15, 16, 2, 0), k=L - len(w)) for w in row]
                           for row in words])  # fmt: skip
    return tokens, lengths, [[" ".join(w) for w in row] for row in words]


@pytest.mark.parametrize("size", SIZES)
def test_walk_is_verify(size):
    rng = random.Random(size)
    P, N = 20, 40
    walls = mazes(size, P, seed=size)
    tokens, lengths, texts = batch(walls, N, rng)
    expected = torch.tensor(
        [[verify(to_prompt(walls[i]), text) for text in texts[i]] for i in range(P)]
    )
    rewards = walk(torch.from_numpy(walls), tokens, lengths)
    assert rewards.shape == (P, N) and rewards.dtype == torch.float32
    assert torch.equal(rewards, expected)
    assert 0.2 < expected.mean() < 0.8


def test_walk_on_grids_without_a_border():
    """walk() must not come in again on the other side either: 5x5 of paths only, random moves."""
    rng = random.Random(0)
    walls = np.zeros((1, 5, 5), bool)
    words = [drunken(rng) for _ in range(3000)]
    L = max(map(len, words))
    tokens = torch.tensor([[[ID[v] for v in w] + [0] * (L - len(w)) for w in words]])
    expected = [verify(to_prompt(walls[0]), " ".join(w)) for w in words]
    assert 30 < sum(expected) < 2000
    assert walk(
        torch.from_numpy(walls), tokens, torch.tensor([[len(w) for w in words]])
    ).tolist() == [expected]


def test_walk_corners():
    walls = torch.from_numpy(mazes(5, 2))
    right = [ID[word] for word in [*solve(walls[0].numpy()), "DONE"]]
    tokens = torch.tensor([[right] * len(right)])
    lengths = torch.arange(1, len(right) + 1).unsqueeze(
        0
    )  # DONE beyond the length is padding, not written
    assert walk(walls[:1], tokens, lengths).tolist() == [[0.0] * (len(right) - 1) + [1.0]]
    assert not walk(
        walls[:1], tokens[:, :, :-1], lengths.clamp(max=len(right) - 1)
    ).any()  # no DONE anywhere
    empty = torch.zeros(2, 3, 0, dtype=torch.long)
    assert walk(walls, empty, torch.zeros(2, 3, dtype=torch.long)).tolist() == [[0, 0, 0]] * 2
    with pytest.raises(ValueError, match=r"got .*\(3, 3, 4\).*expected"):
        walk(walls, torch.zeros(3, 3, 4, dtype=torch.long), torch.zeros(3, 3, dtype=torch.long))


@pytest.mark.parametrize("shift", [0, 5])
def test_rewards(folder, shift):
    """By ids where the tokenizer has the vocabulary's ids, by text where it has others: the same rewards."""
    task = Maze("train", 9, folder)
    examples = [task[i] for i in range(6)]
    walls = unpack(np.stack([example.columns["maze"] for example in examples]), 9)
    tokens, lengths, texts = batch(walls, 8, random.Random(1))
    rollouts = Rollouts(
        prompts=[], tokens=(tokens - shift) % 32, lengths=lengths, finished=lengths > 0,
        tokenizer=Tokenizer.from_vocabulary(task.vocabulary[shift:] + task.vocabulary[:shift]))  # fmt: skip
    expected = [
        [task.verify(text, example) for text in row]
        for row, example in zip(texts, examples, strict=True)
    ]
    assert task.rewards(examples, rollouts).tolist() == expected
    assert 0 < np.mean(expected) < 1


def test_draw():
    assert draw(CORRIDOR, "RIGHT DOWN DOWN RIGHT DONE", False).split("\n") == [
        "##########", "##S ..####", "####..####", "####..G ##", "##########", "right: 4 moves"]  # fmt: skip
    assert draw(CORRIDOR, "RIGHT DOWN LEFT DONE", False).splitlines()[1:3] == [
        "##S ..####",
        "##xx..####",
    ]
    assert draw(CORRIDOR, "RIGHT DOWN LEFT DONE", False).endswith(
        "wrong: move 3, LEFT, runs into a wall"
    )
    assert (
        draw(OPEN, "RIGHT UP DONE", False).splitlines()[0] == "S xx  "
    )  # off the border: where it stood
    for response, why in (("RIGHT \x1b[2J", r"token 2, '\x1b[2J', is not a move"),
                          ("RIGHT DONE", "DONE before the goal"), ("RIGHT", "DONE is missing")):  # fmt: skip
        assert draw(CORRIDOR, response, False).endswith(f"wrong: {why}")
    assert "\x1b[1;31mxx\x1b[0m" in draw(CORRIDOR, "DOWN DONE", True)
    assert draw("hello", "DONE", True) == "wrong: the prompt holds no maze"
