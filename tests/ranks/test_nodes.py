"""Several nodes are one process with --shard true: each node has the whole model, in slices."""

import pytest
import torch

from maxrl.system import sharding
from tests import ROOT
from tests.helpers import tiny
from tests.helpers.started import ended, ranks_of_nodes
from tests.ranks import nodes, worker

CASES = [("tied", case) for case in worker.CASES]
CASES += [(setting, case) for setting in nodes.SETTINGS[1:] for case in worker.TWO]


@pytest.fixture(scope="module")
def alone():
    return worker.wrapped("ddp", 0, 1, nodes.SETTINGS, ["float64"])


@pytest.fixture(scope="module", params=[(2, 1), (2, 2)], ids=["2 x 1", "2 x 2"])
def ranks(request, tmp_path_factory):
    """What the ranks of two nodes computed; the number of ranks on a node."""
    out = tmp_path_factory.mktemp("nodes") / "results"
    number, local = request.param
    for code, said in map(ended, ranks_of_nodes(number, local, ROOT / "tests/ranks/nodes.py", out)):
        assert code == 0, said
    return [torch.load(f"{out}.{rank}") for rank in range(number * local)], local


@pytest.mark.parametrize("setting, case", CASES, ids=str)
def test_gradient_equals_the_single_process(ranks, alone, setting, case):
    expected, stats, norm, clipped = alone[setting][case]
    for rank in ranks[0]:
        found, counted, length, short = rank[setting][case]
        assert float((found - expected).norm()) <= 1e-12 * float(expected.norm())
        assert counted == pytest.approx(stats, abs=1e-12)
        assert length == pytest.approx(norm, rel=1e-12)
        assert float((short - clipped).norm()) <= 1e-12


def test_rollouts_and_steps_of_muon_are_the_single_process(ranks, alone):
    counts = {}
    for rank in ranks[0]:
        counts |= rank["rounds"]["counts"]
        assert tiny.distance(rank["muon"][0], alone["muon"][0]) <= 1e-12
        for step in (1, 2):
            for i, (texts, log_probs) in rank["samples"]["float64", step].items():
                expected = alone["samples"]["float64", step][i]
                assert texts == expected[0]
                torch.testing.assert_close(log_probs, expected[1], atol=1e-12, rtol=0)
    assert counts == alone["rounds"]["counts"]


def test_a_node_has_the_whole_model_in_slices(ranks):
    """Between the nodes the slices are added up once an update, whatever its micro-batches are."""
    found, local = ranks
    for start in range(0, len(found), local):
        node = [rank["layout"] for rank in found[start : start + local]]
        assert sum(rank["held"] for rank in node) == node[0]["all"]
    for rank in found:
        layout = rank["layout"]
        assert layout["mesh"] == [[*range(i, i + local)] for i in range(0, len(found), local)]
        assert layout["placed"]
        assert layout["micro-batches"] > 1
        assert layout["added up"] == layout["blocks"]
        assert torch.equal(layout["start"], found[0]["layout"]["start"])


@pytest.mark.parametrize(
    "local, shape",
    [([2, 2, 2, 2], (2, 2)), ([4, 4, 4, 4], (4,)), ([3, 3, 3, 1], (4,))],
    ids=str,
)
def test_nodes_of_unequal_numbers_are_one_mesh(monkeypatch, local, shape):
    made = []
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    monkeypatch.setattr(sharding, "gathered", lambda values: torch.tensor(local)[:, None].numpy())
    monkeypatch.setattr(
        "torch.distributed.device_mesh.init_device_mesh",
        lambda kind, sizes, **_: made.append(sizes),
    )
    sharding.mesh_of_nodes("cpu")
    assert made == [shape]
