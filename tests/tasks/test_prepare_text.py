"""What data/{gsm8k,polaris,aime,beyondaime,math500,minerva}/prepare.py write, and refuse (data/text_sets.py)."""

import hashlib
import http.server
import json
import runpy
import sys
import threading
import types
from dataclasses import replace
from functools import partial

import pytest
from conftest import ROOT
from tables import parquet, put, rows

from data import text_sets
from data.gsm8k import prepare as gsm8k
from data.math500.prepare import SOURCES
from maxrl.io.files import DataError, read_info
from maxrl.tasks import TASKS

QUESTIONS = [
    {"question": "Clips?", "answer": "She sold 48/2 = <<48/2=24>>24 clips.\n#### 1,024"},
    {"question": "Loss?", "answer": "It is lost.\n#### -3"},
    {"question": "Half?", "answer": "Half.\n#### 0.5"},
]
CONTENT = b'{"problem": "P", "answer": "$x$", "level": 2}\n'


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """run(name, arguments...) -> (exit code, what it said); writes into tmp_path/out."""
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        monkeypatch.setattr(
            sys, "argv", ["prepare.py", "--out", str(tmp_path / "out"), *map(str, arguments)]
        )
        code = 0
        try:
            runpy.run_path(str(ROOT / "data" / name / "prepare.py"), run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.fixture
def offline(monkeypatch):
    def urlopen(url, timeout):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)


@pytest.fixture
def server(tmp_path):
    """Serves tmp_path/www; yields its address."""
    folder = tmp_path / "www"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    ) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


@pytest.mark.parametrize("form", [put, parquet])
def test_gsm8k(form, run, tmp_path):
    source = form(tmp_path / "in", QUESTIONS)
    assert run("gsm8k", "--source", source, "--test", source)[0] == 0
    out = tmp_path / "out"
    assert [row["answer"] for row in rows(out / "train.jsonl")] == ["1024", "-3", "0.5"]
    first = {
        "problem": "Clips?",
        "answer": "1024",
        "source": "gsm8k",
        "solution": "She sold 48/2 = 24 clips.",
    }
    assert rows(out / "train.jsonl")[0] == first
    task = TASKS["gsm8k"]("test", directory=out)
    assert (
        task.info["test"] == "GSM8K"
        and task[1].columns["source"] == "gsm8k-test"
        and len(task) == 3
    )
    code, said = run("gsm8k", "--source", source, "--platinum", source)
    assert code == 2 and "exists with other content: --overwrite replaces it" in said
    assert TASKS["gsm8k"]("test", directory=out).info["test"] == "GSM8K"
    assert run("gsm8k", "--source", source, "--platinum", source, "--overwrite")[0] == 0
    assert TASKS["gsm8k"]("test", directory=out).info["test"] == "GSM8K-Platinum"
    code, said = run("gsm8k", "--source", source, "--platinum", source)
    assert code == 0 and said.count("already there") == 3


def test_gsm8k_holds_out_a_validation_set(run, tmp_path):
    source = put(tmp_path / "in", QUESTIONS)
    assert run("gsm8k", "--source", source, "--test", source, "--validation", 1)[0] == 0
    train, held_out = (
        rows(tmp_path / "out" / f"{split}.jsonl") for split in ("train", "validation")
    )
    assert len(held_out) == 1 and sorted(r["problem"] for r in train + held_out) == [
        "Clips?",
        "Half?",
        "Loss?",
    ]
    assert run("gsm8k", "--source", source, "--test", source)[0] == 2
    assert run("gsm8k", "--source", source, "--test", source, "--overwrite")[0] == 0
    assert not (tmp_path / "out" / "validation.jsonl").exists()
    code, said = run("gsm8k", "--source", source, "--test", source, "--validation", 3)
    assert code == 2 and "must leave some of the 3" in said


@pytest.mark.parametrize(
    "name", ["gsm8k", "math500", "maze", "glyphs", "imagenet", "word_problems"]
)
def test_the_old_word_for_overwrite_is_refused(name, run, tmp_path):
    assert (
        run(name, "--force") == (2, "prepare.py: --force is now called --overwrite\n")
        and not (tmp_path / "out").exists()
    )


