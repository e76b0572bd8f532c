"""--shard true (fully_shard) is DDP is one process: gradients, rollouts, runs and checkpoints, on
two gloo ranks.
"""

import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch
import worker_shard
from conftest import ROOT
from runs import metrics, same_metrics
from safetensors.torch import load_file
from started import ended, torchrun
from worker_ddp import CASES, Dots

import train
from maxrl import checkpoint
from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.run import setup

EVERY = [
    (setting, case)
    for setting in worker_shard.SETTINGS
    for case in (CASES if setting == "tied" else worker_shard.TWO)
]


@pytest.fixture(scope="module")
def recipe(mazes, warm):
    """A run as one would type it, without --steps and --out."""
    options = (
        "--task.size 7 --prompts 8 --rollouts 8 --lr 1e-4 --max-response 20 --eval-every 2 "
        "--eval-prompts 7 --eval-samples 4 --eval-k 1,4 --save-every 2 --device cpu "
        "--precision float32 --schedule constant --warmup-steps 0"
    )
    data = ("--init", str(warm), "--task.directory", str(mazes))
    return ["maze9_laptop", *data, *options.split()]


@pytest.fixture(scope="module")
def runs(recipe, tmp_path_factory):
    """Where these are: `alone`, two steps of one process; `back`, the same and two more sharded
    ones; `shard`, two sharded ones; `ddp`, four of two ranks; `adapter/ddp` and `adapter/shard`,
    LoRA with two updates a step."""
    out = tmp_path_factory.mktemp("runs")
    train.main([*recipe, "--steps", "2", "--out", str(out / "alone")])
    shutil.copytree(out / "alone", out / "back")
    options = "--steps 1 --lora-rank 3 --minibatches 2 --beta 0.1"
    lora = [*recipe, *options.split()]
    commands = [
        [*recipe, "--steps", "4", "--out", str(out / "ddp")],
        [*recipe, "--steps", "2", "--out", str(out / "shard"), "--shard", "true"],
        [*recipe, "--steps", "4", "--out", str(out / "back"), "--shard", "true", "--resume"],
        [*lora, "--out", str(out / "adapter" / "ddp")],
        [*lora, "--out", str(out / "adapter" / "shard"), "--shard", "true"],
    ]
    worker = ROOT / "tests/ranks/worker_shard.py"
    code, said = ended(torchrun(worker, out / "results", json.dumps(commands)))
    assert code == 0, said
    return out


