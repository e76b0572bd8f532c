"""Sampling: the same tokens as the plainest loop, whatever leaves, waits or is batched; from the
right distribution.
"""

import math
from unittest import mock

import pytest
import tiny
import torch
from tensors import close, seeded
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from maxrl.losses import token_log_probs
from maxrl.models.cache import Cache
from maxrl.sampling import drawing, sampler
from maxrl.sampling.drawing import distribution, inverse_cdf
from maxrl.sampling.sampler import generate, noise

LENGTHS = (9, 5, 1, 12)  # ragged; the prompt of one token has an empty prefix
STOP = [2, 7, 20]


def plain_loop(model, prompts, N, max_tokens, stop, uniforms, temperature=1.0, top_k=0, top_p=1.0):
    """One row at a time, the whole sequence again for every token, probabilities cut by sorting in
    python.
    """
    responses = []
    for i, prompt in enumerate(prompts):
        for j in range(N):
            row = prompt.tolist()
            for t in range(max_tokens):
                with torch.no_grad():
                    logits = model.lm_head(model(torch.tensor(row)[None, None])[0, 0, -1])
                row.append(draw(logits, float(uniforms[i, j, t]), temperature, top_k, top_p))
                if row[-1] in stop:
                    break
            responses.append(row[len(prompt) :])
    return responses


def draw(logits, u, temperature, top_k, top_p):
    if temperature == 0:
        return int(logits.argmax())
    p = torch.softmax(logits.double() / temperature, -1).tolist()
    order = sorted(range(len(p)), key=lambda v: -p[v])[: top_k or None]
    total, nucleus = sum(p[v] for v in order), []
    for v in order:
        if sum(p[w] for w in nucleus) / total < top_p:
            nucleus.append(v)
    point, below = u * sum(p[v] for v in nucleus), 0.0
    for v in sorted(nucleus):
        below += p[v]
        if point < below:
            return v
    return max(nucleus)


def responses(samples):
    """Samples as a flat list of token lists; everything behind a length must be 0."""
    written = torch.arange(samples.tokens.shape[-1]) < samples.lengths[..., None]
    for values in (samples.tokens, samples.log_probs, samples.entropies):
        assert (values[~written] == 0).all()
    return [
        row[:n].tolist() for row, n in zip(samples.tokens.flatten(0, 1), samples.lengths.flatten())
    ]


OPTIONS = [
    {},
    {"temperature": 0.7},
    {"temperature": 0},
    {"top_k": 5},
    {"top_p": 0.8},
    {"temperature": 1.3, "top_k": 9, "top_p": 0.7},
]


@pytest.mark.parametrize(
    "lengths, limit", [((1, 1), 8), (LENGTHS, 1)], ids=["empty prefixes", "one token"]
)
def test_corners_equal_the_plain_loop(lengths, limit):
    """Prompts of one token alone, of which nothing is encoded, and responses of one token."""
    model, prompts = tiny.model(), tiny.prompts(lengths)
    uniforms = noise(0, 0, range(len(lengths)), 3, limit)
    samples = generate(model, prompts, uniforms, STOP)
    assert responses(samples) == plain_loop(model, prompts, 3, limit, STOP, uniforms)


@pytest.mark.parametrize("options", OPTIONS)
def test_tokens_equal_the_plain_loop(options):
    """In float64, so that no rounding of a logit stands between the two."""
    model, prompts, uniforms = tiny.model(), tiny.prompts(LENGTHS), noise(3, 1, range(4), 5, 14)
    samples = generate(model, prompts, uniforms, STOP, **options)
    expected = plain_loop(model, prompts, 5, 14, STOP, uniforms, **options)
    assert responses(samples) == expected
    ended = [row[-1] in STOP for row in expected]
    assert samples.finished.flatten().tolist() == ended
    if options.get("temperature") != 0:
        assert len(set(map(len, expected))) > 3
        assert any(ended)


def test_the_end_token_belongs_to_the_response_and_the_limit_adds_none():
    uniforms = noise(3, 1, range(4), 16, 6)
    samples = generate(tiny.model(), tiny.prompts(LENGTHS), uniforms, STOP)
    for row, finished in zip(responses(samples), samples.finished.flatten().tolist()):
        assert not set(row[:-1]) & set(STOP)
        assert finished == (row[-1] in STOP)
        assert finished or len(row) == 6
    assert not samples.finished.all()
    last_allowed = samples.lengths[samples.finished] == 6
    assert last_allowed.any(), "it may be an end token"


