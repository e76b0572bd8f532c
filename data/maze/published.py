"""Reading a published set of mazes: parquet files as the trainer verl takes them.

Their column `extra_info` is a struct: `question` is the prompt, `answer` the path or the whole
sequence, prompt and path. A row is left out and counted if it is not a maze of our form, if the
judge refuses its answer, or if its maze is there already. Held-out files are read first, so that a
maze that is also held out does not stay in training.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from data.common import refuse
from maxrl.io.tables import parquet_rows
from maxrl.tasks.maze import pack, squares, to_prompt, unpack, verify


def packed(question: str, size: int) -> bytes:
    """The packed row of a maze, empty if it is not of our form."""
    grid = squares(question)
    cells = np.array([word == "WALL" for word in grid if word != "NEWLINE"])
    if cells.size != size * size:
        return b""
    row = pack(cells.reshape(1, size, size))
    # What a packed row cannot hold, such as an opening in the border, is lost on the way.
    return row.tobytes() if squares(to_prompt(unpack(row, size)[0])) == grid else b""


def read_mazes(
    files: dict[str, list[Path]], size: int, held_out: dict[str, int]
) -> dict[str, np.ndarray]:
    """The distinct good mazes (M, bytes) of every split; prints how many rows were left out.

    held_out: how many of the first training mazes the splits get that have no files of their own.
    """
    splits: dict[str, list[bytes]] = {split: [] for split in files}
    seen: set[bytes] = set()
    left_out: Counter[str] = Counter()
    for split, file in [(split, file) for split, some in files.items() for file in some]:
        for row in parquet_rows(file, "extra_info"):
            info = row["extra_info"] or {}
            question, answer = (str(info.get(name)) for name in ("question", "answer"))
            maze = packed(question, size)
            if not maze:
                left_out[f"no {size}x{size} maze of our form"] += 1
            elif not verify(question, answer.rpartition("PATH_START")[2]):
                left_out["its answer is wrong"] += 1
            elif maze in seen:
                left_out["its maze is there already"] += 1
            else:
                seen.add(maze)
                splits[split].append(maze)
    for why, count in left_out.items():
        print(f"{count:,} rows left out, {why}")
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
