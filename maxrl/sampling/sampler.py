"""Sampling N responses per prompt; a prompt is encoded once for all its N rollouts.

    generate         noise in, Rollouts out, in these steps:
      prefill        encode the prompts
      decode_step    draw one more token of every row
      note_ended     find the rows that have ended
      pack           drop them, so that the cost follows the rows that are alive
      finish         cut off what rows have drawn after their stop token

Noise rule: a token is drawn by inverting the cumulative distribution at a uniform number. For a
given length limit, this number depends on (seed, training step, prompt index, rollout index,
position) alone. Batching, finished rows and the number of ranks therefore change a rollout only
through rounding of the logits.

Letters: P prompts, N rollouts of each, L tokens, V vocabulary. What is being sampled has M rows in
each of G groups; a prompt has one group at first, and may have several narrow ones later.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maxrl.models.cache import Cache
from maxrl.models.transformer import Transformer
from maxrl.sampling.cuda import CudaGraph, Late, on_host
from maxrl.sampling.drawing import distribution, draw
from maxrl.sampling.prompts import check_prompts, split
from maxrl.sampling.rollouts import Rollouts
from maxrl.system import rng
from maxrl.system.errors import RunError

CHECK_EVERY = 4  # tokens between two searches for rows that have ended
SHRINK_AT = 0.9  # ended rows are dropped if a step then costs at most this share
LOGIT_BYTES = 20  # a logit, its log-probability, probability, their product, a padded copy
SORTED_BYTES = 50  # the same with top-p, which sorts probabilities with their indices


@dataclass
class State:
    """The rows that are being sampled: everything that a decoding step reads and writes.

    Rows keep drawing after their stop token until they are dropped.
    """

    cache: Cache
    current: Tensor  # (G, M) the newest token of each row, its next input
    alive: Tensor  # (G, M) bool: had not ended at the last search
    row_ids: Tensor  # (G, M) which of the P N rollouts each row is
    prompts: Tensor  # (G,) which of the P prompts each group continues, on the host
    num_rollouts: int  # N
    uniforms: Tensor  # (P N, max_tokens) the noise
    tokens: Tensor  # (P N, max_tokens) the results; a step writes one column
    log_probs: Tensor  # (P N, max_tokens)
    entropies: Tensor  # (P N, max_tokens)


def noise(
    seed: int,
    step: int,
    prompt_indices: Iterable[int],
    num_rollouts: int,
    length: int,
    earlier: int = 0,
) -> Tensor:
    """Return the uniform numbers that decide each token: (P, N, length) in [0, 1), float64.

    prompt_indices  P positions of the prompts in the batch of all ranks
    num_rollouts    N per prompt
    length          the most tokens that a response may have: each rollout takes as many numbers
    earlier         how many rollouts were drawn before: their noise is skipped
    """
    draws = []
    for index in prompt_indices:
        # Every prompt has its own generator, so its noise does not depend on its neighbours.
        generator = rng.rollouts(seed, step, int(index))
        generator.random(earlier * length)
        draws.append(generator.random((num_rollouts, length)))
    return torch.from_numpy(np.stack(draws))


@torch.no_grad()
def generate(
    model: Transformer,
    prompts: Sequence[Tensor],
    uniforms: Tensor,
    stop_tokens: Iterable[int],
    budget: float = torch.inf,
    watch: Callable[[int], object] | None = None,
    cuda_graphs: bool = True,
    **sampling,
) -> Rollouts:
    """Sample N responses of at most max_tokens to every prompt; the result has no tokenizer yet.

    prompts      P one-dimensional tensors of at least one token, of any lengths
    uniforms     (P, N, max_tokens), see `noise`
    stop_tokens  ids that end a response
    budget       bytes for the responses' keys and values and a step's logits
    watch        is called every few tokens with the number drawn so far
    cuda_graphs  whether a GPU replays steps as CUDA graphs
    sampling     temperature, top_k and top_p as in `distribution`

    Raises PromptError for a prompt that the model cannot answer, CacheFull beyond the budget, and
    RunError for logits that are not finite.
    """
    max_tokens = uniforms.shape[2]
    check_prompts(model, prompts, max_tokens)
    logit_bytes = SORTED_BYTES if sampling.get("top_p", 1.0) < 1 else LOGIT_BYTES
    state = prefill(model, prompts, uniforms, budget, logit_bytes)
    device = state.row_ids.device
    stop = torch.tensor(sorted(stop_tokens)).to(device, non_blocking=True)
    draw_next = CudaGraph(lambda: decode_step(model, state, **sampling), device, cuda_graphs)
    counts = Late()
    position = 0  # how many tokens have been drawn
    while position < max_tokens:
        # Counting costs a few kernels and, on a CPU, a look at the numbers, so it is done rarely.
        if position and position % CHECK_EVERY == 0:
            note_ended(state, stop, position)
            # A GPU gives the numbers (G,) of the search before this one, which need no wait.
            left = counts.read(state.alive)
            if left is not None:
                if not left.any():
                    break
                if position % pack_every(device) == 0:
                    pack(state, left)
            # Only now, as packing gives the rows new places.
            counts.start(state.alive)
            if watch:
                watch(position)
        state.cache.reserve(position + 1, max_tokens)
        draw_next(state.cache.own[0].shape)
        position += 1
    rollouts = finish(state, stop, list(prompts), position)
    rollouts.row_bytes = state.cache.peak / len(state.tokens)
    return rollouts


def pack_every(device: torch.device) -> int:
    """After how many tokens rows that have ended are dropped."""
    # On a GPU each new shape is a new graph: rows leave where the cache may grow as well.
    return Cache.BLOCK if device.type == "cuda" else CHECK_EVERY


def prefill(
    model: Transformer,
    prompts: Sequence[Tensor],
    uniforms: Tensor,
    budget: float = torch.inf,
    logit_bytes: int = LOGIT_BYTES,
) -> State:
    """Encode all prompts and return the State of all P N rows, before their first token."""
    weight = model.lm_head.weight
    device = weight.device
    N = uniforms.shape[1]
    uniforms = uniforms.to(device, non_blocking=True).flatten(0, 1)  # (P N, max_tokens)
    # The last prompt token is the rows' first input: the first token is drawn from its logits.
    prefix, prefix_lengths, last = split(prompts, device)
    # A GPU's fast matrix products need rows of 16 bytes; what is added is hidden as padding is.
    prefix = F.pad(prefix, (0, -prefix.shape[1] % 8))
    row_bytes = logit_bytes * len(weight)  # of a step's logits
    cache = Cache(model.encode(prefix), prefix_lengths, N, budget, row_bytes)
    # A copy, because every step writes its tokens into it.
    current = last[:, None].repeat(1, N)  # (P, N)
    alive = torch.ones_like(current, dtype=torch.bool)
    row_ids = torch.arange(current.numel(), device=device).view_as(current)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    tokens = torch.zeros_like(uniforms, dtype=torch.long)  # (P N, max_tokens)
    log_probs = tokens.to(dtype)
    entropies = tokens.to(dtype)
    groups = torch.arange(len(prompts))
    return State(cache, current, alive, row_ids, groups, N, uniforms, tokens, log_probs, entropies)


def decode_step(model: Transformer, state: State, **sampling) -> None:
    """Draw one more token of every row, without a wait for the device; the cache must have room."""
    logits = model.decode(state.current, state.cache).to(state.log_probs.dtype)  # (G, M, V)
    log_probs = distribution(logits, **sampling)  # (G, M, V)
    probabilities = log_probs.exp()
    rows = state.row_ids  # (G, M)
    position = state.cache.slot  # (1,)
    drawn = draw(probabilities, state.uniforms[rows, position])  # (G, M)
    state.current.copy_(drawn)
    state.tokens[rows, position] = drawn
    state.log_probs[rows, position] = log_probs.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
    # Tokens outside the nucleus have log-probability -inf, and 0 times -inf would be NaN.
    log_probs.clamp_(min=-1e9)
    state.entropies[rows, position] = -(probabilities * log_probs).sum(-1)


def note_ended(state: State, stop: Tensor, position: int) -> None:
    """Update state.alive.

    stop      (n,) ids that end a response
    position  how many tokens have been drawn
    """
    newest = state.tokens[:, position - CHECK_EVERY : position]
    newest = newest[state.row_ids]  # (G, M, CHECK_EVERY)
    state.alive &= ~torch.isin(newest, stop).any(-1)


def pack(state: State, left: Tensor) -> None:
    """Rearrange the rows without those that have ended, if that makes a step cheap enough.

    A step must then cost at most the share SHRINK_AT of what it costs now.

    left  (G,) the number of rows of each group that are alive, or were at an earlier search, on the
          host; not all 0

    A prompt's rows become one or several groups, all of the same width. Wide groups keep some rows
    that have ended, and each narrow group reads its prompt again, so the cheapest width is chosen.
    Two prompts with 1 and 3 rows left make 1 + 3 groups of width 1, 1 + 2 of width 2 or 1 + 1 of
    width 3, the last two with rows that have ended.
    """
    G, M = state.alive.shape
    N = state.num_rollouts
    P = len(state.tokens) // N
    rows = state.prompts.bincount(minlength=P) * M  # (P,) of each prompt
    rows_alive = torch.zeros_like(rows).index_add(0, state.prompts, left)  # (P,)
    widths = torch.arange(1, int(rows_alive.max()) + 1)
    pieces = -(-rows_alive // widths[:, None])  # (widths, P) groups that hold the alive rows
    groups = pieces.sum(1)
    costs = state.cache.cost(groups * widths, groups).float()  # (widths,)
    # A prompt's last group is filled with rows that have ended, if there are as many.
    enough = (pieces * widths[:, None] <= rows).all(1)
    best = int(costs.where(enough, torch.inf).argmin())
    if costs[best] > SHRINK_AT * state.cache.cost(G * M, G):
        return
    width = best + 1
    pieces = pieces[best]  # (P,)
    before = state.prompts
    state.prompts = torch.arange(P).repeat_interleave(pieces)  # (G',)
    # In `order` below a prompt's rows are together, those alive first, and begin at `start`.
    start = rows.cumsum(0) - rows  # (P,)
    first = pieces.cumsum(0) - pieces  # (P,) which group is a prompt's first
    number = torch.arange(len(state.prompts)) - first[state.prompts]  # (G',) among its prompt's
    places = start[state.prompts] + number * width  # (G',) where each group begins
    places = places[:, None] + torch.arange(width)  # (G', width)
    key = 2 * (state.row_ids // N) + ~state.alive
    order = key.flatten().argsort(stable=True)
    chosen = order[places.to(order.device, non_blocking=True)]  # (G', width)
    state.cache.select(chosen, regrouped=not torch.equal(state.prompts, before))
    for name in ("current", "alive", "row_ids"):
        setattr(state, name, getattr(state, name).flatten()[chosen])


def finish(state: State, stop: Tensor, prompts: list[Tensor], limit: int) -> Rollouts:
    """Return the Rollouts of P prompts, with 0 after the end of each row.

    limit  how many tokens have been drawn

    Log-probabilities and entropies are of the distribution that each token was drawn from. RunError
    if the model's logits are not finite.
    """
    tokens = state.tokens[:, :limit]  # (P N, limit)
    # Rows kept drawing after their stop token and may have drawn another one: the first counts.
    stops = torch.isin(tokens, stop)
    finished = stops.any(1)
    # The stop token is part of the response.
    lengths = torch.where(finished, stops.int().argmax(1) + 1, limit)
    beyond = torch.arange(limit, device=tokens.device) >= lengths[:, None]
    log_probs = state.log_probs[:, :limit]
    entropies = state.entropies[:, :limit]
    for values in (tokens, log_probs, entropies):
        # In place, because they may be large and nothing else reads them.
        values.masked_fill_(beyond, 0)
    # A token that was drawn has a finite log-probability, unless logits were NaN or infinite.
    finite = log_probs.isfinite().all()
    tokens, lengths, finished, finite = on_host(tokens, lengths, finished, finite)
    if not finite:
        raise RunError(
            "the model's logits are not finite: its weights or constants are wrong or have "
            "diverged, use another checkpoint, or --precision float32 if they are near overflow"
        )
    L = int(lengths.max())
    drawn = [values[:, :L] for values in (tokens, log_probs, entropies)]
    groups = [v.unflatten(0, (len(prompts), -1)) for v in (*drawn, lengths, finished)]
    tokens, log_probs, entropies, lengths, finished = groups  # (P, N, L) or (P, N)
    return Rollouts(prompts, tokens, lengths, finished, None, log_probs, entropies)
