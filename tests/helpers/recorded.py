"""One run that many tests read: with evaluations, samples, checkpoints and TensorBoard."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

import train
from tests.helpers.runs import SHORT

OPTIONS = (
    "--save-every 2 --show-every 1 --eval-every 2 --eval-prompts 4 --schedule cosine "
    "--warmup-steps 2 --estimator maxrl_order --estimator.order 3 --track tensorboard "
    "--out run --resume auto"
)


@pytest.fixture(scope="session")
def recorded(warm, tmp_path_factory):
    """The .path of a run that nothing has disturbed. Its .command makes another one, the same, in
    ./run."""
    pytest.importorskip("tensorboard")
    folder = tmp_path_factory.mktemp("recorded")
    command = ("train.py", *SHORT, *OPTIONS.split(), "--init", warm)
    before = Path.cwd()
    os.chdir(folder)
    try:
        with mock.patch.object(sys, "argv", [train.__file__, *map(str, command[1:])]):
            train.main(sys.argv[1:])
    finally:
        os.chdir(before)
    return SimpleNamespace(command=command, path=folder / "run")
