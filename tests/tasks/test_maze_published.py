"""Published mazes: parquet in, the same mazes out, and everything else left out and counted."""

import json
import sys

import numpy as np
import pytest
from pictures import picture, run, splits

from data.maze import prepare
from maxrl.io.files import checksum
from maxrl.tasks.maze import Maze, generate, pack, solve, to_prompt, unpack

pyarrow = pytest.importorskip("pyarrow")


def row(walls, answer=None, whole=True):
    """A maze (n, n) as a published row, with the whole sequence or the path as its answer."""
    question = to_prompt(walls)
    answer = " ".join([*solve(walls), "DONE", "<eos>"]) if answer is None else answer
    return {"question": question, "answer": f"{question} {answer}" if whole else answer}


def parquet(file, rows):
    from pyarrow import Table
    from pyarrow.parquet import write_table

    file.parent.mkdir(parents=True, exist_ok=True)
    write_table(Table.from_pylist([{"extra_info": row} for row in rows]), file)
    return file


def distinct(size, count):
    """(count, n, n), no two alike."""
    packed = generate(size, 2 * count, np.random.default_rng(0))
    return unpack(np.unique(packed, axis=0)[:count], size)


@pytest.mark.parametrize("whole", [False, True])
def test_the_same_mazes_come_out(tmp_path, capsys, whole):
    """A directory with files of every split, in the hub's names."""
    some = distinct(9, 60)
    parts = {"test-0": some[:10], "validation-0": some[10:15], "train-0": some[15:40]}
    for name, part in (parts | {"train-1": some[40:]}).items():
        file = tmp_path / "set/data" / f"{name}.parquet"
        parquet(file, [row(walls, whole=whole) for walls in part])
    code, said = run(capsys, "--size", 9, "--source", tmp_path / "set", "--out", tmp_path / "out")
    assert code == 0 and "left out" not in said and "wrote 60 mazes" in said, said
    found = splits(tmp_path / "out")
    assert (np.concatenate([found[split] for split in prepare.SPLITS]) == pack(some)).all()
    task = Maze("train", 9, tmp_path / "out")
    assert len(task) == 45 and task[7].prompt == to_prompt(some[22])


def test_held_out_mazes_are_taken_from_a_single_file(tmp_path, capsys):
    """In the order of the file; other counts are another set."""
    some = distinct(7, 40)
    file = parquet(tmp_path / "train.parquet", [row(walls) for walls in some])
    arguments = ("--size", 7, "--source", file, "--out", tmp_path / "out", "--test", 4)
    assert run(capsys, *arguments, "--validation", 6)[0] == 0
    found = splits(tmp_path / "out")
    assert (np.concatenate([found[split] for split in prepare.SPLITS]) == pack(some)).all()
    info = json.loads((tmp_path / "out" / "info.json").read_text())
    assert info["counts"] == {"test": 4, "validation": 6, "train": 30}
    assert info["source"] == {str(file): checksum(file)}
    assert "holds this set already" in run(capsys, *arguments, "--validation", 6)[1]
    assert "another set" in run(capsys, *arguments, "--validation", 5)[1]


def test_what_is_left_out_is_counted(tmp_path, capsys):
    """Rows of every kind among good ones, which keep their order."""
    test, good = np.split(distinct(7, 32), [2])
    bordered, post = (good[i].copy() for i in range(2))
    openings = np.r_[np.ones(8, bool), np.zeros(4, bool)][None]
    island = unpack(np.packbits(openings, axis=1), 7)[0]  # 8 openings, 3 pieces
    bordered[0, 1] = False
    post[2, 2] = False
    prompt = to_prompt(good[0])
    others = [
        prompt.replace(" START ", " x ").replace("GOAL", "START").replace(" x ", " GOAL "),
        picture("#### #S.# #.G# ####"),
        prompt.replace("PATH ", "LAVA ", 1),
        "GRID_START",
    ]
    bad = {
        "no 7x7 maze of our form": [
            row(bordered),
            row(post),
            row(distinct(9, 1)[0]),
            *({"question": question, "answer": "DONE"} for question in others),
            {"question": None, "answer": None},
            None,
        ],
        "its answer is wrong": [
            row(good[0], answer=" ".join(solve(good[0]))),
            row(good[1], answer="UP DONE"),
            row(good[2], answer=""),
            row(island, answer="DONE"),
        ],
        "its maze is there already": [row(good[3]), row(test[1])],
    }
    rows = [row(walls) for walls in good]
    rows[10:10] = [one for some in bad.values() for one in some]
    parquet(tmp_path / "set" / "train.parquet", rows)
    parquet(tmp_path / "set" / "test.parquet", [row(walls) for walls in test])
    arguments = ("--size", 7, "--source", tmp_path / "set", "--validation", 0, "--out")
    code, said = run(capsys, *arguments, tmp_path / "out")
    assert code == 0
    for why, some in bad.items():
        assert f"{len(some)} rows left out, {why}" in said
    assert (splits(tmp_path / "out")["train"] == pack(good)).all()


def test_refusals(tmp_path, capsys, monkeypatch):
    """One sentence each, and no directory that looks like a set."""
    file = parquet(tmp_path / "train.parquet", [row(walls) for walls in distinct(7, 5)])
    held_out = parquet(tmp_path / "both" / "test.parquet", [row(walls) for walls in distinct(7, 5)])
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(file.read_bytes()[:200])
    (tmp_path / "empty").mkdir()
    for source, more, words in (
        (tmp_path / "nowhere.parquet", (), "No such file"),
        (tmp_path / "empty", (), "there is no *.parquet in"),
        (damaged, (), "damaged.parquet cannot be read"),
        (file, ("--train", 1), "--train means nothing to --source"),
        (held_out.parent, (), "no training maze is left"),
        (file, ("--test", 3, "--validation", 2), "no training maze is left"),
        (file, ("--size", 9), "no training maze is left"),
    ):
        arguments = ("--size", 7, "--out", tmp_path / "out", "--source", source, *more)
        code, said = run(capsys, *arguments)
        assert code in (1, 2) and words in said, said
        assert not list(tmp_path.glob("out/*"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    code, said = run(capsys, "--size", 7, "--out", tmp_path / "out", "--source", file)
    assert code == 2 and 'pip install -e ".[parquet]"' in said
