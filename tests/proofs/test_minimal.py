"""maxrl/minimal.py, the method in one file, is the method: its advantages, its gradient and its
probabilities are those of the package."""

import re
import sys
from pathlib import Path

import pytest
import torch

from maxrl import minimal
from maxrl.advantages import ADVANTAGES
from maxrl.learning.losses import policy_gradient_loss, token_log_probs
from tests.helpers.outcomes import every_count
from tests.helpers.tensors import close

METHODS = ("maxrl", "grpo", "rloo")


@pytest.mark.parametrize("method", METHODS)
def test_advantages(method):
    """Of every number of successes, none included."""
    rewards = every_count(minimal.N)
    ours = minimal.advantages(rewards, method)
    close(ours, ADVANTAGES[method](rewards))
    assert not ours[0].any()
    assert ours[1:-1].all()


@pytest.mark.parametrize("method", METHODS)
def test_gradient(method, monkeypatch):
    """What main hands to Adam is the gradient of the package's loss. The rollouts have groups of
    no success, of some and of successes alone."""
    seen = {}
    wrong = torch.arange(minimal.P * minimal.N) % 7 < torch.arange(minimal.P * minimal.N) // 16 % 8

    def rollouts(model, prompts):
        total = prompts.sum(dim=1)
        responses = torch.stack([total // 10, (total + wrong) % 10], dim=1)
        seen.update(model=model, tokens=torch.cat([prompts, responses], dim=1))
        return responses

    monkeypatch.setattr(minimal, "sample", rollouts)
    monkeypatch.setattr(torch.optim.Adam, "step", lambda optimizer: None)
    monkeypatch.setattr(minimal, "STEPS", 1)
    minimal.main([method])
    parameters = list(seen["model"].parameters())
    handed = [p.grad for p in parameters]
    rewards = (~wrong).float().view(minimal.P, minimal.N)
    assert {0, minimal.N} < set(rewards.sum(dim=1).int().tolist())
    tokens = seen["tokens"]
    logits = seen["model"](tokens)  # (B, 4, V)
    log_probs = token_log_probs(logits[:, 1:3], tokens[:, 2:]).view(*rewards.shape, 2)
    mask = torch.ones_like(log_probs)
    advantages = ADVANTAGES[method](rewards)
    loss = policy_gradient_loss(log_probs, advantages, mask, rewards.numel())
    for ours, theirs in zip(handed, torch.autograd.grad(loss, parameters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())


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


def test_the_seed_decides_what_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(minimal, "STEPS", 2)
    said = []
    for seed in "334":
        minimal.main(["--seed", seed])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[1] != said[2]


def test_one_file(capsys):
    """At most 150 lines, which run wherever they are copied to and train nothing when imported."""
    text = Path(minimal.__file__).read_text()
    assert len(text.splitlines()) <= 150
    found = re.findall(r"(?m)^(?:import|from) (\w+)", text)
    assert set(found) <= {"torch", *sys.stdlib_module_names}
    assert text.count("import ") == len(found)
    exec(text, {"__name__": "copied"})
    assert not capsys.readouterr().out
