"""The theorem end to end: all groups of rollouts of a real (tiny) transformer, through its loss."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from maxrl.advantages import ADVANTAGES, weight
from maxrl.sampling.rollouts import Rollouts
from tests.helpers import tiny
from tests.helpers.outcomes import any_options
from tests.helpers.tensors import F64

PROMPT = [1, 3, 2]
# The enumerable policy: words 1 to 3, token 0 ends, two tokens at most: 0; a 0; a b.
V, STOP, LIMIT = 4, 0, 2
RESPONSES = [[STOP], *([a, b] for a in range(1, V) for b in range(V))]


def enumerable():
    """A tiny model over V words, and the exact log-probs (R,) of all responses with a graph, by a
    plain forward.
    """
    model = tiny.model(seed=4, vocab_size=V, hidden_size=16, intermediate_size=24)
    logs = []
    for response in RESPONSES:
        log_probs = tiny.row_logits(model, PROMPT, response).log_softmax(-1)
        logs.append(log_probs.gather(1, torch.tensor(response)[:, None]).sum())
    return model, torch.stack(logs)


def expected_gradient(name, options, N, divide_by_tokens=False):
    """E[gradient of policy.backward] over all groups of N rollouts, exact; also p and grad p by
    autograd.

    All 13^N groups are one batch, each advantage times its group's probability: backward is linear
    in them.
    """
    model, logs = enumerable()
    right = torch.tensor([sum(r) % 3 == 0 for r in RESPONSES]).to(F64)  # some verdict
    p = (logs.exp() * right).sum()
    grad_p = torch.cat([g.flatten() for g in torch.autograd.grad(p, list(model.parameters()))])
    groups = torch.tensor(list(itertools.product(range(len(RESPONSES)), repeat=N)))  # (13^N, N)
    probability = logs.detach()[groups].sum(1).exp()
    assert probability.sum().item() == pytest.approx(1, abs=1e-12)
    assert 0.05 < p < 0.95
    tokens = torch.tensor([r + [0] * (LIMIT - len(r)) for r in RESPONSES])[groups]
    lengths = torch.tensor([len(r) for r in RESPONSES])[groups]
    prompts = [torch.tensor(PROMPT)] * len(groups)
    rollouts = Rollouts(prompts, tokens, lengths, tokens[..., -1] == STOP, None)
    advantages = ADVANTAGES[name](right[groups], **options) * probability[:, None] * len(groups)
    if divide_by_tokens:
        advantages = advantages * N / lengths.sum(1, keepdim=True)
    policy = tiny.policy(model, aggregation="sequence", max_tokens=LIMIT)
    return -tiny.gradient(policy, rollouts, advantages), p.item(), grad_p


@pytest.mark.parametrize(
    "name", sorted(ADVANTAGES.keys() - {"supervised", "differential_smoothing"})
)
@pytest.mark.parametrize("N", [2, 3])
def test_the_theorem_end_to_end(name, N):
    """Over ALL groups of N rollouts of a real (tiny) transformer the expected gradient is w(p) grad
    p, Theorem 2; that w is w_T is in test_advantages.py.

    Advantages, loss, masks, end tokens and the shared prompt each have a part in it; p and grad p
    come from autograd through the sum of the right responses' probabilities.
    """
    options = any_options(name, 2)
    gradient, p, grad_p = expected_gradient(name, options, N)
    assert tiny.distance(gradient, weight(name, p, rollouts=N, **options) * grad_p) < 1e-10


def test_dividing_each_group_by_its_tokens_is_another_objective():
    """Lengths are random too: a mean over tokens is a ratio estimator, whose expectation is not
    along grad p.
    """
    gradient, _, grad_p = expected_gradient("maxrl_success", {}, 2, divide_by_tokens=True)
    assert F.cosine_similarity(gradient, grad_p, dim=0) < 0.9999
