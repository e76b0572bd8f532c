"""The GSM8K path on a laptop: generated word problems, their tokenizer, and the recipes on a tiny model."""

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "word_problems"
    prepare.main(
        [*(text for name, n in COUNTS.items() for text in (f"--{name}", str(n))), "--out", str(out)]
    )
    return out


@pytest.fixture(scope="module")
def splits(folder):
    return {name: load_task("gsm8k", name, directory=str(folder)) for name in COUNTS}


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.load(folder)


def test_the_seed_decides_every_byte(folder, tmp_path):
    """Also in another process, whose hashes differ, and the held-out problems whatever the size of the training set."""
    command = [sys.executable, "-m", "data.word_problems.prepare"]
    for name, n in COUNTS.items():
        command += [f"--{name}", str(n)]
    environment = os.environ | {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "3"}
    subprocess.run(
        [*command, "--out", tmp_path / "a"],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
    )
    names = sorted(file.name for file in folder.iterdir())
    assert names == sorted(
        [*(f"{n}.jsonl" for n in COUNTS), "info.json", "tokenizer.json", "tokenizer_config.json"]
    )
    assert all(
        (tmp_path / "a" / name).read_bytes() == (folder / name).read_bytes() for name in names
    )
    prepare.main(
        ["--train", "50", "--validation", "64", "--test", "64", "--out", str(tmp_path / "b")]
    )
    assert all(
        (tmp_path / "b" / n).read_bytes() == (folder / n).read_bytes()
        for n in ("test.jsonl", "validation.jsonl")
    )
    prepare.main(["--train", "50", "--seed", "1", "--out", str(tmp_path / "c")])
    assert (tmp_path / "c/train.jsonl").read_bytes() != (tmp_path / "b/train.jsonl").read_bytes()


def test_no_problem_occurs_twice(splits):
    problems = [row["problem"] for task in splits.values() for row in task.rows]
    assert len(set(problems)) == len(problems) == sum(COUNTS.values())


def test_every_solution_is_right(splits):
    """Its equations hold, use numbers of the problem or of the line before, and end in the answer, which verifies."""
    sources = set()
    for task in splits.values():
        for i in range(len(task)):
            example, row = task[i], task.rows[i]
            equations = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", row["solution"])
            assert len(equations) == int(row["source"][-1])
            known = {int(n) for n in re.findall(r"\d+", row["problem"])} | {2}
            for p, operator, q, result in ((int(a), o, int(b), int(c)) for a, o, b, c in equations):
                assert {p, q} <= known and 1 <= result <= prepare.LARGEST
                assert result == {"+": p + q, "-": p - q, "*": p * q, "/": p / q}[operator]
                known.add(result)
            assert row["answer"] == equations[-1][-1]
            assert (
                task.verify(example.answer, example) == 1
                and task.verify(example.answer[:-1], example) == 0
            )
            assert (
                task.verify(row["solution"], example)
                == task.verify(f"\\boxed{{{row['answer']}0}}", example)
                == 0
            )
            assert "{" not in row["problem"] + row["solution"]
            sources.add(row["source"])
    assert sources == {"word-problems-1", "word-problems-2"}


def test_every_template_is_drawn(splits):
    counts = {}
    for row in splits["train"].rows:
        words = re.sub(
            r"\d+|\b(" + "|".join(prepare.NAMES + prepare.THINGS + prepare.BOXES) + r")\b",
            "_",
            row["problem"],
        )
        counts[words] = counts.get(words, 0) + 1
    assert (
        len(counts) == len(prepare.TEMPLATES)
        and min(counts.values()) > COUNTS["train"] / len(counts) / 2
    )


