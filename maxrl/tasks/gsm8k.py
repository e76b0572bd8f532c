r"""GSM8K: school word problems whose answer is a number (arXiv 2602.02710, App. E.2).

The prompt is the question and the request of the published code as one user message in the model's
template, whose own system message comes first if it has one. For a tokenizer without a template it
is that text alone.
"""

from pathlib import Path

from maxrl.tasks.base import BoxedAnswers, Example, open_set
from maxrl.tasks.verifiers import verify_number

REQUEST = r"Let's think step by step and output the final answer within \boxed{}."


class Gsm8k(BoxedAnswers):
    """What `python -m data.gsm8k.prepare` has written, or another set of that layout.

    directory  a path, or one below data/, such as word_problems
    verdict    "boxed" (verify_number) or "published" (verify_published_batch)

    Without a validation file, which GSM8K has not, validation is the test set, as in the paper's
    training curves; then nothing may be chosen by it.
    """

    request = f" {REQUEST}"

    def __init__(
        self, split: str = "train", directory: str | Path = "gsm8k", verdict: str = "boxed"
    ):
        name = "word_problems" if Path(directory).name == "word_problems" else "gsm8k"
        compared = (f"{split}.", "test.", "tokenizer")
        folder, info = open_set(directory, f"data.{name}.prepare", compared)
        # Of generated problems: the answers are the whole numbers from 1 to this one.
        self.answers = info.get("answers")
        if (folder / "tokenizer.json").exists():
            self.tokenizer = folder
        if split == "validation" and not (folder / "validation.jsonl").exists():
            split = "test"
        if split == "test":
            self.source = str(info.get("test", ""))  # GSM8K-Platinum, or GSM8K's own
        self.read({split: str(folder / f"{split}.jsonl")}, split, verdict)

    def guess(self, example: Example) -> float | None:
        return 1 / self.answers if self.answers else None

    def judge(self, responses: list[str], answers: list[str]) -> list[float]:
        return [verify_number(response, answer) for response, answer in zip(responses, answers)]
