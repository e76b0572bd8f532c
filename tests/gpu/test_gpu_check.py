"""The items of gpu_check.py that test_simulated.py leaves out, on a CPU at a tiny size."""

import os
import shlex
import subprocess

import pytest

from maxrl.run import command_line
from tests import ROOT
from tests.bench import bench_turns
from tests.gpu import gpu_check
from tests.gpu.simulated import settings


@pytest.mark.parametrize("item", settings.PROFILED)
def test_an_item(item, monkeypatch):
    monkeypatch.setattr(bench_turns, "small", True)
    row = gpu_check.check(item)
    assert row["well"], row


@pytest.fixture
def typed(tmp_path):
    """The commands that first_hour.sh would run on a node of two GPUs, as lists of words."""
    said = tmp_path / "said"
    for name in ("python", "torchrun", "nvidia-smi"):
        stub = tmp_path / name
        note = f'echo {name} "$@" >> {said}' if name != "nvidia-smi" else "echo GPU 0; echo GPU 1"
        stub.write_text(f"#!/bin/bash\n{note}\n")
        stub.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    script = ROOT / "tests/gpu/first_hour.sh"
    ended = subprocess.run(["bash", script], cwd=tmp_path, env=os.environ | {"PATH": path})
    assert ended.returncode == 0
    return [shlex.split(line) for line in said.read_text().splitlines()]


def test_the_first_hour(typed):
    """Every item is one that these tests run, on the simulated device or here; train.py takes what
    it is given on several GPUs."""
    items = [name for words in typed if "--only" in words for name in words[6:]]
    known = [*settings.ITEMS, *(item.__name__ for item in settings.PROFILED)]
    assert sorted(items) == sorted(known)
    recipes = [words[words.index("train.py") + 1 :] for words in typed if "train.py" in words]
    asked = [command_line.read_recipe(words, "")[1] for words in recipes]
    assert [cfg.shard for cfg in asked] == [False, False, True]
    assert len({cfg.out for cfg in asked}) == 3
