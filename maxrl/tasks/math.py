r"""Competition mathematics: POLARIS-53K to train on, AIME, BeyondAIME, MATH-500 and Minerva to test (App. E.3).

Three prompts circulate under the paper's name. The text of E.3.1 appends a newline and "Please reason step by step, and put
your final answer within \boxed{{}}." to the problem, and so does the published polaris.py, in one user message without a
system message: both show the model a literal \boxed{{}}. The example printed in E.3.1 has another request. Here the user
message is the published one but for \boxed{}, which is the form that the verifier reads. The system message, the same request
once more as Qwen2.5-Math's own template has it, is ours: `--task.system ""` leaves it out. The template is the tokenizer's:
that of Qwen2.5 and Qwen3 writes these messages as <|im_start|>system ... <|im_end|> and so on, as the test shows.
"""

from pathlib import Path

from maxrl.io.files import command, read_info
from maxrl.io.hub_files import FILES
from maxrl.tasks.base import DATA, BoxedAnswers, Example, check_split, check_verdict
from maxrl.verifiers import last_boxed, normal_form, verify_math_batch

REQUEST = r"Please reason step by step, and put your final answer within \boxed{}."
SETS = {
    "polaris": "polaris/train.jsonl",
    "aime2024": "aime/2024.jsonl",
    "aime2025": "aime/2025.jsonl",
    "beyondaime": "beyondaime/test.jsonl",
    "math500": "math500/test.jsonl",
    "minerva": "minerva/test.jsonl",
}


class Math(BoxedAnswers):
    """Each split is one of SETS, as data/*/prepare.py write them, or a data set of one's own: {"problem", "answer"} a row, or
    {"prompt", "solution"} as TRL has them (maxrl/tasks/rows.py).

    `eval.py CHECKPOINT --task.test beyondaime` takes another set; `--task.system ""` leaves out the system message. verdict:
    "boxed" (verify_math on the last box) or "published" (verify_published on the whole response).
    """

    def __init__(
        self,
        split: str = "train",
        train: str = "polaris",
        validation: str = "math500",
        test: str = "aime2025",
        system: str = REQUEST,
        directory: str | Path = DATA,
        verdict: str = "boxed",
    ):
        check_split(split)
        self.verdict = check_verdict(verdict)
        self.source = {"train": train, "validation": validation, "test": test}[split]
        name = str(self.source)
        if name in SETS:
            file = Path(directory) / SETS[name]
            if not file.exists():
                raise FileNotFoundError(
                    f"there is no file {file}: run python -m data.{file.parent.name}.prepare"
                )
            fix = (
                command(f"data.{file.parent.name}.prepare", {"out": file.parent}, {})
                + " --overwrite"
            )
            read_info(file.parent, (file.name,), fix)
            name = str(file)
        elif Path(name).suffix not in FILES and "/" not in name:
            raise ValueError(
                f"there is no set {name!r}; use {', '.join(SETS)}, a data set of the hub, or a file that ends in "
                f"{', '.join(FILES)}"
            )
        self.system = [{"role": "system", "content": str(system)}] if system else []
        self.read(name, split)

    def __getitem__(self, index: int) -> Example:
        row = self.rows[index]
        return Example(self.asked(row, f"\n{REQUEST}", self.system), self.demonstration(row), row)

    def judge(self, responses: list[str], answers: list[str]) -> list[float]:
        return verify_math_batch(responses, answers)

    def normal(self, response: str) -> str | None:
        r"""The text of the last box but for blanks, \left and \right, and the size of fractions (normal_form). math-verify is
        not asked: it compares pairs, and finds some equal that this counts apart, such as (x+1)^2 and x^2+2x+1. Of the
        published verdict that is true as well."""
        return normal_form(last_boxed(response) or "") or None
