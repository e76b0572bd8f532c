"""The tasks of texts: prompts, verdicts, and files that are wrong."""

import contextlib

import pytest
import torch

from maxrl.learning.config import Config
from maxrl.models.tokenizer import Tokenizer
from maxrl.run import build
from maxrl.sampling.rollouts import Rollouts
from maxrl.system.errors import UsageError
from maxrl.tasks import TASKS, load_task
from maxrl.tasks.base import FilteredTask, Task
from maxrl.tasks.gsm8k import Gsm8k
from tests.helpers import tiny
from tests.helpers.tables import each, put

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
ROW = {"problem": "What is 2 + 3?", "answer": "5"}


def made(folder, **files):
    """A complete set with these rows in its files."""
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        put(folder / f"{name}.jsonl", rows)
    (folder / "info.json").write_text('{"test": "GSM8K"}')
    return folder


@pytest.fixture
def gsm8k(tmp_path):
    """A set as data/gsm8k/prepare.py writes it."""
    train = [ROW | {"solution": "2 + 3 = 5"}, ROW]
    return made(tmp_path, train=train, test=[{"problem": "Test?", "answer": "1"}])


def test_gsm8k(gsm8k):
    """Without a validation file, validation is the test set."""
    task = load_task("gsm8k", "train", directory=gsm8k)
    request = r"Let's think step by step and output the final answer within \boxed{}."
    assert task[0].prompt == [{"role": "user", "content": f"What is 2 + 3? {request}"}]
    assert task[0].answer == "2 + 3 = 5\n\\boxed{5}"
    assert task[1].answer == "\\boxed{5}"
    assert task.verify(task[0].answer, task[0]) == 1
    assert task.verify("5", task[0]) == 0
    for split in ("validation", "test"):
        other = load_task("gsm8k", split, directory=gsm8k)
        assert other.source == "GSM8K"
        assert other[0].columns["problem"] == "Test?"
    put(gsm8k / "validation.jsonl", [ROW])
    validation = load_task("gsm8k", "validation", directory=gsm8k)
    assert validation.source == ""
    assert validation[0].columns == ROW


def test_math(tmp_path):
    half = "\\boxed{\\frac{1}{2}}"
    made(tmp_path / "polaris", train=[ROW | {"answer": "\\frac{1}{2}"}])
    made(tmp_path / "beyondaime", test=[ROW])
    task = load_task("math", "train", directory=tmp_path)
    request = r"Please reason step by step, and put your final answer within \boxed{}."
    assert [m["content"] for m in task[0].prompt] == [request, f"What is 2 + 3?\n{request}"]
    assert task[0].answer == half
    assert task.verify_all([half, "x"], [task[0]] * 2) == [1, 0]
    other = load_task("math", "test", test="beyondaime", system="", directory=tmp_path)
    assert [m["role"] for m in other[0].prompt] == ["user"]
    asked = [{"role": "user", "content": "1 + 1?"}]
    put(tmp_path / "asked.jsonl", [{"problem": asked, "answer": "2"}])
    own = {"train": str(tmp_path / "asked.jsonl")}
    assert load_task("math", "train", **own)[0].prompt == asked
    with pytest.raises(UsageError, match="--task.system"):
        load_task("math", "train", system="Add.", **own)
    with pytest.raises(FileNotFoundError, match="python -m data.aime.prepare"):
        load_task("math", "test", directory=tmp_path)


def test_a_class_may_have_a_verdict_of_its_own(tmp_path):
    """Training asks it, too, and it may ask the usual one."""

    class Short(Gsm8k):
        def verify(self, response, example):
            return super().verify(response, example) * (len(response) < 20)

    made(tmp_path, train=[ROW])
    task = Short("train", directory=tmp_path)
    right = rf"\boxed{{{task[0].columns['answer']}}}"
    assert task.verify_all([right, "so" * 20 + right, ""], [task[0]] * 3) == [1, 0, 0]


