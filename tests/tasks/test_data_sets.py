"""Every data set appears whole or not at all, and never replaces another silently."""

import json
import os
import runpy
import signal

import pytest

from data import common
from data.maze import prepare
from maxrl.tasks.maze import Maze
from tests import ROOT
from tests.helpers.pictures import run
from tests.helpers.runs import passed, refused

COUNTS = ("--size", 7, "--train", 100, "--test", 10, "--validation", 10)
ARGS = (*COUNTS, "--workers", 1, "--out")


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.fixture
def made(tmp_path, capsys):
    """A set in a folder."""
    passed(run(capsys, *ARGS, tmp_path / "made"))
    return tmp_path / "made"


def test_another_set_is_not_replaced_silently(made, capsys):
    """The same command leaves the set; other options and damage are refused with --overwrite."""
    whole = content(made)
    assert run(capsys, *ARGS, made) == (0, f"{made} holds this set already\n")
    refused(run(capsys, *ARGS, made, "--seed", 1), "another set", "--overwrite replaces it")
    assert content(made) == whole
    (made / "train.npy").write_bytes(b"damage")
    refused(run(capsys, *ARGS, made), "damaged", "--overwrite")
    (made / "info.json").unlink()
    refused(run(capsys, *ARGS, made), "part of one")
    passed(run(capsys, *ARGS, made, "--overwrite"))
    assert content(made) == whole


def test_some_mazes_of_a_file(made, tmp_path, capsys):
    """--train is how many, and without it all that are left; test and validation are the same."""
    rows = []
    for split in ("test", "validation", "train"):
        task = Maze(split, 7, made)
        rows += [json.dumps({"prompt": task[i].prompt}) + "\n" for i in range(len(task))]
    (tmp_path / "mazes.jsonl").write_text("".join(rows))
    sizes = []
    words = ("--size", 7, "--source", tmp_path / "mazes.jsonl", "--test", 2, "--validation", 1)
    for more in ((), ("--train", 3)):
        out = tmp_path / f"some{len(more)}"
        passed(run(capsys, *words, *more, "--out", out))
        sizes.append(len(Maze("train", 7, out)))
        assert (out / "test.npy").read_bytes() == (tmp_path / "some0/test.npy").read_bytes()
    assert sizes == [len(rows) - 3, 3]
    refused(run(capsys, *words, "--train", len(rows), "--out", tmp_path / "more"), "--train")


def test_overwriting_removes_the_old_set_and_nothing_else(tmp_path, capsys):
    """A larger set's shards go; other people's files stay."""
    foreign = ("notes.txt", "train-notes.npy", "test-model.pt", "train-1.bin", "my-train.npy")
    for name in (*foreign, "train-00001.bin", "2024.jsonl"):
        (tmp_path / name).write_text(name)
    passed(run(capsys, *ARGS, tmp_path, "--overwrite"))
    made = {"info.json", "checksums.json", "train.npy", "test.npy", "validation.npy"}
    assert {file.name for file in tmp_path.iterdir()} == made | set(foreign)
    for name in foreign:
        assert (tmp_path / name).read_text() == name


def test_half_a_set_is_no_set(made, tmp_path, capsys, monkeypatch):
    """The old one stays until the new one is complete; a first one is not there at all."""
    whole = content(made)
    new = tmp_path / "new"
    save = prepare.np.save

    def failing(file, *args, **options):
        if file.name == "train.npy":
            raise OSError(28, "No space left on device")
        save(file, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(prepare.np, "save", failing)
        for folder in (made, new):
            code, said = run(capsys, *ARGS, folder, "--seed", 5, "--overwrite")
            assert code == 1
            assert "No space left" in said
            assert said.count("\n") == 1
    assert content(made) == whole
    assert {file.name for file in made.iterdir()} == whole.keys()
    with pytest.raises(FileNotFoundError, match="no complete"):
        Maze("train", 7, new)
    passed(run(capsys, *ARGS, new, "--seed", 5))
    assert len(Maze("train", 7, new)) == 100


PROGRAMS = ("results/images/glyphs.py", "data/imagenet/prepare.py", "data/maze/prepare.py")


def test_processes_for_the_cores_of_a_job(monkeypatch):
    """Of which a scheduler gives three of a machine with 64."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(3), raising=False)
    for program in PROGRAMS:
        assert runpy.run_path(str(ROOT / program))["OPTIONS"]["workers"][0] == 3
    assert runpy.run_path(str(ROOT / "maxrl/tasks/verifiers.py"))["POOL"].size == 3


def test_ctrl_c_among_workers(tmp_path, capfd, monkeypatch):
    """The signal reaches all processes of a terminal: one sentence, no traceback of a worker."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(prepare, "CHUNK", 16)
    submit = common.ProcessPoolExecutor.submit

    def interrupted(pool, *job):
        future = submit(pool, *job)
        future.result()
        for process in [*pool._processes]:
            os.kill(process, signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return future

    monkeypatch.setattr(common.ProcessPoolExecutor, "submit", interrupted)
    code, said = run(capfd, *COUNTS, "--workers", 2, "--out", tmp_path)
    signal.signal(signal.SIGINT, before)
    assert code == 130
    assert "interrupted" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_worker_that_is_killed(tmp_path, capsys, monkeypatch):
    """As the system does when memory ends: one sentence, and there is no set."""
    monkeypatch.setattr(prepare, "generate", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    code, said = run(capsys, *COUNTS, "--workers", 2, "--out", tmp_path)
    assert code == 1
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
