"""Mazes as text: making, solving, judging and drawing them (arXiv 2602.02710, App. E.1).

A maze of n x n squares (n odd) has c x c cells, c = (n - 1) / 2, on the squares with two odd coordinates; start (1, 1),
goal (n - 2, n - 2), (row, column) from the upper left. It is perfect: of the 2 c (c - 1) possible openings between
neighbouring cells those made form a spanning tree, so the path is unique. A maze is stored as the bits of its openings,
first those to the right, then those downwards, row by row: 112 bits = 14 bytes for 17x17.

M counts mazes; P, N, L as in maxrl/__init__.py.
"""

import contextlib
import os
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import pad

from maxrl.io.files import checksum, command, read_info, read_json
from maxrl.tasks.base import DATA, Example, Task, check_split

VOCABULARY = (  # ids 0..31, the order of the published checkpoint
    *("<pad>", "<bos>", "<eos>", "<unk>", "GRID_START", "GRID_END", "PATH_START", "DONE"),
    *("PATH", "WALL", "GOAL", "START", "NEWLINE", "UP", "DOWN", "LEFT", "RIGHT", "\n"),
    *(f"RESERVED_{i}" for i in range(14)),
)
ID = {token: i for i, token in enumerate(VOCABULARY)}
MOVES = {"UP": (-1, 0), "DOWN": (1, 0), "LEFT": (0, -1), "RIGHT": (0, 1)}  # (row, column)
USUAL = {"test": 256, "validation": 256, "seed": 0}  # the options of data/maze/prepare.py
DIRECTORY = DATA / "maze"
UNTOUCHED, FRONTIER, CARVED, OUTSIDE = range(4)


