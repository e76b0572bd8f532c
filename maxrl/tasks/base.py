"""What a task is: prompts, and a verdict on each response."""

import random
import textwrap
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from maxrl import verifiers
from maxrl.errors import FAULTS, UsageError
from maxrl.tasks.rows import read_rows

ROOT = Path(__file__).resolve().parents[2]
CLONE = (
    ROOT / "data/common.py"
).exists()  # otherwise the package is installed, without the commands that make data sets
DATA = ROOT / "data" if CLONE else Path("data")  # data/*/prepare.py write here
WIDTH = 60  # columns of a shown text: two of them stand side by side in sample.py


@dataclass(frozen=True)
class Example:
    """One prompt of a task: a text, or chat messages [{"role": ..., "content": ...}, ...] that the tokenizer's template
    turns into one. `answer` is a reference solution: the demonstration of the supervised warm-up. `columns` are whatever
    else is known of it: reward functions get them by name.
    """

    prompt: str | list[dict]
    answer: str
    columns: dict = field(default_factory=dict)


class NoSplit(UsageError):
    """Nobody has named where a task finds this split."""


class Task:
    """A task gives `len(task)`, `task[i] -> Example` and `verify(response, example) -> float`.

    A new task is one file with a subclass and one line in `TASKS`. Its constructor takes `split` ("train",
    "validation" or "test") and whatever `--task.NAME VALUE` may set.
    """

    vocabulary: tuple[
        str, ...
    ] = ()  # words of a model trained from scratch; a checkpoint brings its own tokenizer
    tokenizer: Path | None = (
        None  # directory of the tokenizer of a model trained from scratch, instead of `vocabulary`
    )
    stop_tokens: tuple[
        str, ...
    ] = ()  # tokens that end a response, by name; the checkpoint's when empty
    source: str = ""  # where the split is from, for eval.py to say, if that is not plain
    classes: tuple[
        str, ...
    ] = ()  # labels of a classification task, whose policy is a classifier; empty for texts
    digest: str = ""  # of the data that the examples are made of, by which a resumed run knows them again; "": not known
    # A method final(response) -> str | None of tasks whose responses end in an answer: what a majority vote counts.
    final: Callable[[str], str | None] | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Example:
        raise NotImplementedError

    def check_index(self, index: int):
        if not 0 <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")

    def batch(self, indices, seeds=None):
        """The examples of a step: a list, or of a classification task an ImageBatch (maxrl/tasks/images.py). `seeds`, one
        for each, are for what is random in them (augmentation)."""
        return [self[int(i)] for i in indices]

    def verify(self, response: str, example: Example) -> float:
        """1.0 or 0.0, for any text at all."""
        raise NotImplementedError

    def verify_all(self, responses: list[str], examples: list[Example]) -> list[float]:
        """Verdicts on many responses, each beside its example; for a verifier that is faster in batches."""
        return [self.verify(response, example) for response, example in zip(responses, examples)]

    def rewards(self, examples: list[Example], rollouts) -> torch.Tensor:
        """Rewards of all rollouts, (P_local, N), on their device: decode every response and verify it; of a classifier,
        1 where the class drawn is the label.
        """
        if self.classes:
            return (rollouts.drawn == examples.labels.to(rollouts.drawn.device)[:, None]).float()
        P, N = rollouts.lengths.shape
        responses = [response for group in self.responses(rollouts) for response in group]
        rewards = self.verify_all(responses, [example for example in examples for _ in range(N)])
        return torch.tensor(rewards, dtype=torch.float32).view(P, N).to(rollouts.lengths.device)

    def faults(self) -> dict[str, float]:
        """By metric, what has gone wrong in judging since the last call, on this rank; of a verifier of processes only."""
        return {}

    def responses(self, rollouts) -> list[list[str]]:
        """The texts that are judged, P_local lists of N."""
        P, N = rollouts.lengths.shape
        return [[self.response(rollouts, i, j) for j in range(N)] for i in range(P)]

    def response(self, rollouts, i: int, j: int) -> str:
        """One of them: of a task that names its stop tokens with these, otherwise without end token and special tokens."""
        return (rollouts.text if self.stop_tokens else rollouts.completion)(i, j)

    def show(self, response: str, example: Example, colour: bool) -> str:
        """A rollout for people to look at, WIDTH columns wide; `colour` allows ANSI escapes. Where the task has `final`, the
        last line says what was read in the response and whether it is right."""
        parts = [wrapped(prompt_text(example.prompt)), "--- response", wrapped(response)]
        if self.final:
            verdict = "right" if self.verify(response, example) == 1 else "wrong"
            gold = example.columns.get("answer", example.answer)
            parts.append(
                wrapped(f"read {self.final(response) or 'no answer'}, answer {gold}: {verdict}")
            )
            if colour:
                parts[-1] = f"{parts[-1].removesuffix(verdict)}{COLOURS[verdict]}{verdict}\x1b[0m"
        return "\n".join(parts)


