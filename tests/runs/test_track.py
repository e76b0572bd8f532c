"""--track: what TensorBoard and W&B get is what metrics.jsonl holds, also over a resume, and no step twice."""

import json
import os
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import tiny
from runs import SHORT, die, metrics, refused
from started import started

from maxrl import config
from maxrl.config import FREE_ON_RESUME
from maxrl.policy import SequencePolicy
from maxrl.run import trackers
from maxrl.run.command_line import with_overrides
from maxrl.run.logger import Logger


def scalars(run):
    """{name: [(step, value), ...]} as TensorBoard's own reader sees a run."""
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    found = event_accumulator.EventAccumulator(
        str(Path(run) / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}
    )
    found.Reload()
    return found, {
        name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]
    }


def expected(run):
    """The same from metrics.jsonl, in float32."""
    result = {}
    for row in metrics(run):
        step = row.pop("step")
        for name, value in row.items():
            result.setdefault(name, []).append((step, float(np.float32(value))))
    return result


def test_tensorboard_holds_metrics_jsonl(warm, shell, monkeypatch):
    """Killed in the fourth step, after the checkpoint of the second: the third is done again, and is there once."""
    pytest.importorskip("tensorboard")
    run = (*SHORT, "--init", warm, "--save-every", 2, "--out", "rl", "--track", "tensorboard", "--eval-every", 2,
           "--eval-prompts", 4)  # fmt: skip
    with monkeypatch.context() as patch, pytest.raises(tiny.Killed):
        patch.setattr(SequencePolicy, "backward", die(4))
        shell("train.py", *run)
    assert scalars("rl")[1] == expected("rl") and [
        step for step, _ in scalars("rl")[1]["reward"]
    ] == [0, 1, 2]
    code, said = shell("train.py", *run, "--resume", "auto")
    assert code == 0, said
    found, ours = scalars("rl")
    assert ours == expected("rl") and {"eval/pass@1", "memory/peak_gb"} < set(ours)
    assert [step for step, _ in ours["reward"]] == [0, 1, 2, 3, 4]
    text = found.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0].decode()
    assert json.loads(text)["config"] == json.loads(Path("rl/recipe.json").read_text())[
        "config"
    ] | {"resume": "no"}


def test_a_killed_run_leaves_no_gap(tmp_path):
    """Every step is on disk when it is logged, as in metrics.jsonl: the steps before a checkpoint come never again."""
    pytest.importorskip("tensorboard")
    (tmp_path / "recipe.json").write_text("{}")
    child = os.fork()
    if not child:
        try:
            killed = Logger(started(tmp_path, steps=9, track=("tensorboard",)), 0)
            for step in range(3):
                killed.log(step, {"reward": step / 4})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert scalars(tmp_path)[1] == expected(tmp_path) == {"reward": [(0, 0.0), (1, 0.25), (2, 0.5)]}


def test_a_clock_that_was_put_back(tmp_path, monkeypatch):
    """Event files are read by the time in their names: the later one must not be taken for the earlier."""
    pytest.importorskip("tensorboard")
    (tmp_path / "recipe.json").write_text("{}")
    now, rows = time.time(), []
    for hours, first in ((0, 0), (-1, 2), (-1, 4), (-2, 5)):
        monkeypatch.setattr(time, "time", lambda hours=hours: now + 3600 * hours)
        life = trackers.TensorBoard(tmp_path, {}, first)
        rows = rows[:first]
        for step in range(first, first + 3):
            life.log(step, {"reward": step + first / 8})
            rows.append((step, step + first / 8))
        life.close()
    assert scalars(tmp_path)[1] == {"reward": rows}


