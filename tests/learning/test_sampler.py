"""Sampling: the same tokens as the plainest loop, whatever leaves, waits or is batched; from the
right distribution.
"""

import functools
import math
from unittest import mock

import pytest
import torch
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from maxrl.learning.losses import entropy, token_log_probs
from maxrl.models.cache import Cache
from maxrl.models.transformer import Transformer
from maxrl.sampling import drawing, sampler
from maxrl.sampling.drawing import distribution, inverse_cdf
from maxrl.sampling.sampler import generate, noise
from maxrl.system.errors import UsageError
from tests.helpers import tiny
from tests.helpers.tensors import F64, close, seeded

WARPERS = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
}
LENGTHS = (9, 5, 1, 12)  # ragged; the prompt of one token has an empty prefix
STOP = [2, 7, 20]


def warped(logits, options):
    """Logits (B, V) as the classes of transformers change them."""
    for name, value in options.items():
        logits = WARPERS[name](value)(None, logits)
    return logits


@torch.no_grad()
def plain_loop(model, prompts, uniforms, **options):
    """One row at a time, the whole sequence again for every token, logits cut by transformers."""
    responses = []
    for prompt, group in zip(prompts, uniforms.tolist()):
        for row_of_noise in group:
            row = prompt.tolist()
            for u in row_of_noise:
                logits = model.lm_head(model(torch.tensor(row)[None, None])[0, 0, -1])
                row.append(draw(logits, u, **options))
                if row[-1] in STOP:
                    break
            responses.append(row[len(prompt) :])
    return responses


def draw(logits, u, **options):
    """The first token whose cumulative probability is above u."""
    if options.get("temperature") == 0:
        return int(logits.argmax())
    p = warped(logits[None], options).softmax(-1)[0]
    return next(v for v, total in enumerate(p.cumsum(0).tolist()) if total > u)


def responses(samples):
    """Samples as a flat list of token lists; everything behind a length must be 0."""
    written = torch.arange(samples.tokens.shape[-1]) < samples.lengths[..., None]
    for values in (samples.tokens, samples.log_probs, samples.entropies):
        assert not values[~written].any()
    P, N = samples.lengths.shape
    return [samples.response(i, j) for i in range(P) for j in range(N)]


@pytest.mark.parametrize(
    "lengths, N, limit, options",
    [
        ((1, 1), 3, 8, {}),  # nothing is encoded
        (LENGTHS, 3, 1, {}),
        (LENGTHS, 16, 6, {}),
        (LENGTHS, 5, 14, {}),
        (LENGTHS, 5, 14, {"temperature": 0.7}),
        (LENGTHS, 5, 14, {"temperature": 0}),
        (LENGTHS, 5, 14, {"top_k": 5}),
        (LENGTHS, 5, 14, {"top_k": 50}),
        (LENGTHS, 5, 14, {"top_p": 0.8}),
        (LENGTHS, 5, 14, {"top_p": 1e-6}),
        (LENGTHS, 5, 14, {"temperature": 1.3, "top_k": 9, "top_p": 0.7}),
    ],
)
def test_tokens_equal_the_plain_loop(lengths, N, limit, options):
    """In float64, so that no rounding of a logit stands between the two. A row's tokens follow from
    its own noise, whatever is beside it. The end token belongs to the response and may be the last
    that is allowed; the limit adds none."""
    model = tiny.model()
    prompts = tiny.prompts(lengths)
    uniforms = noise(3, 1, range(len(lengths)), N, limit)
    samples = generate(model, prompts, uniforms, STOP, **options)
    expected = plain_loop(model, prompts, uniforms, **options)
    assert responses(samples) == expected
    ended = [row[-1] in STOP for row in expected]
    assert samples.finished.flatten().tolist() == ended
    if N == 16:
        assert samples.finished[samples.lengths == limit].any()
        assert not all(ended)


