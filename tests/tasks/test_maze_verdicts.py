"""Responses to mazes are judged as by the published judge, from texts and from token ids."""

import random

import numpy as np
import pytest
import torch

from maxrl.models.tokenizer import Tokenizer
from maxrl.sampling.rollouts import Rollouts
from maxrl.tasks.base import Example
from maxrl.tasks.maze import (
    ID,
    MOVES,
    VOCABULARY,
    Maze,
    all_moves_left,
    draw,
    moves_left,
    pack,
    pack_squares,
    progress,
    read_grid,
    solve,
    to_prompt,
    verify,
    walk,
)
from tests.helpers.pictures import CORRIDOR, OPEN, looped, mazes
from tests.helpers.tables import each
from tests.helpers.verdict_tables import rows

NAMED = {"corridor": CORRIDOR, "open": OPEN}
TRUTH = [
    *[(NAMED.get(maze, maze), response, verdict) for maze, response, verdict in rows("mazes")],
    ("GRID_START START GOAL", "RIGHT DONE", 0),
    (CORRIDOR, "RIGHT DOWN DOWN RIGHT DONE\n", 1),
    # The vocabulary's newline token is not a move.
    (CORRIDOR, "RIGHT \n DOWN DOWN RIGHT DONE", 0),
]


@pytest.mark.parametrize(("prompt", "response", "verdict"), TRUTH)
def test_truth_table(prompt, response, verdict):
    assert verify(prompt, response) == verdict
    assert type(verify(prompt, response)) is float
    last = draw(prompt, response).splitlines()[-1]
    assert last.startswith("right" if verdict else "wrong")


# In the corridor the shortest path has 4 moves: RIGHT RIGHT DOWN DOWN would run into a wall.
PARTIAL = [
    ("RIGHT DOWN DOWN RIGHT DONE", 1),
    ("DONE", 0),
    ("RIGHT DONE", 0.5 * 1 / 4),
    ("RIGHT DOWN DOWN DONE", 0.5 * 3 / 4),
    ("RIGHT LEFT DONE", 0),  # nothing gained
    ("RIGHT LEFT RIGHT DOWN DOWN RIGHT DONE", 0.5 + 0.5 * 4 / 6),  # a detour
    ("RIGHT DOWN DOWN RIGHT LEFT UP DONE", 1),  # the walk ends at the goal
    ("RIGHT DOWN RIGHT DONE", 0),  # a wall
    ("RIGHT DOWN DOWN", 0),  # no DONE
    ("RIGHT PATH DONE", 0),  # not a move
    ("RIGHT DOWN DOWN RIGHT PATH DONE", 0),
]


@pytest.mark.parametrize(("response", "reward"), PARTIAL)
def test_partial_credit(response, reward):
    assert progress(CORRIDOR, response) == reward


def test_partial_credit_without_a_border():
    assert progress(OPEN, "RIGHT DONE") == 1 / 8
    assert progress(OPEN, "UP DONE") == 0


def test_no_credit_where_no_way_leads_to_the_goal():
    walls = np.ones((5, 5), bool)
    walls[1, 1:4] = walls[3, 3] = False
    for response in ("DONE", "RIGHT DONE", "RIGHT RIGHT DOWN DONE"):
        assert progress(to_prompt(walls), response) == 0


@pytest.mark.parametrize("size", [5, 9, 13])
def test_moves_left(size):
    """A path is as long as the squares along it say, and no neighbour is more than a move apart."""
    walls = mazes(size, 10, seed=size)
    for maze, table in zip(walls, all_moves_left(walls).reshape(walls.shape)):
        left = moves_left(read_grid(to_prompt(maze)))
        assert left[1, 1] == len(solve(maze))
        assert all(table[square] == moves for square, moves in left.items())
        assert (table >= 0).sum() == len(left) == (~maze).sum()


BACK = {"UP": "DOWN", "DOWN": "UP", "LEFT": "RIGHT", "RIGHT": "LEFT"}