class Within:
    """The examples of a task whose prompts have at most `limit` tokens, in their order; `left_out` counts the others, and
    `left_out_words` says so in words if there are any; `longest` is the length of the longest one here."""

    def __init__(self, task: Task, tokenizer, limit: int):
        self.task = task
        try:
            lengths = []
            for i in range(len(task)):
                lengths.append(len(tokenizer.encode_prompt(example_of(task, i).prompt)))
        except (UsageError, ValueError):
            raise
        except FAULTS as error:
            raise UsageError(
                f"example {len(lengths)} of the task {type(task).__name__} {fault(error)}"
            ) from None
        self.places = [i for i, length in enumerate(lengths) if length <= limit]
        self.longest = max((lengths[i] for i in self.places), default=0)
        self.left_out = len(task) - len(self.places)
        said = f"left out {self.left_out} of {len(task)} prompts, longer than --max-prompt {limit} tokens"
        self.left_out_words = said if self.left_out else ""

    def __getattr__(self, name: str):
        if name == "task":  # not there yet, where a loader's worker unpickles it
            raise AttributeError(name)
        return getattr(self.task, name)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Example:
        return self.task[self.places[index]]

    def batch(self, indices, seeds=None):
        return self.task.batch([self.places[int(i)] for i in indices], seeds)


def example_of(task: Task, index: int) -> Example:
    """task[index]; UsageError where somebody's code raises what its author did not mean, or gives something else."""
    try:
        example = task[index]
    except (UsageError, ValueError):
        raise
    except FAULTS as error:
        raise UsageError(
            f"example {index} of the task {type(task).__name__} {fault(error)}"
        ) from None
    if not isinstance(example, Example) or not isinstance(example.prompt, (str, list)):
        raise UsageError(
            f"example {index} of the task {type(task).__name__} is {str(example)[:80]}: __getitem__ must return "
            "an Example(prompt, answer), its prompt a text or a list of messages"
        )
    return example


def finished_only(rewards):
    """A task's rewards(), but 0 for responses that were cut by the length limit."""
    return lambda examples, rollouts: (
        rewards(examples, rollouts) * rollouts.finished
    )  # (P_local, N)


def check_split(split: str):
    if split not in ("train", "validation", "test"):
        raise ValueError(f"split must be train, validation or test, got {split!r}")


def check_verdict(verdict: str) -> str:
    """Of the tasks that may be judged by the last box or by the published code's rule."""
    if verdict not in ("boxed", "published"):
        raise ValueError(f"verdict must be boxed or published, got {verdict!r}")
    return verdict


def drawn(make, split: str, seed: int, index: int):
    """Example `index` of a generated split: the first result of make(rng) whose checksum belongs to the split.

    A function of the arguments alone. The splits share no example; within one an example may occur again.
    """
    rng = random.Random(f"{seed} {split} {index}")
    shares = {"train": range(90), "validation": range(90, 95), "test": range(95, 100)}
    for _ in range(10_000):
        key, example = make(rng)
        if zlib.crc32(key.encode()) % 100 in shares[split]:
            return example
    raise ValueError(
        f"there are too few examples of this size for a {split} split: make them larger"
    )


class Generated(Task):
    """A task of `size` examples that a seed decides: drawn(self.draw, ...) gives what self.example makes an example of."""

    split: str
    seed: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Example:
        self.check_index(index)
        return self.example(drawn(self.draw, self.split, self.seed, index))


class BoxedAnswers(Task):
    """What the tasks share whose `rows` {"problem", "answer", perhaps "solution"} are answered within a box. `verdict` is
    "boxed", judge() on the last box, or "published", what the paper's code says of the whole response."""

    verdict: str

    def read(self, name: str | Path, split: str):
        self.rows, self.digest = read_rows(
            str(name), split, {"problem": (str, list), "answer": (str,)}
        )

    def __len__(self) -> int:
        return len(self.rows)

    def asked(self, row: dict, request: str, system=()) -> list[dict]:
        """The problem and the request as a user's message, after those of the system; chat messages ask as they are."""
        problem = row["problem"]
        return (
            problem
            if isinstance(problem, list)
            else [*system, {"role": "user", "content": problem + request}]
        )

    def demonstration(self, row: dict) -> str:
        # TRL calls the answer itself a solution.
        solution = (
            f"{row['solution']}\n" if row.get("solution") not in (None, "", row["answer"]) else ""
        )
        return f"{solution}\\boxed{{{row['answer']}}}"

    def verify(self, response: str, example: Example) -> float:
        return self.verify_all([response], [example])[0]

    def verify_all(self, responses: list[str], examples: list[Example]) -> list[float]:
        judge = verifiers.verify_published_batch if self.verdict == "published" else self.judge
        return judge(responses, [example.columns["answer"] for example in examples])

    def faults(self) -> dict[str, float]:
        return verifiers.take_counts()

    def final(self, response: str) -> str | None:
        r"""What a majority vote counts: the number in the last box, exactly (0.50 and \frac12 are both 1/2), else normal().
        Under the published verdict, what math-verify reads in the whole response."""
        if self.verdict == "published":
            return verifiers.read_published(response)
        number = verifiers.final_number(response)
        return self.normal(response) if number is None else str(number)

    def normal(self, response: str) -> str | None:
        """What a majority vote counts of a response whose last box holds no number: nothing."""
        return None


def prompt_text(prompt: str | list[dict]) -> str:
    """A prompt for people to read, messages as "role: content"."""
    return (
        prompt
        if isinstance(prompt, str)
        else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
    )


COLOURS = {"right": "\x1b[32m", "wrong": "\x1b[1;31m"}


def wrapped(text: str) -> str:
    """A text in lines of at most WIDTH columns; what is no character to print, such as an escape, is shown as a dot."""
    lines = (
        "".join(c if c.isprintable() else "\u00b7" for c in line.expandtabs(4))
        for line in text.split("\n")
    )
    return "\n".join(textwrap.fill(line, WIDTH) for line in lines)


def fault(error: BaseException) -> str:
    """What somebody's code has raised, and where, in a sentence."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]} ({last.filename}, line {last.lineno})"