class Lag(sampler.Late):
    """What a GPU does: the counts are those of the search before."""

    def start(self, alive):
        self.counts = alive.sum(1)

    def read(self, alive):
        return self.counts


@pytest.mark.parametrize("limit", [3, 4, 5, 33, 64])
@pytest.mark.parametrize("N, stop", [(1, [2]), (5, STOP), (16, [*range(12)])])
def test_late_counts_change_nothing(N, stop, limit, monkeypatch):
    """Rows and groups leave a search later, several times in a response."""
    model = tiny.model()
    prompts = tiny.prompts(LENGTHS)
    uniforms = noise(1, 0, range(len(LENGTHS)), N, limit)
    expected = generate(model, prompts, uniforms, stop)
    monkeypatch.setattr(sampler, "Late", Lag)
    found = generate(model, prompts, uniforms, stop)
    assert responses(found) == responses(expected)
    close(found.log_probs, expected.log_probs)
    close(found.entropies, expected.entropies)


def noted_shapes(monkeypatch):
    """The shapes (G, M) of the tokens of each step from now on."""
    shapes = []
    decode = Transformer.decode

    def noted(self, tokens, cache):
        shapes.append(tokens.shape)
        return decode(self, tokens, cache)

    monkeypatch.setattr(Transformer, "decode", noted)
    return shapes


@pytest.mark.parametrize(
    "every, share, block", [(1, 1.0, 1), (1, 0.0, 32), (3, 0.9, 2), (100, 1.0, 4)]
)
def test_leaving_rows_change_nothing(every, share, block, monkeypatch):
    """Rows packed together at every token, or never: equal samples."""
    model = tiny.model()
    given = tiny.prompts(LENGTHS), noise(3, 1, range(4), 8, 20), STOP
    expected = generate(model, *given)
    shapes = noted_shapes(monkeypatch)
    monkeypatch.setattr(sampler, "CHECK_EVERY", every)
    monkeypatch.setattr(sampler, "SHRINK_AT", share)
    monkeypatch.setattr(Cache, "BLOCK", block)
    tiny.same(generate(model, *given), expected)
    assert (len({*shapes}) > 1) == (every < 100 and share > 0)


def uneven(N: int, limit: int):
    """Noise with which one of four prompts has long responses alone, others one or few: each row
    draws 31, the last word, at its length and not before."""
    lengths = torch.full((4, N), 3)
    lengths[0] = limit
    lengths[1:, 0] = limit - 2
    lengths[2, :5] = limit // 2
    uniforms = noise(5, 0, range(4), N, limit) / 2
    return lengths, uniforms.scatter(2, lengths[..., None] - 1, 1 - 2**-53)


@pytest.mark.parametrize("late", (False, True))
@pytest.mark.parametrize("block", (1, 8, 32))
def test_a_wide_group_is_split(block, late, monkeypatch):
    """So that ended rows of the others go: of 64 rows 19 are long. No number changes."""
    model = tiny.model()
    lengths, uniforms = uneven(16, 40)
    given = tiny.prompts(LENGTHS), uniforms, [31]
    monkeypatch.setattr(Cache, "BLOCK", block)
    with monkeypatch.context() as patched:
        patched.setattr(sampler, "SHRINK_AT", 0)
        expected = generate(model, *given)
    assert torch.equal(expected.lengths, lengths)
    shapes = noted_shapes(monkeypatch)
    if late:
        monkeypatch.setattr(sampler, "Late", Lag)
    tiny.same(generate(model, *given), expected)
    if block == 32:
        assert max(G for G, M in shapes) > 4
        # A rectangle would have 4 x 16 of them up to the last token.
        assert sum(G * M for G, M in shapes[12:]) < 64 * len(shapes[12:]) / 2


