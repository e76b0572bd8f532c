"""Drawing tokens from a distribution: temperature, top-k and top-p, and the inverse of its sums.

Letters: V vocabulary; n tokens drawn from each distribution.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128  # tokens that are added up before one of them is drawn, if there are more
BELOW_1 = 1 - 2**-52
MOST_PROBABLE = 1024  # tokens among which top-p looks first


def at_least_float32(values: Tensor) -> Tensor:
    """Return values in float32 or better: a log-softmax in bfloat16 is wrong by 0.02 and more."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def distribution(
    logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Tensor:
    """Return log-probabilities (..., V) to draw from; -inf for tokens that are cut away.

    logits       (..., V)
    temperature  divides the logits; 0 keeps only the most probable token (greedy)
    top_k        keeps this many of the most probable tokens; 0 keeps all
    top_p        keeps the most probable tokens up to the one at which their sum reaches top_p; 1
                 keeps all

    In float32 or better.
    """
    logits = at_least_float32(logits)
    if temperature == 0:
        nothing = torch.full_like(logits, -torch.inf)
        best = logits.max(-1, keepdim=True)
        # Log-probability 0, but NaN if the logits are not finite.
        return nothing.scatter(-1, best.indices, best.values * 0)
    # In training it is 1, and a division would read all logits once more.
    if temperature != 1:
        logits = logits / temperature
    if 0 < top_k < logits.shape[-1]:
        nothing = torch.full_like(logits, -torch.inf)
        kept = logits.topk(top_k).indices
        kept_logits = logits.gather(-1, kept)
        logits = nothing.scatter(-1, kept, kept_logits)
    if top_p < 1:
        probabilities = logits.log_softmax(-1).exp()
        logits = logits.masked_fill(outside_nucleus(probabilities, top_p), -torch.inf)
    return logits.log_softmax(-1)


def outside_nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Return which tokens (..., V) top-p cuts away: bool.

    The kept ones are the most probable, up to the first at which their sum reaches top_p. Among
    equally probable tokens the first ones are kept, on every machine.
    """
    # On a GPU nothing may depend on a value that the host would have to wait for.
    if probabilities.is_cuda or probabilities.shape[-1] <= MOST_PROBABLE:
        return outside_by_sorting(probabilities, top_p)
    # Sorting a whole vocabulary costs more than the model; the top 1,024 are nearly always enough.
    top = probabilities.topk(MOST_PROBABLE).values  # (..., 1024) descending
    inside = top.cumsum(-1) - top < top_p
    # At least one, also of a distribution that is NaN.
    kept = inside.sum(-1, keepdim=True).clamp(min=1)  # (..., 1)
    last = top.gather(-1, kept - 1)
    following = top.gather(-1, kept.clamp(max=MOST_PROBABLE - 1))
    outside = probabilities < last  # (..., V)
    # Not enough, or the next token is as probable as the last one that is kept.
    unsure = (following >= last).squeeze(-1)
    if unsure.any():
        outside[unsure] = outside_by_sorting(probabilities[unsure], top_p)
    return outside


def outside_by_sorting(probabilities: Tensor, top_p: float) -> Tensor:
    """Do what `outside_nucleus` does, by sorting all probabilities (..., V)."""
    descending, order = probabilities.sort(dim=-1, descending=True, stable=True)
    outside = descending.cumsum(-1) - descending >= top_p
    return torch.zeros_like(outside).scatter(-1, order, outside)


def inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return the tokens (..., n) at which the cumulative distribution passes the uniforms.

    probabilities  (..., V), of any sum; a token of probability 0 is never drawn
    uniforms       (..., n) in [0, 1)
    """
    cdf = probabilities.cumsum(-1, dtype=torch.float64)  # (..., V)
    # The sum of all probabilities is 1 only up to rounding.
    total = cdf[..., -1:]
    return passing(cdf, uniforms.double().clamp(max=BELOW_1) * total)


def passing(cdf: Tensor, points: Tensor) -> Tensor:
    """Return the first indices (..., n) where sums cdf (..., V) are above the points (..., n)."""
    indices = torch.searchsorted(cdf, points, right=True)
    # Beyond the last only if the distribution is NaN, which `finish` refuses.
    return indices.clamp(max=cdf.shape[-1] - 1)


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return the tokens of `inverse_cdf` for one uniform each: a block first, then one in it.

    probabilities  (..., V)
    uniforms       (...)

    Running sums of all probabilities in float64 would take twice the memory of the probabilities,
    so sums are made for whole blocks only.
    """
    V = probabilities.shape[-1]
    uniforms = uniforms.unsqueeze(-1)
    if V <= BLOCK:
        return inverse_cdf(probabilities, uniforms).squeeze(-1)
    # The vocabulary of most models is a multiple of BLOCK, and then nothing is copied.
    if V % BLOCK:
        probabilities = F.pad(probabilities, (0, -V % BLOCK))
    blocks = probabilities.unflatten(-1, (-1, BLOCK))  # (..., V / BLOCK, BLOCK)
    sums = blocks.sum(-1)
    cdf = sums.cumsum(-1, dtype=torch.float64)  # (..., V / BLOCK)
    points = uniforms.clamp(max=BELOW_1) * cdf[..., -1:]  # (..., 1)
    block = passing(cdf, points)
    # What is left of the point inside the block.
    before = cdf.gather(-1, block) - sums.gather(-1, block)
    points = points - before
    chosen = block.unsqueeze(-1).expand(*block.shape, BLOCK)
    inside = blocks.gather(-2, chosen).squeeze(-2)  # (..., BLOCK)
    cdf = inside.cumsum(-1, dtype=torch.float64)
    # Sums of blocks are rounded: the point may lie a little outside of its block.
    points = points.clamp(min=0).minimum(cdf[..., -1:] * BELOW_1)
    token = block * BLOCK + passing(cdf, points)
    # The padding is drawn only if the distribution is NaN, see `passing`.
    if V % BLOCK:
        token = token.clamp(max=V - 1)
    return token.squeeze(-1)