def generate(size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` mazes as packed rows, uint8 (M, bytes); not necessarily distinct.

    Randomised Prim from the start cell, the variant over frontier *cells*: of the cells that touch the maze each is
    equally likely, whatever the number of its carved neighbours; it is joined to one of these, all equally likely.
    For 17x17 that gives paths of 29.05 moves (sd 2.09) and 22.05 dead ends (sd 2.15), start and goal among them (Prim
    over frontier walls: 29.2 and 20.7; over cells from a random start: 30.1 and 22.7). All M mazes grow together.
    """
    state = np.full(
        (count, size + 1, size), OUTSIDE, np.uint8
    )  # a row too many: no cell's neighbour is beyond it
    state[:, 1:size:2, 1::2] = UNTOUCHED
    flat = state.reshape(count, -1)
    rows = np.arange(count)
    steps = np.array([down * size + right for down, right in MOVES.values()])
    frontier = np.zeros(
        (count, size * size // 4), np.int32
    )  # a list of cells per maze, in its first `waiting` places
    waiting = np.zeros(count, np.int64)
    cell = np.full(count, size + 1)
    for turn in range((size - 1) ** 2 // 4):
        if turn > 0:
            pick = (rng.random(count) * waiting).astype(np.int64)
            cell = frontier[rows, pick]  # (M,)
            waiting -= 1
            frontier[rows, pick] = frontier[rows, waiting]  # the last one fills the gap
            near = cell[:, None] + 2 * steps
            carved = flat[rows[:, None], near] == CARVED  # (M, 4)
            side = (carved + rng.random((count, 4))).argmax(1)  # a random one of the carved
            flat[rows, cell + steps[side]] = CARVED
        flat[rows, cell] = CARVED
        for step in steps:
            near = cell + 2 * step
            new = np.flatnonzero(flat[rows, near] == UNTOUCHED)
            flat[new, near[new]] = FRONTIER
            frontier[new, waiting[new]] = near[new]
            waiting[new] += 1
    return pack(state[:, :size] != CARVED)


def unpack(packed: np.ndarray, size: int) -> np.ndarray:
    """Packed rows (M, bytes) to walls (M, n, n), True where a wall stands."""
    c = (size - 1) // 2
    opened = np.unpackbits(packed, axis=1, count=2 * c * (c - 1)).astype(bool)
    right, down = np.split(opened, 2, axis=1)
    walls = np.ones((len(packed), size, size), bool)
    walls[:, 1::2, 1::2] = False
    walls[:, 1::2, 2:-1:2] = ~right.reshape(-1, c, c - 1)
    walls[:, 2:-1:2, 1::2] = ~down.reshape(-1, c - 1, c)
    return walls


def pack(walls: np.ndarray) -> np.ndarray:
    """The reverse of `unpack`: the openings of walls (M, n, n) as packed rows, uint8 (M, bytes); nothing else is looked at."""
    between = [walls[:, 1::2, 2:-1:2], walls[:, 2:-1:2, 1::2]]
    between = [part.reshape(len(walls), -1) for part in between]
    return np.packbits(~np.concatenate(between, 1), axis=1)


def onward(walls: np.ndarray) -> dict[int, tuple[str, int] | None]:
    """By square, for all that can reach the goal: the move and the next square towards it, of the goal None; walls (n, n).

    Breadth first from the goal.
    """
    n = len(walls)
    wall = walls.ravel().tolist()
    goal = n * n - n - 2
    ways = {goal: None}
    queue = [goal]
    for here in queue:
        for move, (down, right) in MOVES.items():
            there = here - down * n - right
            if not wall[there] and there not in ways:
                ways[there] = move, here
                queue.append(there)
    return ways


def solve(walls: np.ndarray) -> list[str]:
    """The moves of the shortest path from start to goal; walls (n, n)."""
    ways = onward(walls)
    moves = []
    here = len(walls) + 1
    while ways[here]:
        move, here = ways[here]
        moves.append(move)
    return moves


def to_prompt(walls: np.ndarray) -> str:
    """The text of a maze (n, n): n * (n + 1) + 4 tokens, 310 for 17x17."""
    n = len(walls)
    cells = ["WALL" if wall else "PATH" for wall in walls.ravel().tolist()]
    cells[n + 1] = "START"
    cells[-n - 2] = "GOAL"
    rows = [" ".join(cells[i : i + n]) for i in range(0, n * n, n)]
    return f"<bos> GRID_START {' NEWLINE '.join(rows)} NEWLINE GRID_END PATH_START"


def squares(prompt: str) -> list[str]:
    """The words of a prompt's grid, NEWLINE between the rows; none if there is no grid."""
    words = prompt.split()
    if "GRID_START" not in words or "GRID_END" not in words:
        return []
    body = words[words.index("GRID_START") + 1 : words.index("GRID_END")]
    return body[:-1] if body[-1:] == ["NEWLINE"] else body


def _grid(prompt: str) -> dict[tuple[int, int], str] | None:
    """The squares of a prompt as {(row, column): name}; None where it is no rectangle with one START and one GOAL."""
    body = squares(prompt)
    rows = [row.split() for row in " ".join(body).split("NEWLINE")]
    unknown = {*body} - {"WALL", "PATH", "START", "GOAL", "NEWLINE"}
    if (
        unknown
        or len({len(row) for row in rows}) != 1
        or body.count("START") != 1
        or body.count("GOAL") != 1
    ):
        return None
    return {(r, q): cell for r, row in enumerate(rows) for q, cell in enumerate(row)}


def follow(grid: dict, response: str) -> tuple[list, tuple | None, str]:
    """Walk a response: the squares visited, the square where it fails (None: nowhere) and why ("" = it is right).

    The verdict of the published judge. DONE must be there and every token before the first DONE must be a move, also
    after the goal; the walk succeeds at its first touch of the goal; a wall or the border is failure.
    """
    # Blanks part the tokens, so a newline between two blanks is the vocabulary's newline token, and no move.
    words = [word for part in response.split(" ") if part for word in part.split() or [part]]
    moves = words[: words.index("DONE")] if "DONE" in words else words
    here = next(square for square, cell in grid.items() if cell == "START")
    path = [here]
    for i, move in enumerate(moves, 1):
        if move not in MOVES:
            return path, here, f"token {i}, {move[:20]!a}, is not a move"
        if grid[here] == "GOAL":
            continue  # not walked any more, but still to be moves
        there = here[0] + MOVES[move][0], here[1] + MOVES[move][1]
        if grid.get(there, "WALL") == "WALL":
            return path, there if there in grid else here, f"move {i}, {move}, runs into a wall"
        path.append(here := there)
    if "DONE" not in words:
        return path, here, "DONE is missing"
    if grid[here] != "GOAL":
        return path, here, "DONE before the goal"
    return path, None, ""


def verify(prompt: str, response: str) -> float:
    """1.0 when the response walks the prompt's maze from START to GOAL (see follow), else 0.0; for any texts at all."""
    grid = _grid(prompt)
    return float(grid is not None and follow(grid, response)[2] == "")


def walk(walls: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The same verdict from token ids, for all rollouts together and on their device.

    walls (P, n, n) bool, tokens (P, N, L) ids of VOCABULARY, lengths (P, N); returns (P, N) float.
    """
    P, n, _ = walls.shape
    if tokens.ndim != 3 or tokens.shape[0] != P or lengths.shape != tokens.shape[:2]:
        raise ValueError(
            f"got walls {(*walls.shape,)}, tokens {(*tokens.shape,)}, lengths {(*lengths.shape,)}, "
            "expected (P, n, n), (P, N, L), (P, N)"
        )
    n += 2  # a ring of walls, so that no step leaves the grid, whatever its border is
    blocked = pad(walls, (1, 1, 1, 1), value=True).flatten(1)  # (P, n * n)
    start = 2 * n + 2
    goal = n * n - 2 * n - 3
    written = torch.arange(tokens.shape[2], device=tokens.device) < lengths.unsqueeze(
        2
    )  # (P, N, L)
    done = written & (tokens == ID["DONE"])  # (P, N, L)
    before = (
        done.cumsum(2) == 0
    )  # (P, N, L), before the first DONE; where none is written the verdict is 0 anyway
    step = torch.zeros_like(tokens)  # (P, N, L), in flat squares; 0 = not a move
    for move, (down, right) in MOVES.items():
        step += (tokens == ID[move]) * (down * n + right)
    well_formed = done.any(2) & ~(before & (step == 0)).any(2)  # (P, N)
    here = torch.full_like(lengths, start)  # (P, N)
    walking = torch.ones_like(
        lengths, dtype=torch.bool
    )  # (P, N), neither in a wall nor at the goal
    for move in (step * before).unbind(2):  # (P, N)
        here = here + move * walking
        walking = walking & ~blocked.gather(1, here) & (here != goal)
    return (well_formed & (here == goal)).float()


def fix_command(folder: Path, size: int) -> str:
    """The command that makes a damaged set again, or a missing one: with its own options where info.json still says them."""
    usual = USUAL | {"out": DIRECTORY / f"{size}x{size}"}
    options = {"size": size}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        info = read_json(folder / "info.json")
        options["size"] = int(info["size"])
        if sources := info.get("source"):  # files of a published set
            options |= {"source": os.path.commonpath(sources)} | info["held_out"]
        else:
            counts = {name: int(info["counts"][name]) for name in ("train", "test", "validation")}
            options |= counts | {"seed": int(info["seed"])}
    remains = folder.is_dir() and any(
        file.name == "info.json" or file.suffix == ".npy" for file in folder.iterdir()
    )
    return command("data.maze.prepare", options | {"out": folder}, usual) + " --overwrite" * remains


class Maze(Task):
    """The mazes that `python -m data.maze.prepare` has written; an example's column "maze" is its packed row."""

    vocabulary = VOCABULARY
    stop_tokens = ("DONE", "<eos>")

    def __init__(self, split: str = "train", size: int = 17, directory: str | Path | None = None):
        check_split(split)
        if size < 5 or size % 2 == 0:
            raise ValueError(f"the size of a maze must be an odd number of at least 5, got {size}")
        folder = DIRECTORY / f"{size}x{size}" if directory is None else Path(directory)
        file = folder / f"{split}.npy"
        info = folder / "info.json"  # without it, written last, it is half a set
        fix = fix_command(folder, size)
        if not file.exists() or not info.exists():
            raise FileNotFoundError(
                f"there is no complete {size}x{size} maze set in {folder}: run {fix}"
            )
        info = read_info(folder, (file.name,), fix)
        if (found := info.get("size")) != size:
            raise ValueError(f"{folder} holds mazes of {found}x{found}, not {size}x{size}")
        self.digest = checksum(file)
        self.size = size
        self.mazes = np.load(file, mmap_mode="r", allow_pickle=False)  # (M, bytes)

    def __len__(self) -> int:
        return len(self.mazes)

    def __getitem__(self, index: int) -> Example:
        self.check_index(index)
        maze = np.array(self.mazes[index])
        walls = unpack(maze[None], self.size)[0]
        return Example(to_prompt(walls), " ".join([*solve(walls), "DONE", "<eos>"]), {"maze": maze})

    def verify(self, response: str, example: Example) -> float:
        return verify(example.prompt, response)

    def show(self, response: str, example: Example, colour: bool) -> str:
        return draw(example.prompt, response, colour)

    def rewards(self, examples: list[Example], rollouts) -> torch.Tensor:
        """Rewards (P, N) by walk(), on the rollouts' device; by text where the tokenizer has ids of its own."""
        words = ["DONE", *MOVES]
        if rollouts.tokenizer.decode([ID[word] for word in words]).split() != words:
            return super().rewards(examples, rollouts)
        mazes = np.stack([example.columns["maze"] for example in examples])
        walls = torch.from_numpy(unpack(mazes, self.size)).to(rollouts.tokens.device)
        return walk(walls, rollouts.tokens, rollouts.lengths)


PLAIN = {"WALL": "##", "PATH": "  ", "START": "S ", "GOAL": "G ", "walked": "..", "failed": "xx"}
COLOURED = PLAIN | {
    "WALL": "\u2588\u2588",
    "walked": "\x1b[42m  \x1b[0m",
    "failed": "\x1b[1;31mxx\x1b[0m",
}


def draw(prompt: str, response: str, colour: bool) -> str:
    """A maze for the terminal, two characters per square, with the path walked, where it fails, and the verdict."""
    grid = _grid(prompt)
    if grid is None:
        return "wrong: the prompt holds no maze"
    path, failed, why = follow(grid, response)
    for square in path:
        if grid[square] == "PATH":
            grid[square] = "walked"
    if failed:
        grid[failed] = "failed"
    lines = {}
    for (r, _), name in grid.items():
        lines[r] = lines.get(r, "") + (COLOURED if colour else PLAIN)[name]
    return "\n".join([*lines.values(), f"wrong: {why}" if why else f"right: {len(path) - 1} moves"])