def test_gsm8k_check(run, tmp_path, monkeypatch):
    """--check asks verify_number about every answer in a box, and about a wrong one."""
    source = put(tmp_path / "in", QUESTIONS)
    verifiers = types.ModuleType("maxrl.verifiers")
    monkeypatch.setitem(sys.modules, "maxrl.verifiers", verifiers)
    for verdict, code, words in (
        (
            lambda response, answer: float(response == f"\\boxed{{{answer}}}"),
            0,
            "reads all 6 answers",
        ),
        (lambda response, answer: float(answer != "-3"), 1, "wrong about 6 of 6 answers"),
        (lambda response, answer: 1.0, 1, "wrong about 6 of 6"),
        (
            lambda response, answer: float(response == "\\boxed{1024}"),
            1,
            "wrong about 4 of 6 answers, first '-3'",
        ),
    ):
        verifiers.verify_number = verdict
        assert (
            found := run("gsm8k", "--source", source, "--test", source, "--check", "--overwrite")
        )[0] == code
        assert words in found[1]


def test_gsm8k_real_verifier():
    """The same with the project's own, once it is there."""
    verifiers = pytest.importorskip("maxrl.verifiers")
    assert verifiers.verify_number("\\boxed{1024}", "1024") == 1
    gsm8k.check([gsm8k.split_answer({"problem": "", "answer": row["answer"]}) for row in QUESTIONS])


@pytest.mark.parametrize(
    "answer", ["no mark", "#### ", "#### about 5", "#### 5 apples", "#### \u0665"]
)
def test_gsm8k_refuses_an_answer_without_a_number(answer, run, tmp_path):
    source = put(tmp_path / "in", [{"question": "Q", "answer": answer}])
    code, said = run("gsm8k", "--source", source, "--test", source)
    assert (
        code == 2
        and "does not end in #### and a number" in said
        and not (tmp_path / "out").exists()
    )


SETS = {
    "polaris": (
        "train",
        {"problem": "P", "answer": "x^2", "difficulty": "1/8"},
        {"difficulty": "1/8"},
    ),
    "beyondaime": ("test", {"problem": "P", "answer": 204, "more": 1}, {}),
    "math500": (
        "test",
        {"problem": "P", "answer": "\\frac12", "level": 5, "subject": "A"},
        {"subject": "A", "level": 5},
    ),
    "minerva": ("test", {"question": "P", "answer": "1e-5"}, {}),
}


@pytest.mark.parametrize("form", [put, parquet])
@pytest.mark.parametrize("name", SETS)
def test_sets(name, form, run, tmp_path):
    split, row, kept = SETS[name]
    again = dict(row)
    empty = row | {"answer": None}
    code, said = run(name, "--source", form(tmp_path / "in", [row, again, empty]))
    assert (
        code == 0
        and "2 problems, 1 rows without problem or answer left out, 1 of them not for the first"
        in said
    )
    problem = {"problem": "P", "answer": str(row["answer"]), "source": name} | kept
    assert rows(tmp_path / "out" / f"{split}.jsonl") == [problem, problem]
    task = TASKS["math"]("test", test=str(tmp_path / "out" / f"{split}.jsonl"))
    assert task[0].columns == problem


def test_aime(run, tmp_path):
    old = put(tmp_path / "24", [{"problem": "P", "answer": "033", "id": 60}])
    new = put(tmp_path / "25", [{"problem": "P", "answer": 204.0}])
    assert run("aime", "--source", f"2024={old}", "--source", f"2025={new}")[0] == 0
    assert rows(tmp_path / "out" / "2024.jsonl") == [
        {"problem": "P", "answer": "33", "source": "aime2024"}
    ]
    assert rows(tmp_path / "out" / "2025.jsonl")[0]["answer"] == "204"
    wrong = put(tmp_path / "wrong", [{"problem": "P", "answer": "3.5"}])
    assert (
        "'3.5' of aime2024 is no whole number"
        in run("aime", "--source", f"2024={wrong}", "--overwrite")[1]
    )
    for source in (old, "2026=x", "2024="):
        code, said = run("aime", "--source", source)
        assert code == 2 and "is not NAME=FILE with a name among 2024, 2025" in said


