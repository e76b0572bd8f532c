"""The benchmarks from their published layout to a table: prepare.py, eval.py and sample.py.

The model is tiny and random. Its tokenizer is trained here and has the chat template of Qwen2.5;
whole boxes are likely tokens of it, so that there are right answers, wrong ones and none.
"""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from chat_templates import QWEN2_5
from runs import refused
from tables import parquet, put
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from maxrl import checkpoint
from maxrl.io.tokenizer import Tokenizer
from maxrl.policy import SequencePolicy
from maxrl.tasks import load_task
from maxrl.tasks.math import REQUEST
from sample import side_by_side

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
# What the model can write, and which of it is one answer.
BOXES = {
    "33": "33",
    "033": "33",
    "204": "204",
    "0.5": "1/2",
    r"\frac12": "1/2",
    "x+1": "x+1",
    "x + 1": "x+1",
    "-3": "-3",
}
PROBLEMS = ["Find the number of cats.", "How much is it?", "Find it."]
LONG = "qwxzvkj" * 43
SAMPLES, LENGTH = 16, 6
FEW = ("--samples", SAMPLES, "--k", "1,4", "--max-response", LENGTH, "--precision", "float32")
# {name: (folder below data/, format of the published file, its column of problems, answers)}
SETS = {
    "aime2024": ("aime", parquet, "problem", ("033", "204", "5")),
    "aime2025": ("aime", put, "problem", (33, 204, 7)),
    "beyondaime": ("beyondaime", parquet, "problem", (33, 204, 33)),
    "math500": ("math500", put, "problem", (r"\frac{1}{2}", "x+1", "-3")),
    "minerva": ("minerva", parquet, "question", ("0.5", "1+x", "1e-5")),
    "gsm8k": ("gsm8k", put, "question", ("#### 33", "#### -3", "#### 0.5")),
}
CANONICAL = BOXES | {r"\frac{1}{2}": "1/2", "1+x": "x+1"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A checkpoint without a recipe, as the hub's are."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer, backend.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend.train_from_iterator(
        [*PROBLEMS, REQUEST, QWEN2_5],
        trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=special,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    backend.add_tokens([AddedToken(f"\\boxed{{{box}}}", normalized=False) for box in BOXES])
    tokenizer = Tokenizer(
        backend, {"chat_template": QWEN2_5, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    )
    transformer = tiny.model(
        torch.float32,
        vocab_size=tokenizer.size,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    likely = [tokenizer.id(f"\\boxed{{{box}}}") for box in BOXES] + [tokenizer.id("<|im_end|>")]
    with torch.no_grad():
        transformer.model.embed_tokens.weight[:, 0] = (
            10  # so that the first hidden number is always large
        )
        transformer.lm_head.weight[likely, 0] = 0.8
    path = tmp_path_factory.mktemp("model") / "model"
    checkpoint.save(path, transformer, tokenizer, [tokenizer.id("<|im_end|>")])
    return path


def rollouts(model, task, count):
    """The texts that eval.py judges, count lists of SAMPLES, by the policy itself."""
    policy = SequencePolicy(*checkpoint.load_model(model), max_tokens=LENGTH)
    drawn = policy.rollout([task[i] for i in range(count)], SAMPLES, seed=0)
    return [[drawn.completion(i, j) for j in range(SAMPLES)] for i in range(count)]


def by_hand(texts, gold, numbers):
    """Right samples and the value of the majority vote of a prompt; `numbers`: x+1 is no answer."""
    boxes = [re.findall(r"\\boxed\{([^{}]+)\}", text) for text in texts]
    answers = [
        CANONICAL[found[-1]] for found in boxes if found and not (numbers and "x" in found[-1])
    ]
    votes = Counter(answers)
    tied = [answer for answer, count in votes.items() if count == max(votes.values())]
    return answers.count(gold), tied.count(gold) / len(tied) if tied else 0


@pytest.mark.parametrize("name", SETS)
def test_from_the_published_files_to_the_table(model, shell, name):
    folder, form, column, answers = SETS[name]
    form(Path("source"), [{column: p, "answer": a} for p, a in zip(PROBLEMS, answers)])
    copies = ["source"] * (2 if folder == "aime" else 1)
    source = ["--source", *copies, *(("--test", "source") if name == "gsm8k" else ())]
    code, said = shell(f"data/{folder}/prepare.py", *source, "--out", f"data/{folder}")
    assert code == 0, said
    options = {"directory": "data/gsm8k" if name == "gsm8k" else "data"} | (
        {} if name == "gsm8k" else {"test": name}
    )
    task = load_task("gsm8k" if name == "gsm8k" else "math", "test", **options)
    asked = [
        "--task",
        "gsm8k" if name == "gsm8k" else "math",
        *(x for k, v in options.items() for x in (f"--task.{k}", v)),
    ]
    code, said = shell("eval.py", f"tiny={model}", *asked, *FEW, "--json", "out.json")
    assert code == 0, said
    results = json.loads(Path("out.json").read_text())
    row = results["checkpoints"][0]
    golds = [task[i].columns["answer"] for i in range(3)]
    golds = [CANONICAL.get(gold, gold) for gold in golds]
    expected = [
        by_hand(t, gold, name == "gsm8k") for t, gold in zip(rollouts(model, task, 3), golds)
    ]
    assert list(zip(row["counts"], row["majority"])) == [
        (right, pytest.approx(vote, abs=1e-6)) for right, vote in expected
    ]
    assert 0 < sum(row["counts"]) < 3 * SAMPLES
    assert (results["prompts"], results["left_out"]) == (3, 0)
    values = np.array(row["majority"])
    cell = f"{values.mean():.3f} ± {values.std(ddof=1) / 3**0.5:.3f}"
    assert re.search(rf"pass@4 +maj@{SAMPLES}\b", said), said
    assert re.search(rf"^tiny .*{re.escape(cell)} *$", said, re.M), said


@pytest.fixture
def mine(model):
    """mine.jsonl, problems the second of which is long; the arguments that ask them."""
    put(
        Path("mine.jsonl"),
        [{"problem": p, "answer": "33"} for p in (PROBLEMS[0], LONG, PROBLEMS[1])],
    )
    return [model, "--task", "math", "--task.test", "mine.jsonl"]


def test_prompts_that_are_too_long(mine, shell):
    """Refused before any sampling, or left out and counted; the others are judged as ever."""
    refused(
        shell("eval.py", *mine, *FEW),
        "exceed the model's 256 positions",
        "leave out longer prompts with --max-prompt",
    )
    code, said = shell("eval.py", *mine, *FEW, "--max-prompt", 200, "--json", "short.json")
    assert (
        code == 0 and "test: left out 1 of 3 prompts, longer than --max-prompt 200 tokens" in said
    ), said
    put(Path("mine.jsonl"), [{"problem": p, "answer": "33"} for p in PROBLEMS[:2]])
    assert shell("eval.py", *mine, *FEW, "--json", "whole.json")[0] == 0
    short, whole = (json.loads(Path(f"{name}.json").read_text()) for name in ("short", "whole"))
    assert short["checkpoints"] == whole["checkpoints"] and (
        short["left_out"],
        whole["left_out"],
    ) == (1, 0)
    refused(
        shell("eval.py", *mine, *FEW, "--max-prompt", 3),
        "no test prompts are left",
    )


def test_a_model_without_a_chat_template(model, mine, shell):
    """A system message has no place in its prompt: one sentence from each of the three scripts."""
    transformer, tokenizer, stop = checkpoint.load_model(model)
    del tokenizer.config["chat_template"]
    checkpoint.save("bare", transformer, tokenizer, stop)
    for more in ((), ("--max-prompt", 200)):
        refused(
            shell("eval.py", "bare", *mine[1:], *FEW, *more),
            "the tokenizer has no chat template",
        )
        refused(
            shell("sample.py", "bare", *mine[1:], "--split", "test", "--max-response", 9, *more),
            "has no chat template",
        )
    refused(
        shell(
            "train.py", "prompts", "--task", "math", "--task.train", "mine.jsonl", "--init", "bare"
        ),
        "no chat template",
    )


def test_sample_shows_right_and_wrong_answers(mine, shell):
    """Side by side, with what was read in each."""
    arguments = (
        *mine,
        "--split",
        "test",
        "--max-prompt",
        200,
        "--max-response",
        LENGTH,
        "--prompts",
        1,
    )
    code, said = shell("sample.py", *arguments)
    assert code == 0 and re.search(r"read 33, answer 33: right +read .+, answer 33: wrong", said), (
        said
    )
    assert max(len(line) for line in said.splitlines() if "--max-prompt" not in line) <= 124
    assert side_by_side(["a\nbc", "d"]) == "a     d\nbc"


REWARDS = """
def even(completions, number):
    texts = [c[0]["content"] if isinstance(c, list) else c for c in completions]
    return [float(len(text) % 2 == n % 2) for text, n in zip(texts, number)]

def never(completions):
    return [0.0] * len(completions)
"""


@pytest.fixture
def own(model):
    """rewards.py, and prompts.jsonl for it."""
    Path("rewards.py").write_text(REWARDS)
    put(Path("prompts.jsonl"), [{"prompt": text, "number": i} for i, text in enumerate(PROBLEMS)])
    return ["--task", "prompts", "--task.test", "prompts.jsonl"]


def test_own_prompts_and_reward_functions(model, own, shell, monkeypatch):
    """By --reward; nothing is sampled for prompts that nobody can judge; no answer, no vote."""
    with monkeypatch.context() as patch:
        patch.setattr("maxrl.run.setup.start_policy", None)  # it is said before any model is loaded
        refused(
            shell("eval.py", model, *own, *FEW),
            "judges nothing by itself: name a reward function with --reward",
        )
    refused(
        shell("eval.py", model, *own, *FEW, "--reward", "rewards.py:nobody"),
        "has no function or class nobody",
    )
    code, said = shell(
        "eval.py", model, *own, *FEW, "--reward", "rewards.py:even", "--json", "out.json"
    )
    assert code == 0 and "maj@" not in said, said
    results = json.loads(Path("out.json").read_text())
    texts = rollouts(model, load_task("prompts", "test", test="prompts.jsonl"), 3)
    assert results["checkpoints"][0]["counts"] == [
        sum(len(t) % 2 == i % 2 for t in group) for i, group in enumerate(texts)
    ]
    assert results["reward"] == ["rewards.py:even"] and "majority" not in results["checkpoints"][0]
    both = ("--reward", "rewards.py:even,rewards.py:never", "--reward-weights", "1,0.5")
    assert shell("eval.py", model, *own, *FEW, *both, "--json", "both.json")[0] == 0
    (row,) = json.loads(Path("both.json").read_text())["checkpoints"]
    assert row.pop("rewards/never/mean") == 0 and [row] == results["checkpoints"]
    code, said = shell(
        "sample.py",
        model,
        *own,
        "--split",
        "test",
        "--max-response",
        LENGTH,
        "--reward",
        "rewards.py:never",
    )
    assert code == 0 and "0 of 32 rollouts are right" in said, said


def test_the_recipes_reward_functions_judge_its_own_task_only(model, own, mine, shell):
    """Reward functions are code, run only if the command names them; the math task has its own."""
    trained = {
        "task": "prompts",
        "task_options": {"test": "prompts.jsonl"},
        "reward": ["rewards.py:never"],
        "reward_weights": [],
        "max_response": LENGTH,
        "precision": "float32",
    }
    checkpoint.save("trained", *checkpoint.load_model(model), recipe={"config": trained})
    few = ("--samples", SAMPLES, "--k", 1)
    code, said = shell("eval.py", "trained", *few)
    assert code == 2 and "add --reward rewards.py:never if you trust it" in said
    never = ("--reward", "rewards.py:never")
    for name, *arguments in (
        ["own", *never],
        ["own2", *own, *never],
        ["other", *own, "--reward", "rewards.py:even"],
        ["math", *mine[1:], "--max-prompt", 200],
    ):
        code, said = shell("eval.py", "trained", *arguments, *few, "--json", f"{name}.json")
        assert code == 0 and ("maj@" in said) == (name == "math"), said
    files = {name: Path(f"{name}.json").read_text() for name in ("own", "own2", "other", "math")}
    counts = {name: json.loads(text)["checkpoints"][0]["counts"] for name, text in files.items()}
    assert (
        counts["own"] == counts["own2"] == [0, 0, 0]
        and sum(counts["other"]) > 0
        and sum(counts["math"]) > 0
    )


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("--max-prompt -1", "--max-prompt -1 must not be negative"),
        ("--max-response 0", "--max-response 0 must be above 0"),
        ("--split test --task.test aime", "there is no set 'aime'; use polaris"),
        ("--reward-weights a", "--reward-weights: 'a' cannot be read"),
    ],
)
def test_refusals(model, shell, arguments, words):
    for script in ("eval.py", "sample.py"):
        refused(shell(script, model, "--task", "math", *arguments.split()), words)


def test_sample_asks_for_what_a_checkpoint_does_not_say(model, mine, shell):
    refused(shell("sample.py", model), "does not say what it was trained on: name it with --task")
    said = shell("sample.py", *mine, "--split", "test")
    refused(said, "does not say how long its responses may be: set --max-response")


def train(shell, *more):
    """One step on mine.jsonl."""
    few = "--steps 1 --prompts 2 --rollouts 4 --precision float32 --max-prompt 200"
    own = ("--task", "math", "--task.train", "mine.jsonl", "--max-response", LENGTH)
    code, said = shell("train.py", "prompts", *own, *few.split(), *more)
    assert code == 0, said


def test_an_adapter_has_its_base_models_tokenizer(model, shell, mine):
    """An adapter directory holds none of its own."""
    train(shell, "--init", model, "--lora-rank", 2, "--out", "run")
    assert not (checkpoint.find("run") / "tokenizer.json").exists()
    assert checkpoint.load_tokenizer("run").size == checkpoint.load_tokenizer(model).size
    code, said = shell("eval.py", "run", *mine[1:], *FEW, "--max-prompt", 200)
    assert code == 0 and "left out 1 of 3" in said, said
    train(shell, "--init", "run", "--out", "again")
