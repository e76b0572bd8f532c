"""Two ranks are one process, with DDP and with --shard true (fully_shard): gradients, rollouts,
metrics, runs and checkpoints (gloo).
"""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import train
from maxrl.models import checkpoint
from maxrl.run.evaluation import judge_samples
from maxrl.system.files import read_json
from tests import ROOT
from tests.helpers import tiny
from tests.helpers.runs import metrics, same_metrics
from tests.helpers.started import ended, two_ranks
from tests.helpers.tables import rows
from tests.ranks import worker
from tests.ranks.worker import CASES, SETTINGS, TWO

EVERY = [("ddp", "tied", case) for case in CASES]
EVERY += [("shard", name, case) for name in SETTINGS for case in (CASES if name == "tied" else TWO)]


@pytest.fixture(scope="module")
def recipe(mazes, warm):
    """A run as one would type it, without --steps and --out."""
    options = (
        "--task.size 7 --prompts 8 --rollouts 8 --lr 1e-4 --max-response 20 --eval-every 2 "
        "--eval-prompts 7 --eval-samples 4 --eval-k 1,4 --save-every 2 --device cpu "
        "--precision float32 --schedule constant --warmup-steps 0 --show-every 2"
    )
    data = ("--init", str(warm), "--task.directory", str(mazes))
    return ["maze9_laptop", *data, *options.split()]


@pytest.fixture(scope="module")
def runs(recipe, tmp_path_factory):
    """Where these are: `alone`, two steps of one process; `ddp`, four of two ranks, with what it
    said; `shard`, two sharded ones; `back`, those of one process and two more sharded ones;
    `adapter/ddp` and `adapter/shard`, LoRA with two updates a step; results of the ranks."""
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
    ranks = two_ranks(ROOT / "tests/ranks/worker.py", out / "results", json.dumps(commands))
    for code, said in map(ended, ranks):
        assert code == 0, said
        assert "returned a view" not in said
        with open(out / "ddp.txt", "a") as file:
            file.write(said.partition(str(out / "shard"))[0])
    return out


