"""What a task is: prompts, and a verdict on each response."""

import math
import shlex
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxrl.models.tokenizer import Tokenizer
from maxrl.sampling.rollouts import Rollouts
from maxrl.system.errors import UsageError, blaming
from maxrl.system.files import read_info
from maxrl.tasks import verifiers
from maxrl.tasks.rows import check_messages, read_rows

DATA = Path(__file__).resolve().parents[2] / "data"  # data/*/prepare.py write here
if not (DATA / "common.py").exists():
    DATA = Path("data")  # an installed package comes without these commands
WIDTH = 60  # columns of a shown text: sample.py puts two of them side by side


@dataclass(frozen=True)
class Example:
    """One prompt of a task.

    prompt   a text, or chat messages [{"role": ..., "content": ...}, ...] for the template of the
             tokenizer
    answer   a reference solution, the demonstration of the supervised warm-up
    columns  whatever else is known; reward functions get it by name
    """

    prompt: str | list[dict]
    answer: str
    columns: dict = field(default_factory=dict)


@dataclass
class ImageBatch:
    """P_local images, not yet normalised, and their labels."""

    images: Tensor  # (P_local, 3, H, W) uint8
    labels: Tensor  # (P_local,)

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "ImageBatch":
        return ImageBatch(
            self.images.to(device, non_blocking=True), self.labels.to(device, non_blocking=True)
        )

    def pin_memory(self) -> "ImageBatch":
        return ImageBatch(self.images.pin_memory(), self.labels.pin_memory())


Examples = Sequence[Example] | ImageBatch  # of a step


def is_success(rewards: Any) -> Any:
    """Which rewards of an array or tensor are a success: those of exactly 1."""
    return rewards == 1


class WrongAnswer(Exception):
    """Says what is wrong with what a function returned."""


class NoSplit(UsageError):
    """Nobody has said where a task finds this split."""


class Task:
    """A task has `len(task)`, `task[i] -> Example` and `verify(response, example) -> float`.

    A new task is a file with a subclass and a line in `TASKS`. Its constructor takes `split`
    ("train", "validation" or "test") and whatever `--task.NAME VALUE` may set.
    """

    # For a model trained from scratch: its words, or instead the directory of its tokenizer.
    vocabulary: tuple[str, ...] = ()
    tokenizer: Path | None = None
    # Names of the tokens that end a response, if they are not those of the checkpoint.
    stop_tokens: tuple[str, ...] = ()
    # Whether all prompts have the same number of tokens. Then only one of them is read before
    # training, as there may be a million.
    equally_long: bool = False
    # Where the split comes from, for eval.py to print.
    source: str = ""
    # Labels of a classification task, whose policy is a classifier; empty for a task of texts.
    classes: tuple[str, ...] = ()
    # Identifies the data, so that a resumed run notices other data; "" if unknown.
    digest: str = ""
    # A method final(response) -> str | None that returns what a majority vote counts, for tasks
    # whose responses end in an answer.
    final: Callable[[str], str | None] | None = None
    # Whether several answers to a prompt can be right, each with a text of its own from `final`:
    # eval.py then counts the different ones. Of one right answer it would count spellings.
    several: bool = False

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Example:
        raise NotImplementedError

    def batch(self, indices: Sequence[int], seeds: Sequence | None = None) -> Examples:
        """Return the examples of a step: a list, or the ImageBatch of a task with classes.

        seeds   one for each example, for what is random in it (augmentation)
        """
        return [self[int(i)] for i in indices]

    def verify(self, response: str, example: Example) -> float:
        """Return the reward, 1.0 for a success, for any text at all."""
        raise NotImplementedError

    def guess(self, example: Example) -> float | dict[float, float] | None:
        """Return the pass rate of a guess that is blind to the prompt; None if nobody knows it.

        Where a guess may have other rewards than 0 and 1: {reward: its probability}.
        """
        return None

    def verify_all(self, responses: list[str], examples: list[Example]) -> list[float]:
        """Return the verdict on each response, for a verifier that is faster in batches."""
        return [self.verify(response, example) for response, example in zip(responses, examples)]

    def rewards(self, examples: Any, rollouts: Any) -> Tensor:
        """Return the rewards (P_local, N) of rollouts.

        Every response is decoded and verified, on the host; a classifier's draw has reward 1 if it
        is the label, on its device.
        """
        if self.classes:
            return (rollouts.drawn == examples.labels.to(rollouts.drawn.device)[:, None]).float()
        P, N = rollouts.lengths.shape
        responses = [response for group in self.responses(rollouts) for response in group]
        verdicts = self.verify_all(responses, [example for example in examples for _ in range(N)])
        rewards = as_numbers(verdicts, P * N)
        return torch.tensor(rewards, dtype=torch.float32).view(P, N)

    def responses(self, rollouts: Rollouts) -> list[list[str]]:
        """Return the texts that are judged, P_local lists of N."""
        P, N = rollouts.lengths.shape
        return [[self.response(rollouts, i, j) for j in range(N)] for i in range(P)]

    def response(self, rollouts: Rollouts, i: int, j: int) -> str:
        """Return one of them: with its end token only if the task names its stop tokens."""
        return (rollouts.text if self.stop_tokens else rollouts.completion)(i, j)

    def show(self, response: str, example: Example) -> str:
        """Return a rollout for people to look at, WIDTH columns wide.

        If the task has `final`, the last line says what was read in the response and whether it is
        right.
        """
        parts = [prompt_text(example.prompt), "--- response", response]
        if self.final:
            verdict = "right" if self.verify(response, example) == 1 else "wrong"
            gold = example.columns.get("answer", example.answer)
            read = self.final(response) or "no answer"
            parts.append(f"read {read}, answer {gold}: {verdict}")
        return wrapped("\n".join(parts))


