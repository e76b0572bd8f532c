"""GSM8K on a laptop: generated word problems, their tokenizer, and the recipes on a tiny model."""

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from tokenizers import pre_tokenizers

from data.word_problems import prepare
from maxrl import checkpoint
from maxrl.io.tokenizer import Tokenizer
from maxrl.recipes import RECIPES, gsm8k_laptop, gsm8k_laptop_sft
from maxrl.tasks import load_task
from maxrl.tasks.gsm8k import REQUEST, Gsm8k

COUNTS = {"train": 3000, "validation": 64, "test": 64}
HELD_OUT = ["--validation", "64", "--test", "64"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "word_problems"
    prepare.main(["--train", "3000", *HELD_OUT, "--out", str(out)])
    return out


@pytest.fixture(scope="module")
def splits(folder):
    return {name: load_task("gsm8k", name, directory=str(folder)) for name in COUNTS}


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.load(folder)


def test_the_seed_decides_every_byte(folder, tmp_path):
    """Also in another process, whose hashes differ.

    The held-out problems do not depend on the size of the training set.
    """
    command = [sys.executable, "-m", "data.word_problems.prepare", "--train", "3000", *HELD_OUT]
    environment = os.environ | {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "3"}
    subprocess.run(
        [*command, "--out", tmp_path / "a"],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
    )
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    tokens = {"tokenizer.json", "tokenizer_config.json"}
    assert files.keys() == {f"{split}.jsonl" for split in COUNTS} | tokens | {
        "info.json",
        "checksums.json",
    }
    assert files == {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()}
    prepare.main(["--train", "50", *HELD_OUT, "--out", str(tmp_path / "b")])
    for name in ("test.jsonl", "validation.jsonl"):
        assert (tmp_path / "b" / name).read_bytes() == files[name]
    prepare.main(["--train", "50", "--seed", "1", "--out", str(tmp_path / "c")])
    assert (tmp_path / "c/train.jsonl").read_bytes() != (tmp_path / "b/train.jsonl").read_bytes()


def test_no_problem_occurs_twice(splits):
    problems = [row["problem"] for task in splits.values() for row in task.rows]
    assert len(set(problems)) == len(problems) == sum(COUNTS.values())


def test_every_solution_is_right(splits):
    """Its equations hold, use numbers that are known by then, and end in the answer."""
    for task in splits.values():
        for i, row in enumerate(task.rows):
            equations = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", row["solution"])
            assert len(equations) == int(row["source"].removeprefix("word-problems-"))
            known = {int(n) for n in re.findall(r"\d+", row["problem"])} | {2}
            for left, operator, right, written in equations:
                p, q, result = int(left), int(right), int(written)
                assert {p, q} <= known and 1 <= result <= prepare.LARGEST
                assert result == {"+": p + q, "-": p - q, "*": p * q, "/": p / q}[operator]
                known.add(result)
            assert row["answer"] == equations[-1][-1]
            assert "{" not in row["problem"] + row["solution"]
            example = task[i]
            assert task.verify(example.answer, example) == 1
            assert task.verify(row["solution"], example) == 0
            assert task.verify(f"\\boxed{{{row['answer']}0}}", example) == 0


def test_texts_come_back_as_they_were(splits, tokenizer):
    """And they fit into the recipe's model."""
    longest = [0, 0]
    for task in splits.values():
        for i, row in enumerate(task.rows):
            texts = (f"{row['problem']} {REQUEST}", task[i].answer)
            ids = [tokenizer.encode(text) for text in texts]
            assert tokenizer.encode_prompt(task[i].prompt) == ids[0]
            assert tuple(map(tokenizer.decode, ids)) == texts
            longest = [max(most, len(part)) for most, part in zip(longest, ids)]
    cfg = gsm8k_laptop()
    assert longest[1] < cfg.max_response
    assert longest[0] + cfg.max_response <= cfg.model["max_position_embeddings"]
    assert tokenizer.size == cfg.model["vocab_size"] == prepare.VOCABULARY
    for text in ("", "  a\t\n\r\n", "Ünïcode 数 🙂 \u2028", "".join(map(chr, range(32, 1000)))):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("x1234567890")) == 11, "a digit is a token"
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    assert set(tokenizer.backend.get_vocab()) >= alphabet, "every byte is a token"


def test_where_the_set_is_looked_for(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("maxrl.tasks.base.DATA", folder.parent)
    task = Gsm8k("test", "word_problems")
    assert len(task) == COUNTS["test"] and task.tokenizer == folder
    monkeypatch.setattr("maxrl.tasks.base.DATA", tmp_path)
    for name in ("word_problems", "gsm8k"):
        with pytest.raises(FileNotFoundError, match=rf"run python -m data\.{name}\.prepare"):
            Gsm8k("train", name)


def test_from_scratch_to_samples(folder, shell, monkeypatch):
    """The recipes on a smaller model: warm-up, MaxRL, eval.py and sample.py."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    own = {"task_options": {"directory": str(folder)}, "model": gsm8k_laptop_sft().model | sizes}
    monkeypatch.setitem(RECIPES, "small_sft", lambda: replace(gsm8k_laptop_sft(), **own))
    monkeypatch.setitem(RECIPES, "small", lambda: replace(gsm8k_laptop(), **own))
    quick = "--steps 60 --prompts 16 --lr 8e-3 --warmup-steps 10 --stop-at-pass 0 --eval-every 0"
    code, said = shell("train.py", "small_sft", *quick.split(), "--out", "sft")
    assert code == 0, said
    lines = Path("sft/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert losses[-1] < losses[0] / 2
    path = checkpoint.find("sft")
    _, tokenizer, stop = checkpoint.load_model(path)
    assert (path / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()
    assert stop == [tokenizer.id("<eos>")]
    few = "--eval-every 2 --eval-prompts 2 --eval-samples 2 --eval-k 1,2 --steps 2 --prompts 2"
    code, said = shell(
        "train.py", "small", "--init", "sft", *few.split(), "--rollouts", 4, "--out", "rl"
    )
    assert code == 0, said
    code, said = shell("eval.py", "sft", "rl", "--prompts", 4, "--samples", 4, "--k", "1,4")
    assert code == 0 and "rl minus each" in said, said
    code, said = shell("sample.py", "rl", "--prompts", 1, "--samples", 4)
    assert code == 0 and "of 4 rollouts are right" in said, said
    assert REQUEST in " ".join(said.split())
    assert re.search(r"read .+, answer \d+: (right|wrong)", said), said


def test_transformers_reads_the_same_tokenizer(tmp_path):
    """With as many tokens as the model has, which a script for TRL loads together with it."""
    transformers = pytest.importorskip("transformers")
    tokenizer = prepare.make_tokenizer(list(itertools.islice(prepare.stream(0), 50)))
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(oracle) == tokenizer.size
    text = "Mia has 13 eggs; \u00e9 A+"
    assert oracle.encode(text) == tokenizer.encode(text)