def perturbed(moves, rng):
    """A response near the right one: pieces put in, changed or dropped, detours, an early end."""
    words = [*moves, "DONE", "<eos>"]
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(words) + 1)
        piece = rng.choice((VOCABULARY[rng.randrange(32)], rng.choice([*MOVES]), "DONE", "\n"))
        changes = [(at, at, [piece]), (at, at + 1, [piece]), (at, at + 1, []), (at, None, [])]
        # A detour and moves after the goal: still right.
        changes += [(at, at, [here, BACK[here]]) for here in words[at : at + 1] if here in BACK]
        changes.append((-2, -2, rng.choices([*MOVES], k=rng.randrange(4))))
        start, end, new = rng.choice(changes)
        words[start:end] = new
    return words


def drunken(rng):
    """A random walk: many of these reach the goal of 5x5, and some do not write DONE."""
    return rng.choices([*MOVES], k=rng.randrange(30)) + rng.choice((["DONE"], ["DONE"], []))


def tensors(words, rng):
    """Responses (P, N, words) as tokens (P, N, L) and lengths (P, N), padded with traps."""
    lengths = torch.tensor([[len(w) for w in row] for row in words])
    L = int(lengths.max()) + 3
    tokens = torch.tensor(rng.choices((7, 13, 14, 15, 16, 2, 0), k=lengths.numel() * L))
    tokens = tokens.view(*lengths.shape, L)
    for row, group in zip(words, tokens):
        for response, padded in zip(row, group):
            padded[: len(response)] = torch.tensor([ID[word] for word in response])
    return tokens, lengths


def test_empty_responses():
    walls = torch.from_numpy(mazes(5, 2))
    empty = torch.zeros(2, 3, 0, dtype=torch.long)
    here, moves, formed = walk(walls, empty, torch.zeros(2, 3, dtype=torch.long))
    assert here.tolist() == [[6, 6, 6]] * 2  # the start
    assert not moves.any()
    assert not formed.any()


@pytest.mark.parametrize("judge", [verify, progress])
@pytest.mark.parametrize("shift", [0, 5])
@pytest.mark.parametrize("make, packed", [(mazes, pack), (looped, pack_squares)])
@pytest.mark.parametrize("size", [5, 9, 17])
def test_rewards(size, make, packed, shift, judge):
    """By ids if the tokenizer has the vocabulary's ids, otherwise by text. The oracle of both is
    the judge of texts."""
    rng = random.Random(size)
    walls = make(size, 20, seed=size)
    words = []
    expected = []
    for maze in walls:
        moves = solve(maze)
        near = [perturbed(moves, rng) if rng.random() < 0.8 else drunken(rng) for _ in range(40)]
        words.append(near)
        expected.append([judge(to_prompt(maze), " ".join(response)) for response in near])
    assert 0.2 < np.mean(expected) < 0.8
    task = Maze.__new__(Maze)
    task.size, task.reward_of = size, judge
    examples = [Example(to_prompt(m), "", {"maze": row}) for m, row in zip(walls, packed(walls))]
    tokens, lengths = tensors(words, rng)
    rollouts = Rollouts(
        prompts=[],
        tokens=(tokens - shift) % 32,
        lengths=lengths,
        finished=lengths > 0,
        tokenizer=Tokenizer.from_vocabulary(VOCABULARY[shift:] + VOCABULARY[:shift]),
    )
    rewards = task.rewards(examples, rollouts)
    assert rewards.dtype == torch.float32
    # Both divide in float64, so that they agree to the last bit of float32.
    assert rewards.tolist() == torch.tensor(expected).tolist()


def test_draw():
    right = ["##########", "##S ..####", "####..####", "####..G ##", "##########"]
    picture = draw(CORRIDOR, "RIGHT DOWN DOWN RIGHT DONE")
    assert picture.split("\n") == [*right, "right: 4 moves"]
    picture = draw(CORRIDOR, "RIGHT DOWN LEFT DONE")
    assert picture.splitlines()[1:3] == ["##S ..####", "####..####"]
    assert draw("hello", "DONE") == "wrong: the prompt holds no maze"


WHY = """
RIGHT DOWN LEFT DONE | move 3, LEFT, runs into a wall
RIGHT \x1b[2J | token 2, '\\x1b[2J', is not a move
RIGHT DONE | DONE before the goal
RIGHT | DONE is missing
"""


@each("response, why", WHY)
def test_why_a_response_is_wrong(response, why):
    assert draw(CORRIDOR, response).endswith(f"wrong: {why}")
