"""A data set of one's own: JSONL with `prompt` (a text, or chat messages) and any further columns.

    python train.py prompts --task.train my.jsonl --reward my_rewards.py:correct --init CHECKPOINT

The reward functions (maxrl/reward_functions.py) get the further columns by name. A column `answer`, if it is text,
is also the demonstration of the supervised warm-up.
"""

from pathlib import Path

from maxrl.errors import UsageError
from maxrl.io.files import checksum
from maxrl.tasks.base import Example, NoSplit, Task, check_split
from maxrl.tasks.read_jsonl import read_jsonl


class Prompts(Task):
    """One file a split."""

    def __init__(self, split: str = "train", train: str = "", validation: str = "", test: str = ""):
        check_split(split)
        file = {"train": train, "validation": validation, "test": test}[split]
        if not file:
            raise NoSplit(f"the {split} prompts need a JSONL file: --task.{split} FILE")
        self.rows = read_jsonl(file := Path(str(file)), {"prompt": (str, list)})
        self.digest = checksum(file)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        row = self.rows[index]
        answer = row.get("answer")
        return Example(row["prompt"], answer if isinstance(answer, str) else "", row)

    def verify(self, response: str, example: Example) -> float:
        raise UsageError("the task prompts judges nothing by itself: name a reward function with --reward FILE.py:FUNCTION")
