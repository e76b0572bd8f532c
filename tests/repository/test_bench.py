"""bench.py: a row's numbers, and what makes rows comparable. No speed is asserted."""

import json
import sys
from types import SimpleNamespace

import bench
import bench_turns
import pytest
import tiny
import torch
from bench_text import forced, ragged_lengths

from maxrl.sampling.sampler import generate

ROW = {
    "name": "rollouts/ragged/float32",
    "what": "w",
    "unit": "token",
    "dtype": "float32",
    "rivals": ["slow", "slower"],
    "flops": 6e9,
    "work": {"maxrl": 100, "slow": 50, "slower": 100},
    "times": {
        "maxrl": {"wall": [2.0, 1.0, 9.0], "cpu": [1, 1, 1]},
        "slow": {"wall": [3.0] * 3, "cpu": [1] * 3},
        "slower": {"wall": [8.0] * 3, "cpu": [8] * 3},
    },
}
PRODUCT = "[2048,2048]x[2048,2048] float32"
LIMITS = {
    "name": "limits",
    "what": "w",
    "unit": "FLOP",
    "work": {PRODUCT: 1e10},
    "times": {PRODUCT: {"wall": [1], "cpu": [1]}},
}
SCALING = {
    "name": "scaling/prompts",
    "what": "w",
    "unit": "point",
    "work": {"a 1": 1, "a 2": 1, "a 4": 1},
    "peaks": {"1": 1.0, "2": 1.5, "4": 6},
    "times": {f"a {n}": {"wall": [time]} for n, time in ((1, 1.0), (2, 2.5), (4, 4.0))},
}


def test_the_numbers_of_a_row():
    """By hand: medians 2, 3 and 8 s; 50, 16.7 and 12.5 tokens/s; 3 of 10 GFLOP/s. Doublings 2.5 and 1.6; memory 1.5 and 4."""
    ratio, what, ours, work, share, others = bench.cells(ROW, [LIMITS, ROW], "wall")
    assert (ratio, ours, work, share) == (
        "3.00",
        "2 s (1-9)",
        "50 token/s",
        "30%",
    ) and others == "slow 3, slower 4"
    assert bench.ratio(ROW, "cpu") == 2 and bench.ratio(LIMITS, "wall") is None
    assert (
        bench.doublings(SCALING, "wall") == {"a": 2.5, "memory": 4}
        and bench.cells(SCALING, [], "wall")[0] == "x4.00"
    )
    low, high = (
        ROW
        | {
            "name": f"step/9x9/{dtype}",
            "rivals": ["TRL"],
            "work": {"maxrl": ours, "TRL": 80},
            "times": {"maxrl": ROW["times"]["maxrl"], "TRL": ROW["times"]["slower"]},
        }
        for dtype, ours in (("bfloat16", 100), ("float32", 90))
    )
    assert bench.best_steps([low, high], "wall") == [
        "step/9x9: maxrl's better precision over TRL's 5.00"
    ]
    assert bench.cells({"name": "loader", "error": "a\nno pillow"}, [], "wall")[::5] == [
        "failed",
        "no pillow",
    ]


def test_resume_measures_what_the_file_lacks(tmp_path, monkeypatch, capsys):
    measured = []

    def measure(name, args):
        measured.append(name)
        if len(measured) == 1:
            return {"name": name, "error": "no"}
        return (LIMITS if name == "limits" else ROW) | {"name": name}

    monkeypatch.setattr(bench, "measure", measure)
    options = [
        "bench.py",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "f.json"),
        "--only",
        "limits",
        "ragged/float32",
    ]
    monkeypatch.setattr(sys, "argv", options)
    bench.main()
    with pytest.raises(SystemExit, match="--resume"):
        bench.main()
    monkeypatch.setattr(sys, "argv", [*options, "loader", "--resume"])
    bench.main()
    assert measured == ["limits", "rollouts/ragged/float32", "limits", "loader"], (
        "what has failed is measured again"
    )
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["bench.py", "--show", str(tmp_path / "f.json")])
    bench.main()
    rows = [
        line.split(" | ")[1]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| ")
    ][1:]
    assert rows == ["limits: w", "rollouts/ragged/float32: w", "loader: w"], (
        "in the order of bench.ROWS"
    )
    assert (
        json.loads((tmp_path / "f.json").read_text())["machine"]["versions"]["torch"]
        == torch.__version__
    )


def test_forced_lengths_are_the_rows_lengths():
    lengths = ragged_lengths(3, 16, longest=40)
    model = tiny.model(torch.float32)
    model.lm_head.weight.data /= 20  # no word has half the chance
    samples = generate(model, tiny.prompts((5, 9, 2)), 16, 40, [31], forced(lengths, 40))
    assert torch.equal(samples.lengths, lengths) and samples.finished.all()
    many = ragged_lengths(100, 100).double()
    assert 44 < many.mean() < 46 and 0.45 < many.std() / many.mean() < 0.55 and many.max() <= 180


def test_flops_are_counted_once_for_each_product():
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    assert bench_turns.counted(lambda: a @ b) == 2 * 3 * 5 * 7
    model = tiny.model(torch.float32)  # through a CausalBias, which a mode alone cannot make
    tokens, prefix = torch.ones(1, 2, 6, dtype=torch.long), torch.ones(1, 8, dtype=torch.long)
    call = SimpleNamespace(run=lambda: model(tokens, prefix, torch.tensor([8])).sum().backward())
    linear = sum(
        2 * weight.numel()
        for name, weight in model.named_parameters()
        if "layers" in name and weight.dim() == 2
    )
    assert (
        bench_turns.counted(call.run) > 3 * linear * 12
    )  # of the rows' 12 tokens; prefixes and attention come on top
