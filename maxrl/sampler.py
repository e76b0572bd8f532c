"""Sampling N responses per prompt: a prompt is encoded once for all its N rollouts.

    generate         noise in, Samples out, by these steps:
      prefill        encode the prompts
      decode_step    draw one more token of every row
      drop_finished  let rows leave that have ended, so that the cost follows the live ones

Noise rule: the token at a position is the inverse of the cumulative distribution at a uniform
number that depends on (seed, step, prompt index, rollout index, position) alone, for a given
length limit. Batching, finished rows and the number of ranks therefore change a rollout only
through rounding of the logits.

Letters: P prompts, N rollouts of each, L tokens, V vocabulary. Rows that are being sampled are in
M slots for each of G groups.
"""

from dataclasses import dataclass

import numpy as np
import torch

from maxrl.models.attention import Cache

CHECK_EVERY = 4  # tokens between two questions to the device which rows are still alive
SHRINK_AT = 0.75  # rows are packed together when at most this share of the slots is alive


@dataclass
class Samples:
    """N responses to each of P prompts, right-padded with 0, the stop token included."""

    tokens: torch.Tensor  # (P, N, L)
    lengths: torch.Tensor  # (P, N)
    log_probs: torch.Tensor  # (P, N, L) under the distribution that each token was drawn from
    entropies: torch.Tensor  # (P, N, L) of that distribution, in nats
    finished: torch.Tensor  # (P, N) bool: ended by a stop token, not by the length limit


@dataclass
class Slots:
    """The rows that are being sampled. Those that have ended run along with token 0."""

    cache: Cache
    current: torch.Tensor  # (G, M) the newest token of each, its next input
    alive: torch.Tensor  # (G, M) bool: has not ended
    rows: torch.Tensor  # (G, M) which of the P N rollouts each is


def noise(seed, step, prompt_indices, rollouts: int, length: int):
    """Return the uniform numbers that rollouts are drawn by: (P, N, length) in [0, 1), float64.

    seed            of the run
    step            of the run, so that no two steps have the same
    prompt_indices  P places of the prompts in the batch of all ranks
    rollouts        N per prompt
    length          the limit of a response, not how long one happens to get
    """
    draws = []
    for index in prompt_indices:
        # A generator for each prompt: its noise does not depend on its neighbours.
        generator = np.random.default_rng([seed, step, int(index)])
        draws.append(generator.random((rollouts, length)))
    return torch.from_numpy(np.stack(draws))


