"""From advantages to a loss: token log-probabilities, entropy, and the policy gradient with its normaliser."""

import torch
from torch.utils.checkpoint import checkpoint

CHUNK = 2**25  # logits at a time: 128 MiB in float32

# What one optimizer step divides by: one number, over all micro-batches and ranks. A mean per micro-batch or per
# response would be another objective: it changes the gradient's direction, not only its length.
NORMALISERS = {
    "sequence": lambda rollouts, tokens, max_tokens: rollouts,  # Algorithm 1: 1 / (P N)
    "token": lambda rollouts, tokens, max_tokens: tokens,  # Appendix F: all response tokens of the batch
    "constant": lambda rollouts, tokens, max_tokens: rollouts * max_tokens,  # Dr. GRPO: P N L_max
}


def normaliser(aggregation: str, rollouts: int, tokens: int, max_tokens: int) -> float:
    """The step's divisor: rollouts = P N and tokens = all response tokens, both over all ranks."""
    if aggregation not in NORMALISERS:
        raise ValueError(f"aggregation {aggregation!r} is unknown; use one of {', '.join(NORMALISERS)}")
    return float(NORMALISERS[aggregation](rollouts, tokens, max_tokens))


def token_log_probs(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """log m(target) (...) from logits (..., V), in float32 or better."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.gather(-1, targets[..., None]).squeeze(-1) - logits.logsumexp(-1)


def log_probs_and_entropies(hidden: torch.Tensor, head, targets: torch.Tensor, with_entropy: bool = False):
    """log m(target) (tokens,) and, if asked for, the entropy in nats of each distribution (tokens,), else None.

    hidden (tokens, E), targets (tokens,), head: the module that makes logits (tokens, V) of hidden. CHUNK logits at a
    time: the backward makes them again instead of keeping all of (tokens, V).
    """
    def piece(hidden, targets):
        logits = head(hidden)                                                  # (rows, V)
        return token_log_probs(logits, targets), entropy(logits) if with_entropy else None

    rows = max(1, CHUNK // head.out_features)
    if len(hidden) <= rows:
        return piece(hidden, targets)
    parts = [checkpoint(piece, *part, use_reentrant=False) for part in zip(hidden.split(rows), targets.split(rows))]
    log_probs, entropies = zip(*parts)
    return torch.cat(log_probs), torch.cat(entropies) if with_entropy else None


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Of softmax(logits), (...) from (..., V), in nats and in float32 or better."""
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def policy_gradient_loss(log_probs, advantages, mask, normaliser: float, *, old_log_probs=None, clip=(0.2, 0.2)):
    """-sum_i A_i sum_t log m(z_it) / normaliser: its gradient is minus the estimator's.

    log_probs and mask (..., N, L), advantages (..., N). With "sequence" and the P N rollouts of the whole batch this is
    Algorithm 1, line 8, averaged over prompts. One update per batch: the importance ratio is 1 and nothing is clipped.

    For more than one, old_log_probs (..., N, L) are those of the policy that made the rollouts, by the training forward:
    log m becomes min(w A, clip(w, 1 - low, 1 + high) A), w = m / m_old per token (Schulman et al. 2017).
    """
    if advantages.shape != log_probs.shape[:-1] or mask.shape != log_probs.shape:
        raise ValueError(f"advantages {tuple(advantages.shape)} and mask {tuple(mask.shape)} do not fit "
                         f"log_probs {tuple(log_probs.shape)}")
    advantages = advantages[..., None]                                         # (..., N, 1)
    if old_log_probs is None:
        return -(advantages * log_probs * mask).sum() / normaliser
    ratio = ((log_probs - old_log_probs) * mask).exp()                         # (..., N, L)
    low, high = clip
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    return -(surrogate * mask).sum() / normaliser


def k3(log_probs, reference_log_probs, mask) -> torch.Tensor:
    """KL(m || reference) per token (..., N, L) by q - log q - 1, q = m_ref / m (Schulman 2020): never negative."""
    log_q = (reference_log_probs - log_probs) * mask
    return torch.expm1(log_q) - log_q  # exact where q is near 1