@pytest.mark.parametrize(
    "every, share, block", [(1, 1.0, 1), (1, 0.0, 32), (3, 0.9, 2), (100, 1.0, 4)]
)
def test_leaving_rows_change_nothing(every, share, block, monkeypatch):
    """Rows packed together at every token, or never: equal samples."""
    model, prompts, uniforms = tiny.model(), tiny.prompts(LENGTHS), noise(3, 1, range(4), 8, 20)
    expected = generate(model, prompts, uniforms, STOP)
    shapes, decode = set(), type(model).decode

    def noted(self, tokens, cache):
        shapes.add(tokens.shape)
        return decode(self, tokens, cache)

    monkeypatch.setattr(type(model), "decode", noted)
    monkeypatch.setattr(sampler, "CHECK_EVERY", every)
    monkeypatch.setattr(sampler, "SHRINK_AT", share)
    monkeypatch.setattr(Cache, "BLOCK", block)
    samples = generate(model, prompts, uniforms, STOP)
    assert (len(shapes) > 1) == (every < 100 and share > 0)
    tiny.same(samples, expected)


def test_waves_and_order_of_prompts_change_nothing():
    """A rollout belongs to (seed, step, index of its prompt), not to its neighbours."""
    model, prompts = tiny.model(), tiny.prompts(LENGTHS)

    def sampled(order):
        uniforms = noise(5, 2, order, 3, 10)
        rows = responses(generate(model, [prompts[i] for i in order], uniforms, STOP))
        return {i: rows[3 * place : 3 * place + 3] for place, i in enumerate(order)}

    together = sampled(range(4))
    assert sampled([2, 0, 3, 1]) == together
    for i in range(4):
        assert sampled([i])[i] == together[i]


def by_the_training_forward(model, prompts, samples):
    """The training forward's log-probs and entropies (P, N, L), one plain row at a time."""
    log_probs, entropies = torch.zeros_like(samples.log_probs), torch.zeros_like(samples.entropies)
    for i, prompt in enumerate(prompts):
        for j in range(samples.tokens.shape[1]):
            n = int(samples.lengths[i, j])
            row = torch.cat([prompt, samples.tokens[i, j, :n]])
            logits = model.lm_head(model(row[None, None, :-1])[0, 0, len(prompt) - 1 :])
            log_probs[i, j, :n] = token_log_probs(logits, row[len(prompt) :])
            entropies[i, j, :n] = torch.distributions.Categorical(logits=logits.float()).entropy()
    return log_probs, entropies


@torch.no_grad()
def test_log_probs_and_entropies_equal_the_training_forward():
    """Up to 64 roundings of the largest number in float32; in bfloat16 autocast, whose roundings
    are 65,536 times as coarse, up to eight and in the mean one."""
    model, prompts = tiny.model(torch.float32), tiny.prompts(LENGTHS)
    uniforms = noise(3, 1, range(4), 8, 14)
    samples = generate(model, prompts, uniforms, STOP)
    log_probs, entropies = by_the_training_forward(model, prompts, samples)
    assert (log_probs < -1).any() and (entropies > 0.5).any()
    largest = float(log_probs.abs().max())
    rounding = torch.finfo(torch.float32).eps * largest
    assert (samples.log_probs - log_probs).abs().max() < 64 * rounding
    assert (samples.entropies - entropies).abs().max() < 64 * rounding
    with torch.autocast("cpu", torch.bfloat16):
        samples = generate(model, prompts, uniforms, STOP)
        log_probs, _ = by_the_training_forward(model, prompts, samples)
    difference = (samples.log_probs - log_probs).abs()
    rounding = torch.finfo(torch.bfloat16).eps * largest
    assert difference.mean() < rounding
    assert difference.max() < 8 * rounding


