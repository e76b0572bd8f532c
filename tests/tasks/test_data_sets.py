"""Every data set appears whole or not at all, and never replaces another silently."""

import os
import signal

import pytest
from pictures import run

from data import common
from data.maze import prepare
from data.word_problems import prepare as problems
from maxrl.io import files
from maxrl.tasks.gsm8k import Gsm8k
from maxrl.tasks.maze import Maze

COUNTS = ("--size", 7, "--train", 100, "--test", 10, "--validation", 10)
ARGS = (*COUNTS, "--workers", 1, "--out")
WORDS = ("--train", 20, "--test", 5, "--validation", 5, "--out")


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_another_set_is_not_replaced_silently(tmp_path, capsys):
    """The same command leaves the set; other options and damage are refused with --overwrite."""
    assert run(capsys, *ARGS, tmp_path)[0] == 0
    whole = content(tmp_path)
    assert run(capsys, *ARGS, tmp_path) == (0, f"{tmp_path} holds this set already\n")
    code, said = run(capsys, *ARGS, tmp_path, "--seed", 1)
    assert code == 2 and "another set" in said and "--overwrite replaces it" in said
    assert content(tmp_path) == whole
    (tmp_path / "train.npy").write_bytes(b"damage")
    code, said = run(capsys, *ARGS, tmp_path)
    assert code == 2 and "damaged" in said and "--overwrite" in said
    (tmp_path / "info.json").unlink()
    assert run(capsys, *ARGS, tmp_path)[0] == 2
    assert run(capsys, *ARGS, tmp_path, "--overwrite")[0] == 0
    assert content(tmp_path) == whole


def test_overwriting_removes_the_old_set_and_nothing_else(tmp_path, capsys):
    """A larger set's shards go; other people's files stay."""
    foreign = ("notes.txt", "train-notes.npy", "test-model.pt", "train-1.bin", "my-train.npy")
    for name in (*foreign, "train-00001.bin", "2024.jsonl"):
        (tmp_path / name).write_text(name)
    assert run(capsys, *ARGS, tmp_path, "--overwrite")[0] == 0
    made = {"info.json", "checksums.json", "train.npy", "test.npy", "validation.npy"}
    assert {file.name for file in tmp_path.iterdir()} == made | set(foreign)
    assert all((tmp_path / name).read_text() == name for name in foreign)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_half_a_set_is_no_set(tmp_path, capsys, monkeypatch, error):
    """The old one stays until the new one is complete; a first one is not there at all."""
    old = tmp_path / "old"
    assert run(capsys, *ARGS, old)[0] == 0
    whole = content(old)
    save = prepare.np.save

    def failing(file, *args, **options):
        if file.name == "train.npy":
            raise error
        save(file, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(prepare.np, "save", failing)
        for folder in (old, tmp_path / "new"):
            code, said = run(capsys, *ARGS, folder, "--seed", 5, "--overwrite")
            assert code == (130 if isinstance(error, KeyboardInterrupt) else 1)
            assert said.count("\n") == 1 and ("interrupted" in said or "No space left" in said)
    assert content(old) == whole and {file.name for file in old.iterdir()} == whole.keys()
    with pytest.raises(FileNotFoundError, match="no complete"):
        Maze("train", 7, tmp_path / "new")
    assert run(capsys, *ARGS, tmp_path / "new", "--seed", 5)[0] == 0
    assert len(Maze("train", 7, tmp_path / "new")) == 100
    (old / "info.json").unlink()
    code, said = run(capsys, *ARGS, old)
    assert code == 2 and "part of one" in said


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
    assert code == 130 and said.count("\n") == 1 and "interrupted" in said
    assert not list(tmp_path.iterdir())


def test_a_worker_that_is_killed(tmp_path, capsys, monkeypatch):
    """As the system does when memory ends: one sentence, and there is no set."""
    monkeypatch.setattr(prepare, "generate", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    code, said = run(capsys, *COUNTS, "--workers", 2, "--out", tmp_path)
    assert code == 1 and said.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "option, value", [("--workers", "0"), ("--train", "-1"), ("--train", "x"), ("--size", "3")]
)
def test_numbers_out_of_range_are_refused(tmp_path, capsys, option, value):
    code, said = run(capsys, option, value, "--out", tmp_path / "none")
    assert code == 2 and option in said and not (tmp_path / "none").exists()


def test_a_set_of_an_earlier_version(tmp_path, capsys):
    """It has its checksums in info.json, is taken as it is, and is known to be the same."""
    kinds = ((mazes := tmp_path / "a", ARGS, prepare), (words := tmp_path / "b", WORDS, problems))
    for folder, options, module in kinds:
        assert run(capsys, *options, folder, main=module.main)[0] == 0
        sums = files.read_json(folder / "checksums.json")
        info = files.read_json(folder / "info.json")
        old = info | {"sha256": {name: sums[name] for name in sums if name != "info.json"}}
        files.write_json(folder / "info.json", old | {"seal": "0"})
        (folder / "checksums.json").unlink()
        same = f"{folder} holds this set already\n"
        assert run(capsys, *options, folder, main=module.main) == (0, same)
    assert len(Maze("train", 7, mazes)) == 100 and len(Gsm8k("train", words)) == 20
    files.write_json(words / "info.json", old | {"sha256": {}})
    code, said = run(capsys, *WORDS, words, main=problems.main)
    assert code == 2 and "another set" in said
