"""The loss: token log-probs, three normalisers, masks; and the wrong means that circulate, which
turn the gradient.
"""

from dataclasses import replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from tensors import seeded

from maxrl.losses import normaliser, policy_gradient_loss, token_log_probs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_token_log_probs_are_cross_entropy(dtype):
    logits = torch.randn(3, 4, 5, 11, dtype=dtype) * 5
    targets = torch.randint(11, (3, 4, 5))
    expected = -F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
    torch.testing.assert_close(token_log_probs(logits, targets).flatten(), expected)


def test_low_precision_logits_are_normalised_in_float32():
    """A log-softmax in bfloat16 is off by 0.02 and more: log-probs of -8.0625 and -8.125 have
    nothing in between.
    """
    logits = (torch.randn(50, 1000, generator=seeded()) * 3).bfloat16()
    ours = token_log_probs(logits, torch.zeros(50, dtype=torch.long))
    exact = logits.double().log_softmax(-1)[:, 0]
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, atol=1e-5, rtol=0)
    assert (logits.log_softmax(-1)[:, 0].double() - exact).abs().max() > 0.01


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


@pytest.mark.parametrize(
    "advantages, mask", [((4, 2), (2, 4, 3)), ((2, 4), (2, 4, 1)), ((2, 4, 1), (2, 4, 3))]
)
def test_shapes_that_would_broadcast_are_refused(advantages, mask):
    given = torch.zeros(2, 4, 3), torch.zeros(advantages), torch.zeros(mask).bool()
    with pytest.raises(ValueError, match="do not fit"):
        policy_gradient_loss(*given, 1.0)


def direction(model, rollouts, advantages, mean):
    """The gradient when each micro-batch (one group each, their log-probs (N, L) and mask) is
    averaged by `mean`.
    """
    policy = tiny.policy(model)
    model.zero_grad(set_to_none=True)
    for group, values in enumerate(advantages):
        batch = tiny.whole(rollouts.select(torch.arange(len(advantages)) == group))
        log_probs, mask = policy.module(batch)[0][0], batch.mask[0]  # (N, L)
        (-mean(values[:, None] * log_probs * mask, mask, rollouts)).backward()
    return tiny.grads(model)


MEANS = {
    "token": lambda terms, mask, all: terms.sum() / all.lengths.sum(),
    "sequence": lambda terms, mask, all: terms.sum() / all.lengths.numel(),
    "mean per micro-batch": lambda terms, mask, all: terms.sum() / mask.sum() / len(all.prompts),
    "mean per sequence": lambda terms, mask, all: (
        sum(terms.sum(1) / mask.sum(1)) / all.lengths.numel()
    ),
}


def test_wrong_means_turn_the_gradient():
    """One number divides the whole step. A mean over each micro-batch's own tokens makes the
    gradient depend on what happens to share a forward (a bug that sat for a year in gradient
    accumulation of widely used trainers); a mean over each response's own tokens makes long wrong
    answers cheap (what Dr. GRPO corrects). Cosines with the right one:
    """
    model, rollouts = tiny.model(), tiny.rollouts(N=4, L=9)
    rollouts.lengths[0] = 1  # one prompt with short answers
    advantages = torch.tensor([[1.0, -1, 0, 0], [3, -1, -1, -1], [-0.3, 1, 0, 0], [1, 1, -1, -1]])
    right = {
        name: tiny.gradient(tiny.policy(model, aggregation=name), rollouts, advantages.double())
        for name in ("token", "sequence")
    }
    for name, mean in MEANS.items():
        gradient = direction(model, rollouts, advantages.double(), mean)
        if name in right:
            assert tiny.distance(gradient, right[name]) < 1e-12
        else:
            assert F.cosine_similarity(gradient, right["token"], dim=0) < 0.99, name


def test_masks_come_from_lengths_not_from_ids():
    """With pad = <eos>, as in instruct tokenizers, a mask of `tokens != pad` hides every end token
    from the loss: the model is never told to stop. Here each response ends with token 0, the
    padding's id."""
    model, rollouts = tiny.model(), tiny.rollouts(L=6)
    last = (rollouts.lengths - 1)[..., None]
    rollouts.tokens.scatter_(2, last, 0)
    policy = tiny.policy(model)
    ones = torch.ones(4, 4, dtype=torch.float64)
    batch = tiny.whole(rollouts)
    assert torch.equal(batch.mask.sum(-1), rollouts.lengths)
    assert torch.equal(batch.mask.gather(2, last), torch.ones_like(last).bool())
    assert not (rollouts.tokens != 0).gather(2, last).any(), "the wrong mask hides the end tokens"
    right = tiny.gradient(policy, rollouts, ones)
    for share in (True, False):
        tiny.share_prompts(model, share)
        assert tiny.distance(tiny.gradient(policy, rollouts, ones), right) < 1e-12
        dirty = rollouts.tokens.masked_fill(torch.arange(6) >= rollouts.lengths[..., None], 31)
        gradient = tiny.gradient(policy, replace(rollouts, tokens=dirty), ones)
        assert tiny.distance(gradient, right) < 1e-12