def test_noise_depends_on_its_arguments_alone():
    """(seed, step, prompt) choose a generator, (rollout, position) the place in its (N, L_max)
    draws.

    So fewer rollouts are the first of more. L_max is the length limit, not how long a wave happens
    to get: with another limit only the first rollout keeps its numbers.
    """
    one = noise(1, 2, [5], 6, 7)
    assert one.dtype == torch.float64
    assert (one >= 0).all()
    assert (one < 1).all()
    assert torch.equal(noise(1, 2, [3, 5, 9], 6, 7)[1], one[0])
    assert torch.equal(noise(1, 2, [5], 2, 7)[0], one[0, :2])
    assert torch.equal(noise(1, 2, [5], 6, 4)[0, 0], one[0, 0, :4])
    given = [(2, 2, 5), (1, 3, 5), (1, 2, 6), (2, 1, 5), (5, 2, 1)]
    others = [noise(seed, step, [prompt], 6, 7) for seed, step, prompt in given]
    every = torch.cat([one, *others]).flatten()
    assert len(every.unique()) == len(every)


def test_noise_is_uniform():
    """Chi-square with 49 degrees of freedom, 5 standard deviations."""
    counts = torch.histc(noise(0, 0, range(40), 50, 50), 50, 0, 1)
    assert ((counts - 2000) ** 2 / 2000).sum() < 49 + 5 * math.sqrt(98)


def test_inverse_cdf_is_exact_on_a_grid():
    """1,000 uniforms in the middles of equal steps hit every token as often as its probability
    says.
    """
    p = torch.tensor([0.0, 0.25, 0.0, 0.003, 0.247, 0.5, 0.0], dtype=torch.float64)
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    drawn = inverse_cdf(p, grid)
    assert drawn.bincount(minlength=7).tolist() == [0, 250, 0, 3, 247, 500, 0]
    assert (drawn.diff() >= 0).all()


@pytest.mark.parametrize("V", [100, 256, 300])
def test_a_token_of_nan_is_one_of_the_vocabulary(V):
    """Weights that have diverged are the loss's to report: a token beyond the vocabulary would end
    the process.
    """
    drawn = drawing.draw(torch.full((5, V), torch.nan), torch.rand(5, dtype=torch.float64))
    assert (drawn >= 0).all()
    assert (drawn < V).all()


def test_frequencies_equal_probabilities():
    """First tokens of 20,000 rollouts by chi-square (5 standard deviations), through generate
    itself.
    """
    model, prompts = tiny.model(), tiny.prompts((6,))
    samples = generate(model, prompts, noise(7, 0, [0], 20_000, 1), STOP)
    with torch.no_grad():
        p = model.lm_head(model(prompts[0][None, None])[0, 0, -1]).softmax(-1)
    expected, counts = 20_000 * p, samples.tokens.flatten().bincount(minlength=32)
    large = expected > 5
    assert large.sum() > 5
    chi = ((counts - expected) ** 2 / expected)[large].sum()
    assert chi < large.sum() + 5 * math.sqrt(2 * large.sum())


WARPERS = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 4},
        {"top_k": 50},
        {"top_p": 0.9},
        {"top_p": 1e-6},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.55},
    ],
)
def test_distribution_equals_the_warpers_of_transformers(options):
    logits = torch.randn(200, 12, dtype=torch.float64, generator=seeded()) * 2
    expected = logits
    for name, warper in WARPERS.items():
        if name in options:
            expected = warper(options[name])(None, expected)
    close(distribution(logits, **options).exp(), expected.softmax(-1))


@pytest.mark.parametrize("kept", [1, 700, 1024, 1025, 3000])
@pytest.mark.parametrize("ties", [False, True])
def test_the_nucleus_of_a_large_vocabulary_is_that_of_sorting_all_of_it(kept, ties, monkeypatch):
    """Rows whose nucleus ends after `kept` tokens, or among equals: the first 1,024 are looked at
    before the rest.
    """
    p = torch.rand(7, 4000, generator=seeded(kept), dtype=torch.float64) + 0.1
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


def test_refusals():
    model, uniforms = tiny.model(), noise(0, 0, range(2), 2, 100)
    with pytest.raises(ValueError, match="prompt without tokens"):
        generate(model, [torch.tensor([], dtype=torch.long), torch.tensor([1])], uniforms, STOP)
    with pytest.raises(
        ValueError, match="30 tokens and a response of up to 99 exceed the model's 128"
    ):
        generate(model, tiny.prompts((30, 3)), uniforms[..., :99], STOP)
    generate(model, tiny.prompts((28, 3)), uniforms, STOP)
