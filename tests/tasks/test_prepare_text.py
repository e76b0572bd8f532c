"""What the prepare.py commands of GSM8K and of the mathematics sets write, and refuse."""

import hashlib
import io
import json
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path

import pytest

from data import text_sets
from data.mathematics import SETS
from maxrl.system.errors import UsageError
from maxrl.tasks import load_task
from tests.helpers.runs import passed, refused
from tests.helpers.tables import each, put, rows

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
QUESTIONS = [
    {"question": "Clips?", "answer": "She sold 48/2 = <<48/2=24>>24 clips.\n#### 1,024"},
    {"question": "Loss?", "answer": "It is lost.\n#### -3"},
    {"question": "Half?", "answer": "Half.\n#### 0.5"},
]
CONTENT = b'{"problem": "P", "answer": "$x$", "level": 2}\n'


@pytest.fixture
def run(shell):
    """run(name, arguments...) -> (exit code, output); writes into out/ of the test's directory."""
    return lambda name, *words: shell(f"data/{name}/prepare.py", "--out", "out", *words)


@pytest.fixture
def both(run):
    """both(arguments...): GSM8K of the same three questions for training and test."""
    return lambda *words: run("gsm8k", "--source", "in", "--test", "in", *words)


def test_gsm8k(both):
    """Answers, solutions without the calculator's marks, and which test set it is."""
    put(Path("in"), QUESTIONS)
    assert both()[0] == 0
    assert not Path("out/validation.jsonl").exists(), "the task takes the test set"
    written = rows(Path("out/train.jsonl"))
    assert [row["answer"] for row in written] == ["1024", "-3", "0.5"]
    solution = {"solution": "She sold 48/2 = 24 clips."}
    assert written[0] == {"problem": "Clips?", "answer": "1024", "source": "gsm8k"} | solution
    task = load_task("gsm8k", "test", directory="out")
    assert task.source == "GSM8K"
    assert task[1].columns["source"] == "gsm8k-test"
    assert "holds this set already" in both()[1]
    refused(both("--platinum"), "another set")
    assert both("--platinum", "--overwrite")[0] == 0
    assert load_task("gsm8k", "test", directory="out").source == "GSM8K-Platinum"


def test_gsm8k_validation(both):
    """Held out of training."""
    put(Path("in"), QUESTIONS)
    for wrong in (-1, 3):
        refused(both("--validation", wrong), "must be from 0 to 2")
    passed(both("--validation", 1))
    for split, count in {"train": 2, "validation": 1, "test": 3}.items():
        assert len(load_task("gsm8k", split, directory="out")) == count


LAYOUTS = r"""
polaris {"problem": "P", "answer": "x^2", "difficulty": "1/8"}
beyondaime {"problem": "P", "answer": 204, "more": 1}
math500 {"problem": "P", "answer": "\\frac12", "level": 5, "subject": "A"}
minerva {"question": "P", "answer": "1e-5"}
"""


@each("line", LAYOUTS)
def test_sets_of_mathematics(line, run):
    """Rows without an answer are left out and counted; the task reads what is written."""
    name, text = line.split(maxsplit=1)
    row = json.loads(text)
    put(Path("in"), [row, row | {"answer": None}])
    said = passed(run(name, "--source", "in"))
    assert "1 problems, 1 rows without a problem or an answer left out" in said
    wanted = {"problem": "P", "answer": str(row["answer"]), "source": name}
    wanted |= {key: row[key] for key in ("difficulty", "subject", "level") if key in row}
    (file,) = Path("out").glob("*.jsonl")
    assert file.stem in SETS[name]
    assert rows(file) == [wanted]
    assert load_task("math", "test", test=str(file))[0].columns == wanted


def test_aime(run):
    """Two files; answers are whole numbers without leading zeros."""
    put(Path("24"), [{"problem": "P", "answer": "033", "id": 60}])
    put(Path("25"), [{"problem": "P", "answer": 204.0}])
    put(Path("wrong"), [{"problem": "P", "answer": "3.5"}])
    assert run("aime", "--source", "24", "25")[0] == 0
    wanted = {"problem": "P", "answer": "33", "source": "aime2024"}
    assert rows(Path("out/2024.jsonl")) == [wanted]
    assert rows(Path("out/2025.jsonl"))[0]["answer"] == "204"
    refused(run("aime", "--source", "25", "25"), "another set")
    refused(run("aime", "--source", "wrong", "25"), "not a whole number")
    refused(run("aime", "--source", "24"))


def test_bad_sources_are_named(run):
    for content, words in (
        ('{"problem": "a"}', "line 1 needs 'problem' and 'answer'; it has ['problem']"),
        ('{"problem": "", "answer": "1"}', "holds no rows with a problem"),
    ):
        Path("bad").write_text(content)
        refused(run("math500", "--source", "bad"), words)
    code, said = run("math500", "--source", "none")
    assert code == 1
    assert "there is no file" in said
    assert not Path("out").exists()


@pytest.mark.parametrize("name", ["gsm8k", *SETS])
def test_offline(name, run, monkeypatch):
    """One sentence with the address to fetch by hand; nothing is left that looks like a set."""

    def urlopen(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    refused(run(name), "no route to host", "fetch https://", "--source")
    assert not Path("out").exists()


@pytest.fixture
def fetch(monkeypatch):
    """fetch(answer): the file that is downloaded where a server answers so."""
    source = replace(SETS["math500"]["test"], sha256=hashlib.sha256(CONTENT).hexdigest())

    def fetch(answer):
        def urlopen(url, timeout):
            if isinstance(answer, Exception):
                raise answer
            return io.BytesIO(answer)

        monkeypatch.setattr("urllib.request.urlopen", urlopen)
        return text_sets.download(source, Path("downloads"))

    return fetch


def test_download(fetch):
    """Whole, and only once."""
    file = fetch(CONTENT)
    assert file.read_bytes() == CONTENT
    assert [*file.parent.iterdir()] == [file]
    assert fetch(AssertionError("the file is there")) == file
    file.write_bytes(CONTENT[:9])
    assert fetch(CONTENT).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "answer, words",
    [
        (OSError("HTTP Error 404"), "HTTP Error 404"),
        (IncompleteRead(b"", 100), "IncompleteRead"),
        (b"{}", "the SHA-256 of"),
    ],
)
def test_a_download_that_is_not_what_was_asked_for(answer, words, fetch):
    with pytest.raises(UsageError, match=words):
        fetch(answer)
    assert not [*Path().glob("downloads/*")]