@torch.no_grad()
@pytest.mark.parametrize("seed", range(8))
def test_packing_keeps_every_living_row_and_its_prompt(seed, monkeypatch):
    """Whatever is alive, and again when more has ended: groups that were split may be joined."""
    monkeypatch.setattr(sampler, "SHRINK_AT", 1)
    chance = seeded(seed)
    P, N, limit = 4, 12, 6
    state = sampler.prefill(tiny.model(), tiny.prompts(LENGTHS), noise(0, 0, range(P), N, limit))
    prefix, _ = state.cache.prefix[0]
    state.cache.reserve(limit)
    # Each row's keys and values say which it is, and so does its newest token.
    for own in state.cache.own:
        own += state.row_ids[None, :, None, :, None, None]
    state.current = state.row_ids.clone()
    for share in (0.9, 0.6, 0.3, 0.1, 0.05):
        rates = share * 2 * torch.rand(len(state.alive), 1, generator=chance)
        state.alive &= torch.rand(state.alive.shape, generator=chance) < rates
        state.alive[0, 0] = True
        living = state.row_ids[state.alive].sort().values
        # On a GPU the counts may be of a time when more were alive.
        more = torch.randint(0, 2, (len(state.alive),), generator=chance)
        counts = (state.alive.sum(1) + more).clamp(max=state.alive.shape[1])
        before = state.cache.cost(state.alive.numel(), len(state.alive))
        sampler.pack(state, counts)
        G, M = state.alive.shape
        assert state.cache.cost(G * M, G) <= before
        assert torch.equal(state.row_ids[state.alive].sort().values, living)
        assert len(state.row_ids.unique()) == G * M
        assert torch.equal(state.current, state.row_ids)
        assert torch.equal(state.row_ids // N, state.prompts[:, None].expand(G, M))
        assert torch.equal(state.cache.prefix[0][0], prefix[state.prompts])
        for own in state.cache.own:
            assert (own == state.row_ids[None, :, None, :, None, None]).all()
        lengths = torch.tensor(LENGTHS)[state.prompts] - 1
        hidden = torch.arange(prefix.shape[2]) >= lengths[:, None]
        bias = state.cache.bias[:, 0, 0, 0, : prefix.shape[2]]
        assert torch.equal(bias == -math.inf, hidden)
        assert torch.equal(state.cache.positions, lengths - 1)


def test_a_gpu_drops_rows_where_its_cache_may_grow():
    """One new graph in place of two."""
    assert sampler.pack_every(torch.device("cuda")) == Cache.BLOCK
    assert sampler.pack_every(torch.device("cpu")) == sampler.CHECK_EVERY


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(1, 1), (2, 1), (9, 9), (10, 4), (12, 5), (17, 3)])
def test_products_of_attention_are_aligned(lengths):
    """Rows of 8 numbers, 16 bytes in bfloat16, whatever the longest prompt is."""
    state = sampler.prefill(tiny.model(), tiny.prompts(lengths), noise(0, 0, range(2), 3, 5))
    state.cache.reserve(5)
    prefix, _ = state.cache.prefix[0]
    assert prefix.shape[2] % 8 == 0
    assert 0 <= prefix.shape[2] - (max(lengths) - 1) < 8
    assert state.cache.own[0].shape[4] % 8 == 0


@torch.no_grad()
def by_plain_rows(model, prompts, samples):
    """Log-probs and entropies (P, N, L), one plain row at a time."""
    log_probs = torch.zeros_like(samples.log_probs)
    entropies = torch.zeros_like(samples.entropies)
    for i, prompt in enumerate(prompts):
        for j, n in enumerate(samples.lengths[i].tolist()):
            response = samples.tokens[i, j, :n]
            logits = tiny.row_logits(model, prompt, response)
            log_probs[i, j, :n] = token_log_probs(logits, response)
            entropies[i, j, :n] = entropy(logits)
    return log_probs, entropies


