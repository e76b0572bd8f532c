"""The terms beside -A log m: importance ratio and clipping, KL to a reference, entropy; log-probs
in chunks.
"""

import math
import shutil

import pytest
import torch
import torch.nn.functional as F

from maxrl.learning import losses
from maxrl.learning.losses import entropy, k2, k3, log_probs_and_entropies, policy_gradient_loss
from maxrl.models import checkpoint
from tests.bench.bench_memory import saved_bytes
from tests.helpers import tiny
from tests.helpers.runs import passed, refused
from tests.helpers.tensors import F64, close, normal


# ------------------------------------------------------ in chunks
def head_and_hidden(tokens, E, V):
    torch.manual_seed(0)
    head = torch.nn.Linear(E, V)
    return head, torch.randn(tokens, E, requires_grad=True), torch.randint(V, (tokens,))


@pytest.mark.parametrize("logits_at_once", [10**9, 50, 150, 151])
def test_chunks_change_nothing(monkeypatch, logits_at_once):
    """Values and gradients of log-probs and entropies, in float64, against the whole (tokens, V) at
    once.
    """
    head, hidden, targets = head_and_hidden(17, 8, 50)
    head.double()
    hidden = hidden.double()
    monkeypatch.setitem(losses.CHUNK, "cpu", logits_at_once)
    ours = log_probs_and_entropies(hidden, head, targets, True)
    full = torch.distributions.Categorical(logits=head(hidden))
    expected = full.log_prob(targets), full.entropy()
    close(ours, expected)

    def gradients(log_probs, entropies):
        leaves = [hidden, head.weight, head.bias]
        return torch.autograd.grad((log_probs.sin() * entropies).sum(), leaves)

    close(gradients(*ours), gradients(*expected))
    assert log_probs_and_entropies(hidden, head, targets)[1] is None


def test_gradients_of_chunks_meet_in_float32(monkeypatch):
    """Under autocast the weight's gradient is as far from float64's in 16 chunks as in one; summed
    in bfloat16 it was 1.9 times as far."""
    head, hidden, targets = head_and_hidden(2048, 64, 256)

    def gradient(chunks, dtype=torch.float32):
        monkeypatch.setitem(losses.CHUNK, "cpu", 256 * 2048 // chunks)
        low = dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            log_probs, _ = log_probs_and_entropies(hidden.to(dtype), head.to(dtype), targets)
        weighted = log_probs.double() @ normal(2048)
        return torch.autograd.grad(weighted, head.weight)[0].double()

    one = gradient(1)
    many = gradient(16)
    exact = gradient(1, F64)
    assert 0 < tiny.distance(many, exact) <= 1.2 * tiny.distance(one, exact)


def test_chunks_do_not_keep_the_logits(monkeypatch):
    """What the backward keeps: without chunks (tokens, V) and more, with them only the pieces'
    inputs.
    """
    head, hidden, targets = head_and_hidden(64, 4, 1000)

    def kept(logits_at_once):
        monkeypatch.setitem(losses.CHUNK, "cpu", logits_at_once)
        return saved_bytes(lambda: log_probs_and_entropies(hidden, head, targets))[1]

    assert kept(10**9) >= 4 * 64_000
    assert kept(4000) < 0.4 * 64_000


def test_entropy_in_low_precision():
    found = entropy(torch.zeros(2, 3, 8).bfloat16())
    close(found, torch.full((2, 3), math.log(8)), 1e-6)


# --------------------------------------------------- ratio and clipping
def test_clipping_by_hand():
    """Asymmetric: a good token counts up to ratio 1.4, a bad one down to 0.9; beyond there is no
    gradient, but a bad token that became likelier, or a good one that became less likely, is never
    let go."""
    ratio = torch.tensor([1.3, 1.5, 0.5, 1.3, 0.95, 0.5], dtype=F64)
    advantage = torch.tensor([2.0, 2, 2, -2, -2, -2], dtype=F64)
    log_probs = ratio.log()[:, None].requires_grad_()
    several = {"old_log_probs": torch.zeros(6, 1), "clip": (0.1, 0.4)}
    loss = policy_gradient_loss(log_probs, advantage, torch.ones(6, 1), 1.0, **several)
    assert loss.item() == pytest.approx(-2 * (1.3 + 1.4 + 0.5 - 1.3 - 0.95 - 0.9))
    loss.backward()
    expected = 2 * torch.tensor([1.3, 0, 0.5, -1.3, -0.95, 0], dtype=F64)
    close(-log_probs.grad[:, 0], expected)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.2, 0.4), (0.3, 0.2)])
def test_clip_ratio_is_a_share_of_all_tokens(clip, beta):
    """Also of those in groups without an advantage, which are scored with --beta alone: one name,
    one number.
    """
    policy = tiny.policy(beta=beta, reference=tiny.model(seed=1), clip=clip)
    rollouts = tiny.rollouts()
    policy.record(rollouts)
    # Ratios of 1.35, 0.74, 1 and 1: each clip has a side of its own.
    rollouts.old_log_probs += torch.tensor([-0.3, 0.3, 0, 0])[:, None]  # by row
    advantages = torch.zeros(4, 4, dtype=F64)
    advantages[0] = torch.tensor([1.0, -1, 1, -1])
    advantages[2, 1] = 1.0  # less likely than it was, and good: never let go
    stats = policy.backward(rollouts, advantages).metrics()
    high, low, *_ = (rollouts.lengths[0] / rollouts.lengths.sum()).tolist()
    high *= clip[1] < 0.35
    low *= clip[0] < 0.26
    assert stats["clip_ratio/high_mean"] == pytest.approx(high)
    assert stats["clip_ratio/low_mean"] == pytest.approx(low)
    assert stats["clip_ratio/region_mean"] == pytest.approx(high + low)


