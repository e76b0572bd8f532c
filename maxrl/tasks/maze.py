"""Mazes as text: making, solving, judging and drawing them (arXiv 2602.02710, App. E.1).

A maze of n x n squares (n odd) has c x c cells, c = (n - 1) / 2, on the squares with two odd
coordinates. The start is (1, 1) and the goal (n - 2, n - 2), as (row, column) from the upper left.
It is perfect: of the 2 c (c - 1) possible openings between neighbouring cells those that are open
form a spanning tree, so the path is unique. A maze is stored as the bits of its openings, first
those to the right, then those downwards, row by row: 112 bits = 14 bytes for 17x17.

M counts mazes; P, N, L as in maxrl/__init__.py.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from maxrl.sampling.rollouts import Rollouts
from maxrl.system.files import checksum
from maxrl.tasks.base import Example, Task, open_set

VOCABULARY = (  # ids 0..31, the order of the published checkpoint
    *("<pad>", "<bos>", "<eos>", "<unk>", "GRID_START", "GRID_END", "PATH_START", "DONE"),
    *("PATH", "WALL", "GOAL", "START", "NEWLINE", "UP", "DOWN", "LEFT", "RIGHT", "\n"),
    *(f"RESERVED_{i}" for i in range(14)),
)
ID = {token: i for i, token in enumerate(VOCABULARY)}
MOVES = {  # (row, column)
    "UP": (-1, 0),
    "DOWN": (1, 0),
    "LEFT": (0, -1),
    "RIGHT": (0, 1),
}
UNTOUCHED, FRONTIER, CARVED, OUTSIDE = range(4)
TOO_EARLY = "DONE before the goal"  # the only failure with a partial credit
Square = tuple[int, int]  # (row, column)


def generate(size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` mazes as packed rows, uint8 (M, bytes); they need not be distinct.

    Randomised Prim from the start cell, in the variant over frontier *cells*: every cell that
    touches the maze is equally likely, whatever the number of its carved neighbours, and it is
    joined to one of these, all equally likely. For 17x17 this gives paths of 29.05 moves (sd 2.09)
    and 22.05 dead ends (sd 2.15), start and goal among them, as in the published mazes. All M mazes
    grow together.
    """
    # One row too many, so that every neighbour of a cell is on the grid.
    state = np.full((count, size + 1, size), OUTSIDE, np.uint8)
    state[:, 1:size:2, 1::2] = UNTOUCHED
    flat = state.reshape(count, -1)
    rows = np.arange(count)
    steps = np.array([down * size + right for down, right in MOVES.values()])
    # A list of cells per maze, in its first `waiting` places.
    frontier = np.zeros((count, size * size // 4), np.int32)
    waiting = np.zeros(count, np.int64)
    cell = np.full(count, size + 1)  # (M,)
    for turn in range((size - 1) ** 2 // 4):
        if turn > 0:
            pick = (rng.random(count) * waiting).astype(np.int64)
            cell = frontier[rows, pick]
            waiting -= 1
            frontier[rows, pick] = frontier[rows, waiting]  # the last cell fills the gap
            near = cell[:, None] + 2 * steps  # (M, 4)
            carved = flat[rows[:, None], near] == CARVED  # (M, 4)
            # A random one of the carved neighbours.
            side = (carved + rng.random((count, 4))).argmax(1)
            flat[rows, cell + steps[side]] = CARVED
        flat[rows, cell] = CARVED
        for step in steps:
            near = cell + 2 * step  # (M,)
            new = np.flatnonzero(flat[rows, near] == UNTOUCHED)
            flat[new, near[new]] = FRONTIER
            frontier[new, waiting[new]] = near[new]
            waiting[new] += 1
    return pack(state[:, :size] != CARVED)


def unpack(packed: np.ndarray, size: int) -> np.ndarray:
    """Turn packed rows (M, bytes) into walls (M, n, n), True where a wall stands."""
    c = (size - 1) // 2
    inner = size - 2
    walls = np.ones((len(packed), size, size), bool)
    if packed.shape[1] == -(-(inner**2) // 8):
        squares = np.unpackbits(packed, axis=1, count=inner**2)
        walls[:, 1:-1, 1:-1] = squares.reshape(-1, inner, inner)
        return walls
    opened = np.unpackbits(packed, axis=1, count=2 * c * (c - 1)).astype(bool)
    right, down = np.split(opened, 2, axis=1)
    walls[:, 1::2, 1::2] = False
    walls[:, 1::2, 2:-1:2] = ~right.reshape(-1, c, c - 1)
    walls[:, 2:-1:2, 1::2] = ~down.reshape(-1, c - 1, c)
    return walls


def pack(walls: np.ndarray) -> np.ndarray:
    """The reverse of `unpack`: walls (M, n, n) to packed rows. Only the openings are looked at."""
    right = walls[:, 1::2, 2:-1:2].reshape(len(walls), -1)
    down = walls[:, 2:-1:2, 1::2].reshape(len(walls), -1)
    return np.packbits(~np.concatenate([right, down], 1), axis=1)


def pack_squares(walls: np.ndarray) -> np.ndarray:
    """Pack walls (M, n, n) with loops, or with other open squares, whose border is all walls."""
    return np.packbits(walls[:, 1:-1, 1:-1].reshape(len(walls), -1), axis=1)


def solve(walls: np.ndarray) -> list[str]:
    """The moves of the shortest path from start to goal; walls (n, n)."""
    n = len(walls)
    wall = walls.ravel().tolist()
    goal = goal_of(n)
    # Breadth first from the goal: {square: (the move towards the goal, the square it leads to)}.
    ways = {goal: ("", goal)}
    queue = [goal]
    for here in queue:
        for move, (down, right) in MOVES.items():
            there = here - down * n - right
            if not wall[there] and there not in ways:
                ways[there] = (move, here)
                queue.append(there)
    moves = []
    move, here = ways[start_of(n)]
    while move:
        moves.append(move)
        move, here = ways[here]
    return moves


def to_prompt(walls: np.ndarray) -> str:
    """The text of a maze (n, n): n * (n + 1) + 4 tokens, 310 for 17x17."""
    n = len(walls)
    cells = ["WALL" if wall else "PATH" for wall in walls.ravel().tolist()]
    cells[start_of(n)] = "START"
    cells[goal_of(n)] = "GOAL"
    rows = [" ".join(cells[i : i + n]) for i in range(0, n * n, n)]
    return f"<bos> GRID_START {' NEWLINE '.join(rows)} NEWLINE GRID_END PATH_START"


def read_grid(prompt: str) -> dict[Square, str] | None:
    """The names of a prompt's squares; None unless they are a rectangle with one START and GOAL."""
    words = prompt.split()
    if "GRID_START" not in words or "GRID_END" not in words:
        return None
    body = words[words.index("GRID_START") + 1 : words.index("GRID_END")]
    rows = [row.split() for row in " ".join(body).removesuffix("NEWLINE").split("NEWLINE")]
    known = set(body) <= {"WALL", "PATH", "START", "GOAL", "NEWLINE"}
    rectangle = len({len(row) for row in rows}) == 1
    if not known or not rectangle or body.count("START") != 1 or body.count("GOAL") != 1:
        return None
    return {(r, q): cell for r, row in enumerate(rows) for q, cell in enumerate(row)}


def follow(grid: dict[Square, str], response: str) -> tuple[list[Square], str]:
    """Walk a response: the squares visited, and why it fails ("" if it is right).

    This is the verdict of the published judge. DONE must be written, and every token before the
    first DONE must be a move, even after the goal. The walk succeeds when it first touches the
    goal; a wall or the border is a failure.
    """
    # Tokens are separated by blanks: a newline between two of them is the vocabulary's newline
    # token, which is not a move.
    words = [word for part in response.split(" ") if part for word in part.split() or [part]]
    moves = words[: words.index("DONE")] if "DONE" in words else words
    here = next(square for square, cell in grid.items() if cell == "START")
    path = [here]
    for i, move in enumerate(moves, 1):
        if move not in MOVES:
            return path, f"token {i}, {move[:20]!a}, is not a move"
        if grid[here] == "GOAL":
            continue
        down, right = MOVES[move]
        there = (here[0] + down, here[1] + right)
        if grid.get(there, "WALL") == "WALL":
            return path, f"move {i}, {move}, runs into a wall"
        here = there
        path.append(here)
    if "DONE" not in words:
        return path, "DONE is missing"
    if grid[here] != "GOAL":
        return path, TOO_EARLY
    return path, ""


def verify(prompt: str, response: str) -> float:
    """1.0 if the response leads from START to GOAL in the prompt's maze, else 0.0; for any text."""
    grid = read_grid(prompt)
    return float(grid is not None and follow(grid, response)[1] == "")


def progress(prompt: str, response: str) -> float:
    """Partial credit for a response, in [0, 1], and 1 for a shortest path (TailRL's maze reward).

    The walk ends when it first touches the goal, or before DONE. If the shortest path has L* moves,
    the walk has L moves, and its end is d moves from the goal, the reward is

        max(0, L* - d) / (2 L*)  +  L* / (2 L) if the walk reaches the goal

    and 0 if it hits a wall, DONE is missing or another token comes before DONE.
    """
    grid = read_grid(prompt)
    if grid is None:
        return 0.0
    path, why = follow(grid, response)
    left = moves_left(grid)
    shortest = left.get(path[0], 0)  # 0 if no way leads to the goal
    if why not in ("", TOO_EARLY) or shortest == 0:
        return 0.0
    nearer = max(0, shortest - left[path[-1]]) / shortest
    return nearer / 2 + (0.0 if why else shortest / (len(path) - 1) / 2)


def moves_left(grid: dict[Square, str]) -> dict[Square, int]:
    """How many moves a square is from the goal, for all from which it can be reached."""
    queue = [square for square, cell in grid.items() if cell == "GOAL"]
    left = dict.fromkeys(queue, 0)
    for here in queue:
        for down, right in MOVES.values():
            there = (here[0] + down, here[1] + right)
            if grid.get(there, "WALL") != "WALL" and there not in left:
                left[there] = left[here] + 1
                queue.append(there)
    return left


def all_moves_left(walls: np.ndarray) -> np.ndarray:
    """The same for all squares of walls (M, n, n) at once, int64 (M, n * n); -1 for a wall."""
    left = np.full(walls.shape, -1)
    unseen = ~walls
    wave = np.zeros_like(walls)  # (M, n, n), the squares with as many moves left
    wave[:, -2, -2] = True
    moves = 0
    while wave.any():
        left[wave] = moves
        unseen &= ~wave
        # Walls all around: nothing comes in from the opposite border.
        near = [np.roll(wave, move, (1, 2)) for move in MOVES.values()]
        wave = unseen & np.logical_or.reduce(near)
        moves += 1
    return left.reshape(len(walls), -1)


def straight_walks(walls: np.ndarray) -> int:
    """How many walks from cell to cell never go up or left from start to goal; walls (n, n)."""
    passed = ~walls
    # Not a cell, and no opening between two of them.
    passed[::2, ::2] = False
    ways = np.zeros(walls.shape, int)
    ways[1, 1] = 1
    for row, column in np.argwhere(passed):
        ways[row, column] += ways[row - 1, column] + ways[row, column - 1]
    return int(ways[-2, -2])


def walk(walls: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the token ids of all rollouts at once, on their device.

    walls    (P, n, n) bool
    tokens   (P, N, L) ids of VOCABULARY
    lengths  (P, N), of the responses

    Returns
    here     (P, N) the flat square where the walk ends: the goal, a wall, or wherever DONE is
    moves    (P, N) how many moves it made
    formed   (P, N) whether DONE is written and nothing but moves before it
    """
    n = walls.shape[1]
    blocked = walls.flatten(1)  # (P, n * n), with walls all around
    positions = torch.arange(tokens.shape[2], device=tokens.device)
    written = positions < lengths.unsqueeze(2)  # (P, N, L)
    done = written & (tokens == ID["DONE"])  # (P, N, L)
    before = done.cumsum(2) == 0  # (P, N, L), before the first DONE
    steps = torch.zeros_like(tokens)  # (P, N, L), in flat squares; 0 is not a move
    for word, (down, right) in MOVES.items():
        steps += (tokens == ID[word]) * (down * n + right)
    formed = done.any(2) & ~(before & (steps == 0)).any(2)  # (P, N)
    here = torch.full_like(lengths, start_of(n))  # (P, N)
    moves = torch.zeros_like(lengths)  # (P, N)
    # Rollouts that have touched neither a wall nor the goal.
    walking = torch.ones_like(lengths, dtype=torch.bool)  # (P, N)
    for step in (steps * before).unbind(2):  # (P, N)
        here = here + step * walking
        moves = moves + (walking & (step != 0))
        walking = walking & ~blocked.gather(1, here) & (here != goal_of(n))
    return here, moves, formed


def start_of(n: int) -> int:
    """The flat square of the start of n x n squares."""
    return n + 1


def goal_of(n: int) -> int:
    """The flat square of the goal."""
    return n * n - n - 2


REWARDS = {"goal": verify, "progress": progress}  # (prompt, response) -> reward


class Maze(Task):
    """The mazes that `python -m data.maze.prepare` has written.

    reward  "goal": 1 for a walk that reaches the goal, else 0; "progress": see `progress`

    An example's column "maze" is its packed row.
    """

    vocabulary = VOCABULARY
    stop_tokens = ("DONE", "<eos>")
    equally_long = True
    reward_of = staticmethod(verify)  # (prompt, response) -> reward

    def __init__(
        self,
        split: str = "train",
        size: int = 17,
        directory: str | Path | None = None,
        reward: str = "goal",
    ):
        if reward not in REWARDS:
            raise ValueError(f"the reward of a maze must be goal or progress, got {reward!r}")
        if size < 5 or size % 2 == 0:
            raise ValueError(f"the size of a maze must be an odd number of at least 5, got {size}")
        make = f"data.maze.prepare --size {size}"
        name = f"{split}.npy"
        folder, info = open_set(directory or f"maze/{size}x{size}", make, (name,))
        if info.get("size") != size:
            raise ValueError(f"{folder} holds mazes of size {info.get('size')}, not {size}")
        self.digest = checksum(folder / name)
        self.size = size
        # A class may have another verdict.
        if reward != "goal":
            self.reward_of = REWARDS[reward]
        self.mazes = np.load(folder / name, mmap_mode="r", allow_pickle=False)  # (M, bytes)

    def __len__(self) -> int:
        return len(self.mazes)

    def __getitem__(self, index: int) -> Example:
        maze = np.array(self.mazes[index])
        walls = unpack(maze[None], self.size)[0]
        return Example(to_prompt(walls), " ".join([*solve(walls), "DONE", "<eos>"]), {"maze": maze})

    def verify(self, response: str, example: Example) -> float:
        return self.reward_of(str(example.prompt), response)

    def guess(self, example: Example) -> float:
        """Guess a random shortest walk through an empty maze: 9x9 has 20 of them, 17x17 3,432."""
        sides = (self.size - 3) // 2
        walls = unpack(example.columns["maze"][None], self.size)[0]
        return straight_walks(walls) / math.comb(2 * sides, sides)

    def show(self, response: str, example: Example) -> str:
        return draw(str(example.prompt), response)

    def rewards(self, examples: Sequence[Example], rollouts: Rollouts) -> Tensor:
        """Rewards (P, N) by walk(), or by text if the tokenizer has other ids or a subclass another
        verdict."""
        words = ["DONE", *MOVES]
        kind = type(self)
        own = kind.verify is not Maze.verify or kind.verify_all is not Maze.verify_all
        own |= self.reward_of not in REWARDS.values()
        if own or rollouts.decode([ID[word] for word in words]).split() != words:
            return super().rewards(examples, rollouts)
        walls = unpack(np.stack([example.columns["maze"] for example in examples]), self.size)
        here, moves, formed = walk(torch.from_numpy(walls), rollouts.tokens, rollouts.lengths)
        reached = formed & (here == goal_of(self.size))  # (P, N)
        if self.reward_of is verify:
            return reached.float()
        left = torch.from_numpy(all_moves_left(walls))  # (P, n * n)
        shortest = left[:, start_of(self.size), None]  # (P, 1)
        rest = left.gather(1, here).double()  # (P, N), -1 in a wall
        nearer = (shortest - rest).clamp(min=0) / shortest  # (P, N)
        shorter = torch.where(reached, shortest.double() / moves, 0.0)  # (P, N)
        rewards = nearer / 2 + shorter / 2  # (P, N), as progress() has it
        return torch.where(formed & (rest >= 0), rewards, 0.0).float()


DRAWN = {"WALL": "##", "PATH": "  ", "START": "S ", "GOAL": "G ", "walked": ".."}


def draw(prompt: str, response: str) -> str:
    """A maze for the terminal: the path walked and the verdict."""
    grid = read_grid(prompt)
    if grid is None:
        return "wrong: the prompt holds no maze"
    path, why = follow(grid, response)
    for square in path:
        if grid[square] == "PATH":
            grid[square] = "walked"
    lines: dict[int, str] = {}
    for (row, _), name in grid.items():
        lines[row] = lines.get(row, "") + DRAWN[name]
    return "\n".join([*lines.values(), f"wrong: {why}" if why else f"right: {len(path) - 1} moves"])