@pytest.fixture(scope="module")
def ranks(runs):
    return [torch.load(f"{runs}/results.{rank}") for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone():
    """One process, in which no wrapper is needed."""
    return worker.unwrapped(0, 1) | worker.wrapped("ddp", 0, 1, SETTINGS)


def near(found, expected):
    """A gradient and its statistics, in float64."""
    assert float((found[0] - expected[0]).norm()) <= 1e-12 * float(expected[0].norm())
    assert found[1] == pytest.approx(expected[1], abs=1e-12)


@pytest.mark.parametrize("kind, setting, case", EVERY, ids=str)
def test_gradient_equals_the_single_process(ranks, alone, kind, setting, case):
    """On the same stored rollouts, in float64, on both ranks, whole and after clipping.

    DDP averages over ranks, the loss is one sum. Also when one rank has only groups without
    advantages, and must still take part in every synchronised backward; and when the ranks cut
    their rows into different numbers of micro-batches, and yet meet at every layer.
    """
    *expected, norm, clipped = alone[setting][case]
    assert (norm > 0) == (case[0] != "nobody")
    for rank in ranks:
        *found, length, short = rank[kind][setting][case]
        near(found, expected)
        assert length == pytest.approx(norm, rel=1e-12)
        assert float((short - clipped).norm()) <= 1e-12


def test_old_log_probs_are_the_single_process(ranks, alone):
    for case in TWO:
        expected = alone["second update"][case, "record"]
        one, two = (rank["shard"]["second update"][case, "record"] for rank in ranks)
        ours = one | two
        assert len(ours) == 6
        for i, log_probs in ours.items():
            assert log_probs.any()
            assert torch.equal(log_probs, expected[i])


@pytest.mark.parametrize("kind", ["ddp", "shard"])
def test_rounds_are_the_single_process(ranks, alone, kind):
    """The ranks take different numbers of rounds, and their prompts the same as in one process."""
    expected = alone["rounds"]
    one, two = (rank[kind]["rounds"] for rank in ranks)
    assert one["counts"] | two["counts"] == expected["counts"]
    assert len(set(expected["counts"].values())) > 1
    for found in (one, two):
        near((found["gradient"], found["stats"]), (expected["gradient"], expected["stats"]))


@pytest.mark.parametrize("kind", ["ddp", "shard"])
def test_muon_is_the_single_process(ranks, alone, kind):
    """Also where one rank has no advantage. Without any, the matrices of the layers stay, on all
    ranks, and the KL penalty moves the rest."""
    expected, moved = alone["muon"]
    assert moved
    assert not any(name.endswith("_proj.weight") for name in moved)
    for rank in ranks:
        found, also = rank[kind]["muon"]
        assert tiny.distance(found, expected) <= 1e-12
        assert also == moved


@pytest.mark.parametrize("name", worker.PRECISIONS)
def test_rollouts_and_counts(ranks, alone, name):
    """The ranks sample to different lengths, sharded ones on a copy of the weights that is as new
    as they are. Under autocast it is in bfloat16 where autocast would cast, and nowhere else: the
    log-probs are the same bits."""
    found = {kind: [rank[kind]["samples"] for rank in ranks] for kind in ("ddp", "shard")}
    expected = alone["samples"]
    for step in (1, 2):
        one, two = found["ddp"][0][name, step], found["ddp"][1][name, step]
        assert not set(one) & set(two)
        ddp = one | two
        shard = found["shard"][0][name, step] | found["shard"][1][name, step]
        assert ddp.keys() == expected[name, step].keys()
        for i, (texts, log_probs) in shard.items():
            assert texts == ddp[i][0]
            assert log_probs.dtype == ddp[i][1].dtype
            far = 1e-12 if name == "float64" else 1e-5 * (step - 1)
            torch.testing.assert_close(log_probs, ddp[i][1], atol=far, rtol=0)
            if step == 1 or name == "float64":
                assert texts == expected[name, step][i][0]
        difference = found["shard"][0][name, step, "difference"]
        assert difference < (1e-12 if name == "float64" else 0.1)
    for samples in (*found["ddp"], *found["shard"]):
        assert samples[name, "counts"] == found["ddp"][0][name, "counts"]
        if name == "float64":
            assert samples[name, "counts"] == expected[name, "counts"]
    assert 0 < sum(found["ddp"][0][name, "counts"][1]) < 30
    first, second = (expected["float64", step][0][0] for step in (1, 2))
    assert first != second, "the update changed nothing"


def test_metrics_equal_the_single_process(ranks, alone):
    """Every one that is a function of the rollouts, and none of them trivial; of memory both ranks
    log the larger one.
    """
    expected = alone["metrics"]
    trivial = {name for name, value in expected.items() if value == 0}
    every = "kl clip_ratio/low_mean clip_ratio/high_mean entropy completions/clipped_ratio tokens "
    every += "reward_std rewards/even/std rewards/second_letter/mean"
    assert set(every.split()) <= set(expected) - trivial
    for rank in ranks:
        assert rank["metrics"] == pytest.approx(expected, abs=1e-12)
    (one, logged), (two, too) = (rank["memory"] for rank in ranks)
    assert logged == too == pytest.approx(max(one, two), rel=0.05)
    assert logged > 0.05


def test_ranks_share_a_majority_vote(ranks, alone):
    """Both know all values; they are those of one process. Without answers there is no vote."""
    assert ranks[0]["votes"] == ranks[1]["votes"] == alone["votes"]
    rewards, majority, distinct = alone["votes"]
    assert len(set(majority)) > 1
    assert [min(1, sum(row)) for row in rewards] == [min(1, count) for count in distinct]
    assert 0 < sum(map(sum, rewards)) < 28
    assert set(judge_samples(tiny.policy(), tiny.Parity(), range(2), 4)[1]) == {"clipped"}


def test_gradients_stay_in_the_buckets_of_ddp(ranks, alone):
    """They are held once: before every micro-batch, from the first on, they lie where the last
    backward leaves them.
    """
    expected = alone["three steps"]["weights"]
    for found in (rank["three steps"] for rank in ranks):
        first, *others = found["places"]
        assert all(first)
        assert len(others) >= 5
        assert others == [first] * len(others)
        assert len(found["buckets"]) < 4 < len(first)
        assert sum(found["buckets"].values()) == found["size"]
        assert tiny.distance(found["weights"], expected) <= 1e-12
    start = torch.cat([p.detach().flatten() for p in tiny.model().parameters()])
    assert float((expected - start).norm()) > 1e-3


def test_a_rank_holds_its_share(ranks):
    """Half of the weights and gradients; the copy for sampling lasts until the next backward."""
    for layout in (rank["layout"] for rank in ranks):
        assert layout["held"] == layout["gradient"] == layout["all"] / 2
        assert layout["groups"] == 2 + 1, "the layers one by one, and the rest"
        assert layout["reduced"], "after every micro-batch: no whole gradient waits for the last"
        assert layout["kept"]
        assert layout["dropped"]
        low = {name for name, dtype in layout["copied"].items() if dtype == torch.bfloat16}
        assert low == {name for name in layout["copied"] if "proj" in name or "lm_head" in name}
        assert torch.equal(layout["start"], tiny.model().lm_head.weight)


@pytest.mark.parametrize("name", ["plain", "residual, eval mode"])
def test_a_classifier_on_two_ranks_is_the_single_process(ranks, alone, name):
    """Four images on rank 0 and three on rank 1: an average of the ranks' own means would be
    another gradient.
    """
    for estimator in ("supervised", "maxrl", "nobody right"):
        share = float((alone[name, estimator][0] != 0).float().mean())
        assert share == 0 if estimator == "nobody right" else share > 0.5
        for rank in ranks:
            near(rank[name, estimator], alone[name, estimator])
    assert ranks[0][name, "draws"] | ranks[1][name, "draws"] == alone[name, "draws"]
    assert len(alone[name, "pass rates"][0]) == 5
    expected = [pytest.approx(values, abs=1e-12) for values in alone[name, "pass rates"]]
    for rank in ranks:
        assert rank[name, "pass rates"] == expected


def test_ranks_evaluate_with_the_averages_of_rank_0(ranks):
    """Batch-norm's running averages are per rank while training; the checkpoint has rank 0's, and
    so has the evaluation.
    """
    own, other = (rank["by this rank alone"] for rank in ranks)
    assert own != other
    for rank in ranks:
        assert rank["pass rates after training"] == pytest.approx(own, abs=1e-12)


def equal(ours, theirs, *, atol=1e-5):
    """Two checkpoints have the same files and, up to rounding, the same tensors in them."""
    names = sorted(file.name for file in ours.iterdir())
    assert names == sorted(file.name for file in theirs.iterdir())
    for name in [name for name in names if name.endswith(".safetensors")]:
        a = load_file(ours / name)
        b = load_file(theirs / name)
        assert a.keys() == b.keys()
        assert len(a) > 2
        for key in a:
            rtol = 1e-3 if ".exp_avg" in key else 0
            torch.testing.assert_close(a[key], b[key], atol=atol, rtol=rtol)


def test_a_run_and_going_on_without(runs, recipe):
    """Metrics, evaluation, weights and Adam state are those of one process, of DDP and of shards.
    The checkpoint of shards is an ordinary one, which one process takes up; and the reverse."""
    shard, ddp = runs / "shard", runs / "ddp"
    same_metrics(metrics(ddp)[:2], metrics(runs / "alone"))
    same_metrics(metrics(shard), metrics(ddp)[:2])
    assert "eval/pass@1" in metrics(shard)[1]
    assert metrics(shard)[0]["reward"] > 0
    equal(ddp / "step-000002", checkpoint.find(runs / "alone"))
    equal(checkpoint.find(shard), ddp / "step-000002")
    assert read_json(shard / "recipe.json")["config"]["shard"] is True
    train.main([*recipe, "--steps", "4", "--out", str(shard), "--resume"])
    for run in (shard, runs / "back"):
        same_metrics(metrics(run), metrics(ddp))
        equal(run / "step-000004", ddp / "step-000004")
    moved = load_file(ddp / "step-000004" / "model.safetensors")["model.norm.weight"]
    assert (moved - checkpoint.load(runs / "alone").model.model.norm.weight).abs().max() > 1e-4


def test_the_main_rank_alone_writes_and_speaks(runs):
    said = (runs / "ddp.txt").read_text()
    assert said.count("step 4/4 ") == 1
    assert "on 2 ranks" in said
    one, two = (rows(runs / run / "samples.jsonl")[0] for run in ("alone", "ddp"))
    # The first rank's prompts are shown.
    assert one["rollouts"] == two["rollouts"]
    assert one["step"] == two["step"]
    record = read_json(runs / "ddp/recipe.json")
    assert record["ranks"] == 2
    assert record["command"].startswith("torchrun --nproc-per-node 2 ")


def test_an_adapter(runs):
    """LoRA with a KL penalty and two updates a step."""
    ddp, shard = runs / "adapter" / "ddp", runs / "adapter" / "shard"
    same_metrics(metrics(shard), metrics(ddp))
    assert "clip_ratio/low_mean" in metrics(shard)[0]
    equal(shard / "step-000001", ddp / "step-000001")
    assert (shard / "step-000001" / "adapter_model.safetensors").exists()


def test_sharding_needs_a_process_group():
    """That a classifier has none is in runs/test_refusals.py."""
    with pytest.raises(ValueError, match="a process group: start with torchrun"):
        tiny.policy(shard=True)
