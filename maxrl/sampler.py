"""Sampling N responses per prompt: the prompt is encoded once, its keys and values are shared by its N rollouts.

Noise rule: the token at a position is the inverse of the cumulative distribution at a uniform number that depends on
(seed, step, prompt index, rollout index, position) alone, for a given length limit. Batching, finished rows and the
number of ranks therefore change a rollout only through rounding of the logits.
"""

from dataclasses import dataclass

import numpy as np
import torch

from maxrl.models.attention import Cache

CHECK_EVERY = 4  # tokens between two questions to the device which rows are still alive
SHRINK_AT = 0.75  # rows are packed together when at most this share of the slots is alive


@dataclass
class Samples:
    """N responses for each of P prompts, right-padded with 0. The stop token belongs to its response."""

    tokens: torch.Tensor  # (P, N, L)
    lengths: torch.Tensor  # (P, N)
    log_probs: torch.Tensor  # (P, N, L) of each token under the distribution it was drawn from, 0 in the padding
    entropies: torch.Tensor  # (P, N, L) of that distribution, in nats
    finished: torch.Tensor  # (P, N) bool: ended by a stop token, not by the length limit


def noise(seed: int, step: int, prompt_indices, rollouts: int, length: int) -> torch.Tensor:
    """Uniform numbers (P, N, L) in [0, 1), float64: each prompt's from its own generator, all N rollouts at once."""
    draws = [np.random.default_rng([seed, step, int(i)]).random((rollouts, length)) for i in prompt_indices]
    return torch.from_numpy(np.stack(draws))


