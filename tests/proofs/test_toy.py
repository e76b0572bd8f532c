"""The simulation: sampled runs follow the exact ones, exact ones order the methods as the paper does."""

import runpy
import sys

import pytest
import torch

from maxrl.advantages import ADVANTAGES, weight
from maxrl import toy


def test_sampled_follows_exact():
    """With small steps and many rollouts the sampled curves are the exact ones, at every step."""
    runs = toy.simulate(prompts=60, rollouts=32, steps=150, lr=0.05, seed=0)
    for name in toy.METHODS:
        exact, sampled = (rates.mean(dim=1) for rates in runs[name])
        gain = (exact - exact[0]).abs().max()
        assert (exact - sampled).abs().max() < 0.1 * gain, name
        assert gain > 0.02
    final = {name: exact[-1].log().mean().item() for name, (exact, _) in runs.items()}
    assert final["rloo"] < final["maxrl_order"] < final["maxrl"] < final[toy.EXACT_ML]
    assert final["rloo"] < final["grpo"] < final["maxrl"]


def test_exact_gradient_of_maxrl_without_rollouts_is_grad_log_p():
    logits = toy.initial_logits(9)
    assert toy.pass_rate(logits)[[0, -1]].tolist() == pytest.approx([1e-3, 0.5])
    leaf = logits.clone().requires_grad_()
    (grad,) = torch.autograd.grad(toy.pass_rate(leaf).log().sum(), leaf)
    torch.testing.assert_close(toy.exact_gradient(logits, "maxrl"), grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", toy.METHODS)
def test_sampled_gradient_has_the_exact_mean(name):
    """4000 copies of one prompt: the mean of the sampled gradients is w(p) grad p within 5 standard errors."""
    logits = toy.initial_logits(3)[1:2].expand(4000, -1)
    sampled = toy.sampled_gradient(logits, name, 8, torch.Generator().manual_seed(0))  # (4000, 8)
    exact = toy.exact_gradient(logits[:1], name, rollouts=8, **toy.METHODS[name])  # (1, 8)
    se = sampled.std(dim=0) / 4000**0.5
    assert ((sampled.mean(dim=0) - exact[0]).abs() < 5 * se + 1e-12).all()
    assert exact[0, 0] > 0 and weight(name, 0.5, rollouts=8, **toy.METHODS[name]) > 0


def test_command_line(tmp_path, monkeypatch, capsys):
    """The command of the docstring, small: prints the table; writes the figure if matplotlib is installed."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(
        sys, "argv", ["toy", "--prompts", "10", "--steps", "3", "--out", str(tmp_path / "new")]
    )
    runpy.run_module("maxrl.toy", run_name="__main__")
    said = capsys.readouterr().out
    assert all(name in said for name in [*toy.METHODS, toy.EXACT_ML])
    assert (tmp_path / "new" / "toy.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_numbers_are_printed(tmp_path, monkeypatch, capsys):
    small = ["--prompts", "10", "--steps", "3"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # import matplotlib now fails
    toy.main(small)
    assert toy.EXACT_ML in capsys.readouterr().out
    with pytest.raises(SystemExit, match="pip install matplotlib"):
        toy.main([*small, "--out", str(tmp_path)])
    assert toy.EXACT_ML in capsys.readouterr().out


def test_too_few_rollouts(capsys):
    with pytest.raises(SystemExit):
        toy.main(["--rollouts", "3"])
    assert "--rollouts 3 is too few" in capsys.readouterr().err


MINE = """
import torch

def mine(rewards):
    mean = rewards.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, (rewards - mean) / mean, 0.0)

def batch_wide(rewards):
    return rewards - rewards.mean()
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """mine.py, and what is registered of it is taken back."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    before = dict(ADVANTAGES)
    yield
    ADVANTAGES.clear()
    ADVANTAGES.update(before)


def test_estimators_that_are_named(file, capsys):
    """Algorithm 1 in a file of the user's has the numbers of ours; nobody else has a row."""
    small = ["--prompts", "10", "--steps", "20", "--rollouts", "3"]
    toy.main(["--estimator", "maxrl,mine.py:mine", *small])
    ours, mine, _ = (line.rsplit(maxsplit=6) for line in capsys.readouterr().out.splitlines()[3:])
    assert (ours[0], mine[0]) == ("maxrl", "mine.py:mine") and ours[1:] == mine[1:] != ["-"] * 6


def test_their_figure(file, monkeypatch):
    pytest.importorskip("matplotlib")
    kept = []
    monkeypatch.setattr("maxrl.plots.save", lambda fig, lines, *_: kept.extend([fig, lines]))
    toy.main(["--estimator", "rloo,mine.py:mine", "--prompts", "10", "--steps", "3", "--out", "."])
    fig, lines = kept
    assert [line.get_label() for line in lines] == ["RLOO", "mine.py:mine", toy.EXACT_ML]
    for drawn in (lines, fig.axes[0].lines):
        assert len({line.get_color() for line in drawn}) == 3
    mine = [line for line in fig.axes[3].lines if line.get_color() == lines[1].get_color()]
    p, w = map(torch.tensor, mine[0].get_data())
    assert len(mine) == 1, "a function of the user's has no limit"
    torch.testing.assert_close(w, weight("maxrl", p, rollouts=16))


@pytest.mark.parametrize(
    "name, said",
    [
        ("maxlr", "no estimator is called 'maxlr'"),
        ("mine.py:none", "has no function or class"),
        ("pkpo", "pkpo needs k="),
        ("supervised", "supervised has no weight"),
        ("mine.py:batch_wide", "batch_wide has no weight that is known here"),
    ],
)
def test_estimators_that_cannot_be(file, name, said, capsys):
    with pytest.raises(SystemExit) as end:
        toy.main(["--estimator", name])
    assert end.value.code == 2 and said in capsys.readouterr().err


def test_seed_decides_the_samples_alone():
    a, b, c = (toy.simulate(5, 4, 2, 0.1, seed) for seed in (0, 0, 1))
    assert torch.equal(a["maxrl"][1], b["maxrl"][1]) and not torch.equal(
        a["maxrl"][1], c["maxrl"][1]
    )
    assert torch.equal(a["maxrl"][0], c["maxrl"][0])
