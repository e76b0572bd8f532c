import os
import runpy
import sys
import warnings
from dataclasses import replace

import pytest
import torch

from data.maze import prepare
from maxrl.advantages import ADVANTAGES
from maxrl.learning.config import Config
from maxrl.models import checkpoint
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from maxrl.run import cli
from maxrl.run.recipes import RECIPES
from maxrl.system import user_code
from maxrl.tasks.maze import VOCABULARY
from tests import ROOT
from tests.helpers import tiny
from tests.helpers.chats import tiny_chat  # noqa: F401
from tests.helpers.evaluated import evaluate, judges  # noqa: F401
from tests.helpers.glyph_sets import recipe, set_of_glyphs  # noqa: F401
from tests.helpers.own_files import own  # noqa: F401
from tests.helpers.recorded import recorded  # noqa: F401
from tests.helpers.started import handlers  # noqa: F401

# Of the processes that tests start.
os.environ["PYTHONPATH"] = str(ROOT)
torch.set_num_threads(
    int(os.environ.get("MAXRL_TEST_THREADS", "1"))
)  # matrices this small are slower on several
if (
    "MAXRL_TEST_BFLOAT16" in os.environ
):  # for `make test-machines`: as on a CPU that multiplies in bfloat16, or does not
    torch.cpu._is_amx_tile_supported = lambda: os.environ["MAXRL_TEST_BFLOAT16"] == "1"
    torch.cpu._is_avx512_bf16_supported = bool
cli.end = sys.exit  # a script that a test runs in its own process
LONG = "simulated distributed bench faults ends reward_faults macos trainer_scripts torture"


def pytest_collection_modifyitems(items):
    """The files that take long come first: `make test` has two processes, and neither shall be left
    with one at the end.
    """
    order = {f"test_{name}": place for place, name in enumerate(LONG.split())}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture
def recwarn(recwarn):
    """Without the garbage collector's warnings, which come at any time and from other tests."""
    warnings.simplefilter("ignore", ResourceWarning)
    return recwarn


@pytest.fixture
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    """Nothing a test writes without saying where lands in the repository."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def mazes(tmp_path_factory):
    """A directory with 96 + 24 + 24 of the 192 mazes of 7x7."""
    out = tmp_path_factory.mktemp("data") / "7x7"
    options = "--size 7 --train 96 --validation 24 --test 24 --workers 1"
    prepare.main([*options.split(), "--out", str(out)])
    return out


@pytest.fixture
def shell(capsys, monkeypatch, in_a_directory_of_its_own):
    """Run a script in this process: shell("train.py", "tiny", ...) -> (exit code, output)."""

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        user_code.used = False  # as in a process of its own
        user_code.run_file.cache_clear()
        code = 0
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.fixture(autouse=True)
def known_estimators():
    """Estimators that a test registers, in files of its own, are gone after it."""
    known = dict(ADVANTAGES)
    yield
    ADVANTAGES.clear()
    ADVANTAGES.update(known)


@pytest.fixture(scope="session", autouse=True)
def recipes(mazes):
    """Two more recipes for train.py: `tiny_sft`, seconds of warm-up on 7x7 mazes, and `tiny`, MaxRL
    after it.
    """

    def tiny_sft():
        """A warm-up for tests."""
        return Config(
            task="maze",
            task_options={"size": 7, "directory": str(mazes)},
            model=tiny.SIZES | {"hidden_size": 48, "intermediate_size": 96},
            estimator="supervised",
            prompts=16,
            rollouts=1,
            steps=150,
            lr=4e-3,
            max_response=20,
            betas=(0.9, 0.95),
            precision="float32",
        )

    def rl():
        """Reinforcement for tests."""
        return replace(
            tiny_sft(),
            estimator="maxrl",
            prompts=16,
            rollouts=16,
            steps=60,
            lr=7e-4,
            eval_k=(1, 4),
            eval_samples=4,
        )

    RECIPES.update(tiny_sft=tiny_sft, tiny=rl)
    yield
    del RECIPES["tiny_sft"], RECIPES["tiny"]


@pytest.fixture(scope="session")
def warm(recipes, tmp_path_factory):
    """The run directory of `tiny_sft`: a policy that solves some mazes of 7x7. Which ones differs
    from machine to machine, as all that training makes: a test that asks what is sampled takes
    `dice`."""
    import train

    run = tmp_path_factory.mktemp("runs") / "warm"
    train.main(["tiny_sft", "--out", str(run)])
    return run


@pytest.fixture(scope="session")
def dice(tmp_path_factory):
    """A checkpoint whose logits were set by hand (tiny.dice): a token is UP every other time, the
    last one every fourth. What it does is known without any training: the task Up of tiny.py
    finds half of it right."""
    path = tmp_path_factory.mktemp("dice") / "dice"
    checkpoint.save(
        path,
        Checkpoint(
            tiny.dice(UP=0.5, LEFT=0.25, DONE=0.25), Tokenizer.from_vocabulary(VOCABULARY), [2, 7]
        ),
    )
    return path