def test_log_probs_and_entropies_equal_the_training_forward():
    model = tiny.model()
    prompts = tiny.prompts(LENGTHS)
    samples = generate(model, prompts, noise(3, 1, range(4), 8, 14), STOP)
    log_probs, entropies = by_plain_rows(model, prompts, samples)
    assert (log_probs < -1).any()
    assert (entropies > 0.5).any()
    close(samples.log_probs, log_probs)
    close(samples.entropies, entropies)


def test_log_probs_in_bfloat16():
    """Up to eight roundings of the largest number, and in the mean one."""
    model = tiny.model(torch.float32)
    prompts = tiny.prompts(LENGTHS)
    with torch.autocast("cpu", torch.bfloat16):
        samples = generate(model, prompts, noise(3, 1, range(4), 8, 14), STOP)
        log_probs, _ = by_plain_rows(model, prompts, samples)
    difference = (samples.log_probs - log_probs).abs()
    rounding = torch.finfo(torch.bfloat16).eps * log_probs.abs().max()
    assert samples.log_probs.dtype == torch.float32
    assert difference.mean() < rounding
    assert difference.max() < 8 * rounding


def test_noise_depends_on_its_arguments_alone():
    """(seed, step, prompt) choose a generator, (rollout, position) the place in its (N, L_max)
    draws.

    So fewer rollouts are the first of more. L_max is the length limit, not how long a wave happens
    to get: with another limit only the first rollout keeps its numbers.
    """
    one = noise(1, 2, [5], 6, 7)
    assert one.dtype == F64
    assert torch.equal(noise(1, 2, [3, 5, 9], 6, 7)[1], one[0])
    assert torch.equal(noise(1, 2, [5], 2, 7)[0], one[0, :2])
    assert torch.equal(noise(1, 2, [5], 6, 4)[0, 0], one[0, 0, :4])
    given = [(1, 2, 5), (2, 2, 5), (1, 3, 5), (1, 2, 6), (2, 1, 5), (5, 2, 1)]
    every = torch.stack([noise(seed, step, [prompt], 6, 7) for seed, step, prompt in given])
    assert len(every.unique()) == every.numel()


def test_noise_is_uniform():
    """Chi-square with 49 degrees of freedom, 5 standard deviations."""
    counts = torch.histc(noise(0, 0, range(40), 50, 50), 50, 0, 1)
    assert counts.sum() == 100_000
    assert ((counts - 2000) ** 2 / 2000).sum() < 49 + 5 * math.sqrt(98)


def test_inverse_cdf_is_exact_on_a_grid():
    """1,000 uniforms in the middles of equal steps hit every token as often as its probability
    says.
    """
    p = torch.tensor([0.0, 0.25, 0.0, 0.003, 0.247, 0.5, 0.0], dtype=F64)
    grid = (torch.arange(1000, dtype=F64) + 0.5) / 1000
    drawn = inverse_cdf(p, grid)
    assert drawn.bincount(minlength=7).tolist() == [0, 250, 0, 3, 247, 500, 0]
    assert (drawn.diff() >= 0).all()


@pytest.mark.parametrize("V", [100, 256, 300])
def test_a_token_of_nan_is_one_of_the_vocabulary(V):
    """Weights that have diverged are the loss's to report: a token beyond the vocabulary would end
    the process.
    """
    drawn = drawing.draw(torch.full((5, V), torch.nan), torch.rand(5, dtype=F64))
    assert (drawn >= 0).all()
    assert (drawn < V).all()
    # Nor does the nucleus of a large vocabulary end it.
    assert distribution(torch.full((5, 10 * V), torch.nan), top_p=0.9).isnan().all()


@pytest.mark.parametrize("V", [4, 4000])
def test_the_nucleus_ends_where_its_sum_reaches_top_p(V):
    """Exactly: sums of powers of 2 are not rounded."""
    p = torch.zeros(V, dtype=F64)
    p[[2, 0, 3, 1]] = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=F64)
    for top_p, kept in ((0.5, [2]), (0.75, [0, 2]), (0.875, [0, 1, 2])):
        inside = ~drawing.outside_nucleus(p[None], top_p)[0]
        assert inside.nonzero().flatten().tolist() == kept


