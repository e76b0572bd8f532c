"""From advantages to a loss: token log-probabilities, entropy, normaliser, policy gradient.

Letters: E hidden size, V vocabulary, N rollouts of L tokens.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maxrl.sampling.drawing import at_least_float32

# Logits at a time, by device: 128 or 512 MiB in float32. Each chunk casts the head again, which
# takes a GPU as long as the products of 800 tokens.
CHUNK = {"cpu": 2**25, "cuda": 2**27}


def normaliser(aggregation: str, num_rollouts: float, tokens: float, max_tokens: int) -> float:
    """The divisor of one update's loss.

    aggregation   sequence, token or constant
    num_rollouts  P N of the update, over all ranks
    tokens        response tokens over all ranks. A prompt that was sampled in rounds is trained on
                  its last round alone, of n rollouts; N is the largest round. If n < N, its tokens
                  count N / n times, and maxrl/advantages/registry.py multiplies its advantages by
                  N / n as well, so that prompts have equal weight
    max_tokens    the longest response that is allowed
    """
    # One number for the whole update, known before its first backward, since each micro-batch has a
    # backward of its own. A mean per micro-batch or per response would be another objective: it
    # changes the gradient's direction, not only its length. "token" depends on the sampled lengths,
    # so the weights w(p) hold for it up to this dependence (maxrl/README.md measures it).
    divisors = {
        "sequence": num_rollouts,  # Algorithm 1: 1 / (P N)
        "token": tokens,  # Appendix F
        "constant": num_rollouts * max_tokens,  # Dr. GRPO: P N L_max
    }
    return float(divisors[aggregation])


def token_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """log m(target) of each token.

    logits   (..., V)
    targets  (...), token ids
    returns  (...), in float32 or better
    """
    logits = at_least_float32(logits)  # (..., V)
    chosen = logits.gather(-1, targets[..., None]).squeeze(-1)  # (...)
    return chosen - logits.logsumexp(-1)  # (...)


def entropy(logits: Tensor) -> Tensor:
    """The entropy of softmax(logits), in nats.

    logits   (..., V)
    returns  (...), in float32 or better
    """
    log_probs = at_least_float32(logits).log_softmax(-1)  # (..., V)
    return -(log_probs.exp() * log_probs).sum(-1)  # (...)


def log_probs_and_entropies(
    hidden: Tensor, head: nn.Linear, targets: Tensor, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """token_log_probs and, if asked for, entropy of head(hidden), without all logits at once.

    hidden   (tokens, E)
    head     the module that makes logits (tokens, V) of hidden
    targets  (tokens,)
    returns  log-probs (tokens,); entropies (tokens,), or None unless with_entropy
    """
    device = hidden.device.type

    def piece(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        # Autocast caches one bfloat16 copy of the head and sums the chunks' gradients in bfloat16;
        # without the cache they sum in float32.
        low = torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=low, cache_enabled=False):
            logits = head(hidden)  # (chunk, V)
        log_probs = token_log_probs(logits, targets)  # (chunk,)
        return log_probs, entropy(logits) if with_entropy else None

    size = max(1, CHUNK[device] // head.out_features)
    if len(hidden) <= size:
        return piece(hidden, targets)
    # The logits (tokens, V) are the largest tensor of a step. The backward computes them again,
    # chunk by chunk, instead of keeping them.
    chunks = zip(hidden.split(size), targets.split(size))
    parts = [checkpoint(piece, *chunk, use_reentrant=False) for chunk in chunks]
    log_probs, entropies = zip(*parts)
    return torch.cat(log_probs), torch.cat(entropies) if with_entropy else None


def policy_gradient_loss(
    log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    divisor: float,
    *,
    old_log_probs: Tensor | None = None,
    clip: tuple[float, float] = (0.2, 0.2),
) -> Tensor:
    """-sum_i A_i sum_t log m(z_it) / divisor: its gradient is minus the estimator's.

    With the "sequence" divisor this is Algorithm 1, line 8, averaged over prompts. With one update
    per batch no old_log_probs are needed: the ratio is 1, and nothing is clipped.

    log_probs      log m(z_it) (..., N, L), with gradients
    advantages     A_i (..., N)
    mask           (..., N, L), the tokens of the responses
    divisor        from normaliser()
    old_log_probs  (..., N, L), for several updates per batch: from the training forward before the
                   first update. The term A_i log m becomes min(ratio A_i, clipped ratio A_i), where
                   ratio = m / m_old per token (Schulman et al. 2017)
    clip           low and high
    returns        a scalar
    raises         ValueError for shapes that do not fit, which could broadcast unseen
    """
    if advantages.shape != log_probs.shape[:-1] or mask.shape != log_probs.shape:
        raise ValueError(
            f"advantages {tuple(advantages.shape)} and mask {tuple(mask.shape)} do not fit "
            f"log_probs {tuple(log_probs.shape)}"
        )
    advantages = advantages[..., None]  # (..., N, 1)
    if old_log_probs is None:
        return -(advantages * log_probs * mask).sum() / divisor
    # Masked before exp, which could overflow otherwise: a row that is not run, because its
    # advantage is 0, has log_probs of 0, but its old_log_probs are not 0.
    ratio = ((log_probs - old_log_probs) * mask).exp()  # (..., N, L)
    low, high = clip
    clipped = ratio.clamp(1 - low, 1 + high)  # (..., N, L)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    return -(surrogate * mask).sum() / divisor


def k3(log_probs: Tensor, reference_log_probs: Tensor, mask: Tensor) -> Tensor:
    """KL(m || reference) per token by q - log q - 1, q = m_ref / m (Schulman 2020): never negative.

    Its mean over samples of m is KL(m || reference). As a loss, as in GRPO, the samples are held
    fixed, and the expectation of its gradient is that of each token's KL(reference || m) after the
    tokens that m has drawn before it.

    log_probs, reference_log_probs, mask and the result are (..., N, L).
    """
    log_q = (reference_log_probs - log_probs) * mask  # (..., N, L)
    # expm1 computes q - 1 without cancellation where q is near 1.
    return torch.expm1(log_q) - log_q


def k2(log_probs: Tensor, reference_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Half of (log q)^2 per token, q = m_ref / m (Schulman 2020): never negative.

    As a loss, with the samples held fixed, the expectation of its gradient is that of each token's
    KL(m || reference); what a token changes in the KL of later ones is left out. Its value is
    biased, so the metric `kl` is k3 whatever the loss has.

    log_probs, reference_log_probs, mask and the result are (..., N, L).
    """
    log_q = (reference_log_probs - log_probs) * mask  # (..., N, L)
    return log_q.square() / 2