# What a majority vote counts of a response: nothing in the last rows of each task.
FINAL = r"""
gsm8k | 12 and \boxed{15} | 15
gsm8k | \boxed{0.50} | 1/2
gsm8k | \boxed{1} no, \boxed{\frac12} | 1/2
gsm8k | \boxed{-1,024 dollars}<eos> | -1024
gsm8k | \boxed{7} as asked in \boxed{} | 7
gsm8k | 15 | None
gsm8k | \boxed{x} | None
gsm8k | \boxed{7} \boxed{15 | None
math | \boxed{033} | 33
math | \boxed{x = 0.5} | 1/2
math | \boxed{\left( 1, \dfrac{\pi}{2} \right)} | (1,\frac{\pi}{2})
math | $\boxed{$(1,\,\frac{\pi}{2})$.}$ | (1,\frac{\pi}{2})
math | \boxed{2 \pi r} | 2\pi r
math | \boxed{1 2} | 1 2
math | \boxed{x\leftarrow y} | x\leftarrow y
math | \boxed{3 \\ x} | 3\\x
math | x | None
math | \boxed{x} \boxed{y | None
math | \boxed{$.$} | None
"""


@each("name, response, answer", FINAL)
def test_final_answers(name, response, answer):
    task = TASKS[name].__new__(TASKS[name])
    assert str(task.final(response)) == answer


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_the_verdict_of_the_published_code(gsm8k, name):
    """No box is needed, but a majority vote counts boxes alone."""
    pytest.importorskip("math_verify")
    options = {"directory": gsm8k} if name == "gsm8k" else {"train": str(gsm8k / "train.jsonl")}
    task = load_task(name, "train", verdict="published", **options)
    responses = ["2 + 3 makes 5 apples.", r"\boxed{5}", "6"]
    assert task.verify_all(responses, [task[0]] * 3) == [1, 1, 0]
    assert [task.final(response) for response in responses] == [None, "5", None]


def test_shown_with_its_verdict(gsm8k):
    """Narrow, with what was read, and without what a terminal would obey."""
    task = load_task("gsm8k", "train", directory=gsm8k)
    shown = task.show("word " * 40 + "\x1b[31m\r\tso\n\n" + r"\boxed{5.0}", task[0])
    lines = shown.split("\n")
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("user: What is 2 + 3?")
    assert "--- response" in lines
    assert lines[-1] == "read 5, answer 5: right"
    assert not {"\x1b", "\r"} & set(shown)
    wrong = task.show("x" * 200, task[0])
    assert wrong.endswith("\nread no answer, answer 5: wrong")


@pytest.mark.parametrize("stop, read", [((), Rollouts.completion), (("<eos>",), Rollouts.text)])
def test_what_is_judged_of_a_response(stop, read):
    """Without the end token, unless the task names its stop tokens itself."""
    rollouts = tiny.rollouts((3,), N=2)
    task = Task()
    task.stop_tokens = stop
    assert task.responses(rollouts) == [[read(rollouts, 0, 0), read(rollouts, 0, 1)]]
    assert rollouts.completion(0, 0) != rollouts.text(0, 0)


def test_within_a_length(tmp_path):
    """Prompts over the limit are left out and counted; the others keep their order."""
    tokenizer = Tokenizer.from_vocabulary(("<unk>", "a"))
    rows = [{"prompt": " ".join("a" * n), "n": n} for n in (3, 1, 5, 2)]
    task = load_task("prompts", "train", train=str(put(tmp_path / "p.jsonl", rows)))
    short = FilteredTask(task, tokenizer, 3)
    assert [short[i].columns["n"] for i in range(len(short))] == [3, 1, 2]
    assert short.left_out == 1
    assert FilteredTask(task, tokenizer, 5).left_out == 0
    assert short.stop_tokens == ()
    assert short.batch([1])[0].prompt == "a"


@pytest.mark.parametrize(
    "prompt, answer, known",
    [("1 + 2", "1 2", True), ("1+2", "1", False), ("1 + 2", "3", False), ("1 + b", "", False)],
)
def test_words_that_a_vocabulary_lacks_are_named_before_the_first_step(prompt, answer, known):
    """Whoever trains on prompts of unknown tokens alone learns nothing, without a word."""
    rows = [{"prompt": "1", "answer": "2"}, {"prompt": prompt, "answer": answer}]
    task = load_task("prompts", "train", train=rows)
    task.vocabulary = ("<pad>", "<eos>", "<unk>", *"12+")
    cfg = Config(task="prompts", model=tiny.model(torch.float32).config.to_hf())
    with contextlib.nullcontext() if known else pytest.raises(ValueError, match="lacks words"):
        build.initial(cfg, task, None)