@pytest.mark.parametrize("kept", [1, 700, 1024, 1025, 3000])
@pytest.mark.parametrize("ties", [False, True])
def test_the_nucleus_of_a_large_vocabulary_is_that_of_sorting_all_of_it(kept, ties, monkeypatch):
    """Rows whose nucleus ends after `kept` tokens, or among equals: the first 1,024 are looked at
    before the rest.
    """
    p = torch.rand(7, 4000, generator=seeded(kept), dtype=F64) + 0.1
    if ties:
        p = (p * 8).round()
    p = p / p.sum(-1, keepdim=True)
    top_p = float(p[0].sort(descending=True).values[:kept].sum()) - 1e-9
    expected = drawing.outside_by_sorting(p, top_p)
    sorting = mock.Mock(wraps=drawing.outside_by_sorting)
    monkeypatch.setattr(drawing, "outside_by_sorting", sorting)
    assert torch.equal(drawing.outside_nucleus(p, top_p), expected)
    if kept < 1000 and not ties:
        assert not sorting.called
    if kept > 2000:
        assert len(sorting.call_args.args[0]) == 7


def test_greedy_and_low_precision():
    logits = torch.tensor([[1.0, 3.0, 3.0, -1.0]], dtype=torch.bfloat16)
    assert distribution(logits).dtype == torch.float32
    assert distribution(logits, temperature=0).exp().tolist() == [[0, 1, 0, 0]]


UNKNOWN = {
    "NaN for one token": (math.nan, [5]),
    "infinite for one": (math.inf, [5]),
    "all minus infinity": (-math.inf, range(32)),
}


@pytest.mark.parametrize("behind", [3, 8, 7])
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0}, {"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.9}]
)
@pytest.mark.parametrize("kind", UNKNOWN)
def test_logits_that_are_not_finite_are_refused(kind, options, behind):
    """No response is made of them, also where they come behind a later token alone; what a row
    draws behind its end, 7, is none of its response."""
    number, tokens = UNKNOWN[kind]
    tokens = list(tokens)
    model = tiny.chain({3: 4, 4: 8, 8: 7, 7: 9})

    def spoil(module, inputs, logits):
        there = inputs[0][..., [behind]] > 1  # the only entry of a state that is not 0
        logits[..., tokens] = logits[..., tokens].masked_fill(there, number)

    model.lm_head.register_forward_hook(spoil)
    uniforms = torch.full((1, 2, 9), 0.5)
    run = functools.partial(generate, model, [torch.tensor([3])], uniforms, [7], **options)
    if behind == 7:
        assert run().tokens.tolist() == [[[4, 8, 7]] * 2]
    else:
        with pytest.raises(UsageError, match="logits are not finite"):
            run()


def test_a_token_that_is_impossible_is_none_that_is_unknown():
    """A logit of minus infinity beside finite ones."""
    model = tiny.chain({3: 4})
    model.lm_head.register_forward_hook(
        lambda module, inputs, logits: logits.index_fill(-1, torch.tensor(9), -math.inf)
    )
    for temperature in (0, 0.6, 1):
        found = generate(
            model, [torch.tensor([3])], torch.full((1, 1, 1), 0.5), [7], temperature=temperature
        )
        assert found.tokens.tolist() == [[[4]]]
        assert found.log_probs.isfinite().all()


def test_refusals():
    model = tiny.model()
    uniforms = noise(0, 0, range(2), 2, 100)
    too_long = "30 tokens and a response of up to 99 exceed the model's 128"
    for lengths, said in (((1, 0), "prompt without tokens, number 1"), ((30, 3), too_long)):
        with pytest.raises(ValueError, match=said):
            generate(model, tiny.prompts(lengths), uniforms[..., :99], STOP)
    generate(model, tiny.prompts((28, 3)), uniforms, STOP)
