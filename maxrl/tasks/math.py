r"""Competition mathematics: POLARIS-53K to train on, AIME, BeyondAIME, MATH-500 and Minerva to test (App. E.3).

Three prompts circulate under the paper's name: the text of E.3.1, its printed example, and the published polaris.py, which
shows the model a literal \boxed{{}}. This is the text: the Qwen-math template, that is, the system message of Qwen2.5-Math's
own template, in ChatML, and the same request after the problem. It is the paper's description in words, and the two others
contradict it; \boxed{{}} would besides teach a form that the verifier need not read. The template is the tokenizer's: that
of Qwen2.5 and Qwen3 writes these messages as <|im_start|>system ... <|im_end|> and so on, as the test shows.
"""

from pathlib import Path

from maxrl.tasks.base import Example, Task, check_split
from maxrl.tasks.jsonl import DATA, read_jsonl

REQUEST = r"Please reason step by step, and put your final answer within \boxed{}."
SETS = {"polaris": "polaris/train.jsonl", "aime2024": "aime/2024.jsonl", "aime2025": "aime/2025.jsonl",
        "beyondaime": "beyondaime/test.jsonl", "math500": "math500/test.jsonl", "minerva": "minerva/test.jsonl"}


class Math(Task):
    """Each split is one of SETS, as data/*/prepare.py write them, or a file of such lines: {"problem", "answer"}.

    `eval.py CHECKPOINT --task.test beyondaime` takes another set; `--task.system ""` leaves out the system message.
    """

    def __init__(self, split: str = "train", train: str = "polaris", validation: str = "math500", test: str = "aime2025",
                 system: str = REQUEST, directory: str | Path = DATA):
        check_split(split)
        name = {"train": train, "validation": validation, "test": test}[split]
        if name not in SETS and not str(name).endswith(".jsonl"):
            raise ValueError(f"there is no set {name!r}; use {', '.join(SETS)}, or a file that ends in .jsonl")
        file = Path(directory) / SETS[name] if name in SETS else Path(name)
        if name in SETS and not file.exists():
            raise FileNotFoundError(f"there is no file {file}: run python -m data.{file.parent.name}.prepare")
        self.system = [{"role": "system", "content": str(system)}] if system else []
        self.rows = read_jsonl(file, {"problem": (str,), "answer": (str,)})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        row = self.rows[index]
        solution = f"{row['solution']}\n" if row.get("solution") else ""
        prompt = [*self.system, {"role": "user", "content": f"{row['problem']} {REQUEST}"}]
        return Example(prompt, f"{solution}\\boxed{{{row['answer']}}}", row)

    def verify(self, response: str, example: Example) -> float:
        from maxrl.verifiers import verify_math
        return verify_math(response, example.columns["answer"])

    def verify_all(self, responses: list[str], examples: list[Example]) -> list[float]:
        from maxrl.verifiers import verify_math_batch
        return verify_math_batch(responses, [example.columns["answer"] for example in examples])

    def final(self, response: str) -> str | None:
        r"""What a majority vote counts: the last box. Two boxes are one answer where both are the same number (read_number),
        or the same text but for blanks, \left and \right, and the size of fractions (normal_form). math-verify is not
        asked: it compares pairs, and finds some equal that this counts apart, such as (x+1)^2 and x^2+2x+1."""
        from maxrl.verifiers import final_number, last_boxed, normal_form
        number = final_number(response)
        return (normal_form(last_boxed(response) or "") or None) if number is None else str(number)
