"""The exact oracle of results/gradients: its policy against autograd, and its cosine against
vectors."""

import numpy as np
import pytest
import torch

from maxrl.tasks import Example
from results.gradients import oracle, study
from results.lab.data import kept
from tests.helpers import tiny


def test_the_cosine_of_gradients():
    """From the inner products, against the vectors themselves."""
    rng = np.random.default_rng(0)
    of_log = rng.normal(size=(4, 9))
    p, w = rng.random((2, 4))
    expected, target = (w * p) @ of_log, of_log.sum(0)
    wanted = expected @ target / np.linalg.norm(expected) / np.linalg.norm(target)
    (found,) = study.cosine(w[None], p[None], (of_log @ of_log.T)[None])
    assert found == pytest.approx(wanted)


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
    """Of two prompts of one policy: pass rates and inner products again."""
    first = kept("gradients", "tests")["oracle.json"]["policies"][0]
    monkeypatch.setattr(oracle, "TARGETS", oracle.TARGETS[:2])
    for key, values in oracle.facts(0).items():
        found = np.array(first[key])[:2, :2] if key == "gram" else first[key][:2]
        np.testing.assert_allclose(found, values, rtol=1e-6, atol=1e-9)
