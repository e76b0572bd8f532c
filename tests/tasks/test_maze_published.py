"""Published mazes (data/maze/published.py): parquet in, the same mazes out, and everything else left out by name."""

import json
import sys

import numpy as np
import pytest
from pictures import mazes, picture, run, splits

from data.maze import prepare, published
from maxrl.io.files import checksum
from maxrl.tasks.maze import Maze, generate, pack, solve, to_prompt, unpack

pyarrow = pytest.importorskip("pyarrow")


def row(walls, answer=None, whole=True, text=False):
    """A maze (n, n) as a published row: prompt, and extra_info with the whole sequence as its answer."""
    question = to_prompt(walls)
    answer = " ".join([*solve(walls), "DONE", "<eos>"]) if answer is None else answer
    info = {
        "split": "train",
        "question": question,
        "answer": f"{question} {answer}" if whole else answer,
    }
    return {
        "prompt": [{"role": "user", "content": question}],
        "extra_info": json.dumps(info) if text else info,
    }


def parquet(file, rows):
    from pyarrow import Table
    from pyarrow.parquet import write_table

    file.parent.mkdir(parents=True, exist_ok=True)
    write_table(Table.from_pylist(rows), file)
    return file


def distinct(size, count, seed=0):
    """(count, n, n), no two alike."""
    packed = generate(size, 2 * count, np.random.default_rng(seed))
    return unpack(np.unique(packed, axis=0)[:count], size)


@pytest.mark.parametrize("size", [5, 7, 17])
def test_pack_is_the_reverse_of_unpack(size):
    packed = generate(size, 50, np.random.default_rng(0))
    assert (pack(unpack(packed, size)) == packed).all() and pack(
        unpack(packed, size)
    ).dtype == np.uint8


def test_a_tree_is_what_the_definition_says():
    """All 4,096 sets of openings of 7x7: 192 are perfect. Too many openings with all cells reached, the right number with a
    cell left alone, and too few are all among them."""
    every = unpack(
        np.packbits(((np.arange(4096)[:, None] >> np.arange(12)) & 1).astype(bool), axis=1), 7
    )
    trees = np.array([published.is_tree(walls) for walls in every])
    assert trees.sum() == 192 and len(np.unique(pack(every[trees]), axis=0)) == 192
    assert all(published.is_tree(walls) for walls in mazes(17, 100))


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_the_same_mazes_come_out(tmp_path, capsys, whole, text):
    """A directory with files of every split, in the hub's names; the answers are ours again, and so are the prompts."""
    all_mazes = distinct(9, 60)
    parts = {"data/test-00000-of-00001": all_mazes[:10], "data/validation-00000-of-00001": all_mazes[10:15],
             "data/train-00000-of-00002": all_mazes[15:40], "data/train-00001-of-00002": all_mazes[40:]}  # fmt: skip
    for name, some in parts.items():
        parquet(
            tmp_path / "set" / f"{name}.parquet",
            [row(walls, whole=whole, text=text) for walls in some],
        )
    code, said = run(capsys, "--size", 9, "--source", tmp_path / "set", "--out", tmp_path / "out")
    assert code == 0 and "0 rows left out\n" in said and "wrote 60 mazes" in said, said
    found = splits(tmp_path / "out")
    for split, part in (
        ("test", slice(10)),
        ("validation", slice(10, 15)),
        ("train", slice(15, 60)),
    ):
        assert (found[split] == pack(all_mazes[part])).all()
    task = Maze("train", 9, tmp_path / "out")
    assert len(task) == 45 and task[7].prompt == to_prompt(all_mazes[22])
    assert task.verify(task[7].answer, task[7]) == 1.0


def test_held_out_mazes_are_taken_from_a_single_file(tmp_path, capsys):
    """In the order of the file; other counts are another set."""
    some = distinct(7, 40)
    file = parquet(tmp_path / "train.parquet", [row(walls) for walls in some])
    arguments = ("--size", 7, "--source", file, "--out", tmp_path / "out", "--test", 4)
    code, said = run(capsys, *arguments, "--validation", 6)
    assert code == 0, said
    found = splits(tmp_path / "out")
    assert (np.concatenate([found[split] for split in prepare.SPLITS]) == pack(some)).all()
    assert [len(found[split]) for split in prepare.SPLITS] == [4, 6, 30]
    info = json.loads((tmp_path / "out" / "info.json").read_text())
    assert info["counts"] == {"test": 4, "validation": 6, "train": 30} and info["source"] == {
        str(file): checksum(file)
    }
    before = (tmp_path / "out" / "info.json").stat().st_mtime_ns
    assert "holds this set already" in run(capsys, *arguments, "--validation", 6)[1]
    for other in (
        (*arguments, "--validation", 5),
        ("--size", 7, "--train", 9, "--out", tmp_path / "out"),
    ):
        code, said = run(
            capsys, *other, *(("--test", 2, "--validation", 2) if "--train" in other else ())
        )
        assert code == 2 and "another set" in said and "--overwrite" in said
    assert (tmp_path / "out" / "info.json").stat().st_mtime_ns == before
    assert run(capsys, *arguments, "--validation", 5, "--overwrite")[0] == 0


