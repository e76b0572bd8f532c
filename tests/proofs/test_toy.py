"""The simulation: sampled runs follow the exact ones, which order the methods as the paper does."""

from pathlib import Path

import pytest
import torch

from maxrl.analysis import plots, toy
from maxrl.system.errors import UsageError
from tests.helpers.tensors import seeded


def test_sampled_follows_exact():
    """With small steps and many rollouts the sampled curves are the exact ones, at every step."""
    runs = toy.simulate(prompts=60, rollouts=32, steps=150, lr=0.05, seed=0)
    for name in toy.METHODS:
        exact = runs[name].mean(dim=1)
        sampled = runs[f"{name}-sampled"].mean(dim=1)
        gain = (exact - exact[0]).abs().max()
        assert (exact - sampled).abs().max() < 0.1 * gain, name
        assert gain > 0.02
    final = {name: rates[-1].log().mean().item() for name, rates in runs.items()}
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
    """4,000 copies of a prompt: the mean gradient is w(p) grad p within 5 standard errors."""
    logits = toy.initial_logits(3)[1:2]
    sampled = toy.sampled_gradient(logits.expand(4000, -1), name, 8, seeded())  # (4000, 8)
    exact = toy.exact_gradient(logits, name, rollouts=8, **toy.METHODS[name])  # (1, 8)
    se = sampled.std(dim=0) / 4000**0.5
    assert ((sampled.mean(dim=0) - exact[0]).abs() < 5 * se + 1e-12).all()
    assert exact[0, 0] > 0


def test_seed_decides_the_samples_alone():
    a, b, c = (toy.simulate(5, 4, 2, 0.1, seed) for seed in (0, 0, 1))
    assert torch.equal(a["maxrl-sampled"], b["maxrl-sampled"])
    assert not torch.equal(a["maxrl-sampled"], c["maxrl-sampled"])
    assert torch.equal(a["maxrl"], c["maxrl"])


def test_the_users_own_estimator(capsys, monkeypatch, in_a_directory_of_its_own):
    """Its numbers and its lines are those of ours."""
    pytest.importorskip("matplotlib")
    Path("mine.py").write_text(
        "def mine(r):\n    m = r.mean(1, keepdim=True)\n    return (r - m) / m.clamp(1 / 16)\n"
    )
    figures = []
    save = plots.save

    def noted(figure, *given):
        figures.append(figure)
        return save(figure, *given)

    monkeypatch.setattr(plots, "save", noted)
    words = "--estimator maxrl,mine.py:mine --steps 3 --out new"
    toy.main(words.split())
    rows = [line.split()[1:] for line in capsys.readouterr().out.splitlines()[2:6]]
    assert rows[:2] == rows[2:]
    assert len(rows[0]) == 3
    assert Path("new/toy.png").read_bytes().startswith(b"\x89PNG")
    names = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert names[::2] == ["MaxRL", "mine.py:mine", toy.EXACT_ML]
    assert names[1] == "MaxRL, sampled"
    for ax in figures[0].axes:
        ours, sampled, mine, *_ = ax.lines
        assert (ours.get_ydata() == mine.get_ydata()).all()
        assert len(sampled.get_ydata()) > 1


def test_a_figure_is_not_overwritten(in_a_directory_of_its_own):
    pytest.importorskip("matplotlib")
    Path("toy.png").write_text("mine")
    with pytest.raises(UsageError, match="toy.png exists"):
        toy.main(["--out", "."])
    assert Path("toy.png").read_text() == "mine"
