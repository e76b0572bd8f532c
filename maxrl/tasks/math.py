r"""Competition mathematics (arXiv 2602.02710, App. E.3).

POLARIS-53K is for training; AIME, BeyondAIME, MATH-500 and Minerva are for tests. Three prompts
circulate under the paper's name. The text of E.3.1 appends a newline and "Please reason step by
step, and put your final answer within \boxed{{}}." to the problem, and so does the published
polaris.py, in one user message without a system message: both show the model a literal \boxed{{}}.
The example printed in E.3.1 has another request. Here the user message is the published one but for
\boxed{}, which is the form that the verifier reads. The system message, which repeats the request
as Qwen2.5-Math's own template does, is ours: `--task.system ""` leaves it out.
"""

from pathlib import Path

from maxrl.tasks.base import DATA, BoxedAnswers, open_set
from maxrl.tasks.splits import FILES
from maxrl.tasks.verifiers import last_boxed, normal_form, verify_math_batch

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
    """Competition problems, from one of SETS for each split or from a data set of one's own.

    train, validation, test  a name in SETS, or a file, folder or set of the hub with the columns
                             {"problem", "answer"} or {"prompt", "solution"}, as TRL has them;
                             the answer of a worked solution is its last box or formula
    system     the system message; "" for none
    directory  where SETS are
    verdict    "boxed" (verify_math_batch) or "published" (verify_published_batch)
    """

    judge = staticmethod(verify_math_batch)
    request = f"\n{REQUEST}"

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
        named = {"train": str(train), "validation": str(validation), "test": str(test)}
        self.source = name = named[split]
        if name in SETS:
            folder_name, file_name = SETS[name].split("/")
            make = f"data.{folder_name}.prepare"
            folder, _ = open_set(Path(directory) / folder_name, make, (file_name,))
            named[split] = str(folder / file_name)
        elif not ("/" in name or Path(name).suffix.lower() in FILES or Path(name).is_dir()):
            raise ValueError(
                f"there is no set {name!r}; use {', '.join(SETS)}, a data set of the hub, a "
                f"folder, or a file that ends in {', '.join(FILES)}"
            )
        self.system = [{"role": "system", "content": str(system)}] if system else []
        self.read(named, split, verdict)
        as_messages = any(isinstance(row["problem"], list) for row in self.rows)
        if as_messages and system not in ("", REQUEST):
            raise ValueError("problems that are messages ask as they are: leave out --task.system")

    def final(self, response: str) -> str | None:
        r"""Return what a majority vote counts: the number in the last box, or else its text.

        Blanks, \left and \right, and the size of fractions do not count in a text. math-verify is
        not asked, because it compares pairs: it finds some answers equal that count apart here,
        such as (x+1)^2 and x^2+2x+1.
        """
        return super().final(response) or normal_form(last_boxed(response) or "") or None
