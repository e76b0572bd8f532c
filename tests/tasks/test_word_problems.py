"""GSM8K on a laptop: generated word problems, their tokenizer, and the recipes on a tiny model."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from tokenizers import pre_tokenizers

from data.word_problems import prepare
from maxrl.models import checkpoint
from maxrl.models.tokenizer import Tokenizer
from maxrl.run.recipes import RECIPES, gsm8k_laptop, gsm8k_laptop_sft
from maxrl.tasks import load_task
from maxrl.tasks.gsm8k import REQUEST, Gsm8k
from tests import ROOT
from tests.helpers.runs import column, passed

COUNTS = {"train": 3000, "validation": 64, "test": 64}
HELD_OUT = ("--validation", "64", "--test", "64")


def make(out, *words):
    prepare.main([*HELD_OUT, *words, "--out", str(out)])
    return {file.name: file.read_bytes() for file in out.iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "word_problems"
    make(out, "--train", "3000")
    return out


@pytest.fixture(scope="module")
def splits(folder):
    return {name: load_task("gsm8k", name, directory=str(folder)) for name in COUNTS}


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.load(folder)


def test_the_seed_decides_every_byte(tmp_path):
    """Also in another process, whose hashes differ.

    The held-out problems do not depend on the size of the training set.
    """
    here = make(tmp_path / "here", "--train", "200")
    command = [sys.executable, "-m", "data.word_problems.prepare", "--train", "200", *HELD_OUT]
    environment = os.environ | {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "3"}
    there = tmp_path / "there"
    subprocess.run([*command, "--out", there], cwd=ROOT, env=environment, check=True)
    assert here == {file.name: file.read_bytes() for file in there.iterdir()}
    few = make(tmp_path / "few", "--train", "50")
    for name in ("test.jsonl", "validation.jsonl"):
        assert few[name] == here[name]
    other = make(tmp_path / "other", "--train", "50", "--seed", "1")
    assert other["train.jsonl"] != few["train.jsonl"]


def test_no_problem_occurs_twice(splits):
    problems = [row["problem"] for task in splits.values() for row in task.rows]
    assert len(problems) == sum(COUNTS.values())
    assert len(set(problems)) == len(problems)


@pytest.mark.parametrize("split", COUNTS)
def test_every_solution_is_right(splits, split):
    """Its equations hold, use numbers that are known by then, and end in the answer."""
    assert largest_result(splits[split]) == 20


def test_larger_numbers(tmp_path):
    make(tmp_path, "--train", "300", "--largest", "100")
    assert 90 < largest_result(load_task("gsm8k", "train", directory=str(tmp_path))) <= 100


def largest_result(task) -> int:
    """The largest number of the solutions, after a check of each."""
    largest = 0
    for i, row in enumerate(task.rows):
        equations = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", row["solution"])
        assert len(equations) == int(row["source"].removeprefix("word-problems-"))
        known = {int(n) for n in re.findall(r"\d+", row["problem"])} | {2}
        for left, operator, right, written in equations:
            p = int(left)
            q = int(right)
            result = int(written)
            assert {p, q} <= known
            assert result >= 1
            largest = max(largest, result)
            assert result == {"+": p + q, "-": p - q, "*": p * q, "/": p / q}[operator]
            known.add(result)
        assert row["answer"] == equations[-1][-1]
        assert "{" not in row["problem"] + row["solution"]
        responses = [task[i].answer, row["solution"], f"\\boxed{{{row['answer']}0}}"]
        assert task.verify_all(responses, [task[i]] * 3) == [1, 0, 0]
    return largest


@pytest.mark.parametrize("split", COUNTS)
def test_texts_come_back_as_they_were(splits, tokenizer, split):
    """And they fit into the recipe's model."""
    cfg = gsm8k_laptop()
    room = cfg.model["max_position_embeddings"] - cfg.max_response
    task = splits[split]
    for i, row in enumerate(task.rows):
        problem = f"{row['problem']} {REQUEST}"
        prompt = tokenizer.encode(problem)
        answer = tokenizer.encode(task[i].answer)
        assert tokenizer.encode_prompt(task[i].prompt) == prompt
        assert tokenizer.decode(prompt) == problem
        assert tokenizer.decode(answer) == task[i].answer
        assert len(prompt) <= room
        assert len(answer) < cfg.max_response


ODD = ("", "  a\t\n\r\n", "Ünïcode 数 🙂 \u2028", "".join(map(chr, range(32, 1000))))


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_any_text_comes_back_as_it_was(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_tokens(tokenizer):
    """A digit is a token, and every byte."""
    assert tokenizer.size == gsm8k_laptop().model["vocab_size"] == prepare.VOCABULARY
    assert len(tokenizer.encode("x1234567890")) == 11
    assert set(tokenizer.backend.get_vocab()) >= set(pre_tokenizers.ByteLevel.alphabet())


def test_where_the_set_is_looked_for(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("maxrl.tasks.base.DATA", folder.parent)
    task = Gsm8k("test", "word_problems")
    assert len(task) == COUNTS["test"]
    assert task.tokenizer == folder
    monkeypatch.setattr("maxrl.tasks.base.DATA", tmp_path)
    for name in ("word_problems", "gsm8k"):
        with pytest.raises(FileNotFoundError, match=rf"run python -m data\.{name}\.prepare"):
            Gsm8k("train", name)


def test_from_scratch_to_reinforcement(folder, shell, monkeypatch):
    """The recipes on a smaller model: warm-up and MaxRL."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    own = {"task_options": {"directory": str(folder)}, "model": gsm8k_laptop_sft().model | sizes}
    monkeypatch.setitem(RECIPES, "small_sft", lambda: replace(gsm8k_laptop_sft(), **own))
    monkeypatch.setitem(RECIPES, "small", lambda: replace(gsm8k_laptop(), **own))

    def said(command):
        return passed(shell(*command.split()))

    quick = "--steps 60 --prompts 16 --lr 8e-3 --warmup-steps 10 --stop-at-pass 0 --eval-every 0"
    said(f"train.py small_sft {quick} --out sft")
    losses = column("sft", "loss")
    assert losses[-1] < losses[0] / 2
    path = checkpoint.find("sft")
    whole = checkpoint.load(path)
    assert (path / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()
    assert whole.stop_tokens == [whole.tokenizer.id("<eos>")]
    few = "--eval-every 2 --eval-prompts 2 --eval-samples 2 --eval-k 1,2 --steps 2 --prompts 2"
    said(f"train.py small --init sft {few} --rollouts 4 --out rl")


def test_transformers_reads_the_same_tokenizer(tokenizer, tmp_path):
    """With as many tokens as the model has, which a script for TRL loads together with it."""
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(oracle) == tokenizer.size
    text = "Mia has 13 eggs; \u00e9 A+"
    assert oracle.encode(text) == tokenizer.encode(text)
