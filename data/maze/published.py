"""Reading a published set of mazes: parquet files as the trainer verl takes them.

Their column `extra_info` is a struct: `question` is the prompt, `answer` the path or the whole
sequence, prompt and path. A row is left out, named and counted, if it is not a perfect maze of our
form, if the judge refuses its answer, or if its maze is there already. Held-out files are read
first, so that a maze that is also held out does not stay in training.
"""

from pathlib import Path

import numpy as np

from data.common import progress, refuse
from maxrl.io.tables import parquet_rows
from maxrl.tasks.maze import onward, pack, squares, to_prompt, unpack, verify

NAMED = 5  # rows that are named of each kind that is left out


def is_tree(walls: np.ndarray) -> bool:
    """Whether a maze (n, n) is perfect: in one piece, with one opening fewer than cells."""
    c = (len(walls) - 1) // 2
    return len(onward(walls)) == (~walls).sum() == 2 * c * c - 1


def convert(question: str, answer: str, size: int) -> tuple[bytes, str]:
    """The packed row of a maze, and why it is left out ("" for a good one)."""
    grid = squares(question)
    cells = np.array([word == "WALL" for word in grid if word != "NEWLINE"], bool)
    walls = np.ones((1, size, size), bool)
    if cells.size == walls.size:
        # What a packed row cannot hold, such as an opening in the border, is lost on the way.
        walls = unpack(pack(cells.reshape(walls.shape)), size)
    row = pack(walls).tobytes()
    if squares(to_prompt(walls[0])) != grid:
        return row, f"no {size}x{size} maze of our form"
    if not is_tree(walls[0]):
        return row, "no perfect maze"
    path = answer.rpartition("PATH_START")[2]
    return row, "" if verify(question, path) else "its answer is wrong"


def read_mazes(
    files: dict[str, list[Path]], size: int, held_out: dict[str, int]
) -> dict[str, np.ndarray]:
    """The distinct good mazes (M, bytes) of every split; prints which rows were left out.

    held_out: how many of the first training mazes the splits get that have no files of their own.
    """
    splits: dict[str, list[bytes]] = {split: [] for split in files}
    seen: set[bytes] = set()
    left_out: dict[str, list[str]] = {}
    pairs = [(split, file) for split, some in files.items() for file in some]
    with progress(unit=" rows") as bar:
        for split, file in pairs:
            for number, row in enumerate(parquet_rows(file, "extra_info")):
                bar.update()
                info = row["extra_info"] or {}
                question, answer = (str(info.get(name)) for name in ("question", "answer"))
                maze, why = convert(question, answer, size)
                why = why or "its maze is there already" * (maze in seen)
                if why:
                    left_out.setdefault(why, []).append(f"{file}, row {number}")
                else:
                    seen.add(maze)
                    splits[split].append(maze)
    for why, rows in left_out.items():
        print(f"{len(rows):,} rows left out, {why}: {'; '.join(rows[:NAMED])}")
    for split, count in held_out.items():
        splits[split] = splits["train"][:count]
        del splits["train"][:count]
    if not splits["train"]:
        refuse("no training maze is left: name other files, or lower --test and --validation", 1)
    width = len(splits["train"][0])
    return {
        split: np.frombuffer(b"".join(rows), np.uint8).reshape(-1, width)
        for split, rows in splits.items()
    }
