"""maxrl/minimal.py, the method in one file, is the method: its advantages, its gradient and its
probabilities are those of the package."""

import re
import sys
from pathlib import Path

import pytest
import tiny
import torch
from tensors import close

from maxrl import minimal
from maxrl.advantages import ADVANTAGES
from maxrl.losses import policy_gradient_loss, token_log_probs

METHODS = ("maxrl", "grpo", "rloo")


@pytest.mark.parametrize("method", METHODS)
def test_advantages(method):
    """Of every number of successes, none included."""
    K = torch.arange(minimal.N + 1)  # (P,)
    rewards = (torch.arange(minimal.N) < K[:, None]).double()  # (P, N)
    ours = minimal.advantages(rewards, method)
    close(ours, ADVANTAGES[method](rewards))
    assert not ours[0].any()
    assert ours[1:-1].all()


@pytest.mark.parametrize("method", METHODS)
def test_gradient(method, monkeypatch):
    """What main hands to Adam is the gradient of the package's loss, in float64. The rollouts have
    groups of no success, of some and of successes alone."""
    seen = {}

    def rollouts(model, prompts):
        total = prompts.sum(dim=1)
        responses = torch.stack([total // 10, total % 10], dim=1)
        wrong = torch.arange(len(prompts)) % 7 < torch.arange(len(prompts)) // minimal.N % 8
        responses[wrong, 1] = (responses[wrong, 1] + 1) % 10
        seen.update(model=model, prompts=prompts, responses=responses, rewards=~wrong)
        return responses

    def update(optimizer):
        seen["gradient"] = [p.grad.clone() for p in seen["model"].parameters()]

    monkeypatch.setattr(minimal, "sample", rollouts)
    monkeypatch.setattr(torch.optim.Adam, "step", update)
    monkeypatch.setattr(minimal, "STEPS", 1)
    torch.set_default_dtype(torch.float64)
    try:
        minimal.main([method])
        tokens = torch.cat([seen["prompts"], seen["responses"]], dim=1)
        logits = seen["model"](tokens)  # (B, 4, V)
    finally:
        torch.set_default_dtype(torch.float32)

    shape = (minimal.P, minimal.N)
    rewards = seen["rewards"].double().view(shape)
    assert {0, minimal.N} < set(rewards.sum(dim=1).int().tolist())
    log_probs = token_log_probs(logits[:, 1:3], tokens[:, 2:]).view(*shape, 2)
    advantages = ADVANTAGES[method](rewards)
    mask = torch.ones_like(log_probs)
    loss = policy_gradient_loss(log_probs, advantages, mask, rewards.numel())
    expected = torch.autograd.grad(loss, list(seen["model"].parameters()))
    # Its rewards are in float32.
    for ours, theirs in zip(seen["gradient"], expected, strict=True):
        assert tiny.distance(ours, theirs) < 1e-6


def test_probabilities():
    """Those of all responses add up to 1, which fails if a token sees a later one, and the sampler
    draws with them: 20,000 draws, each within 5 standard errors."""
    torch.manual_seed(0)
    model = minimal.Transformer()
    prompts = minimal.PROMPTS[[37]].expand(100, -1)
    with torch.no_grad():
        p = minimal.log_probs(model, prompts, minimal.PROMPTS).exp()  # (100,), of 0 0 to 9 9
    assert p.sum().item() == pytest.approx(1, abs=1e-5)
    drawn = minimal.sample(model, prompts[:1].expand(20_000, -1))  # (20000, 2)
    share = torch.bincount(drawn[:, 0] * 10 + drawn[:, 1], minlength=100) / len(drawn)
    assert ((share - p).abs() < 5 * (p * (1 - p) / len(drawn)).sqrt() + 1e-4).all()
    assert p.max() > 2 * p.min()


def test_the_sums():
    tens, ones = minimal.ANSWERS.T
    assert torch.equal(10 * tens + ones, minimal.PROMPTS.sum(dim=1))
    assert len(minimal.PROMPTS.unique(dim=0)) == 100


def test_two_steps(monkeypatch, capsys):
    """The seed decides what is printed."""
    monkeypatch.setattr(minimal, "STEPS", 2)

    def said(seed):
        minimal.main(["--seed", seed])
        return capsys.readouterr().out

    assert said("3") == said("3") != said("4")


def test_another_method_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        minimal.main(["ppo"])
    assert ended.value.code == 2
    assert "ppo" in capsys.readouterr().err


def test_one_file(capsys):
    """At most 90 lines, which run wherever they are copied to and train nothing when imported."""
    text = Path(minimal.__file__).read_text()
    assert len(text.splitlines()) <= 90
    found = re.findall(r"(?m)^(?:import|from) (\w+)", text)
    assert set(found) <= {"torch", *sys.stdlib_module_names}
    assert text.count("import ") == len(found)
    copied: dict = {"__name__": "copied"}
    exec(text, copied)
    assert not capsys.readouterr().out
    copied["STEPS"] = 2
    copied["main"]([])
    assert capsys.readouterr().out