@pytest.fixture(scope="module")
def ranks(runs):
    return [torch.load(f"{runs}/results.{rank}") for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone():
    return worker_shard.compute(0, 1, False)


@pytest.mark.parametrize("setting, case", EVERY, ids=str)
def test_gradient_equals_ddp_and_one_process(ranks, alone, setting, case):
    """On the same stored rollouts, in float64, whole and after clipping. The ranks cut their rows
    into different numbers of micro-batches, or one of them has nothing to train at all, and yet
    they meet at every layer."""
    expected, stats, norm, clipped = alone[setting][case]
    assert (norm > 0) == (case[0] != "nobody")
    for kind in ("ddp", "shard")[setting != "tied" :]:
        for rank in ranks:
            gradient, statistics, length, short = rank[kind][setting][case]
            far = float((gradient - expected).norm()) / (norm or 1)
            assert far <= 1e-12 and abs(length - norm) <= 1e-12 * norm
            assert float((short - clipped).norm()) <= 1e-12
            assert statistics == pytest.approx(stats, abs=1e-12)
        print(f"{setting:24} {case[0]:16} {kind:6} relative distance {far:.1e}")


def test_rounds_are_the_single_process(ranks, alone):
    """The ranks take different numbers of rounds, and their prompts the same as in one process."""
    expected = alone["rounds"]
    found = [rank["shard"]["rounds"] for rank in ranks]
    assert (
        found[0]["counts"] | found[1]["counts"] == expected["counts"]
        and len(set(expected["counts"].values())) > 1
    )
    for rank in found:
        assert tiny.distance(rank["gradient"], expected["gradient"]) <= 1e-12
        assert rank["stats"] == pytest.approx(expected["stats"], abs=1e-12)


def test_old_log_probs_are_the_single_process(ranks, alone):
    for case in worker_shard.TWO:
        expected = alone["second update"][case, "record"]
        ours = (
            ranks[0]["shard"]["second update"][case, "record"]
            | ranks[1]["shard"]["second update"][case, "record"]
        )
        assert len(ours) == 6 and all(
            torch.equal(ours[i], expected[i]) and expected[i].any() for i in ours
        )


@pytest.mark.parametrize("name", worker_shard.LOW)
def test_rollouts_equal_ddp(ranks, alone, name):
    """The ranks sample to different lengths, on a copy of the weights that is as new as they are.
    Under autocast it is in bfloat16 where autocast would cast, and nowhere else: the log-probs are
    the same bits."""
    found = [rank[kind]["samples"] for kind in ("ddp", "shard") for rank in ranks]
    for step in (1, 2):
        ddp, shard = (a[name, step] | b[name, step] for a, b in (found[:2], found[2:]))
        for i, (texts, log_probs) in shard.items():
            assert texts == ddp[i][0] and log_probs.dtype == ddp[i][1].dtype
            torch.testing.assert_close(
                log_probs, ddp[i][1], atol=1e-12 if name == "float64" else 1e-5 * (step - 1), rtol=0
            )
            if step == 1 or name == "float64":
                assert texts == alone["samples"][name, step][i][0]
        assert found[2][name, step, "difference"] < (1e-12 if name == "float64" else 0.1)
    assert (
        found[0][name, "counts"]
        == found[1][name, "counts"]
        == found[2][name, "counts"]
        == found[3][name, "counts"]
    )
    assert alone["samples"]["float64", 1][0][0] != alone["samples"]["float64", 2][0][0], (
        "the update changed nothing"
    )


def test_a_rank_holds_its_share(ranks):
    """Half of the weights and gradients; the copy for sampling lasts until the next backward."""
    for rank in ranks:
        layout = rank["layout"]
        assert layout["held"] == layout["gradient"] == layout["all"] / 2
        assert layout["groups"] == 2 + 1, "the layers one by one, and the rest"
        assert layout["reduced"], (
            "after every micro-batch: no whole gradient waits for the last one"
        )
        assert layout["kept"] and layout["dropped"]
        low = {name for name, dtype in layout["copied"].items() if dtype == torch.bfloat16}
        assert low == {name for name in layout["copied"] if "proj" in name or "lm_head" in name}
    assert torch.equal(ranks[0]["start"], ranks[1]["start"]) and torch.equal(
        ranks[0]["start"], tiny.model().lm_head.weight
    )


def equal(ours, theirs, *, atol=1e-5):
    """Two checkpoints have the same files and, up to rounding, the same tensors in them."""
    names = [
        {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()}
        for path in (ours, theirs)
    ]
    assert names[0] == names[1]
    for name in (name for name in names[0] if name.endswith(".safetensors")):
        a, b = load_file(ours / name), load_file(theirs / name)
        assert a.keys() == b.keys() and len(a) > 2
        for key in a:
            assert a[key].dtype == b[key].dtype
            torch.testing.assert_close(
                a[key], b[key], atol=atol, rtol=1e-3 if ".exp_avg" in key else 0
            )


def test_a_run_and_going_on_without(runs, recipe):
    """The run is DDP's: metrics, evaluation, weights and Adam state. Its checkpoint is an ordinary
    one, which one process takes up; and the reverse."""
    shard = runs / "shard"
    same_metrics(metrics(shard), metrics(runs / "ddp")[:2])
    assert "eval/pass@1" in metrics(shard)[1] and metrics(shard)[0]["reward"] > 0
    equal(checkpoint.find(shard), runs / "ddp" / "step-000002")
    assert json.loads((shard / "recipe.json").read_text())["config"]["shard"] is True
    train.main([*recipe, "--steps", "4", "--out", str(shard), "--resume"])
    for run in (shard, runs / "back"):
        same_metrics(metrics(run), metrics(runs / "ddp"))
        equal(run / "step-000004", runs / "ddp" / "step-000004")
    moved = load_file(runs / "ddp" / "step-000004" / "model.safetensors")["model.norm.weight"]
    assert (moved - checkpoint.load_model(runs / "alone")[0].model.norm.weight).abs().max() > 1e-4


def test_an_adapter(runs):
    """LoRA with a KL penalty and two updates a step."""
    ddp, shard = runs / "adapter" / "ddp", runs / "adapter" / "shard"
    same_metrics(metrics(shard), metrics(ddp))
    equal(shard / "step-000001", ddp / "step-000001")
    assert (
        "clip_ratio/low_mean" in metrics(shard)[0]
        and (shard / "step-000001" / "adapter_model.safetensors").exists()
    )


def test_refusals(shell):
    code, said = shell("train.py", "tiny", "--shard", "true", "--out", "none")
    assert code == 2 and "start with torchrun" in said
    assert not Path("none").exists()
    with pytest.raises(
        UsageError, match="--shard True means nothing to a classifier: leave it out"
    ):
        setup.check(Config(shard=True, prompts=2), Dots(), 2)
    with pytest.raises(ValueError, match="a process group: start with torchrun"):
        tiny.policy(tiny.model(), shard=True)
