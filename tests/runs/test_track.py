"""--track: TensorBoard and W&B get what metrics.jsonl holds, also over a resume."""

import importlib.machinery
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from maxrl.run import trackers
from maxrl.run.logger import Logger
from tests.helpers.runs import SHORT, killed, metrics, passed, refused
from tests.helpers.started import started


def events(run):
    """{(name, step): value} as the reader of TensorBoard sees a run."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    everything = {"scalars": 0, "tensors": 0}
    found = reader.EventAccumulator(str(run / "tensorboard"), size_guidance=everything)
    found.Reload()
    names = found.Tags()["scalars"]
    return {(name, event.step): event.value for name in names for event in found.Scalars(name)}


def expected(run):
    """The same from metrics.jsonl, in float32."""
    result = {}
    for row in metrics(run):
        step = row.pop("step")
        for name, value in trackers.prefixed(row).items():
            result[name, step] = float(np.float32(value))
    return result


def test_a_resumed_run_of_tensorboard(recorded, shell):
    """Killed in the fourth step, it repeats the third, which is there once."""
    with killed(at=4):
        shell(*recorded.command)
    run = Path("run")
    assert events(run) == expected(run)
    assert len(metrics(run)) == 3
    # TensorBoard reads files in the order of their names, which have the second, then the process.
    time.sleep(1)
    passed(shell(*recorded.command))
    assert events(run) == expected(run)
    assert len(metrics(run)) == 5


@pytest.fixture
def wandb(monkeypatch):
    """A module in the place of W&B, which records the calls of init, log and finish."""
    module = types.ModuleType("wandb")
    module.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    module.calls = []

    def log(values, step, commit):
        module.calls.append(("log", step, dict(values)))

    def init(**given):
        module.calls.append(("init", given))
        return types.SimpleNamespace(log=log, finish=lambda: module.calls.append(("finish",)))

    module.init = init
    module.login = lambda prompt: False
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("API_KEY", "MODE", "PROJECT", "NAME"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    return module


def test_a_tracker_that_fails_does_not_end_the_run(warm, shell, wandb):
    """Its service may have gone, also where the tracker is closed."""

    def gone(values, step, commit):
        raise BrokenPipeError("the service has gone")

    def gone_too():
        gone(None, None, None)

    wandb.init = lambda **given: types.SimpleNamespace(log=gone, finish=gone_too)
    run = ("train.py", *SHORT, "--init", warm, "--out", "rl", "--track", "wandb")
    said = passed(shell(*run))
    assert said.count("WandB is left out: it raised BrokenPipeError: the service has gone") == 2
    assert len(metrics("rl")) > 1


def test_a_resumed_run_of_wandb_has_one_id(warm, shell, wandb):
    run = ("train.py", *SHORT, "--init", warm, "--save-every", 2, "--out", "rl", "--resume", "auto")
    with killed(at=4):
        shell(*run, "--track", "wandb")
    lines = metrics("rl")
    passed(shell(*run, "--track", "wandb"))
    lines += metrics("rl")[2:]
    inits = [call[1] for call in wandb.calls if call[0] == "init"]
    assert len(inits) == 2
    expected = {"id": Path("rl/wandb_id").read_text().strip(), "dir": str(Path("rl").absolute())}
    expected |= {"resume": "allow", "mode": "offline", "name": "rl", "project": "maxrl"}
    for given in inits:
        assert expected.items() <= given.items()
        assert given["config"]["recipe"] == "tiny"
    assert wandb.calls[-1] == ("finish",)
    logged = [call[1:] for call in wandb.calls if call[0] == "log"]
    assert logged == [(row.pop("step"), trackers.prefixed(row)) for row in lines]
    assert [step for step, _ in logged] == [0, 1, 2, 2, 3, 4]


def test_names_of_a_tracker_are_those_of_trl():
    """So that the curves of both lie in one diagram."""
    assert trackers.prefixed({"reward": 1, "lr": 2, "eval/reward": 4}) == {
        "train/reward": 1,
        "train/learning_rate": 2,
        "eval/reward": 4,
    }


@pytest.mark.parametrize(
    "given, login, mode",
    [
        ({}, False, "offline"),
        ({}, True, None),
        ({"API_KEY": "x"}, False, None),
        ({"MODE": "online"}, False, None),
    ],
)
def test_wandb_is_offline_without_a_key(tmp_path, monkeypatch, wandb, given, login, mode):
    """None leaves the mode to W&B. Nobody is asked for a key."""
    for name, value in given.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    wandb.login = lambda prompt: login and not prompt
    trackers.WandB(tmp_path, {"name": "mine"}, 0)
    ((_, found),) = wandb.calls
    assert found["mode"] == mode
    assert found["name"] == "mine"


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_before_any_work(shell, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError
    run = ("train.py", *SHORT, "--out", "rl", "--track", name)
    refused(shell(*run), f"--track {name}", 'pip install -e ".[track]"')
    assert not Path("rl").exists()


def test_only_the_main_rank_tracks(tmp_path, wandb):
    other = Logger(started(tmp_path, main=False, track=("wandb",)), 0)
    other.log(0, {"reward": 1.0})
    other.close()
    assert not wandb.calls
    assert not list(tmp_path.iterdir())


def test_a_bar_in_a_terminal_alone(shell, dice, monkeypatch):
    """The lines above it are those of a file."""
    lines = {}
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
        out = f"run{terminal}"
        task = ("--task", "tests.helpers.tiny:Up", "--init", dice)
        run = ("train.py", *SHORT, *task, "--out", out)
        said = passed(shell(*run))
        assert ("\r" in said) == terminal
        assert ("step 1/5 training" in said) == terminal
        # What a bar has drawn is wiped out before the next line.
        shown = [line.rpartition("\r")[2].split() for line in said.split("\n")]
        lines[terminal] = [words[:1] for words in shown]
    assert lines[True] == lines[False]


def test_a_sampler_that_is_off_is_named_with_its_remedy(tmp_path, capsys):
    Logger(started(tmp_path), 0).log(0, {"sampling/logprob_abs_diff/mean": 0.03})
    assert "--precision float32" in capsys.readouterr().err