def distribution(logits, temperature=1.0, top_k=0, top_p=1.0):
    """Return log-probabilities (..., V) to draw from; -inf for tokens that are cut away.

    logits       (..., V)
    temperature  divides the logits; 0 leaves the most probable token alone (greedy)
    top_k        keeps so many of the most probable tokens; 0 all
    top_p        keeps the most probable ones, the last that at which their sum reaches it; 1 all

    In float32 or better.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nothing = torch.full_like(logits, -torch.inf)
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return nothing.scatter(-1, best, 0.0)
    logits = logits / temperature
    if 0 < top_k < logits.shape[-1]:
        kept = logits.topk(top_k).indices
        kept_logits = logits.gather(-1, kept)
        logits = nothing.scatter(-1, kept, kept_logits)
    if top_p < 1:
        probabilities = logits.log_softmax(-1).exp()
        # Stable: among equal ones the first token stays, on every machine.
        descending, order = probabilities.sort(dim=-1, descending=True, stable=True)
        cut = descending.cumsum(-1) - descending >= top_p
        cut = torch.zeros_like(cut).scatter(-1, order, cut)
        logits = logits.masked_fill(cut, -torch.inf)
    return logits.log_softmax(-1)


def inverse_cdf(log_probs, uniforms):
    """Return the tokens (..., n) at which the cumulative distribution passes the uniforms.

    log_probs  (..., V); a token of probability 0 is never drawn
    uniforms   (..., n) in [0, 1)
    """
    cdf = log_probs.double().exp().cumsum(-1)                          # (..., V)
    # The sum of all probabilities is 1 only up to rounding.
    total = cdf[..., -1:]
    below_one = uniforms.double().clamp(max=1 - 2**-52)
    tokens = torch.searchsorted(cdf, below_one * total, right=True)
    # Beyond the last token only if the distribution is NaN: the loss will say so.
    last = cdf.shape[-1] - 1
    return tokens.clamp(max=last)


@torch.no_grad()
def generate(
    model,
    prompts,
    rollouts: int,
    max_tokens: int,
    stop_tokens,
    uniforms,
    **sampling,
) -> Samples:
    """Sample N = `rollouts` responses to every prompt.

    model        a Transformer
    prompts      P one-dimensional tensors of at least one token, of any lengths
    rollouts     N
    max_tokens   the longest response
    stop_tokens  ids that end a response
    uniforms     (P, N, max_tokens), see `noise`
    sampling     temperature, top_k and top_p as in `distribution`

    Returns Samples. PromptError for a prompt that the model cannot answer.
    """
    check_prompts(model, prompts, max_tokens)
    slots = prefill(model, prompts, rollouts, max_tokens)
    samples = empty_samples(model, slots.rows.numel(), max_tokens)
    device = slots.rows.device
    stop = torch.tensor(sorted(stop_tokens), device=device)
    uniforms = uniforms.to(device).flatten(0, 1)                       # (P N, max_tokens)
    for position in range(max_tokens):
        # To know who is alive the host waits for the device, so it asks only now and then.
        if position and position % CHECK_EVERY == 0 and not drop_finished(slots):
            break
        now = uniforms[:, position]                                    # (P N,)
        decode_step(model, slots, samples, position, now, stop, **sampling)
    # Who is alive now has met the length limit.
    samples.finished[slots.rows] = ~slots.alive
    return grouped(samples, len(prompts))


def prefill(model, prompts, rollouts, max_tokens) -> Slots:
    """Encode all prompts; arguments as in `generate`.

    Returns Slots for all P N rows, of which no token is drawn yet.
    """
    device = model.lm_head.weight.device
    # The last token is left to the rows: from its logits the first one is drawn.
    prefix, prefix_lengths, last = split(prompts, device)
    cache = Cache(model.encode(prefix), prefix_lengths, rollouts, max_tokens)
    current = last[:, None].expand(-1, rollouts)                       # (P, N)
    rows = torch.arange(current.numel(), device=device)
    rows = rows.view_as(current)                                       # (P, N)
    return Slots(cache, current, rows >= 0, rows)


def empty_samples(model, rows: int, max_tokens: int) -> Samples:
    """Return Samples to be filled: (rows, max_tokens), and (rows,) of lengths and finished."""
    weight = model.lm_head.weight
    tokens = weight.new_zeros(rows, max_tokens, dtype=torch.long)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    log_probs = tokens.to(dtype)
    lengths = tokens[:, 0].clone()
    # Rows that leave early are finished; generate corrects the others when it ends.
    finished = lengths == 0
    return Samples(tokens, lengths, log_probs, log_probs.clone(), finished)


def decode_step(
    model,
    slots: Slots,
    samples: Samples,
    position: int,
    uniforms,
    stop,
    **sampling,
):
    """Draw one more token of every live row, into slots and samples.

    slots     whose current tokens the model reads
    samples   as from `empty_samples`
    position  which token of the responses this is
    uniforms  (P N,) the noise of this position
    stop      (number of stop tokens,) their ids
    sampling  as in `generate`
    """
    rows = slots.rows                                                  # (G, M)
    logits = model.decode(slots.current, slots.cache)                  # (G, M, V)
    logits = logits.to(samples.log_probs.dtype)
    log_probs = distribution(logits, **sampling)                       # (G, M, V)
    drawn = inverse_cdf(log_probs, uniforms[rows, None])               # (G, M, 1)
    # A finished row runs along until it leaves its slot; what it gets is padding.
    drawn = drawn * slots.alive[..., None]
    slots.current = drawn.squeeze(-1)                                  # (G, M)
    samples.tokens[rows, position] = slots.current

    log_prob = log_probs.gather(-1, drawn).squeeze(-1)                 # (G, M)
    log_prob = log_prob.masked_fill(~slots.alive, 0)
    samples.log_probs[rows, position] = log_prob
    # A token that is cut away has -inf, and 0 times -inf is NaN.
    finite = log_probs.clamp(min=-1e9)
    entropy = -(log_probs.exp() * finite).sum(-1)                      # (G, M)
    samples.entropies[rows, position] = entropy * slots.alive

    # The stop token belongs to its response.
    samples.lengths[rows] += slots.alive
    ended = (drawn == stop).any(-1)                                    # (G, M)
    slots.alive = slots.alive & ~ended


def drop_finished(slots: Slots) -> bool:
    """Pack the live rows together if they fill few of the slots; return whether there are any."""
    counts = slots.alive.sum(1)                                        # (G,)
    widest = int(counts.max())
    groups = counts.nonzero().squeeze(1)                               # (G',) those with live rows
    size = widest * len(groups)
    if 0 < size <= SHRINK_AT * slots.alive.numel():
        # Slots are a rectangle: groups with fewer live rows keep some that have ended.
        dead = ~slots.alive[groups]
        live_first = dead.long().argsort(dim=1, stable=True)
        columns = live_first[:, :widest]                               # (G', M')
        slots.cache.select(groups, columns)
        for name in ("current", "alive", "rows"):
            values = getattr(slots, name)[groups]
            setattr(slots, name, values.gather(1, columns))
    return widest > 0


def grouped(samples: Samples, prompts: int) -> Samples:
    """Return Samples (rows, ...) as those of P = `prompts` groups (P, N, ...)."""
    # Not longer than the longest response.
    L = max(1, int(samples.lengths.max()))
    result = {}
    for name, values in vars(samples).items():
        if values.dim() == 2:
            values = values[:, :L]
        result[name] = values.unflatten(0, (prompts, -1))              # (P, N, ...)
    return Samples(**result)


def split(prompts, device):
    """Split prompts into what is encoded once per group and what every row begins with.

    prompts  G one-dimensional tensors of at least one token

    Returns all but their last tokens (G, Lp), right-padded, their lengths (G,), and the last
    tokens (G,).
    """
    prefix, lengths = pad([p[:-1] for p in prompts], device)
    last = torch.stack([p[-1] for p in prompts])
    return prefix, lengths, last.to(device)


def pad(sequences, device):
    """Return one-dimensional tensors as one, right-padded with 0 (B, L), and their lengths (B,)."""
    lengths = torch.tensor([len(s) for s in sequences])
    shape = len(sequences), int(lengths.max())
    # Filled on the CPU, for one copy to the device instead of one for each.
    padded = torch.zeros(shape, dtype=torch.long)
    for row, sequence in zip(padded, sequences):
        row[: len(sequence)] = sequence
    return padded.to(device), lengths.to(device)


class PromptError(ValueError):
    """A prompt that cannot be answered."""


def check_prompts(model, prompts, max_tokens: int):
    """Raise PromptError unless the model can answer all prompts.

    model       a Transformer
    prompts     of ids; a range stands for a prompt of its length
    max_tokens  the longest response
    """
    highest = 0
    longest = 0
    for prompt in prompts:
        if len(prompt) == 0:
            raise PromptError("a prompt without tokens: every prompt needs at least one")
        longest = max(longest, len(prompt))
        if not isinstance(prompt, range):
            ids = torch.as_tensor(prompt)
            highest = max(highest, int(ids.max()))
    # On a GPU the embedding would end the process without a word on the cause.
    known = model.config.vocab_size
    if highest >= known:
        raise PromptError(f"a prompt has token {highest} and the model only {known}: "
                          "its tokenizer.json is not of this model")
    limit = model.config.max_position_embeddings
    if longest + max_tokens > limit:
        raise PromptError(f"a prompt of {longest} tokens and a response of up to {max_tokens} "
                          f"exceed the model's {limit} positions: lower --max-response, "
                          "or leave out longer prompts with --max-prompt")