def test_texts_come_back_as_they_were(splits, tokenizer):
    longest = [0, 0]
    for task in splits.values():
        for i in range(len(task)):
            texts = (f"{task.rows[i]['problem']} {REQUEST}", task[i].answer)
            ids = [tokenizer.encode_prompt(task[i].prompt), tokenizer.encode(texts[1])]
            assert (
                tuple(map(tokenizer.decode, ids)) == texts and tokenizer.encode(texts[0]) == ids[0]
            )
            longest = [max(most, len(part)) for most, part in zip(longest, ids)]
    cfg = gsm8k_laptop()
    assert (
        longest[1] < cfg.max_response
        and longest[0] + cfg.max_response <= cfg.model["max_position_embeddings"]
    )
    assert tokenizer.size == cfg.model["vocab_size"] == prepare.VOCABULARY
    for text in (
        "",
        " ",
        "  a\t\n\r\n",
        "Ünïcode 数 🙂 \u2028",
        "\x00\x7f",
        "".join(map(chr, range(32, 1000))),
    ):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("x1234567890")) == 11, "a digit is a token"
    assert set(tokenizer.backend.get_vocab()) >= set(pre_tokenizers.ByteLevel.alphabet()), (
        "every byte is a token"
    )


def test_where_the_set_is_looked_for(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("maxrl.tasks.gsm8k.DATA", folder.parent)
    task = Gsm8k("test", "word_problems")
    assert len(task) == COUNTS["test"] and task.tokenizer == folder
    monkeypatch.setattr("maxrl.tasks.gsm8k.DATA", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"run python -m data\.word_problems\.prepare"):
        Gsm8k("train", "word_problems")
    with pytest.raises(FileNotFoundError, match=r"run python -m data\.gsm8k\.prepare"):
        Gsm8k("train")


@pytest.mark.parametrize(
    "arguments",
    [("--train", "0"), ("--test", "-1"), ("--seed", "-1"), ("--validation", "10000000")],
)
def test_what_cannot_be_made_is_refused(arguments, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        prepare.main([*arguments, "--out", str(tmp_path / "x")])
    assert (
        end.value.code == 2
        and arguments[0] in capsys.readouterr().err
        and not (tmp_path / "x").exists()
    )


def test_other_content_is_not_overwritten(folder, tmp_path, capsys):
    prepare.main(["--train", "50", "--out", str(tmp_path)])
    prepare.main(["--train", "50", "--out", str(tmp_path)])
    assert "written" not in capsys.readouterr().out.split("info.json: written")[1]
    with pytest.raises(SystemExit):
        prepare.main(["--train", "51", "--out", str(tmp_path)])
    prepare.main(["--train", "51", "--out", str(tmp_path), "--overwrite"])
    assert json.loads((tmp_path / "info.json").read_text())["counts"]["train"] == 51


def test_from_scratch_to_samples(folder, shell, monkeypatch):
    """The recipes on a smaller model: warm-up, MaxRL, eval.py and sample.py, and the tokenizer in the checkpoint."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    own = {"task_options": {"directory": str(folder)}, "model": gsm8k_laptop_sft().model | sizes}
    monkeypatch.setitem(RECIPES, "small_sft", lambda: replace(gsm8k_laptop_sft(), **own))
    monkeypatch.setitem(RECIPES, "small", lambda: replace(gsm8k_laptop(), **own))
    few = ("--eval-every", 2, "--eval-prompts", 2, "--eval-samples", 2, "--eval-k", "1,2")
    quick = (
        "--steps",
        60,
        "--prompts",
        16,
        "--lr",
        8e-3,
        "--warmup-steps",
        10,
        "--stop-at-pass",
        0,
        "--eval-every",
        0,
    )
    code, said = shell("train.py", "small_sft", *quick, "--out", "sft")
    assert code == 0, said
    losses = [
        json.loads(line)["loss"] for line in Path("sft/metrics.jsonl").read_text().splitlines()
    ]
    assert losses[-1] < losses[0] / 2
    path = checkpoint.find("sft")
    _, tokenizer, stop = checkpoint.load_model(path)
    assert (path / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()
    assert stop == [tokenizer.id("<eos>")]
    code, said = shell(
        "train.py",
        "small",
        "--init",
        "sft",
        "--steps",
        2,
        "--prompts",
        2,
        "--rollouts",
        4,
        *few,
        "--out",
        "rl",
    )
    assert code == 0, said
    code, said = shell("eval.py", "sft", "rl", "--prompts", 4, "--samples", 4, "--k", "1,4")
    assert code == 0 and "rl minus each" in said, said
    code, said = shell("sample.py", "rl", "--prompts", 1, "--samples", 4)
    assert code == 0 and "of 4 rollouts are right" in said and REQUEST in " ".join(said.split()), (
        said
    )
    assert re.search(r"read .+, answer \d+: (right|wrong)", said), said
