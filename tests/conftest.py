import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "tests"):  # plain `pytest` finds train.py and tiny.py as `python -m pytest` does
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
torch.set_num_threads(1)  # matrices this small are slower on several


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    """Nothing a test writes without saying where lands in the repository."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def mazes(tmp_path_factory):
    """A directory with 96 + 24 + 24 of the 192 mazes of 7x7."""
    from data.maze import prepare
    out = tmp_path_factory.mktemp("data") / "7x7"
    prepare.main(["--size", "7", "--train", "96", "--validation", "24", "--test", "24", "--workers", "1", "--out", str(out)])
    return out
