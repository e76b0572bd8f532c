"""What the prepare.py commands of GSM8K and of the mathematics sets write, and refuse."""

import hashlib
import http.server
import runpy
import sys
import threading
from dataclasses import replace
from functools import partial

import pytest
from conftest import ROOT
from tables import parquet, put, rows

from data import text_sets
from data.mathematics import SETS
from maxrl.errors import UsageError
from maxrl.tasks import TASKS

QUESTIONS = [
    {"question": "Clips?", "answer": "She sold 48/2 = <<48/2=24>>24 clips.\n#### 1,024"},
    {"question": "Loss?", "answer": "It is lost.\n#### -3"},
    {"question": "Half?", "answer": "Half.\n#### 0.5"},
]
CONTENT = b'{"problem": "P", "answer": "$x$", "level": 2}\n'


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """run(name, arguments...) -> (exit code, output); writes into tmp_path/out."""
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        words = ["--out", tmp_path / "out", *arguments]
        monkeypatch.setattr(sys, "argv", ["prepare.py", *map(str, words)])
        code = 0
        try:
            runpy.run_path(str(ROOT / "data" / name / "prepare.py"), run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.mark.parametrize("form", [put, parquet])
def test_gsm8k(form, run, tmp_path):
    """Answers, solutions without the calculator's marks, and which test set it is."""
    source = form(tmp_path / "in", QUESTIONS)
    out = tmp_path / "out"
    assert run("gsm8k", "--source", source, "--test", source)[0] == 0
    assert [row["answer"] for row in rows(out / "train.jsonl")] == ["1024", "-3", "0.5"]
    first = {"problem": "Clips?", "answer": "1024", "source": "gsm8k"}
    assert rows(out / "train.jsonl")[0] == first | {"solution": "She sold 48/2 = 24 clips."}
    task = TASKS["gsm8k"]("test", directory=out)
    assert task.source == "GSM8K" and task[1].columns["source"] == "gsm8k-test"
    assert "holds this set already" in run("gsm8k", "--source", source, "--test", source)[1]
    platinum = ("gsm8k", "--source", source, "--test", source, "--platinum")
    code, said = run(*platinum)
    assert code == 2 and "another set" in said
    assert run(*platinum, "--overwrite")[0] == 0
    assert TASKS["gsm8k"]("test", directory=out).source == "GSM8K-Platinum"


def test_gsm8k_validation(run, tmp_path):
    """Held out of training; without one, validation is the test set."""
    source = put(tmp_path / "in", QUESTIONS)
    both = ("gsm8k", "--source", source, "--test", source)
    for held_out in (1, 0):
        assert run(*both, "--validation", held_out, "--overwrite")[0] == 0
        split = partial(TASKS["gsm8k"], directory=tmp_path / "out")
        assert (len(split("train")), len(split("validation"))) == ((2, 1) if held_out else (3, 3))
    for wrong in (-1, 3):
        assert run(*both, "--validation", wrong)[0] == 2


@pytest.mark.parametrize("answer", ["no mark", "#### ", "#### 5 apples", "#### \u0665"])
def test_gsm8k_refuses_an_answer_without_a_number(answer, run, tmp_path):
    source = put(tmp_path / "in", [{"question": "Q", "answer": answer}])
    code, said = run("gsm8k", "--source", source, "--test", source)
    assert code == 2 and "does not end in #### and a number" in said
    assert not (tmp_path / "out").exists()


LAYOUTS = {
    "polaris": {"problem": "P", "answer": "x^2", "difficulty": "1/8"},
    "beyondaime": {"problem": "P", "answer": 204, "more": 1},
    "math500": {"problem": "P", "answer": "\\frac12", "level": 5, "subject": "A"},
    "minerva": {"question": "P", "answer": "1e-5"},
}


@pytest.mark.parametrize("form", [put, parquet])
@pytest.mark.parametrize("name", LAYOUTS)
def test_sets_of_mathematics(name, form, run, tmp_path):
    """Rows without an answer are left out and counted; the task reads what is written."""
    row = LAYOUTS[name]
    code, said = run(name, "--source", form(tmp_path / "in", [row, row | {"answer": None}]))
    assert code == 0 and "1 problems, 1 rows without a problem or an answer left out" in said
    wanted = {"problem": "P", "answer": str(row["answer"]), "source": name}
    wanted |= {key: row[key] for key in ("difficulty", "subject", "level") if key in row}
    (file,) = (tmp_path / "out").glob("*.jsonl")
    assert file.stem in SETS[name] and rows(file) == [wanted]
    assert TASKS["math"]("test", test=str(file))[0].columns == wanted


def test_aime(run, tmp_path):
    """Two files; answers are whole numbers without leading zeros."""
    old = put(tmp_path / "24", [{"problem": "P", "answer": "033", "id": 60}])
    new = put(tmp_path / "25", [{"problem": "P", "answer": 204.0}])
    assert run("aime", "--source", old, new)[0] == 0
    found = rows(tmp_path / "out" / "2024.jsonl")
    assert found == [{"problem": "P", "answer": "33", "source": "aime2024"}]
    assert rows(tmp_path / "out" / "2025.jsonl")[0]["answer"] == "204"
    assert "another set" in run("aime", "--source", new, new)[1]
    wrong = put(tmp_path / "wrong", [{"problem": "P", "answer": "3.5"}])
    assert "not a whole number" in run("aime", "--source", wrong, new)[1]
    assert run("aime", "--source", old)[0] == 2


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "holds no rows"),
        (b"{", "line 1 is not JSON"),
        (b'{"problem": "a"}', "line 1 needs 'problem' and 'answer'; it has ['problem']"),
        (b'{"problem": "", "answer": "1"}', "holds no rows with a problem"),
    ],
)
def test_bad_sources_are_named(content, words, run, tmp_path):
    (tmp_path / "bad").write_bytes(content)
    code, said = run("math500", "--source", tmp_path / "bad")
    assert code == 2 and words in said and not (tmp_path / "out").exists()
    assert "there is no file" in run("math500", "--source", tmp_path / "none")[1]


