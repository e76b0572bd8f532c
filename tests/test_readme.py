"""What the README prints runs as printed: its Python, its options, its recipes."""

import re
import textwrap
from pathlib import Path

import pytest
from conftest import ROOT
from test_own_data import own  # noqa: F401  (a fixture)
from test_train import metrics, weights

from maxrl.advantages import ADVANTAGES
from maxrl.config import Config, dashed
from maxrl.recipes import RECIPES

README = (ROOT / "README.md").read_text()


def block(first: str, last: str) -> str:
    """The indented lines of the README from the one that begins with `first` to the one that begins with `last`."""
    found = re.search(rf"^    {re.escape(first)}.*?^    {re.escape(last)}.*?$", README, re.M | re.S)
    return textwrap.dedent(found.group(0))


def test_python_in_ten_lines(own, warm, monkeypatch):  # noqa: F811
    """Word for word, with a checkpoint called MODEL; the learning rate alone is raised, to see that it learns something."""
    code = block("import torch", "learner.save")
    assert len([line for line in code.splitlines() if line.startswith("    ")]) < 10, "the loop"
    Path("MODEL").symlink_to(warm)
    exec(compile(code.replace("1e-6", "1e-3"), "README.md", "exec"), {})
    assert Path("trained/model.safetensors").read_bytes() != weights("MODEL")


def test_your_own_task(own, warm, shell, monkeypatch):  # noqa: F811
    code = block("# sums.py", "        return float(")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    Path("sums.py").write_text(code)
    monkeypatch.syspath_prepend(".")
    arguments = ["--prompts", 4, "--rollouts", 4, "--steps", 1, "--max-response", 10, "--max-prompt", 0, "--out", "run"]
    said = shell("train.py", "prompts", "--task", "sums:Sums", "--task.largest", 50, "--init", warm, *arguments)
    assert said[0] == 0 and len(metrics("run")) == 1, said[1]


OPTIONS = {f"--{dashed(name)}" for name in Config.__dataclass_fields__}
OTHERS = {"--samples", "--k", "--split", "--workers", "--gradient-norms", "--prompts", "--plot", "--source", "--nnodes",
          "--nproc-per-node", "--help", "--out", "--dry-run", "--gpus", "--task", "--estimator"}  # fmt: skip


def test_every_option_exists():
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README))
    assert named - OPTIONS - OTHERS == set()
    assert {"--minibatches", "--passes", "--clip", "--reward"} <= named


@pytest.mark.parametrize("name", sorted(set(re.findall(r"train\.py ([a-z]\w+)", README)) - {"RECIPE"}))
def test_every_recipe_exists(name):
    assert name in RECIPES


def test_every_estimator_exists():
    named = set(re.findall(r"--estimator ([a-z_]+)", README))
    assert named and named <= set(ADVANTAGES)
