"""Sampling N responses per prompt: a prompt is encoded once for all its N rollouts.

    generate         noise in, Samples out, by these steps:
      prefill        encode the prompts
      decode_step    draw one more token of every row
      drop_finished  let rows leave that have ended, so that the cost follows the live ones
      ended          cut off what rows have drawn behind their end

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
from maxrl.sampling.cuda import Late, Repeated
from maxrl.sampling.drawing import distribution, draw
from maxrl.sampling.prompts import check_prompts, split

CHECK_EVERY = 4  # tokens between two questions to the device which rows are still alive
SHRINK_AT = 0.75  # rows are packed together when at most this share of the slots is alive
LOGIT_BYTES = 20  # of each logit of a step: itself, log-probability, probability, their product


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
    """The rows that are being sampled: all that a step reads and writes, in tensors.

    Rows that have ended run along until they leave.
    """

    cache: Cache
    current: torch.Tensor  # (G, M) the newest token of each, its next input
    alive: torch.Tensor  # (G, M) bool: had not ended when it was last asked
    rows: torch.Tensor  # (G, M) which of the P N rollouts each is
    uniforms: torch.Tensor  # (P N, max_tokens) the noise
    tokens: torch.Tensor  # (P N, max_tokens) the results, of which a step writes a column
    log_probs: torch.Tensor  # (P N, max_tokens)
    entropies: torch.Tensor  # (P N, max_tokens)


def noise(seed, step, prompt_indices, rollouts: int, length: int, first: int = 0):
    """Return the uniform numbers that rollouts are drawn by: (P, N, length) in [0, 1), float64.

    seed            of the run
    step            of the run, so that no two steps have the same
    prompt_indices  P places of the prompts in the batch of all ranks
    rollouts        N per prompt
    length          the limit of a response, not how long one happens to get
    first           of the rollouts, if others were drawn before: their noise is passed over
    """
    draws = []
    for index in prompt_indices:
        # A generator for each prompt: its noise does not depend on its neighbours.
        generator = np.random.default_rng([seed, step, int(index)])
        generator.bit_generator.advance(first * length)
        draws.append(generator.random((rollouts, length)))
    return torch.from_numpy(np.stack(draws))


@torch.no_grad()
def generate(
    model,
    prompts,
    rollouts: int,
    max_tokens: int,
    stop_tokens,
    uniforms,
    budget: float = torch.inf,
    watch=None,
    **sampling,
) -> Samples:
    """Sample N = `rollouts` responses to every prompt.

    model        a Transformer
    prompts      P one-dimensional tensors of at least one token, of any lengths
    rollouts     N
    max_tokens   the longest response
    stop_tokens  ids that end a response
    uniforms     (P, N, max_tokens), see `noise`
    budget       bytes of responses' keys and values and of a step's logits
    watch        is called now and then with the number of tokens drawn of each response
    sampling     temperature, top_k and top_p as in `distribution`

    Returns Samples. PromptError for a prompt that the model cannot answer, CacheFull if what is
    in use would pass the budget.
    """
    check_prompts(model, prompts, max_tokens)
    slots = prefill(model, prompts, rollouts, uniforms, budget)
    device = slots.rows.device
    stop = torch.tensor(sorted(stop_tokens), device=device)
    step = Repeated(lambda: decode_step(model, slots, **sampling), device)
    counts = Late(device)
    for position in range(max_tokens):
        # To know who is alive the host waits for the device, so it asks only now and then.
        asking = position and position % CHECK_EVERY == 0
        if asking and not drop_finished(slots, stop, position, counts):
            break
        if asking and watch:
            watch(position)
        slots.cache.reserve(position + 1)
        step(slots.cache.own[0].shape)
    return grouped(ended(slots, stop), len(prompts))


def prefill(model, prompts, rollouts, uniforms, budget=torch.inf) -> Slots:
    """Encode all prompts; arguments as in `generate`.

    Returns Slots for all P N rows, of which no token is drawn yet.
    """
    weight = model.lm_head.weight
    device = weight.device
    uniforms = uniforms.to(device).flatten(0, 1)  # (P N, max_tokens)
    # The last token is left to the rows: from its logits the first one is drawn.
    prefix, prefix_lengths, last = split(prompts, device)
    beside = LOGIT_BYTES * len(weight)
    cache = Cache(model.encode(prefix), prefix_lengths, rollouts, budget, beside)
    # A copy, because every step writes its tokens here.
    current = last[:, None].repeat(1, rollouts)  # (P, N)
    rows = torch.arange(current.numel(), device=device)
    rows = rows.view_as(current)  # (P, N)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    tokens = torch.zeros_like(uniforms, dtype=torch.long)  # (P N, max_tokens)
    log_probs = tokens.to(dtype)
    entropies = tokens.to(dtype)
    return Slots(cache, current, rows >= 0, rows, uniforms, tokens, log_probs, entropies)


def decode_step(model, slots: Slots, **sampling):
    """Draw one more token of every row, in the slots. It asks the host for nothing.

    slots     there must be room in their cache
    sampling  as in `generate`
    """
    logits = model.decode(slots.current, slots.cache)  # (G, M, V)
    logits = logits.to(slots.log_probs.dtype)
    log_probs = distribution(logits, **sampling)  # (G, M, V)
    probabilities = log_probs.exp()
    rows = slots.rows  # (G, M)
    position = slots.cache.slot  # (1,)
    drawn = draw(probabilities, slots.uniforms[rows, position])  # (G, M)
    slots.current.copy_(drawn)
    slots.tokens[rows, position] = drawn
    log_prob = log_probs.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
    slots.log_probs[rows, position] = log_prob  # (G, M)
    # A token that is cut away has -inf, and 0 times -inf is NaN.
    log_probs.clamp_(min=-1e9)
    entropy = -(probabilities * log_probs).sum(-1)  # (G, M)
    slots.entropies[rows, position] = entropy


def is_stop(tokens, stop):
    """Return which tokens (...) are among the stop tokens (n,): (...) bool."""
    return (tokens.unsqueeze(-1) == stop).any(-1)


def drop_finished(slots: Slots, stop, position: int, counts: Late) -> bool:
    """Pack the live rows together if they fill few of the slots; return whether there are any.

    stop      (number of stop tokens,) their ids
    position  how many tokens are drawn
    counts    brings the numbers of live rows to the host
    """
    recent = slots.tokens[:, position - CHECK_EVERY : position]
    recent = recent[slots.rows]  # (G, M, CHECK_EVERY)
    slots.alive &= ~is_stop(recent, stop).any(-1)
    live = counts(slots.alive.sum(1))  # (G,) on the host
    # On a GPU the first answer comes with the next question.
    if live is None:
        return True
    widest = int(live.max())
    groups = live.nonzero().squeeze(1)  # (G',) those with live rows
    size = widest * len(groups)
    if 0 < size <= SHRINK_AT * slots.alive.numel():
        # Slots are a rectangle: groups with fewer live rows keep some that have ended.
        groups = groups.to(slots.alive.device)
        dead = ~slots.alive[groups]
        live_first = dead.long().argsort(dim=1, stable=True)
        columns = live_first[:, :widest]  # (G', M')
        slots.cache.select(groups, columns)
        for name in ("current", "alive", "rows"):
            values = getattr(slots, name)[groups]
            setattr(slots, name, values.gather(1, columns))
        counts.forget()
    return widest > 0


def ended(slots: Slots, stop) -> Samples:
    """Return the Samples (rows, ...) of the slots, with 0 behind the end of each row."""
    tokens = slots.tokens  # (P N, max_tokens)
    limit = tokens.shape[1]
    # Behind a stop token rows have run along, or left; they may even have drawn another one.
    stops = is_stop(tokens, stop)
    finished = stops.any(1)
    # The stop token belongs to its response.
    lengths = stops.int().argmax(1) + 1
    lengths = torch.where(finished, lengths, limit)
    beyond = torch.arange(limit, device=tokens.device) >= lengths[:, None]
    # In place: nothing else reads them, and they may be large.
    for values in (tokens, slots.log_probs, slots.entropies):
        values.masked_fill_(beyond, 0)
    return Samples(tokens, lengths, slots.log_probs, slots.entropies, finished)


def grouped(samples: Samples, prompts: int) -> Samples:
    """Return Samples (rows, ...) as those of P = `prompts` groups (P, N, ...)."""
    # Not longer than the longest response.
    L = max(1, int(samples.lengths.max()))
    result = {}
    for name, values in vars(samples).items():
        if values.dim() == 2:
            values = values[:, :L]
        result[name] = values.unflatten(0, (prompts, -1))  # (P, N, ...)
    return Samples(**result)