def distribution(logits, temperature=1.0, top_k=0, top_p=1.0):
    """Log-probabilities (..., V) to draw from, in float32 or better; tokens that are cut away have -inf.

    top_k = 0 and top_p = 1 cut nothing; temperature 0 leaves the most probable token alone (greedy). top_p keeps the
    most probable tokens up to and including the one at which their sum reaches top_p.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)
    logits = logits / temperature
    if 0 < top_k < logits.shape[-1]:
        kept = logits.topk(top_k).indices
        logits = torch.full_like(logits, -torch.inf).scatter(-1, kept, logits.gather(-1, kept))
    if top_p < 1:
        descending, order = logits.log_softmax(-1).exp().sort(dim=-1, descending=True, stable=True)
        cut = descending.cumsum(-1) - descending >= top_p  # the mass before a token already reaches top_p
        logits = logits.masked_fill(torch.zeros_like(cut).scatter(-1, order, cut), -torch.inf)
    return logits.log_softmax(-1)


def inverse_cdf(log_probs, uniforms):
    """Tokens (..., n) at uniforms (..., n) in [0, 1) of log_probs (..., V); a token of probability 0 is never drawn."""
    cdf = log_probs.double().exp().cumsum(-1)
    point = uniforms.double().clamp(max=1 - 2**-52) * cdf[..., -1:]  # below the end even after rounding
    return torch.searchsorted(cdf, point, right=True).clamp(max=cdf.shape[-1] - 1)  # beyond it only where cdf is NaN


@torch.no_grad()
def generate(model, prompts, rollouts: int, max_tokens: int, stop_tokens, uniforms, *, temperature=1.0, top_k=0, top_p=1.0):
    """N = `rollouts` responses of at most `max_tokens` tokens for every prompt.

    model: a Transformer. prompts: P one-dimensional tensors of at least one token, of any lengths. stop_tokens: ids that
    end a response. uniforms (P, N, max_tokens): see `noise`. Returns Samples; raises ValueError if a prompt is empty or
    leaves no room for max_tokens.
    """
    check_prompts(model, prompts, max_tokens)
    device, P, N = model.lm_head.weight.device, len(prompts), rollouts
    last = torch.stack([p[-1] for p in prompts]).to(device)  # the rows' first input: the prompt's last token
    prefix, prefix_lengths = pad([p[:-1] for p in prompts], device)
    cache = Cache(model.encode(prefix), prefix_lengths, N, max_tokens)
    stop = torch.tensor(sorted(stop_tokens), device=device)
    uniforms = uniforms.to(device).flatten(0, 1)  # (P N, max_tokens)

    tokens = torch.zeros(P * N, max_tokens, dtype=torch.long, device=device)
    dtype = torch.promote_types(model.lm_head.weight.dtype, torch.float32)
    log_probs = torch.zeros(P * N, max_tokens, dtype=dtype, device=device)
    entropies = torch.zeros_like(log_probs)
    alive = torch.ones(P, N, dtype=torch.bool, device=device)
    lengths = torch.zeros(P * N, dtype=torch.long, device=device)
    rows = torch.arange(P * N, device=device).view(P, N)  # where each slot's results go
    current = last[:, None].expand(P, N)
    for position in range(max_tokens):
        if position % CHECK_EVERY == 0 and position:
            kept = live_slots(alive)
            if kept is None:
                break
            groups, columns = kept
            if columns.numel() <= SHRINK_AT * alive.numel():  # finished rows leave
                cache.select(groups, columns)
                alive, rows, current = (x[groups[:, None], columns] for x in (alive, rows, current))
        drawn_from = distribution(model.decode(current, cache), temperature, top_k, top_p)  # (G, M, V)
        current = inverse_cdf(drawn_from, uniforms[rows, position, None]).squeeze(-1) * alive
        tokens[rows, position] = current
        log_prob = drawn_from.gather(-1, current[..., None]).squeeze(-1)
        log_probs[rows, position] = log_prob.masked_fill(~alive, 0).to(log_probs.dtype)
        entropy = -(drawn_from.exp() * drawn_from.clamp(min=-1e9)).sum(-1)
        entropies[rows, position] = (entropy * alive).to(entropies.dtype)
        lengths[rows] += alive
        alive = alive & ~(current[..., None] == stop).any(-1)
    finished = torch.ones(P * N, dtype=torch.bool, device=device)
    finished[rows] = ~alive
    L = max(int(lengths.max()), 1)
    return Samples(tokens[:, :L].view(P, N, L), lengths.view(P, N), log_probs[:, :L].view(P, N, L),
                   entropies[:, :L].view(P, N, L), finished.view(P, N))


def live_slots(alive):
    """The smallest rectangle that holds all live slots of alive (G, M): groups (G',) and columns (G', M'), or None."""
    counts = alive.sum(1)
    widest = int(counts.max())
    if widest == 0:
        return None
    groups = counts.nonzero().squeeze(1)
    columns = (~alive[groups]).long().argsort(dim=1, stable=True)[:, :widest]  # live ones first, in order
    return groups, columns


def pad(sequences, device):
    """Right-padded (B, L) and lengths (B,) of one-dimensional tensors."""
    lengths = torch.tensor([len(s) for s in sequences])
    padded = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.long)
    for i, s in enumerate(sequences):
        padded[i, : len(s)] = s
    return padded.to(device), lengths.to(device)


class PromptError(ValueError):
    """A prompt that cannot be answered."""


def check_prompts(model, prompts, max_tokens: int):
    """PromptError where a prompt is empty, does not fit into the model's positions with max_tokens behind it, or has a token
    that the model does not know. A range stands for a prompt of its length."""
    limit, longest = model.config.max_position_embeddings, max(map(len, prompts))
    if min(map(len, prompts)) == 0:
        raise PromptError("a prompt without tokens: every prompt needs at least one")
    highest = max((int(torch.as_tensor(prompt).max()) for prompt in prompts if not isinstance(prompt, range)), default=0)
    if highest >= model.config.vocab_size:
        raise PromptError(f"a prompt has token {highest} and the model only {model.config.vocab_size}: its tokenizer.json is "
                          "not of this model")
    if longest + max_tokens > limit:
        raise PromptError(f"a prompt of {longest} tokens and a response of up to {max_tokens} exceed the model's {limit} "
                          f"positions: lower --max-response, or leave out longer prompts with --max-prompt")