def test_what_is_left_out_is_named_and_counted(tmp_path, capsys, monkeypatch):
    """Rows of every kind among 30 good ones; the good ones keep their order."""
    good = distinct(7, 32)
    test, good = good[:2], good[2:]
    loop, island, bordered, post = (good[i].copy() for i in range(4))
    inner = np.argwhere(loop[1:-1, 1:-1]) + 1
    loop[tuple(next(s for s in inner if s.sum() % 2))] = False  # one opening too many: a circle
    island = unpack(np.packbits(np.r_[np.ones(8, bool), np.zeros(4, bool)][None], axis=1), 7)[
        0
    ]  # 8 openings, 3 pieces
    bordered[0, 1] = False
    post[2, 2] = False
    swapped = (
        to_prompt(good[0])
        .replace(" START ", " x ")
        .replace("GOAL", "START")
        .replace(" x ", " GOAL ")
    )
    bad = {
        "no perfect maze": [row(loop), row(island, answer="DONE")],
        "no 7x7 maze of our form": [
            row(bordered), row(post), row(distinct(9, 1)[0]), {"extra_info": {"question": swapped, "answer": "DONE"}},
            {"extra_info": {"question": picture("#### #S.# #.G# ####"), "answer": "RIGHT DOWN DONE"}},
            {"extra_info": {"question": to_prompt(good[0]).replace("PATH ", "LAVA ", 1), "answer": "DONE"}},
            {"extra_info": {"question": None, "answer": None}}, {"extra_info": {"question": "GRID_START"}},
            {"extra_info": None},
        ],
        "its answer is wrong": [
            row(good[0], answer=" ".join(solve(good[0]))), row(good[1], answer="UP DONE"), row(good[2], answer=""),
        ],
        "its maze is there already": [row(good[3]), row(test[1])],
    }  # fmt: skip
    rows, names = [row(walls) for walls in good], []
    for why, some in bad.items():
        for one in some:
            names.append((len(rows), why))
            rows.append(one)
    order = np.random.default_rng(0).permutation(len(rows))
    while (
        np.flatnonzero(order == 3)[0] > np.flatnonzero(order == len(rows) - 2)[0]
    ):  # of two copies the first one stays
        order = np.roll(order, 1)
    rows = [rows[i] for i in order]
    expected = {(int(np.flatnonzero(order == i)[0]), why) for i, why in names}
    parquet(tmp_path / "set" / "train.parquet", [{"extra_info": one["extra_info"]} for one in rows])
    parquet(tmp_path / "set" / "test.parquet", [row(walls) for walls in test])
    code, said = run(
        capsys,
        "--size",
        7,
        "--source",
        tmp_path / "set",
        "--out",
        tmp_path / "out",
        "--validation",
        0,
    )
    assert code == 0, said
    total = "16 rows left out; 9: no 7x7 maze of our form; 3: its answer is wrong; 2: no perfect maze; 2: its maze is there"
    assert total in said
    named = {(int(line.split(", row ")[1].split(",")[0]), line.split("left out: ")[1])
             for line in said.splitlines() if ", row " in line}  # fmt: skip
    assert named == expected
    kept = [i for i in order if i < 30]
    assert (splits(tmp_path / "out")["train"] == pack(good[kept])).all()
    monkeypatch.setattr(published, "NAMED", 3)
    said = run(
        capsys,
        "--size",
        7,
        "--source",
        tmp_path / "set",
        "--out",
        tmp_path / "few",
        "--validation",
        0,
    )[1]
    assert said.count(", row ") == 3 and total in said


def test_refusals(tmp_path, capsys, monkeypatch):
    """One sentence each, and no directory that looks like a set."""
    file = parquet(tmp_path / "train.parquet", [row(walls) for walls in distinct(7, 5)])
    held_out = parquet(tmp_path / "both" / "test.parquet", [row(walls) for walls in distinct(7, 5)])
    other = parquet(tmp_path / "other.parquet", [{"question": "x", "text": "y"}])
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(file.read_bytes()[:200])
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        (("--source", tmp_path / "nowhere.parquet"), ["there is no file", "nowhere.parquet"]),
        (("--source", tmp_path / "empty"), ["there is no *.parquet in"]),
        (("--source", other), ["has no column 'extra_info' but 'question', 'text'"]),
        (("--source", damaged), ["damaged.parquet cannot be read"]),
        (("--source", file, "--seed", 1), ["--seed 1 means nothing to --source"]),
        (("--source", file, "--train", 1), ["--train 1 means nothing to --source"]),
        (("--source", held_out.parent, "--test", 3), ["--test 3 means nothing to --source"]),
        (("--source", held_out.parent), ["no training maze is left"]),
        (("--source", file, "--test", 3, "--validation", 2), ["no training maze is left"]),
        (("--source", file, "--size", 9), ["no training maze is left"]),
        (("--source", file, "--test", -1), ["--test must be at least 0"]),
    ):  # fmt: skip
        code, said = run(capsys, "--size", 7, "--out", tmp_path / "out", *arguments)
        assert code in (1, 2) and all(word in said for word in words), said
        assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    code, said = run(capsys, "--size", 7, "--out", tmp_path / "out", "--source", file)
    assert code == 2 and 'pip install -e ".[parquet]"' in said
