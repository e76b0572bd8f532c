"""The loss: token log-probs, three normalisers, masks; and the wrong means that circulate, which
turn the gradient.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from maxrl.learning.losses import k2, k3, normaliser, policy_gradient_loss, token_log_probs
from tests.helpers import tiny
from tests.helpers.tensors import F64, seeded


def test_low_precision_logits_are_normalised_in_float32():
    """A log-softmax in bfloat16 is off by 0.02 and more: log-probs of -8.0625 and -8.125 have
    nothing in between.
    """
    logits = (torch.randn(5, 10, 1000, generator=seeded()) * 3).bfloat16()
    ours = token_log_probs(logits, torch.zeros(5, 10, dtype=torch.long))
    exact = logits.double().log_softmax(-1)[..., 0]
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, atol=1e-5, rtol=0)


def test_huge_logits_do_not_overflow():
    log_probs = token_log_probs(torch.tensor([[1e4, -1e4], [3e38, 3e38]]), torch.tensor([1, 0]))
    torch.testing.assert_close(log_probs[0], torch.tensor(-2e4))


def test_the_three_normalisers():
    """P N = 6 rollouts with 20 tokens in all, 10 allowed for each."""
    for name, expected in (("sequence", 6), ("token", 20), ("constant", 60)):
        assert normaliser(name, 6, 20, 10) == expected
    with pytest.raises(KeyError, match="mean"):
        normaliser("mean", 6, 20, 10)


def test_loss_by_hand():
    """Two groups of two: -(2 (-1 - 2) - 1 (-3) + 0.5 (-4 - 5)) / 4."""
    log_probs = torch.tensor([[[-1.0, -2.0], [-3.0, -9.0]], [[-4.0, -5.0], [-7.0, -7.0]]])
    mask = torch.tensor([[[1, 1], [1, 0]], [[1, 1], [0, 0]]]).bool()
    advantages = torch.tensor([[2.0, -1.0], [0.5, 3.0]])
    loss = policy_gradient_loss(log_probs, advantages, mask, 4.0)
    assert float(loss) == -(2 * -3 - 1 * -3 + 0.5 * -9) / 4


def test_what_is_masked_is_nothing():
    """Padding, and a row that is not run: its log-probs are 0, its old ones may be any number."""
    log_probs = torch.tensor([[-1.0, -2.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    old = torch.tensor([[-1.0, -2.0, -3.0], [-300.0, -1.0, -2.0]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]]).bool()
    advantages = torch.tensor([2.0, 0.0])
    loss = policy_gradient_loss(log_probs, advantages, mask, 1.0, old_log_probs=old)
    assert loss.item() == -4
    loss.backward()
    assert log_probs.grad.tolist() == [[-2, -2, 0], [0, 0, 0]]
    for penalty in (k2, k3):
        assert not penalty(log_probs, old, mask).any()


@pytest.mark.parametrize("shapes", ["42 243", "24 241", "241 243"])
def test_shapes_that_would_broadcast_are_refused(shapes):
    """Of advantages and mask, for log-probs of shape (2, 4, 3)."""
    given = (torch.zeros(*map(int, shape)) for shape in shapes.split())
    with pytest.raises(ValueError, match="do not fit"):
        policy_gradient_loss(torch.zeros(2, 4, 3), *given, 1.0)


# The terms A log m (N, L) of a micro-batch that is one group, the mask of its tokens, and all
# rollouts.
MEANS = {
    "token": lambda terms, mask, all: terms.sum() / all.lengths.sum(),
    "sequence": lambda terms, mask, all: terms.sum() / all.lengths.numel(),
    "mean per micro-batch": lambda terms, mask, all: terms.sum() / mask.sum() / len(all.prompts),
    "mean per sequence": lambda terms, mask, all: (
        sum(terms.sum(1) / mask.sum(1)) / all.lengths.numel()
    ),
}


@pytest.mark.parametrize("name", MEANS)
def test_wrong_means_turn_the_gradient(name):
    """One number divides the whole step. A mean over each micro-batch's own tokens makes the
    gradient depend on what happens to share a forward (a bug that sat for a year in gradient
    accumulation of widely used trainers); a mean over each response's own tokens makes long wrong
    answers cheap (what Dr. GRPO corrects). Cosines with the right one:
    """
    rollouts = tiny.rollouts(N=4, L=9)
    rollouts.lengths[0] = 1  # one prompt with short answers
    rows = [[1, -1, 0, 0], [3, -1, -1, -1], [-0.3, 1, 0, 0], [1, 1, -1, -1]]
    advantages = torch.tensor(rows, dtype=F64)
    right = "sequence" if name == "sequence" else "token"
    policy = tiny.policy(aggregation=right)
    expected = tiny.gradient(policy, rollouts, advantages)
    policy.model.zero_grad()
    for group in range(4):
        batch = tiny.whole(rollouts.select(torch.arange(4) == group))
        log_probs, _ = policy.module(batch)
        terms = advantages[group][:, None] * log_probs[0] * batch.mask[0]  # (N, L)
        (-MEANS[name](terms, batch.mask[0], rollouts)).backward()
    found = tiny.grads(policy.model)
    if name == right:
        assert tiny.distance(found, expected) < 1e-12
    else:
        assert F.cosine_similarity(found, expected, dim=0) < 0.99


def test_masks_come_from_lengths_not_from_ids():
    """With pad = <eos>, as in instruct tokenizers, a mask of `tokens != pad` hides every end token
    from the loss: the model is never told to stop. Here each response ends with token 0, the
    padding's id."""
    rollouts = tiny.rollouts(L=6)
    last = (rollouts.lengths - 1)[..., None]
    rollouts.tokens.scatter_(2, last, 0)
    ones = torch.ones(4, 4, dtype=F64)
    batch = tiny.whole(rollouts)
    assert torch.equal(batch.mask.sum(-1), rollouts.lengths)
    assert batch.mask.gather(2, last).all()
    beyond = torch.arange(6) >= rollouts.lengths[..., None]
    dirty = replace(rollouts, tokens=rollouts.tokens.masked_fill(beyond, 31))
    expected = tiny.gradient(tiny.policy(), rollouts, ones)
    for share in (True, False):
        policy = tiny.policy(share_prompt=share)
        for given in (rollouts, dirty):
            assert tiny.distance(tiny.gradient(policy, given, ones), expected) < 1e-12
