"""From advantages to a loss: token log-probabilities, entropy, and the policy gradient with its normaliser."""

import torch

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


def policy_gradient_loss(log_probs, advantages, mask, normaliser: float) -> torch.Tensor:
    """-sum_i A_i sum_t log m(z_it) / normaliser: its gradient is minus the estimator's.

    log_probs and mask (..., N, L), advantages (..., N). With "sequence" and the P N rollouts of the whole batch this is
    Algorithm 1, line 8, averaged over prompts. One update per batch: the importance ratio is 1 and nothing is clipped.
    """
    if advantages.shape != log_probs.shape[:-1] or mask.shape != log_probs.shape:
        raise ValueError(f"advantages {tuple(advantages.shape)} and mask {tuple(mask.shape)} do not fit "
                         f"log_probs {tuple(log_probs.shape)}")
    return -(advantages[..., None] * log_probs * mask).sum() / normaliser