@pytest.mark.parametrize("name", ["gsm8k", *SETS])
def test_offline(name, run, monkeypatch, tmp_path):
    """One sentence with the address to fetch by hand; nothing is left that looks like a set."""

    def urlopen(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    code, said = run(name)
    assert code == 2 and said.count("\n") == 1 and "no route to host" in said
    assert "fetch https://" in said and "--source" in said and not (tmp_path / "out").exists()


@pytest.fixture
def server(tmp_path):
    """Serves tmp_path/www, /short with too few bytes; yields its address."""
    folder = tmp_path / "www"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if self.path == "/short.jsonl":
                self.send_response(200)
                self.send_header("Content-Length", "100")
                self.end_headers()
                self.wfile.write(CONTENT)
            else:
                super().do_GET()

    handler = partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def test_download(server, tmp_path):
    """Whole, by its checksum where one is known, and only once."""
    (tmp_path / "www" / "set.jsonl").write_bytes(CONTENT)
    (tmp_path / "www" / "other.jsonl").write_bytes(b"{}")
    source = SETS["math500"]["test"]
    source = replace(source, sha256=hashlib.sha256(CONTENT).hexdigest())
    folder = tmp_path / "d"
    file = text_sets.download(replace(source, url=f"{server}/set.jsonl"), folder)
    assert file.read_bytes() == CONTENT and [*folder.iterdir()] == [file]
    (tmp_path / "www" / "set.jsonl").unlink()
    assert text_sets.download(replace(source, url=f"{server}/set.jsonl"), folder) == file
    file.unlink()
    words = {"none": "HTTP Error 404", "other": "the SHA-256 of", "short": "IncompleteRead"}
    for name, said in words.items():
        with pytest.raises(UsageError, match=said):
            text_sets.download(replace(source, url=f"{server}/{name}.jsonl"), folder)
        assert not list(folder.iterdir())
