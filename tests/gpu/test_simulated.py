"""Runs on a simulated CUDA device equal those on the CPU: settings.py in a process of its own."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from maxrl.models import checkpoint
from tests.gpu.simulated import cuda, settings, waits
from tests.gpu.simulated.low_precision import FAMILIES, PROMPTS
from tests.helpers.runs import refused, timeless
from tests.helpers.started import ended, start, torchrun

SAMPLING = "`generate()`"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The runs of all settings, and seen.json."""
    if reason := cuda.missing():
        pytest.skip(reason)
    out = tmp_path_factory.mktemp("simulated")
    code, said = ended(start("-m", "tests.gpu.simulated.settings", cwd=out, env={"MAX_JOBS": "1"}))
    assert code == 0, said
    return out


@pytest.fixture(scope="module")
def ranks(folder):
    """What two ranks have seen on the simulated NCCL."""
    code, said = ended(torchrun("-m", "tests.gpu.simulated.settings", cwd=folder))
    assert code == 0, said
    return [json.loads((folder / f"seen{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def seen(folder):
    """What settings.py has seen in each setting."""
    return json.loads((folder / "seen.json").read_text())


def same(ours, theirs, rel=1e-6):
    """Two runs learned the same, to rounding in float64 or, after a resume, in float32."""
    assert len(timeless(ours)) == len(timeless(theirs)) == 3
    for a, b in zip(timeless(ours), timeless(theirs)):
        assert a["grad_norm"] > 0
        assert a == pytest.approx(b, rel=rel, abs=rel)
    files = [sorted(checkpoint.find(run).glob("*model.safetensors")) for run in (ours, theirs)]
    for a, b in zip(*files, strict=True):
        weights, expected = load_file(a), load_file(b)
        assert weights.keys() == expected.keys()
        for name, tensor in weights.items():
            assert tensor.allclose(expected[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("name", [*settings.TRAIN, "images", "trainer"])
def test_a_run_equals_that_of_the_cpu(folder, seen, name):
    """And its steps of sampling are replayed, unless it is said otherwise."""
    for device in ("cpu", "cuda"):
        assert not seen[f"{name}/{device}"]["error"]
    same(folder / name / "cuda", folder / name / "cpu")
    graphs = seen[f"{name}/cuda"]["graphs"]
    if name in ("supervised", "no-graphs", "images"):
        assert not graphs
    else:
        assert graphs["replays"] > graphs["captures"] > 0
        # Every gradient gets their memory back. An evaluation shares that of a step; a trainer's
        # may come after the last.
        assert 3 <= graphs["pools"] <= 4
        # The first call of a shape has taken what a capture needs.
        assert not graphs["grown"]


@pytest.mark.parametrize("name, other", settings.EQUAL.items())
def test_a_run_equals_another(folder, seen, name, other):
    assert not seen[f"{name}/cuda"]["error"]
    same(folder / name / "cuda", folder / other / "cpu")


def test_memory_that_runs_out(seen):
    """Fewer rows are sampled at once, unless memory of a gradient is in the way: that is given
    back. A gradient that does not fit ends the run.
    """
    for name in ("halved", "cached"):
        code, said = seen[f"{name}/cuda"]["result"]
        assert code == 0
        assert ("out of memory" in said) == (name == "halved")
    assert seen["full/cuda"]["graphs"]["replays"] > 0
    refused(seen["full/cuda"]["result"], "memory")


@pytest.mark.parametrize("name", ["long", "leaking"])
def test_thirty_steps_reserve_what_ten_do(folder, seen, name):
    """Where the memory of graphs is given back."""
    assert not seen[f"{name}/cuda"]["error"]
    lines = (folder / name / "cuda/metrics.jsonl").read_text().splitlines()
    reserved = [json.loads(line)["memory/reserved_gb"] for line in lines]
    assert len(reserved) == 30
    assert (max(reserved[20:]) < 1.01 * max(reserved[:10])) == (name == "long")


@pytest.mark.parametrize("name", settings.ONE_WAY)
def test_streams_that_do_not_wait(seen, name):
    """What one has written is not there yet for the other."""
    assert "without a wait" in seen[name]["error"]


def test_a_trainer_evaluates_and_saves_its_model(folder, seen):
    ours, theirs = (seen[f"trainer/{device}"]["result"] for device in ("cuda", "cpu"))
    assert ours == pytest.approx(theirs)
    saved = load_file(folder / "trainer/cuda/saved/model.safetensors")
    trained = load_file(checkpoint.find(folder / "trainer/cuda") / "model.safetensors")
    torch.testing.assert_close(saved, trained, rtol=0, atol=0)


def test_demonstrations_in_bfloat16(folder, seen):
    """The first loss and its gradient are those in float32 to a few roundings, and not less."""
    assert not seen["low/cuda"]["error"]
    ours, theirs = (timeless(folder / "low" / device)[0] for device in ("cuda", "cpu"))
    for name in ("loss", "grad_norm"):
        apart = abs(ours[name] / theirs[name] - 1)
        assert 1e-6 < apart < 8 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("name", ["recomputed/cuda", "broken off"])
def test_what_once_failed(seen, name):
    """In bfloat16 the trial of a kernel may not be among what a layer of ragged prompts saves. The
    streams wait for each other also after an error in the first call of a shape."""
    assert not seen[name]["error"]


@pytest.mark.parametrize("name", settings.ITEMS)
def test_an_item_of_gpu_check(seen, name):
    assert not seen[name]["error"]
    assert seen[name]["result"]["well"], seen[name]["result"]


@pytest.mark.parametrize("script", ["eval", "sample"])
def test_a_script_prints_the_same(seen, script):
    assert not seen[script]["error"]
    said = seen[script]["result"]
    assert said["cuda"] == said["cpu"] != ""
    assert seen[script]["graphs"]["replays"] > 0


def test_a_run_on_the_cpu_leaves_the_device_alone(seen):
    for name in settings.TRAIN:
        row = seen[f"{name}/cpu"]
        assert not row["waits"] and not row["graphs"]


@pytest.mark.parametrize("name", settings.WRONG)
def test_a_step_that_only_a_cpu_takes(folder, seen, name):
    """It is right there. On the device it raises, or a replay repeats what was captured."""
    assert not seen[f"{name}/cpu"]["error"]
    same(folder / name / "cpu", folder / "graphs" / "cpu")
    if name == "counting":
        assert not seen["counting/cuda"]["error"]
        with pytest.raises(AssertionError):
            same(folder / name / "cuda", folder / name / "cpu")
    else:
        assert f", in {name}\n" in seen[f"{name}/cuda"]["error"]


def test_a_process_has_one_side_stream(seen):
    """Where no model is sharded, which takes streams of its own."""
    assert sum(row["streams"] for name, row in seen.items() if name != "sharded") == 1


def test_a_forward_does_not_wait(seen):
    """Nor does the backward, but for the sums that a step reads."""
    models = [
        wait
        for name in settings.TRAIN
        for wait in seen[f"{name}/cuda"]["waits"]
        if "maxrl/models/" in wait and not wait.startswith("pageable")
    ]
    assert not models


@pytest.mark.parametrize("name", [*settings.TRAIN, "images"])
def test_waits_of_a_step(seen, name):
    """None for a token, one at the end of generate(), one an update and one for the report; nothing
    else in a run. A classifier's step, a single forward, has more.
    """
    found = seen[f"{name}/cuda"]["by_part"]
    places = {place for place in waits.rows(found, waits.WAITS) if place[0] in ("token", SAMPLING)}
    assert places <= {(SAMPLING, "cuda.py, on_host")}
    # With several updates the log-probabilities before the first are compared.
    allowed = found["calls"]["update"] / 3 + 1 + (name == "updates") + 9 * (name == "images")
    assert 0 < waits.in_a_step(found, 3) <= allowed


def test_the_page_has_the_waits_and_what_ranks_send(folder, seen, ranks):
    """If it does not, this is the table that belongs there."""
    sent = {"DDP": ranks[0]["ddp"]["by_part"], "`--shard true`": ranks[0]["shard"]["by_part"]}
    (file,) = checkpoint.find(folder / "ddp").glob("model.safetensors")
    weights = 8 * sum(tensor.numel() for tensor in load_file(file).values())
    table = waits.table(seen["beta/cuda"]["by_part"], sent, weights)
    assert table in Path("tests/README.md").read_text(), table


def test_an_evaluation_holds_one_model_and_no_gradients(seen):
    """Also as a rank of a group, which a task of its own GPU is: its LOCAL_RANK is no device."""
    assert not seen["rank"]["error"]
    assert seen["rank"]["result"] == seen["eval"]["result"]["cpu"]
    for name in ("eval", "rank"):
        assert 1 <= max(seen[name]["peaks"]) < 1.3


def test_memory_is_pinned_for_a_gpu_alone(seen):
    assert not seen["images/cpu"]["pinned"]
    assert seen["images/cuda"]["pinned"]


@pytest.mark.parametrize("name, rel", [("ddp", 1e-6), ("shard", 1e-6), ("resumed", 1e-4)])
def test_two_ranks_equal_one_process(folder, ranks, name, rel):
    """The same collectives of both, none of them with a tensor of the host."""
    collectives = []
    for seen in ranks:
        assert not seen[name]["error"]
        # DDP sums gradients once an update, of several micro-batches.
        if name == "ddp":
            found = seen[name]["by_part"]
            assert found["calls"]["micro-batch"] >= 2 * found["calls"]["update"]
            assert waits.rows(found, ("collective",))["update", "a backward"][0] == 1
        waited = seen[name]["waits"].items()
        collectives.append({wait: n for wait, n in waited if wait.startswith("collective")})
    assert collectives[0] == collectives[1] != {}
    same(folder / name, folder / "graphs" / "cpu", rel)


def test_a_collective_of_a_tensor_of_the_host(ranks):
    for seen in ranks:
        assert "distributed.py" in seen["host"]["error"]


@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "call, copies",
    [("encode", []), ("step", []), ("micro-batch", ["pageable"]), ("update", None)],
)
def test_products_are_in_bfloat16_and_nothing_waits(seen, family, kind, call, copies):
    """Products and what attention gets; of attention's own products those of a step are ours. A
    micro-batch brings the lengths of its prompts, once for all layers. An update has a reference.
    """
    assert not seen["low_precision"]["error"]
    row = seen["low_precision"]["result"][f"{family}, {kind}"][call]
    assert row["products"] == ["torch.bfloat16"]
    assert copies is None or row["copies"] == copies
    if call == "step":
        assert row["batched"] == ["torch.bfloat16"]


@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("call", ["encode", "micro-batch", "update", "in float32"])
def test_attention_stores_no_weights(seen, family, kind, call):
    """The kernel that would is the last choice of a GPU, and flash is the first."""
    kernels = seen["low_precision"]["result"][f"{family}, {kind}"][call]["kernels"]
    assert kernels and "math" not in kernels
    if kind == "one length" and call != "in float32":
        assert kernels == ["flash"]
