"""The exact oracle of results/gradients: its moments against the enumeration of all outcomes, its
policy against autograd."""

import itertools
import json

import pytest
import tiny
import torch
from conftest import ROOT

from maxrl.advantages import ADVANTAGES, weight
from maxrl.tasks import Example
from results.gradients import curves
from results.gradients import oracle as run

RULES = {
    **run.METHODS,
    "order 2": ("maxrl_order", {"order": 2}),
    "rare 3": ("maxrl_rare", {"order": 3}),
    "k = 2": ("pkpo", {"k": 2}),
    "dr_grpo": ("dr_grpo", {}),
}


def lowered(options, N):
    return {key: min(value, N) for key, value in options.items()}


@pytest.fixture(scope="module")
def small():
    """Probabilities, which are right, and scores of mean zero, of 5 outcomes."""
    torch.manual_seed(0)
    probabilities = torch.rand(5, dtype=torch.float64)
    probabilities /= probabilities.sum()
    scores = torch.randn(5, 7, dtype=torch.float64)
    scores -= probabilities @ scores
    return probabilities, torch.tensor([True, False, True, False, False]), scores


@pytest.mark.parametrize("N", [2, 4])
@pytest.mark.parametrize("rule", RULES)
def test_moments_by_enumeration(small, rule, N):
    """All 5^N groups through ADVANTAGES: the mean of their gradients and the trace of their
    covariance."""
    name, options = RULES[rule]
    options = lowered(options, N)
    probabilities, right, scores = small
    groups = torch.tensor(list(itertools.product(range(5), repeat=N)))
    chance = probabilities[groups].prod(1)
    advantages = ADVANTAGES[name](right[groups].double(), **options)
    gradients = (advantages[..., None] * scores[groups]).mean(1)
    mean = chance @ gradients
    trace = chance @ (gradients - mean).square().sum(1)

    of_log, success = run.spread(probabilities[right], scores[right])
    _, failure = run.spread(probabilities[~right], scores[~right])
    p, gram = probabilities[right].sum()[None], of_log.dot(of_log)[None, None]
    w, found = run.moments(name, options, N, p, gram, success[None], failure[None])
    assert tiny.distance(w * p * of_log, mean) < 1e-12
    assert abs(found - trace) < 1e-12 * trace
    assert abs(run.live(name, options, N, p) - chance @ (advantages != 0).double().mean(1)) < 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_the_weight_is_that_of_the_theory(rule):
    """Two sums, one over K of N and one over k of N - 1."""
    name, options = RULES[rule]
    p = torch.tensor(run.TARGETS, dtype=torch.float64)
    ones = torch.ones_like(p)
    for N in (2, 8, 64):
        few = lowered(options, N)
        w, _ = run.moments(name, few, N, p, torch.eye(len(p)).double(), ones, ones)
        torch.testing.assert_close(w, weight(name, p, rollouts=N, **few), rtol=1e-10, atol=0)


def test_a_batch_of_gradients():
    """cosine, length and noise from the Gram matrix, against the vectors themselves."""
    torch.manual_seed(0)
    of_log = torch.randn(4, 9, dtype=torch.float64)
    p, w, trace = torch.rand(3, 4, dtype=torch.float64)
    expected, target = (w * p) @ of_log / 4, of_log.mean(0)
    found = run.batch(w, trace, p, of_log @ of_log.T)
    assert found["cosine"] == pytest.approx(torch.cosine_similarity(expected, target, 0).item())
    assert found["length"] == pytest.approx((expected.norm() / target.norm()).item())
    assert found["noise"] == pytest.approx(((trace.sum() / 16).sqrt() / target.norm()).item())


@pytest.fixture(scope="module")
def listed():
    policy, prompt = run.make_policy(3), run.prompts()[7]
    return policy, prompt, *run.enumerated(policy, prompt)


def test_the_responses_are_all_there_are(listed):
    """Their probabilities sum to 1, and so their scores to 0."""
    _, _, probabilities, scores = listed
    assert len(set(run.responses())) == len(probabilities) == 1 + 4 + 16 + 64
    assert abs(probabilities.sum() - 1) < 1e-12 and (probabilities > 0).all()
    assert (probabilities @ scores).abs().max() < 1e-12 * scores.abs().max()


@pytest.mark.parametrize("i", [0, 84])
def test_a_score_by_autograd(listed, i):
    """One response in a forward of its own, without a prefix."""
    policy, prompt, probabilities, scores = listed
    response = run.responses()[i]
    ids = policy.encode_prompts([Example(prompt, "")])[0].tolist()
    row = torch.tensor([*ids, *response])
    logits = policy.model.lm_head(policy.model(row[None, None]))[0, 0]
    chosen = logits.log_softmax(-1)[:-1].gather(1, row[1:, None])[len(ids) - 1 :]
    policy.model.zero_grad(set_to_none=True)
    chosen.sum().backward()
    score = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    assert tiny.distance(scores[i], score) < 1e-12
    assert abs(chosen.sum().exp() - probabilities[i]) < 1e-12


def test_errors_are_mean_squared_distances():
    """From 20,000 drawn gradients: with the constant factor that is best for them, and as they
    are."""
    torch.manual_seed(0)
    target, expected = torch.tensor([1.0, 0.0]), torch.tensor([0.3, 0.4])
    drawn = expected + 0.2 * torch.randn(20_000, 2)
    row = {"rollouts": 8, "cosine": [0.6], "length": [0.5], "noise": [0.2 * 2**0.5]}
    assert curves.error(row, best_step=False)[0] == pytest.approx(
        (drawn - target).square().sum(1).mean().item(), rel=0.02
    )
    factor = (drawn @ target).mean() / drawn.square().sum(1).mean()
    assert curves.error(row)[0] == pytest.approx(
        (factor * drawn - target).square().sum(1).mean().item(), rel=0.02
    )
    four = drawn.view(-1, 4, 2).mean(1)
    assert curves.error(row, 32, False)[0] == pytest.approx(
        (four - target).square().sum(1).mean().item(), rel=0.02
    )


@pytest.fixture(scope="module")
def kept():
    return json.loads((ROOT / "results/gradients/oracle.json").read_text())


def test_what_is_kept_follows_from_the_facts(kept):
    """The rows of few rollouts again, from pass rates, inner products and scatter; with more
    scatter and by order too."""
    policies = [run.tensors(policy) for policy in kept["policies"]]
    again = 0
    for row in kept["rows"] + kept["orders"] + kept["noisier"]:
        if row["rollouts"] <= 16:
            changed = [run.noisier(policy, row.get("factor", 1)) for policy in policies]
            name, options = run.METHODS.get(
                row["method"], (row["method"], {"order": row.get("order")})
            )
            found = run.row(row["method"], name, options, row["rollouts"], changed)
            for key in ("cosine", "length", "noise"):
                assert found[key] == pytest.approx(row[key], rel=1e-6), (row, key)
            again += 1
    assert again == 10 * 4 + 5 + 6 * 4


def test_the_sampled_control_agrees(kept):
    for row in kept["control"]:
        for key in ("signal", "square"):
            mean, se, exact = row[key]
            assert abs(mean - exact) < 4 * se < 0.15 * exact
