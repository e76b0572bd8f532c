"""Reading a published set of mazes, for data/maze/prepare.py --source: parquet files as the trainer verl takes them.

Their column `extra_info` is a struct, or its JSON: `question` is the prompt, `answer` the path or the whole sequence,
prompt and path. A row is left out, named and counted, if it is no perfect maze of our form, if the judge refuses its
answer, or if its maze is there already: of a maze that is held out too, the held-out one stays.
"""

import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from data.common import parquet_rows, progress, refuse
from maxrl.tasks.maze import pack, to_prompt, unpack, verify

ROWS = 1024  # judged at once
NAMED = 20  # rows that are named when they are left out; all are counted


def texts(info) -> tuple[str, str]:
    """Question and answer of an extra_info, "" for what is not there; of a whole sequence the path alone."""
    try:
        info = json.loads(info) if isinstance(info, str) else info
    except (ValueError, RecursionError):
        info = None
    found = [info.get(name) if isinstance(info, dict) else None for name in ("question", "answer")]
    question, answer = (text if isinstance(text, str) else "" for text in found)
    return question, answer.rpartition("PATH_START")[2]


def squares(prompt: str) -> list[str]:
    """The words of a prompt's grid, NEWLINE between the rows."""
    words = prompt.partition("GRID_START")[2].partition("GRID_END")[0].split()
    return words[:-1] if words[-1:] == ["NEWLINE"] else words


def is_tree(walls: np.ndarray) -> np.ndarray:
    """Which mazes (M, n, n) of our form are perfect: in one piece, with one opening fewer than cells; bool (M,)."""
    reached, before = np.zeros_like(walls), None
    reached[:, 1, 1] = True
    while before is None or (reached != before).any():  # a step in each direction from all that is reached
        before, near = reached, np.pad(reached, ((0, 0), (1, 1), (1, 1)))
        reached = (near[:, :-2, 1:-1] | near[:, 2:, 1:-1] | near[:, 1:-1, :-2] | near[:, 1:-1, 2:] | before) & ~walls
    c = (walls.shape[1] - 1) // 2
    return (reached == ~walls).all((1, 2)) & ((~walls).sum((1, 2)) == 2 * c * c - 1)


def convert(infos: list, size: int) -> list[tuple[bytes, str]]:
    """For each extra_info its packed row, and why it is left out ("" for a good one)."""
    reasons, walls = [], np.ones((len(infos), size, size), bool)                               # (M, n, n)
    for i, (question, answer) in enumerate(map(texts, infos)):
        grid = squares(question)
        cells = np.array([word == "WALL" for word in grid if word != "NEWLINE"], bool)
        if cells.size == size * size:
            walls[i] = unpack(pack(cells.reshape(1, size, size)), size)[0]
        if squares(to_prompt(walls[i])) != grid:  # another size, an opening in the border, START elsewhere, ...
            reasons.append(f"no {size}x{size} maze of our form")
        else:
            reasons.append("" if verify(question, answer) else "its answer is wrong")
    trees = is_tree(walls)                                                                     # (M,)
    return [(row.tobytes(), why if tree or why.startswith("no ") else "no perfect maze")
            for row, why, tree in zip(pack(walls), reasons, trees)]


def read_mazes(files: dict[str, list[Path]], size: int, held_out: dict[str, int]) -> dict[str, np.ndarray]:
    """The distinct good mazes (M, bytes) of every split; says which rows were left out, and how many.

    held_out: how many of the first training mazes the splits get that have no files of their own.
    """
    splits, seen, left_out = {split: [] for split in files}, set(), Counter()
    with progress(unit=" rows") as bar:
        for split, file in [(split, file) for split, some in files.items() for file in some]:  # held-out ones first
            number = -1
            infos = (row["extra_info"] for row in parquet_rows(file, "extra_info"))
            while some := list(itertools.islice(infos, ROWS)):
                bar.update(len(some))
                for row, why in convert(some, size):
                    number += 1
                    why = why or "its maze is there already" * (row in seen)
                    if not why:
                        seen.add(row)
                        splits[split].append(row)
                        continue
                    left_out[why] += 1
                    if left_out.total() <= NAMED:
                        bar.write(f"{file}, row {number}, is left out: {why}", file=sys.stderr)
    print(f"{left_out.total():,} rows left out" + "".join(f"; {count:,}: {why}" for why, count in left_out.most_common()))
    for split, count in held_out.items():
        splits[split], splits["train"] = splits["train"][:count], splits["train"][count:]
    if not splits["train"]:
        refuse("no training maze is left: name other files with --source, or lower --test and --validation", code=1)
    width = len(splits["train"][0])
    return {split: np.frombuffer(b"".join(rows), np.uint8).reshape(-1, width) for split, rows in splits.items()}
