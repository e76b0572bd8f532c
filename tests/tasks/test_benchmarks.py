"""The benchmarks from their published layout to a table: prepare.py, eval.py and sample.py.

The model is tiny and random. Its tokenizer has the chat template of Qwen2.5 and knows whole boxes
alone, so that there are right answers, wrong ones and none.
"""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from maxrl.learning.policy import SequencePolicy
from maxrl.models import checkpoint
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from maxrl.system.files import read_json
from maxrl.tasks import load_task
from sample import side_by_side
from tests.helpers import tiny
from tests.helpers.chat_templates import QWEN2_5
from tests.helpers.runs import passed, refused
from tests.helpers.tables import parquet, put

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
# What the model can write, and which of it is one answer.
CANONICAL = {
    "33": "33",
    "033": "33",
    "204": "204",
    "0.5": "1/2",
    r"\frac12": "1/2",
    "x+1": "x+1",
    "x + 1": "x+1",
    "-3": "-3",
}
BOXES = [f"\\boxed{{{box}}}" for box in CANONICAL]
PROBLEMS = ["Find the number of cats.", "How much is it?", "Find it."]
LONG = "a " * 300
SAMPLES = 16
LENGTH = 6
SHORT = ("--max-response", LENGTH)
FEW = ("--samples", SAMPLES, "--k", "1,4", *SHORT, "--precision", "float32")
WITHIN = ("--max-prompt", 200)
# {name: (words of its prepare.py, format of the published file, its column of problems, answers)}
SETS = {
    "aime2024": ("aime --source a a", parquet, "problem", ("033", "204", "5")),
    "aime2025": ("aime --source a a", put, "problem", (33, 204, 7)),
    "beyondaime": ("beyondaime --source a", parquet, "problem", (33, 204, 33)),
    "math500": ("math500 --source a", put, "problem", (r"\frac{1}{2}", "x+1", "-3")),
    "minerva": ("minerva --source a", parquet, "question", ("0.5", "1+x", "1e-5")),
    "gsm8k": ("gsm8k --source a --test a", put, "question", ("#### 33", "#### -3", "#### 0.5")),
}
SAME = CANONICAL | {r"\frac{1}{2}": "1/2", "1+x": "x+1"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A checkpoint without a recipe, as the hub's are."""
    tokenizer = Tokenizer.from_vocabulary(("<pad>", "<eos>", "<unk>", *BOXES))
    tokenizer.config["chat_template"] = QWEN2_5
    sizes = {"vocab_size": tokenizer.size, "max_position_embeddings": 256}
    transformer = tiny.model(torch.float32, tie_word_embeddings=False, **sizes)
    with torch.no_grad():
        # The first hidden number is always large.
        transformer.model.embed_tokens.weight[:, 0] = 10
        transformer.lm_head.weight[:, 0] = torch.tensor([-1, 0.8, -1, *[0.8] * len(BOXES)])
    path = tmp_path_factory.mktemp("model") / "model"
    checkpoint.save(path, Checkpoint(transformer, tokenizer, [tokenizer.id("<eos>")]))
    return path


def rollouts(model, task):
    """The texts that eval.py judges, SAMPLES for each prompt, by the policy itself."""
    policy = SequencePolicy(checkpoint.load(model), max_tokens=LENGTH)
    drawn = policy.rollout([task[i] for i in range(len(task))], SAMPLES, seed=0)
    return [[drawn.completion(i, j) for j in range(SAMPLES)] for i in range(len(task))]


def by_hand(texts, gold, numbers):
    """Right samples and the value of the majority vote of a prompt; `numbers`: x+1 is no answer."""
    boxes = [re.findall(r"\\boxed\{([^{}]+)\}", text) for text in texts]
    answers = [CANONICAL[found[-1]] for found in boxes if found]
    answers = [answer for answer in answers if not numbers or "x" not in answer]
    votes = Counter(answers)
    tied = [answer for answer, count in votes.items() if count == max(votes.values())]
    return answers.count(gold), tied.count(gold) / len(tied) if tied else 0


@pytest.fixture
def evaluated(shell):
    """evaluated(words...): the results of eval.py for one checkpoint, and what it said."""

    def run(*words):
        Path("out.json").unlink(missing_ok=True)
        said = passed(shell("eval.py", *words, *FEW, "--json", "out.json"))
        results = read_json("out.json")
        (row,) = results["checkpoints"]
        return results, row, said

    return run


@pytest.mark.parametrize("name", SETS)
def test_from_the_published_files_to_the_table(model, shell, evaluated, name):
    words, form, column, answers = SETS[name]
    form(Path("a"), [{column: p, "answer": a} for p, a in zip(PROBLEMS, answers)])
    folder, *source = words.split()
    said = passed(shell(f"data/{folder}/prepare.py", *source, "--out", f"data/{folder}"))
    numbers = name == "gsm8k"
    options = {"directory": "data/gsm8k"} if numbers else {"directory": "data", "test": name}
    kind = "gsm8k" if numbers else "math"
    task = load_task(kind, "test", **options)
    asked = [word for key, value in options.items() for word in (f"--task.{key}", value)]
    results, row, said = evaluated(f"tiny={model}", "--task", kind, *asked)
    assert results["prompts"] == 3
    assert results["left_out"] == 0
    assert 0 < sum(row["counts"]) < 3 * SAMPLES
    for i, texts in enumerate(rollouts(model, task)):
        answer = task[i].columns["answer"]
        right, vote = by_hand(texts, SAME.get(answer, answer), numbers)
        assert row["counts"][i] == right
        assert row["majority"][i] == pytest.approx(vote, abs=1e-6)
    values = np.array(row["majority"])
    cell = f"{values.mean():.3f} ± {values.std(ddof=1) / 3**0.5:.3f}"
    assert re.search(rf"pass@4 +maj@{SAMPLES}\b", said), said
    assert re.search(rf"^tiny .*{re.escape(cell)} *$", said, re.M), said


def problems(*texts):
    put(Path("mine.jsonl"), [{"problem": text, "answer": "33"} for text in texts])


@pytest.fixture
def mine(model):
    """mine.jsonl, problems the second of which is long; the arguments that ask them."""
    problems(PROBLEMS[0], LONG, PROBLEMS[1])
    return [model, "--task", "math", "--task.test", "mine.jsonl"]


def test_prompts_that_are_too_long(mine, evaluated):
    """They are left out and counted, and the others are judged as ever; what is refused is in
    test_refused.py."""
    short, row, said = evaluated(*mine, *WITHIN)
    assert "test: left out 1 of 3 prompts, longer than --max-prompt 200 tokens" in said
    assert short["left_out"] == 1
    problems(*PROBLEMS[:2])
    whole, expected, _ = evaluated(*mine)
    assert whole["left_out"] == 0
    assert row == expected


def test_sample_shows_right_and_wrong_answers(mine, shell):
    """Side by side, with what was read in each."""
    said = passed(shell("sample.py", *mine, "--split", "test", *WITHIN, *SHORT, "--prompts", 1))
    assert re.search(r"user: Find .+ user: Find ", said)
    assert "read 33, answer 33: right" in said
    assert ", answer 33: wrong" in said
    told = ("test:", "warning:")
    assert max(len(line) for line in said.splitlines() if not line.startswith(told)) <= 124
    assert side_by_side(["a\nbc", "d"]) == "a     d\nbc"


REWARDS = """
def never(completions):
    return [0.0] * len(completions)
"""
NEVER = ("--reward", "rewards.py:never")


@pytest.fixture
def own(model):
    """rewards.py, and prompts.jsonl for it."""
    Path("rewards.py").write_text(REWARDS)
    put(Path("prompts.jsonl"), [{"prompt": text} for text in PROBLEMS])
    return ["--task", "prompts", "--task.test", "prompts.jsonl"]


def test_the_recipes_reward_functions_judge_its_own_task_only(model, own, mine, shell, evaluated):
    """Reward functions are code, run only if the command names them; the math task has its own."""
    trained = {
        "task": "prompts",
        "task_options": {"test": "prompts.jsonl"},
        "reward": ["rewards.py:other"],
        "reward_weights": [],
    }
    checkpoint.save("trained", checkpoint.load(model), recipe={"config": trained})
    refused(shell("eval.py", "trained", *FEW), "add --reward rewards.py:other if you trust it")
    for words in (NEVER, (*own, *NEVER)):
        results, row, said = evaluated("trained", *words)
        assert results["reward"] == ["rewards.py:never"]
        assert row["counts"] == [0, 0, 0]
        assert "maj@" not in said
        assert "majority" not in row
    said = passed(shell("sample.py", model, *own, "--split", "test", *SHORT, *NEVER))
    assert "0 of 32 rollouts are right" in said
    _, row, said = evaluated("trained", *mine[1:], *WITHIN)
    assert sum(row["counts"]) > 0
    assert "maj@" in said
