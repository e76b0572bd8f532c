"""A data set of one's own, in files or on the hub, with `prompt` and any further columns.

    python train.py prompts --task.train my.jsonl --reward my_rewards.py:correct --init CHECKPOINT

A file is JSONL, JSON, CSV (all values are texts) or parquet. Of a folder a split has the files that
their names give to it (maxrl/tasks/splits.py). A prompt is a text, which the model gets as it is,
or chat messages, which --task.chat true and --task.system TEXT make of texts. Reward functions
(maxrl/tasks/rewards.py) get the further columns by name. A column `answer`, or else `solution`, is
also the demonstration of the supervised warm-up if it is a text or a number. In Python a split may
also be its rows: a list of dictionaries, a datasets.Dataset, or whatever else has their methods.
"""

import contextlib
from collections.abc import Sequence

from maxrl.system.errors import UsageError
from maxrl.system.files import DataError
from maxrl.tasks.base import Example, NoSplit, Task
from maxrl.tasks.rows import read_rows, reference


class Prompts(Task):
    """The rows of one data set for each split.

    chat    whether a prompt that is a text becomes a user's message, for the chat template
    system  the text of a system message that all prompts begin with, which needs chat messages
    """

    def __init__(
        self,
        split: str = "train",
        train: str | Sequence[dict] = "",
        validation: str | Sequence[dict] = "",
        test: str | Sequence[dict] = "",
        chat: bool | None = None,
        system: str = "",
    ):
        named = {"train": train, "validation": validation, "test": test}
        if isinstance(named[split], str) and not named[split]:
            raise NoSplit(
                f"the {split} prompts need a file (JSONL, JSON, CSV, parquet), a "
                f"folder or a data set of the hub: --task.{split} FILE"
            )
        try:
            self.rows, self.digest = read_rows(named, split, "prompt")
        except FileNotFoundError as error:
            # A run's recipe has the path as it was given, from where the run was started.
            raise FileNotFoundError(f"{error}: say where with --task.{split} FILE") from None
        if chat not in (None, True, False) or (system and chat is False):
            raise ValueError(f"chat is {chat!r}: it must be true or false, and true with system")
        for row in self.rows:
            if isinstance(row["prompt"], str) and (chat or system):
                row["prompt"] = [{"role": "user", "content": row["prompt"]}]
            if system and row["prompt"][0]["role"] != "user":
                raise ValueError(f"a prompt has a message before the user's: {row['prompt'][0]}")
            if system:
                row["prompt"] = [{"role": "system", "content": system}, *row["prompt"]]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        row = self.rows[index]
        answer = ""
        # Reward functions may compare with any value; check_references() names it for the others.
        with contextlib.suppress(DataError):
            answer = reference(row, "")
        return Example(row["prompt"], answer, row)

    def verify(self, response: str, example: Example) -> float:
        raise UsageError(
            "the task prompts judges nothing by itself: "
            "name a reward function with --reward FILE.py:FUNCTION"
        )