def test_preparing_one_file_does_not_declare_another_whole(run, tmp_path):
    """Damage of 2024.jsonl is still seen after 2025.jsonl was made again."""
    sources = {
        year: put(tmp_path / year, [{"problem": "P", "answer": year}]) for year in ("2024", "2025")
    }
    assert (
        run(
            "aime",
            *(word for year, file in sources.items() for word in ("--source", f"{year}={file}")),
        )[0]
        == 0
    )
    file = tmp_path / "out" / "2024.jsonl"
    before = file.read_bytes()
    file.write_bytes(before.replace(b"P", b"Q"))
    assert run("aime", "--source", f"2025={sources['2025']}")[0] == 0
    with pytest.raises(DataError, match=r"2024\.jsonl is not what its checksum says"):
        read_info(tmp_path / "out", ("2024",), "")
    file.write_bytes(before)
    assert set(read_info(tmp_path / "out", ("20",), "")["sha256"]) == {"2024.jsonl", "2025.jsonl"}


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "holds no rows"),
        (b"PAR1 no", "cannot be read"),
        (b"{", "line 1 is not JSON"),
        (b'{"problem": "a", "answer": "1"}\n\xff\n', "line 2 is not UTF-8"),
        (b"3\n", "line 1 is 3, not an object"),
        (b'{"problem": "a"}', "row 1 has no column 'answer'; it has 'problem'"),
        (b'{"problem": "", "answer": "1"}', "holds no rows with a problem"),
    ],
)
def test_bad_sources_are_named(content, words, run, tmp_path):
    (tmp_path / "bad").write_bytes(content)
    code, said = run("math500", "--source", tmp_path / "bad")
    assert (
        code == 2 and words in said and "Traceback" not in said and not (tmp_path / "out").exists()
    )


def test_a_json_list_is_read(run, tmp_path):
    (tmp_path / "list.json").write_text(json.dumps([{"problem": "a\nb", "answer": 1}], indent=1))
    assert run("math500", "--source", tmp_path / "list.json")[0] == 0
    assert rows(tmp_path / "out" / "test.jsonl")[0]["answer"] == "1"


@pytest.mark.parametrize("name", ["gsm8k", "polaris", "aime", "beyondaime", "math500", "minerva"])
def test_offline(name, run, offline, tmp_path):
    """One sentence with the address to fetch by hand; nothing is left that looks like a set."""
    code, said = run(name)
    assert (
        code == 2 and "no route to host" in said and "fetch https://" in said and "--source" in said
    )
    assert not [f for f in (tmp_path / "out").rglob("*") if f.suffix == ".jsonl"]
    assert (
        run("math500", "--source", tmp_path / "none")[1]
        .strip()
        .endswith("there is no file " + str(tmp_path / "none"))
    )


def test_download(server, tmp_path, capsys):
    """Whole, by its checksum where one is known, and only once."""
    (tmp_path / "www" / "set.jsonl").write_bytes(CONTENT)
    right = hashlib.sha256(CONTENT).hexdigest()
    source = replace(SOURCES["test"], url=f"{server}/set.jsonl", sha256=right)
    file = text_sets.download(source, tmp_path / "d")
    assert file.read_bytes() == CONTENT and [f.name for f in (tmp_path / "d").iterdir()] == [
        "math500.jsonl"
    ]
    (tmp_path / "www" / "set.jsonl").unlink()
    assert text_sets.download(source, tmp_path / "d") == file
    for url, sha256, words in (
        ("none.jsonl", right, "HTTP Error 404"),
        ("other.jsonl", right, "SHA-256 differs"),
    ):
        (tmp_path / "www" / "other.jsonl").write_bytes(b"{}")
        file.unlink(missing_ok=True)
        with pytest.raises(SystemExit):
            text_sets.download(
                replace(source, url=f"{server}/{url}", sha256=sha256), tmp_path / "d"
            )
        assert words in capsys.readouterr().err and not list((tmp_path / "d").iterdir())


def test_a_download_that_ends_early(tmp_path, monkeypatch, capsys):
    class Page:
        headers, parts = {"Content-Length": "100"}, [b"half", b""]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self, _):
            return self.parts.pop(0)

    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: Page())
    with pytest.raises(SystemExit):
        text_sets.download(replace(SOURCES["test"], sha256=""), tmp_path)
    assert "ended early" in capsys.readouterr().err and not (tmp_path / "math500.jsonl").exists()


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "x.jsonl"
    text_sets.write(file, "old\n", overwrite=False)

    def full(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        text_sets.write(file, "new\n", overwrite=True)
    assert file.read_text() == "old\n"