def test_recorded_log_probs_do_not_depend_on_micro_batches():
    whole = tiny.rollouts()
    parts = tiny.rollouts()
    tiny.policy().record(whole)
    tiny.policy(micro_batch_tokens=20).record(parts)
    close(whole.old_log_probs, parts.old_log_probs, 1e-6)
    mask = torch.arange(6) < whole.lengths[..., None]
    assert torch.equal(whole.old_log_probs < 0, mask)
    assert not whole.old_log_probs[~mask].any()


def test_minibatches_add_up():
    """Two halves with their own divisors: with "sequence", half the sum of their gradients is that
    of the whole.
    """
    policy = tiny.policy(aggregation="sequence")
    rollouts = tiny.rollouts()
    whole = tiny.gradient(policy, rollouts, normal(4, 4))
    policy.model.zero_grad()
    for groups in ([2, 0], [1, 3]):
        policy.backward(rollouts, normal(4, 4), groups)
    assert tiny.distance(tiny.grads(policy.model) / 2, whole) < 1e-12


# ------------------------------------------------------ KL and entropy
def test_k3_is_the_kl_divergence_in_expectation():
    """Summed over the vocabulary, weighted with m: exactly KL(m || ref); never negative; 0 where
    they are equal. The naive log m - log ref is negative for some tokens."""
    m, ref = normal(2, 9).log_softmax(1)
    terms = k3(m, ref, torch.ones(9))
    close((m.exp() * terms).sum(), F.kl_div(ref, m, log_target=True, reduction="sum"))
    assert (terms >= 0).all()
    assert (m - ref < 0).any()
    assert not k3(m, m, torch.ones(9)).any()
    near = torch.tensor([1e-9], dtype=F64)
    without_cancellation = k3(near, torch.zeros(1), torch.ones(1)).item()
    assert without_cancellation == pytest.approx(0.5e-18, rel=1e-3)


@pytest.mark.parametrize("penalty, reverse", [(k2, True), (k3, False)])
def test_which_divergence_a_penalty_descends(penalty, reverse):
    """Summed over the vocabulary with the samples' weights m held fixed, the gradient of k2 is that
    of KL(m || ref), and the gradient of k3 that of KL(ref || m)."""
    logits = normal(9).requires_grad_()
    ref = normal(9, seed=1).log_softmax(0)
    m = logits.log_softmax(0)
    loss = (m.detach().exp() * penalty(m, ref, torch.ones(9))).sum()
    (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
    first, second = (m, ref) if reverse else (ref, m)
    divergence = (first.exp() * (first - second)).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    close(found, expected)
    other = (second.exp() * (second - first)).sum()
    (wrong,) = torch.autograd.grad(other, logits)
    assert (found - wrong).abs().max() > 0.01


@pytest.mark.parametrize("kl", ["k2", "k3"])
@pytest.mark.parametrize("budget", [10**6, 20])
@pytest.mark.parametrize("share", [True, False])
def test_terms_of_the_loss_against_autograd(budget, share, kl):
    """Either KL penalty and an entropy bonus on top of the policy gradient, token aggregation, also
    of groups without advantages.
    """
    model = tiny.model()
    reference = tiny.model(seed=1)
    options = {"beta": 0.3, "kl": kl, "entropy_bonus": 0.2, "reference": reference}
    policy = tiny.policy(model, share, micro_batch_tokens=budget, **options)
    rollouts = tiny.rollouts()
    advantages = normal(4, 4)
    advantages[1] = 0
    ours = tiny.gradient(policy, rollouts, advantages)
    stats = policy.backward(rollouts, advantages).metrics()

    model.zero_grad()
    loss = kl_sum = 0.0
    for g, prompt in enumerate(rollouts.prompts):
        for i in range(4):
            response = rollouts.response(g, i)
            every = tiny.row_logits(model, prompt, response).log_softmax(-1)
            theirs = tiny.row_logits(reference, prompt, response).log_softmax(-1)
            log_m = every[range(len(response)), response]
            log_q = theirs[range(len(response)), response] - log_m
            terms = {"k2": log_q.square() / 2, "k3": log_q.exp() - log_q - 1}
            loss = loss - advantages[g, i] * log_m.sum() + 0.3 * terms[kl].sum()
            loss = loss + 0.2 * (every.exp() * every).sum()
            kl_sum += terms["k3"].sum().item()
    tokens = rollouts.lengths.sum()
    (loss / tokens).backward()
    assert tiny.distance(ours, tiny.grads(model)) < 1e-10
    assert stats["loss"] == pytest.approx(loss.item() / tokens.item())
    assert stats["kl"] == pytest.approx(kl_sum / tokens.item())
    assert all(p.grad is None for p in reference.parameters())


# --------------------------------------------------- the front door
def words(init):
    options = "--prompts 8 --rollouts 8 --steps 3 --task tests.helpers.tiny:Up --max-response 6"
    return ("tiny", *options.split(), "--init", init)


def test_a_resumed_run_keeps_its_reference(dice, shell):
    """--init is a run that has gone on in between."""
    for step in (1, 2):
        shutil.copytree(checkpoint.find(dice), f"base/step-{step}")
        checkpoint.set_latest("base", f"step-{step}")
        options = ("--beta", 0.1, "--out", "kl", "--resume", "auto")
        result = shell("train.py", *words("base"), *options)
        assert step == 2 or result[0] == 0, result
    refused(
        result, "kl was started with init = 'base/step-1', not 'base/step-2'", "--init base/step-1"
    )
    passed(shell("train.py", *words("base/step-1"), *options))