class FilteredTask:
    """The examples of a task whose prompts have at most `limit` tokens, in their order.

    left_out  the number of examples with longer prompts
    lengths   the number of tokens of each prompt that is kept
    init      the checkpoint that the tokenizer comes from, if any
    """

    task: Any = None  # while a worker of a loader unpickles this object

    def __init__(self, task: Task, tokenizer: Tokenizer, limit: int, init: str = ""):
        self.task = task
        self.init = init
        lengths = prompt_lengths(task, tokenizer)
        self.positions = [i for i, length in enumerate(lengths) if length <= limit]
        self.lengths = [lengths[i] for i in self.positions]
        self.left_out = len(task) - len(self.positions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Example:
        return self.task[self.positions[index]]

    def batch(self, indices: Sequence[int], seeds: Sequence | None = None) -> Examples:
        return self.task.batch([self.positions[int(i)] for i in indices], seeds)


def prompt_lengths(task: Task, tokenizer: Tokenizer) -> list[int]:
    """Return the number of tokens of each prompt; if all have as many, one prompt is read."""
    lengths: list[int] = []
    for i in range(len(task)):
        if not lengths or not task.equally_long:
            length = len(tokenizer.encode_prompt(example_of(task, i).prompt))
        lengths.append(length)
    return lengths


def example_of(task: Task, index: int) -> Example:
    """Return task[index]; UsageError if the task's code fails or returns something else."""
    name = f"example {index} of the task {type(task).__name__}"
    with blaming(name, ValueError):
        example = task[index]
    if not isinstance(example, Example) or not isinstance(example.prompt, str | list):
        raise UsageError(
            f"{name} is {str(example)[:80]}: __getitem__ must return an Example(prompt, answer), "
            "its prompt a text or a list of messages"
        )
    if isinstance(example.prompt, list):
        check_messages(example.prompt, name)
        if example.prompt[-1]["role"] == "assistant":
            raise UsageError(
                f"{name} ends with an answer, which the model is to give: leave out the last "
                "message, or move it to the column 'answer'"
            )
    return example


def open_set(directory: str | Path, command: str, starts: tuple[str, ...]) -> tuple[Path, dict]:
    """Find a data set that data/*/prepare.py has written.

    directory  a path, or one below data/
    command    the module that makes the set, with its options, for errors
    starts     prefixes of the names of the files to compare with their checksums

    Returns its folder and its info.json. Raises FileNotFoundError if there is none, DataError if it
    is damaged.
    """
    for folder in (Path(directory), DATA / directory):
        # Without info.json, which is written last, it is half a set.
        if (folder / "info.json").exists():
            again = f"python -m {command} --out {shlex.quote(str(folder))} --overwrite"
            fix = f"{again} (and the options that info.json names)"
            return folder, read_info(folder, starts, fix)
    raise FileNotFoundError(
        f"there is no complete data set {directory}, here or in {DATA}: in a clone of the "
        f"repository, run python -m {command}"
    )


class BoxedAnswers(Task):
    """Tasks whose `rows` {"problem", "answer", maybe "solution"} are answered within a box.

    judge(responses, answers) returns a verdict on each response, usually on its last box. The user
    asks with a problem and the request; chat messages ask as they are.
    """

    judge: Callable[[list[str], list[str]], list[float]]
    request: str
    system: Sequence[dict] = ()  # messages before the user's

    def read(self, named: dict[str, str], split: str, verdict: str):
        """Read the rows of a split, of which `named` says where they are.

        verdict is "boxed" or "published", the paper's code on whole responses.
        """
        if verdict == "published":
            self.judge = verifiers.verify_published_batch
        elif verdict != "boxed":
            raise ValueError(f"verdict must be boxed or published, got {verdict!r}")
        self.rows, self.digest = read_rows(named, split, "problem", answers=True)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        row = self.rows[index]
        prompt = row["problem"]
        if isinstance(prompt, str):
            prompt = [*self.system, {"role": "user", "content": prompt + self.request}]
        return Example(prompt, self.demonstration(row), row)

    def demonstration(self, row: dict) -> str:
        """Return the solution and, in a box, the answer; "" without an answer."""
        answer = row["answer"]
        boxed = f"\\boxed{{{answer}}}" if answer else ""
        solution = row.get("solution")
        # TRL calls the answer itself a solution.
        worked = isinstance(solution, str) and solution.strip("$. ") not in ("", answer, boxed)
        return f"{solution}\n{boxed}" if answer and worked else boxed

    def verify(self, response: str, example: Example) -> float:
        return self.judge([response], [example.columns["answer"]])[0]

    def verify_all(self, responses: list[str], examples: list[Example]) -> list[float]:
        # A subclass may have a verdict of its own.
        if type(self).verify is not BoxedAnswers.verify:
            return super().verify_all(responses, examples)
        return self.judge(responses, [example.columns["answer"] for example in examples])

    def final(self, response: str) -> str | None:
        r"""Return what a majority vote counts.

        This is the number in the last box, exactly (0.50 and \frac12 are both 1/2), also under the
        published verdict; None if the box holds no number.
        """
        number = verifiers.final_number(response)
        return None if number is None else str(number)


def as_numbers(result: object, size: int) -> list[float]:
    """Return a function's result as numbers, NaN for None; WrongAnswer if it is not that."""
    if hasattr(result, "tolist"):  # an array or a tensor
        result = result.tolist()
    if not isinstance(result, list | tuple):
        raise WrongAnswer(f"{type(result).__name__} instead of a list of numbers")
    if len(result) != size:
        raise WrongAnswer(f"{len(result)} rewards for {size} completions")
    values = [math.nan] * size
    for i, value in enumerate(result):
        if value is None:
            continue
        try:
            # float() alone would read texts and bytes as well.
            values[i] = float(value + 0)
        except TypeError:
            said = f"{value!r:.40} for completion {i} instead of a number or None"
            raise WrongAnswer(said) from None
        if not abs(values[i]) <= torch.finfo(torch.float32).max:
            raise WrongAnswer(f"{value} for completion {i} instead of a finite number or None")
    return values


def prompt_text(prompt: str | list[dict]) -> str:
    """Return a prompt for people to read, messages as "role: content"."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def wrapped(text: str) -> str:
    """Return a text in lines of WIDTH columns, with a dot for what cannot be printed."""
    lines = []
    for line in text.split("\n"):
        shown = "".join(c if c.isprintable() else "\u00b7" for c in line.expandtabs(4))
        lines.append(textwrap.fill(shown, WIDTH))
    return "\n".join(lines)
