"""The simulation: sampled runs follow the exact ones, which order the methods as the paper does."""

from pathlib import Path

import pytest
import torch

from maxrl.analysis import plots, toy
from maxrl.system.errors import UsageError
from tests.helpers.tensors import F64, close, seeded

CREDIT = torch.tensor([0, 0.25, 0.6, 1], dtype=F64)
# With ties, in no order, and not from 0.
MIXED = torch.tensor([0.9, 0.2, 0.3, 0.2], dtype=F64)
WORTH = [toy.VERDICTS, CREDIT, MIXED]
CASES = [(name, toy.VERDICTS) for name in toy.METHODS]
CASES += [
    (name, worth)
    for worth in (CREDIT, MIXED)
    for name in ("rloo", "reinforce", "tailrl", "maxrl", "maxrl_order", "maxrl_rare")
]


def weigh(name, p, N):
    """The weights in closed form."""
    order = {"maxrl_order": 4, "maxrl_rare": N, "maxrl": N - 1, "tailrl": N - 1}.get(name, 1)
    return (1 - (1 - p) ** order) / p


def of_the_formula(m, worth, weights):
    """The sum over thresholds of gap w(p_t) grad p_t: grad p_t is m_k ([worth_k >= t] - p_t)."""
    total = torch.zeros_like(m)
    values = sorted(set(worth.tolist()))
    for below, t in zip(values, values[1:]):
        clears = (worth >= t).to(F64)
        p = m @ clears
        total += (t - below) * weights(p)[:, None] * m * (clears - p[:, None])
    return total


def test_sampled_follows_exact():
    """With small steps and many rollouts the sampled curves are the exact ones, at every step."""
    runs = toy.simulate(prompts=60, rollouts=32, steps=150, lr=0.05, seed=0)
    for name in toy.METHODS:
        exact = runs[name].mean(dim=1)  # (151, 1)
        sampled = runs[f"{name}-sampled"].mean(dim=1)
        gain = (exact - exact[0]).abs().max()
        assert (exact - sampled).abs().max() < 0.1 * gain, name
        assert gain > 0.02
    final = {name: rates[-1].log().mean().item() for name, rates in runs.items()}
    assert final["rloo"] < final["maxrl_order"] < final["maxrl"] < final[toy.EXACT_ML]
    assert final["rloo"] < final["grpo"] < final["maxrl"]


def test_with_partial_credit_too():
    """GRPO, which has no weight at a threshold, has no exact run. TailRL is nearest to maximum
    likelihood."""
    names = ["rloo", "grpo", "maxrl_order", "tailrl"]
    runs = toy.simulate(60, rollouts=32, steps=150, lr=0.05, seed=0, names=names, worth=CREDIT)
    assert "grpo" not in runs
    final = {name: toy.statistics(rates, CREDIT) for name, rates in runs.items()}
    for name in ("rloo", "maxrl_order", "tailrl"):
        for what, exact in final[name].items():
            gain = (exact - exact[0]).abs().max()
            assert (exact - final[f"{name}-sampled"][what]).abs().max() < 0.1 * gain, what
    ends = {name: values["mean log p"][-1] for name, values in final.items()}
    assert ends["rloo"] < ends["maxrl_order"] < ends["tailrl"] < ends[toy.EXACT_ML]


@pytest.mark.parametrize("worth", WORTH)
def test_every_step_up_is_as_hard_as_the_others(worth):
    p = toy.pass_rates(toy.initial_logits(9, worth), worth)
    assert p[[0, -1], -1].tolist() == pytest.approx([1e-3, 0.5])
    J = p.shape[1]
    close(p, p[:, -1:] ** (torch.arange(1, J + 1).to(p) / J))


@pytest.mark.parametrize("name, worth", [case for case in CASES if case[0] != "grpo"])
def test_exact_is_the_formula(name, worth):
    logits = toy.initial_logits(9, worth)
    found = toy.exact_gradient(logits, worth, name, rollouts=6, **toy.options_of(name))
    close(found, of_the_formula(logits.softmax(1), worth, lambda p: weigh(name, p, 6)))


@pytest.mark.parametrize("worth", WORTH)
def test_exact_gradient_of_maxrl_without_rollouts_is_that_of_log_p(worth):
    """At every threshold."""
    logits = toy.initial_logits(9, worth).requires_grad_()
    log_p = toy.pass_rates(logits, worth).log()  # (9, J)
    (grad,) = torch.autograd.grad((log_p * worth.unique().diff()).sum(), logits)
    close(toy.exact_gradient(logits, worth, "maxrl"), grad)


