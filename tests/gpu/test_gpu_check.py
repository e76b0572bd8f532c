"""The items of gpu_check.py that test_pretended.py leaves out, on a CPU at a tiny size."""

import pytest

from tests.bench import bench_turns
from tests.gpu import gpu_check
from tests.gpu.pretended import settings


@pytest.mark.parametrize("item", settings.PROFILED)
def test_an_item(item, monkeypatch):
    monkeypatch.setattr(bench_turns, "small", True)
    row = gpu_check.check(item)
    assert row["well"], row
