"""Every item of gpu_check.py is well on a CPU, at a tiny size, its runs within this process."""

import pytest

import train
from data.maze import prepare
from tests.bench import bench_turns
from tests.gpu import gpu_check

ITEMS = {item.__name__: item for block in gpu_check.BLOCKS.values() for item in block}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu")


@pytest.mark.parametrize("item", ITEMS)
def test_an_item(item, work, monkeypatch):
    in_its_own = gpu_check.run

    def run(*words, launcher=()):
        program, *rest = map(str, words)
        if program == "train.py":
            train.main(rest)
        elif program == "-m":
            prepare.main(rest[1:])
        else:
            in_its_own(*words, launcher=launcher)

    monkeypatch.setattr(gpu_check, "run", run)
    monkeypatch.setattr(gpu_check, "WORK", work)
    monkeypatch.setattr(bench_turns, "small", True)
    row = gpu_check.check(ITEMS[item])
    assert row["well"], row