@pytest.fixture
def wandb(monkeypatch):
    """A module in W&B's place that records what is called: calls = [("init", {...}), ("log", step, metrics), ...]."""
    calls = []
    run = types.SimpleNamespace(log=lambda metrics, step, commit: calls.append(("log", step, dict(metrics))),
                                finish=lambda: calls.append(("finish",)))  # fmt: skip
    module = types.ModuleType("wandb")
    module.init = lambda **given: calls.append(("init", given)) or run
    module.login = lambda prompt: False
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("API_KEY", "MODE", "PROJECT", "NAME"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    module.calls = calls
    return module


def test_wandb_goes_on_under_one_id(warm, shell, monkeypatch, wandb):
    run = (*SHORT, "--init", warm, "--save-every", 2, "--out", "rl", "--resume", "auto")
    with monkeypatch.context() as patch, pytest.raises(tiny.Killed):
        patch.setattr(SequencePolicy, "backward", die(4))
        shell("train.py", *run, "--track", "wandb,wandb")
    first = list(wandb.calls)
    lines = metrics("rl")
    code, said = shell("train.py", *run, "--track", "wandb")
    assert code == 0, said
    second = wandb.calls[len(first) :]
    for calls, steps, rows in ((first, [0, 1, 2], lines), (second, [2, 3, 4], metrics("rl")[2:])):
        given = calls[0][1]
        assert given["id"] == Path("rl/wandb_id").read_text().strip() and len(given["id"]) == 8
        assert (given["resume"], given["mode"], given["name"], given["project"]) == (
            "allow",
            "offline",
            "rl",
            "maxrl",
        )
        assert given["dir"] == "rl" and given["config"]["recipe"] == "tiny"
        logged = [call for call in calls if call[0] == "log"]
        assert [call[1] for call in logged] == steps
        assert [{"step": step} | values for _, step, values in logged] == rows
    assert first[-1][0] == "log" and second[-1] == ("finish",)
    assert [call[0] for call in wandb.calls].count("init") == 2


@pytest.mark.parametrize(
    "given, mode", [({}, "offline"), ({"API_KEY": "x"}, None), ({"MODE": "online"}, None)]
)
def test_wandb_is_offline_unless_told(tmp_path, monkeypatch, wandb, given, mode):
    """None leaves it to W&B, which reads its own variables."""
    for name, value in given.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    trackers.WandB(tmp_path, {}, 0)
    assert wandb.calls[0][1]["mode"] == mode and wandb.calls[0][1]["project"] == "mine"


@pytest.mark.parametrize("key, mode", [(True, None), (False, "offline")])
def test_wandb_login_is_enough(tmp_path, wandb, key, mode):
    """W&B says whether it has a key, wherever `wandb login` has put it, and asks nobody for one."""
    wandb.login = lambda prompt: key and not prompt
    trackers.WandB(tmp_path, {}, 0)
    assert wandb.calls[0][1]["mode"] == mode


def test_a_wandb_that_does_not_start_is_one_sentence(tmp_path, monkeypatch, wandb):
    def init(**given):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(
        config.UsageError, match=r"--track wandb: .*\(no route to host\); WANDB_MODE=offline"
    ):
        trackers.WandB(tmp_path, {}, 0)


@pytest.mark.parametrize(
    "name, module", [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")]
)
def test_a_missing_package_is_named_before_any_work(shell, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)  # importing it raises ImportError
    refused(
        shell("train.py", *SHORT, "--out", "rl", "--track", name),
        f"--track {name}",
        'pip install -e ".[track]"',
    )
    assert not Path("rl").exists()


def test_a_folder_called_wandb_is_not_the_package(shell, monkeypatch):
    """W&B makes one where it is started, and `import wandb` would take it for a package without anything in it."""
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    refused(
        shell("train.py", *SHORT, "--out", "rl", "--track", "wandb"), 'pip install -e ".[track]"'
    )


def test_names():
    assert set(config.TRACKERS) == set(trackers.TRACKERS) and "track" in FREE_ON_RESUME
    with pytest.raises(
        config.UsageError, match="--track 'tensorbord' is not one of tensorboard, wandb"
    ):
        with_overrides(config.Config(), ["--track", "wandb,tensorbord"])
    assert with_overrides(config.Config(), ["--track", "tensorboard,wandb"]).track == (
        "tensorboard",
        "wandb",
    )


def test_only_the_main_rank_tracks(tmp_path, wandb):
    other = Logger(started(tmp_path, main=False, track=("wandb",)), 0)
    other.log(0, {"reward": 1.0})
    other.close()
    assert not wandb.calls and not list(tmp_path.iterdir())
