"""--optimizer muon: which weights it trains and how, resumed runs, and its memory."""

import copy
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

import train
from maxrl.learning.config import Config
from maxrl.learning.optimizer import make_optimizer
from maxrl.models.hf_config import FAMILIES
from maxrl.run import dry_run
from maxrl.run.recipes import RECIPES
from maxrl.system.totals import Totals
from tests.helpers import tiny
from tests.helpers.runs import SHORT, column, killed, passed, refused, same_runs
from tests.helpers.tensors import close, normal

OPTIONS = "--steps 5 --optimizer muon --save-every 2 --out"
MUON = ("train.py", "tiny_sft", *OPTIONS.split())


def orthogonal(matrix):
    """Five steps of Newton-Schulz, an odd polynomial: each maps the singular values alone."""
    U, s, V = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return U * s @ V


def updated(cfg, policy, optimizer, step):
    """One update with the gradients that the weights have."""
    totals = Totals()
    totals.sum("loss", 0)
    totals.sum(policy.items, 1)
    totals.sum("signal", 1)
    train.update(cfg, policy, optimizer, totals, step)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_three_steps_are_the_formulas(family, tied, monkeypatch):
    """Muon for the seven projections of each layer, AdamW for all else, at a rate that rises.

    torch's Newton-Schulz is in bfloat16, which is float64 here.
    """
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
    same = dict(lr=0.02, betas=(0.8, 0.9), weight_decay=0.2)
    cfg = Config(optimizer="muon", muon_lr_scale=3, warmup_steps=2, max_grad_norm=1e9, **same)
    policy = tiny.policy(tiny.model(model_type=family, tie_word_embeddings=tied))
    optimizer = make_optimizer(cfg, policy.model)
    ours = dict(policy.model.named_parameters())
    expected = copy.deepcopy(ours)
    momentum = {name: 0 for name in ours if name.endswith("_proj.weight")}
    assert len(momentum) == 7 * 2
    adamw = torch.optim.AdamW([p for name, p in expected.items() if name not in momentum], **same)
    for step, lr in enumerate((0.01, 0.02, 0.02)):
        for i, (name, p) in enumerate(expected.items()):
            ours[name].grad = p.grad = g = normal(*p.shape, seed=100 * step + i)
            if name in momentum:
                momentum[name] = m = 0.95 * momentum[name] + g
                move = 0.2 * max(p.shape) ** 0.5 * orthogonal(g + 0.95 * m)
                p.data -= 3 * lr * (move + 0.2 * p.data)
        adamw.param_groups[0]["lr"] = lr
        adamw.step()
        updated(cfg, policy, optimizer, step)
        close(ours, expected, 1e-10)


@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_long_gradients_are_clipped(limit):
    cfg = Config(optimizer="sgd", lr=1.0, momentum=0, weight_decay=0, max_grad_norm=limit)
    policy = tiny.policy()
    gradient = tiny.gradient(policy, tiny.rollouts(), normal(4, 4))
    before = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    updated(cfg, policy, make_optimizer(cfg, policy.model), 0)
    after = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    close(before - after, gradient * min(1, limit / gradient.norm()), 1e-5)


def test_a_step_without_a_gradient_moves_nothing():
    """Newton-Schulz would bring what is left of the momentum to full size."""
    cfg = Config(optimizer="muon", lr=0.02)
    policy = tiny.policy(tiny.model())
    optimizer = make_optimizer(cfg, policy.model)
    parameters = list(policy.model.parameters())
    after = []
    for step, scale in enumerate((1, 0)):
        for i, p in enumerate(parameters):
            p.grad = scale * normal(*p.shape, seed=i)
        updated(cfg, policy, optimizer, step)
        after.append(copy.deepcopy(parameters))
    close(after[1], after[0], 0)


TERMS = {
    "kl": {"beta": 1e-3},
    "k2": {"beta": 1e-3, "kl": "k2"},
    "entropy": {"entropy_bonus": 1e-6},
    "both": {"beta": 0.5, "entropy_bonus": 0.1},
}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("term", TERMS)
def test_without_an_advantage_the_matrices_stay(term, several):
    """After a collapse the penalty alone has a gradient, and the momentum of the steps before would
    go on at full size: AdamW's part follows the penalty, and Muon's waits for an advantage. Also of
    one minibatch of two."""
    updates = {"minibatches": 2} if several else {}
    terms = TERMS[term]
    cfg = Config(optimizer="muon", lr=1e-3, init="x", prompts=4, **terms, **updates)
    reference = tiny.model() if "beta" in terms else None
    policy = tiny.policy(tiny.model(), reference=reference, **terms)
    optimizer = make_optimizer(cfg, policy.model)
    matrices = [p for n, p in policy.model.named_parameters() if n.endswith("_proj.weight")]
    others = [policy.model.model.embed_tokens.weight, policy.model.model.norm.weight]

    def moved(values, advantages, step):
        before = copy.deepcopy(values)
        train.learn(cfg, policy, optimizer, tiny.rollouts(), advantages, step)
        return [not torch.equal(p, old) for p, old in zip(values, before)]

    some = normal(4, 4)
    for step in range(3):
        assert all(moved([*matrices, *others], some, step))
    for step in range(3, 9):
        assert moved([*matrices, *others], 0 * some, step) == [False] * 14 + [True] * 2
    one = torch.zeros(4, 4).index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(1e-30))
    assert all(moved(matrices, one, 9))


def test_each_update_has_a_signal_of_its_own(monkeypatch):
    """Of two minibatches one has an advantage."""
    cfg = Config(optimizer="muon", prompts=4, minibatches=2)
    policy = tiny.policy()
    noted = mock.Mock(wraps=train.set_rates)
    monkeypatch.setattr(train, "set_rates", noted)
    one = torch.zeros(4, 4).index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(1.0))
    train.learn(cfg, policy, make_optimizer(cfg, policy.model), tiny.rollouts(), one, 0)
    assert sorted(call.args[2] for call in noted.call_args_list) == [0, 1]


def test_a_run_that_begins_without_an_advantage(shell):
    """It has the whole state, from which it resumes to the last bit."""
    Path("no.py").write_text("def no(completions):\n    return [0.0] * len(completions)\n")
    options = "--reward no.py:no --entropy-bonus 0.1 --optimizer muon --save-every 2 --steps 4"
    run = ("train.py", *SHORT, *options.split(), "--out")
    passed(shell(*run, "whole"))
    assert column("whole", "frac_reward_zero_std") == [1] * 4
    assert min(column("whole", "grad_norm")) > 0
    with killed(at=4):
        shell(*run, "run")
    passed(shell(*run, "run", "--resume"))
    same_runs("run", "whole")


def test_a_run(shell):
    """A resumed one is the same to the last bit, and the state is as large as planned."""
    passed(shell(*MUON, "whole"))
    with killed(at=4):
        shell(*MUON, "run")
    refused(shell(*MUON, "run", "--resume", "--optimizer", "adamw"), "'muon', not 'adamw'")
    passed(shell(*MUON, "run", "--resume"))
    same_runs("run", "whole")
    state = load_file("run/step-000005/optimizer.safetensors")
    close(state, load_file("whole/step-000005/optimizer.safetensors"), 0)
    held = sum(tensor.nbytes for name, tensor in state.items() if not name.endswith(".step"))
    cfg = replace(RECIPES["tiny_sft"](), optimizer="muon")
    assert dry_run.plan(cfg)["always"]["optimizer state"] == held
