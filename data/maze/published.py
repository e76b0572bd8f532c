"""Reading a published set of mazes, for data/maze/prepare.py --source: parquet files as the trainer verl takes them.

Their column `extra_info` is a struct, or its JSON: `question` is the prompt, `answer` the path or the whole sequence,
prompt and path. A row is left out, named and counted, if it is no perfect maze of our form, if the judge refuses its
answer, or if its maze is there already: of a maze that is held out too, the held-out one stays.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from data.common import progress, refuse
from maxrl.io.tables import parquet_rows
from maxrl.tasks.maze import onward, pack, squares, to_prompt, unpack, verify

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


def is_tree(walls: np.ndarray) -> bool:
    """Whether a maze (n, n) of our form is perfect: in one piece, with one opening fewer than cells."""
    c = (len(walls) - 1) // 2
    return len(onward(walls)) == (~walls).sum() == 2 * c * c - 1


def convert(info, size: int) -> tuple[bytes, str]:
    """The packed row of an extra_info, and why it is left out ("" for a good one)."""
    question, answer = texts(info)
    grid = squares(question)
    cells = np.array([word == "WALL" for word in grid if word != "NEWLINE"], bool)
    walls = np.ones((1, size, size), bool)
    if cells.size == walls.size:
        walls = unpack(pack(cells.reshape(walls.shape)), size)
    row = pack(walls).tobytes()
    if (
        squares(to_prompt(walls[0])) != grid
    ):  # another size, an opening in the border, START elsewhere, ...
        return row, f"no {size}x{size} maze of our form"
    if not is_tree(walls[0]):
        return row, "no perfect maze"
    return row, "" if verify(question, answer) else "its answer is wrong"


def read_mazes(
    files: dict[str, list[Path]], size: int, held_out: dict[str, int]
) -> dict[str, np.ndarray]:
    """The distinct good mazes (M, bytes) of every split; says which rows were left out, and how many.

    held_out: how many of the first training mazes the splits get that have no files of their own.
    """
    splits = {split: [] for split in files}
    seen = set()
    left_out = Counter()
    with progress(unit=" rows") as bar:
        for split, file in [
            (split, file) for split, some in files.items() for file in some
        ]:  # held-out ones first
            for number, row in enumerate(parquet_rows(file, "extra_info")):
                bar.update()
                maze, why = convert(row["extra_info"], size)
                why = why or "its maze is there already" * (maze in seen)
                if not why:
                    seen.add(maze)
                    splits[split].append(maze)
                    continue
                left_out[why] += 1
                if left_out.total() <= NAMED:
                    bar.write(f"{file}, row {number}, is left out: {why}", file=sys.stderr)
    print(
        f"{left_out.total():,} rows left out"
        + "".join(f"; {count:,}: {why}" for why, count in left_out.most_common())
    )
    for split, count in held_out.items():
        splits[split] = splits["train"][:count]
        del splits["train"][:count]
    if not splits["train"]:
        refuse(
            "no training maze is left: name other files with --source, or lower --test and --validation",
            code=1,
        )
    width = len(splits["train"][0])
    return {
        split: np.frombuffer(b"".join(rows), np.uint8).reshape(-1, width)
        for split, rows in splits.items()
    }