@pytest.mark.parametrize("worth", WORTH)
def test_a_run_is_steps_of_the_formula(worth):
    """Three of them, and what is told after the last."""
    logits = toy.initial_logits(9, worth)
    for _ in range(3):
        step = of_the_formula(logits.softmax(1), worth, lambda p: weigh("maxrl", p, 6))
        logits = logits + 0.1 * step
    size = {"prompts": 9, "rollouts": 6, "steps": 3, "lr": 0.1, "seed": 0}
    found = toy.simulate(**size, names=["maxrl"], worth=worth)["maxrl"][-1]  # (9, J)
    p = toy.pass_rates(logits, worth)
    close(found, p)
    told = toy.statistics(found, worth)
    rewards = logits.softmax(1) @ worth  # (9,)
    close(told.get("mean reward", told["mean pass rate"]), rewards.mean())
    close(told["mean pass rate"], p[:, -1].mean())
    close(told["mean log p"], (p.log() * worth.unique().diff()).sum(1).mean())
    close(told["p of hardest half"], p[:5, -1].mean())


def far(name, worth):
    """How many standard errors the mean of 4,000 sampled gradients is from the exact one."""
    logits = toy.initial_logits(3, worth)[1:2]
    sampled = toy.sampled_gradient(logits.expand(4000, -1), worth, name, 8, seeded())
    exact = toy.exact_gradient(logits, worth, name, rollouts=8, **toy.options_of(name))  # (1, O)
    assert exact[0, worth.argmax()] > 0
    se = sampled.std(dim=0) / 4000**0.5
    return ((sampled.mean(dim=0) - exact[0]).abs() / (se + 1e-12)).max()


@pytest.mark.parametrize("name, worth", CASES)
def test_sampled_gradient_has_the_exact_mean(name, worth):
    """4,000 copies of a prompt: the sum of gap w(p_t) grad p_t within 5 standard errors."""
    assert toy.has_weights(worth, name, 8)
    assert far(name, worth) < 5


@pytest.mark.parametrize("worth", [CREDIT, MIXED, torch.tensor([0, 0.5], dtype=F64)])
def test_grpo_has_no_weight_at_a_threshold(worth):
    assert not toy.has_weights(worth, "grpo", 8)
    assert far("grpo", worth) > 5


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


def test_rewards_of_the_command(capsys, monkeypatch, in_a_directory_of_its_own):
    """Rows and lines: a rule that is no sum over thresholds has those of samples alone, dashed."""
    pytest.importorskip("matplotlib")
    Path("mine.py").write_text("def mine(r):\n    return r**2 - (r**2).mean(1, keepdim=True)\n")
    figures = []
    monkeypatch.setattr(plots, "save", lambda figure, *given: figures.append(figure))
    words = "--rewards 0.5,0,1 --estimator grpo,rloo,mine.py:mine --steps 3 --out new"
    toy.main(words.split())
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:7]]
    assert rows == ["grpo-sampled", "rloo", "rloo-sampled", "mine.py:mine-sampled", "maximum"]
    for ax in figures[0].axes:
        assert [line.get_linestyle() for line in ax.lines] == ["--", "-", "--", "--", "-"]
    for words in ("0", "1,1", "0,2", "0,nan", "-0.5,1", "0,inf"):
        with pytest.raises(UsageError, match="--rewards .* must be from 0 to 1"):
            toy.main([f"--rewards={words}"])
    with pytest.raises(UsageError, match=r"maxrl_centered got a reward of 0\.5 "):
        toy.main(["--rewards", "0,.5,1", "--estimator", "maxrl_centered"])


def test_verdicts_are_the_default(capsys):
    toy.main(["--steps", "2", "--rewards", "1,1,0,0,0,0,0,0"])
    told = capsys.readouterr().out
    toy.main(["--steps", "2"])
    assert capsys.readouterr().out == told


def test_a_figure_is_not_overwritten(in_a_directory_of_its_own):
    pytest.importorskip("matplotlib")
    Path("toy.png").write_text("mine")
    with pytest.raises(UsageError, match="toy.png exists"):
        toy.main(["--out", "."])
    assert Path("toy.png").read_text() == "mine"
