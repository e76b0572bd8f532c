"""Every item of gpu_check.py is well on a CPU, at a tiny size, its runs within this process."""

import gpu_check
import gpu_items
import gpu_runs
import pytest

import train
from data.maze import prepare

ITEMS = {item.__name__: item for block in gpu_check.BLOCKS.values() for item in block}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu")


@pytest.mark.parametrize("item", ITEMS)
def test_an_item(item, work, monkeypatch):
    in_its_own = gpu_runs.run

    def run(*words, launcher=()):
        words = list(map(str, words))
        if words[0] == "-c":
            return in_its_own(*words)
        program = {"train.py": train.main, "-m": lambda rest: prepare.main(rest[1:])}[words[0]]
        return program(words[1:])

    monkeypatch.setattr(gpu_runs, "run", run)
    monkeypatch.setattr(gpu_runs, "WORK", work)
    monkeypatch.setattr(gpu_items, "small", True)
    gpu_items.start("cpu", True)
    row = gpu_check.check(ITEMS[item])
    assert row["well"], row["wrong"]
