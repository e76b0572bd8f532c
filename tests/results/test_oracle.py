"""The exact oracle of results/gradients: its moments against the enumeration of all outcomes, its
policy against autograd."""

import itertools

import pytest
import torch

from maxrl.advantages import ADVANTAGES, weight
from maxrl.tasks import Example
from results.gradients import curves, oracle
from tests.helpers import tiny
from tests.helpers.tensors import F64

RULES = {
    **oracle.METHODS,
    "order 2": ("maxrl_order", {"order": 2}),
    "rare 3": ("maxrl_rare", {"order": 3}),
    "k = 2": ("pkpo", {"k": 2}),
    "dr_grpo": ("dr_grpo", {}),
}


def lowered(rule, N):
    name, options = RULES[rule]
    return name, {key: min(value, N) for key, value in options.items()}


@pytest.fixture(scope="module")
def small():
    """Probabilities, which are right, and scores of mean zero, of 5 outcomes."""
    torch.manual_seed(0)
    probabilities = torch.rand(5, dtype=F64)
    probabilities /= probabilities.sum()
    scores = torch.randn(5, 7, dtype=F64)
    scores -= probabilities @ scores
    return probabilities, torch.tensor([True, False, True, False, False]), scores


@pytest.mark.parametrize("N", [2, 4])
@pytest.mark.parametrize("rule", RULES)
def test_moments_by_enumeration(small, rule, N):
    """All 5^N groups through ADVANTAGES: the mean of their gradients and the trace of their
    covariance."""
    name, options = lowered(rule, N)
    probabilities, right, scores = small
    groups = torch.tensor(list(itertools.product(range(5), repeat=N)))
    chance = probabilities[groups].prod(1)
    advantages = ADVANTAGES[name](right[groups].double(), **options)
    gradients = (advantages[..., None] * scores[groups]).mean(1)
    mean = chance @ gradients
    trace = chance @ (gradients - mean).square().sum(1)

    of_log, success = oracle.spread(probabilities[right], scores[right])
    _, failure = oracle.spread(probabilities[~right], scores[~right])
    p = probabilities[right].sum()[None]
    gram = of_log.dot(of_log)[None, None]
    w, found = oracle.moments(name, options, N, p, gram, success[None], failure[None])
    assert tiny.distance(w * p * of_log, mean) < 1e-12
    assert abs(found - trace) < 1e-12 * trace


@pytest.mark.parametrize("rule", RULES)
def test_the_weight_is_that_of_the_theory(rule):
    """Two sums, one over K of N and one over k of N - 1."""
    p = torch.tensor(oracle.TARGETS, dtype=F64)
    ones = torch.ones_like(p)
    for N in (2, 8, 64):
        name, options = lowered(rule, N)
        w, _ = oracle.moments(name, options, N, p, torch.eye(len(p)).double(), ones, ones)
        wanted = weight(name, p, rollouts=N, **options)
        torch.testing.assert_close(w, wanted, rtol=1e-10, atol=0)


def test_a_batch_of_gradients():
    """cosine, length and noise from the Gram matrix, against the vectors themselves."""
    torch.manual_seed(0)
    of_log = torch.randn(4, 9, dtype=F64)
    p, w, trace = torch.rand(3, 4, dtype=F64)
    expected = (w * p) @ of_log / 4
    target = of_log.mean(0)
    found = oracle.batch(w, trace, p, of_log @ of_log.T)
    assert found["cosine"].item() == pytest.approx(
        expected @ target / expected.norm() / target.norm()
    )
    assert found["length"].item() == pytest.approx(expected.norm() / target.norm())
    assert found["noise"].item() == pytest.approx((trace.sum() / 16).sqrt() / target.norm())


@pytest.fixture(scope="module")
def listed():
    policy, prompt = oracle.make_policy(3), oracle.prompts()[7]
    return policy, prompt, *oracle.enumerated(policy, prompt)


def test_the_responses_are_all_there_are(listed):
    """Their probabilities sum to 1, and so their scores to 0."""
    _, _, probabilities, scores = listed
    assert len(set(oracle.responses())) == len(probabilities) == 1 + 4 + 16 + 64
    assert abs(probabilities.sum() - 1) < 1e-12
    assert (probabilities > 0).all()
    assert (probabilities @ scores).abs().max() < 1e-12 * scores.abs().max()


@pytest.mark.parametrize("i", [0, 84])
def test_a_score_by_autograd(listed, i):
    """One response in a forward of its own, without a prefix."""
    policy, prompt, probabilities, scores = listed
    ids = policy.encode_prompts([Example(prompt, "")])[0].tolist()
    row = torch.tensor([*ids, *oracle.responses()[i]])
    logits = policy.model.lm_head(policy.model(row[None, None]))[0, 0]
    chosen = logits.log_softmax(-1)[:-1].gather(1, row[1:, None])[len(ids) - 1 :]
    policy.model.zero_grad(set_to_none=True)
    chosen.sum().backward()
    assert tiny.distance(scores[i], tiny.grads(policy.model)) < 1e-12
    assert abs(chosen.sum().exp() - probabilities[i]) < 1e-12


def test_the_kept_facts_are_those_of_the_policies(monkeypatch):
    """Of two prompts of one policy: pass rates, scatter and inner products again."""
    kept = oracle.kept_facts()
    monkeypatch.setattr(oracle, "TARGETS", oracle.TARGETS[:2])
    for key, values in oracle.facts(0).items():
        found = kept[key][0, :2, :2] if key == "gram" else kept[key][0, :2]
        torch.testing.assert_close(found, torch.tensor(values).double(), rtol=1e-6, atol=1e-9)


def test_errors_are_mean_squared_distances():
    """From 20,000 drawn gradients, with the constant factor that is best for them: of one, and of
    means of four."""
    torch.manual_seed(0)
    target = torch.tensor([1.0, 0.0])
    drawn = torch.tensor([0.3, 0.4]) + 0.2 * torch.randn(20_000, 2)
    found = {"cosine": 0.6, "length": 0.5, "noise": 0.2 * 2**0.5}
    for budget, some in ((8, drawn), (32, drawn.view(-1, 4, 2).mean(1))):
        factor = (some @ target).mean() / some.square().sum(1).mean()
        distance = (factor * some - target).square().sum(1).mean().item()
        assert curves.error(found, 8, budget) == pytest.approx(distance, rel=0.02)
