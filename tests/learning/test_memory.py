"""Memory limits change no gradient and no rollout, and --dry-run plans what is measured."""

import math
from unittest import mock

import pytest
import torch

from maxrl.learning.policy import MARGIN
from maxrl.models import transformer
from maxrl.models.cache import Cache, CacheFull
from maxrl.models.transformer import TransformerConfig
from maxrl.run import dry_run
from maxrl.sampling import sampler
from maxrl.sampling.memory import cache_bytes
from maxrl.sampling.sampler import LOGIT_BYTES
from tests.bench.bench_memory import saved_bytes
from tests.helpers import tiny

every_family = pytest.mark.parametrize("family", ("llama", "qwen2", "qwen3"))
shared_or_not = pytest.mark.parametrize("share", (True, False))
GIB = 2**30


@pytest.fixture
def checkpoints(monkeypatch):
    """One entry for each layer that is run through torch's checkpoint."""
    calls = []
    real = transformer.checkpoint

    def noted(*arguments, **options):
        calls.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(transformer, "checkpoint", noted)
    return calls


def forward(layers=3, groups=2, share=True, again=False, low=False, ragged=False, **sizes):
    """A model, its hidden states of 3 rows of 24 tokens after each prompt of 8, and the bytes that
    autograd saves for them, without ids.
    """
    model = tiny.model(torch.float32, num_hidden_layers=layers, **sizes)
    model.gradient_checkpointing = again
    tokens = torch.ones(groups, 3, 24, dtype=torch.long)
    prefix = torch.ones(groups, 8, dtype=torch.long) if share else None
    lengths = torch.full((groups,), 8)
    lengths[1::2] -= int(ragged)

    def hidden():
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            return model(tokens, prefix, lengths)

    result, size = saved_bytes(hidden, model.parameters())
    return model, result, size - tokens.nbytes - (prefix.nbytes if share else 0)


@shared_or_not
@every_family
def test_a_layer_keeps_its_input_alone(family, share):
    """The same holds for the prefix, whose keys and values are not saved either."""
    given = {"model_type": family, "share": share, "head_dim": 16}
    few = forward(3, again=True, **given)[2]
    many = forward(6, again=True, **given)[2]
    tokens = 2 * 3 * 24 + 2 * 8 * share
    assert many - few == 3 * tokens * 32 * 4
    assert many < forward(6, **given)[2] / 5


@pytest.mark.parametrize("again", (True, False))
def test_the_last_layer_is_not_run_for_the_prefix(again):
    model = tiny.model(num_hidden_layers=3)
    model.gradient_checkpointing = again
    runs = []
    for i, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, i=i: runs.append(i))
    prefix = torch.ones(2, 8, dtype=torch.long)
    model(torch.ones(2, 3, 4, dtype=torch.long), prefix, torch.full((2,), 8))
    assert runs == [0, 0, 1, 1, 2]
    every = model.encode(prefix)
    assert runs[5:] == [0, 1]
    # As sampling reads them: a copy of them would need twice their memory.
    assert all(each.is_contiguous() for kv in every for each in kv)


def test_only_where_gradients_are_on(checkpoints):
    policy = tiny.policy(gradient_checkpointing=True)
    policy.record(tiny.rollouts())
    policy.rollout(tiny.examples("UP DOWN"), 3)
    assert not checkpoints
    layers = []
    policy.model.model.layers[0].register_forward_pre_hook(lambda *_: layers.append(1))
    tiny.gradient(policy, tiny.rollouts(), torch.ones(4, 4))
    assert len(checkpoints) == 2
    assert len(layers) == 2
    tiny.gradient(tiny.policy(policy.model), tiny.rollouts(), torch.ones(4, 4))
    assert len(checkpoints) == 2
    assert len(layers) == 3


@shared_or_not
def test_the_same_under_autocast(share):
    found = []
    for again in (False, True):
        given = {"model_type": "qwen3", "head_dim": 16}
        model, hidden, _ = forward(again=again, low=True, share=share, **given)
        hidden.float().square().sum().backward()
        found.append(tiny.grads(model.model.layers))
    assert tiny.distance(found[1], found[0]) < 1e-6


def rollouts_and_sizes(monkeypatch, **options):
    """Rollouts of five prompts x 4, and the largest size of the keys and values of each wave."""
    caches = []
    extend = Cache.extend

    def noted(cache):
        extend(cache)
        if not caches or caches[-1][0] is not cache:
            caches.append((cache, []))
        caches[-1][1].append(sum(own.nbytes for own in cache.own))

    policy = tiny.policy(seed=3, max_tokens=18, **options)
    policy.checkpoint.stop_tokens = (2, 7, 31)
    examples = tiny.examples("UP DOWN LEFT", "WALL", "PATH PATH", "GOAL START", "DONE UP")
    with monkeypatch.context() as patched:
        patched.setattr(Cache, "extend", noted)
        rollouts = policy.rollout(examples, 4, step=2, indices=[10, 3, 4, 0, 7])
    return rollouts, [max(sizes) for _, sizes in caches]


def test_a_budget_changes_no_rollout(monkeypatch):
    """From a budget in which all rows fit to one of a single row, rollouts and log-probs agree."""
    monkeypatch.setattr(Cache, "BLOCK", 4)
    token = 2 * 2 * 2 * 8 * 8  # layers x (keys, values) x heads x 8 x float64
    assert cache_bytes(tiny.model().config, 18, 8) == 20 * token  # whole blocks
    reference, sizes = rollouts_and_sizes(monkeypatch)
    assert 3 < int((reference.lengths == 18).sum()) < 17
    assert max(sizes) < 20 * 20 * token, "there were never 20 rows of 20 tokens"
    # The peak, divided by the rows at the start.
    logits = 32 * LOGIT_BYTES
    copies = 8 * token  # of a prefix of 8 tokens, in a narrow group
    assert max(sizes) / 20 < reference.row_bytes <= max(sizes) / 20 + logits + copies
    row = 20 * token + logits
    waves = []
    for rows in (20, 15, 9, 4, 2, 0.01):
        ours, sizes = rollouts_and_sizes(monkeypatch, kv_memory_gb=rows * row / GIB, wave_rows=1)
        assert max(sizes) <= max(rows, 1) * row
        waves.append(len(sizes))
        tiny.same(ours, reference)
    assert waves[0] == 1
    assert waves == sorted(waves)
    assert waves[-1] >= 20


def test_a_budget_counts_the_sort_of_top_p():
    """So that fewer rows fit; the rollouts are those of all rows."""
    policy = tiny.policy(max_tokens=8)
    examples = tiny.examples("UP", "DOWN LEFT")
    row = cache_bytes(policy.model.config, 8, 8) + 32 * LOGIT_BYTES
    # All rows at once, or two waves: how many fit is known from the reference.
    for top_p, attempts in ((1.0, 1), (0.5, 2)):
        policy.kv_memory_gb = 0
        reference = policy.rollout(examples, 4, top_p=top_p)
        policy.kv_memory_gb = 8 * row / MARGIN / GIB
        with mock.patch.object(sampler, "prefill", wraps=sampler.prefill) as prefills:
            tiny.same(policy.rollout(examples, 4, top_p=top_p), reference)
        assert prefills.call_count == attempts


@pytest.fixture
def asked(monkeypatch):
    """How many rows each call of generate() began with, and whether it came to an end."""
    calls = []

    def noted(model, prompts, uniforms, *arguments, **options):
        calls.append([uniforms[..., 0].numel(), False])
        rollouts = sampler.generate(model, prompts, uniforms, *arguments, **options)
        calls[-1][1] = True
        return rollouts

    monkeypatch.setattr("maxrl.learning.policy.generate", noted)
    return calls


@pytest.mark.parametrize("share", (2, 0.9, 0.6, 0.35, 0.1, 1e-6))
def test_the_rows_that_fit_are_remembered(share, asked, monkeypatch):
    """A step begins with at most .95 rows x budget / peak of the last one, and throws nothing away.
    What there is room for changes no rollout, in the first step or later."""
    monkeypatch.setattr(Cache, "BLOCK", 4)
    given = tiny.examples("UP", "DOWN LEFT", "WALL", "GOAL"), 4
    model = tiny.model()
    expected = [tiny.policy(model).rollout(*given, step=step) for step in (3, 3, 3, 4)]
    budget = share * 16 * expected[0].row_bytes
    policy = tiny.policy(model, kv_memory_gb=budget / GIB)
    asked.clear()
    for i, (step, reference) in enumerate(zip((3, 3, 3, 4), expected)):
        before = len(asked)
        fitting = MARGIN * budget / policy.row_bytes[()] if i else 16
        rollouts = policy.rollout(*given, step=step)
        tiny.same(rollouts, reference)
        calls = asked[before:]
        assert sum(rows for rows, done in calls if done) == 16
        # A part of a group, or whole groups of 4, equally many in every wave.
        rows = min(16, max(1, int(fitting)))
        waves = math.ceil(4 / max(1, rows // 4))
        assert calls[0][0] == (rows if rows < 4 else math.ceil(4 / waves) * 4)
        if i and step == 3:
            assert all(done for _, done in calls)
    assert asked[0][1] == (share >= 1)


def test_other_ways_of_drawing_are_remembered_apart(asked, monkeypatch):
    """An evaluation at another temperature, with longer responses, does not plan the next step."""
    monkeypatch.setattr(Cache, "BLOCK", 4)
    given = tiny.examples("UP", "DOWN LEFT", "WALL", "GOAL"), 4
    policy = tiny.policy(kv_memory_gb=1)
    whole = policy.rollout(*given, step=3).row_bytes
    policy.kv_memory_gb = 0.7 * 16 * whole / GIB
    policy.rollout(*given, step=3)
    planned = dict(policy.row_bytes)
    policy.rollout(*given, temperature=0.2)
    asked.clear()
    policy.rollout(*given, step=3)
    assert policy.row_bytes[()] == planned[()]
    assert len(policy.row_bytes) == 2
    assert all(done for _, done in asked)


def cache_of(groups, rows, *budget):
    """A cache of one layer behind prompts of 3 tokens, with so many rows in each group."""
    kv = torch.zeros(groups, 1, 3, 2)
    return Cache([(kv, kv)], torch.full((groups,), 3), rows, *budget)


def test_copies_of_a_prefix_count():
    """Groups beyond the prompts have keys and values of a prefix of their own."""
    cache = cache_of(2, 4)
    cache.reserve(1)
    rows = 8 * Cache.BLOCK * cache.token_bytes
    assert cache.peak == rows
    # Of the second prompt four rows, in two groups.
    cache.select(torch.tensor([[0, 1], [4, 5], [6, 7]]), regrouped=True)
    cache.peak = 0
    cache.reserve(Cache.BLOCK + 1)
    assert cache.peak == 6 * 2 * Cache.BLOCK * cache.token_bytes + 3 * cache.token_bytes


def test_the_peak_stays_when_rows_have_left():
    cache = cache_of(1, 4)
    cache.reserve(1)
    peak = cache.peak
    cache.select(torch.tensor([[2]]), regrouped=False)
    cache.reserve(Cache.BLOCK + 1)
    assert cache.peak == peak == 4 * Cache.BLOCK * cache.token_bytes


def test_without_a_budget_the_rows_count(asked):
    """In whole groups."""
    tiny.policy(wave_rows=5).rollout(tiny.examples("UP", "DOWN"), 3)
    assert [rows for rows, _ in asked] == [3, 3]


def test_slots_grow_by_a_quarter():
    """In whole blocks, to no more than the longest response needs, and no further than the budget
    allows."""

    def rooms(longest, until=None, budget=torch.inf):
        cache = cache_of(1, 2, budget)
        found = []
        for length in range(1, (until or longest) + 1):
            cache.reserve(length, longest)
            found.append(cache.own[0].shape[4])
            assert found[-1] >= length
            assert cache.bias.shape[-1] == 3 + found[-1]
        assert cache.peak == 2 * found[-1] * cache.token_bytes
        return sorted(set(found))

    found = rooms(2000)
    assert all(room % Cache.BLOCK == 0 for room in found)
    assert found[-1] == 2016
    assert [rooms(longest)[-1] for longest in (500, 1500)] == [512, 1504]
    for C, larger in zip(found, found[1:]):
        assert larger - C == Cache.BLOCK or larger <= 1.25 * C
    assert len(found) < 20
    # Two rows of 16 bytes a token: 512 of them fit, and a quarter more than 480 does not.
    assert 480 in found and 512 not in found
    assert rooms(2000, 512, 512 * 32)[-2:] == [480, 512]
    with pytest.raises(CacheFull):
        rooms(2000, 513, 512 * 32)


WIDE = dict(hidden_size=64, intermediate_size=160, head_dim=16)
ONE_KEY = dict(intermediate_size=16, head_dim=32, num_key_value_heads=1)
NARROW = dict(hidden_size=64, intermediate_size=16, head_dim=16, num_key_value_heads=4)


def grown(layers, **given):
    """Of four groups minus two, so that what does not grow with the tokens drops out."""
    return forward(layers, groups=4, **given)[2] - forward(layers, groups=2, **given)[2]


@pytest.mark.parametrize("low", (False, True))
@every_family
@shared_or_not
@pytest.mark.parametrize("sizes", (WIDE, NARROW))
def test_activations_as_measured(family, low, share, sizes):
    """Within 25 %."""
    sizes = sizes | {"model_type": family}
    given = {"low": low, "share": share} | sizes
    config = TransformerConfig.from_hf(tiny.SIZES | sizes | {"num_hidden_layers": 4})
    tokens = 2 * 3 * 24 + 2 * 8 * share
    copied = 2 * 3 * 8 * share
    plain = grown(4, **given)
    found = dry_run.activation_bytes(config, tokens, low, False, copied)
    assert found == pytest.approx(plain, rel=0.25)
    one_layer = plain - grown(3, **given)  # while its backward runs
    found = dry_run.activation_bytes(config, tokens, low, True, copied)
    assert found == pytest.approx(grown(4, again=True, **given) + one_layer, rel=0.25)


@pytest.mark.parametrize("again", (False, True))
@pytest.mark.parametrize("sizes", (WIDE, NARROW, ONE_KEY))
def test_activations_behind_ragged_prompts(sizes, again):
    """In float32, where heads are repeated; the mask is one for all layers."""
    given = {"ragged": True} | sizes
    config = TransformerConfig.from_hf(tiny.SIZES | sizes | {"num_hidden_layers": 4})
    own, read = 2 * 3 * 24, 2 * 3 * 8
    # Rows of the mask are 16 numbers long, or a multiple.
    mask = own * 32 * 4
    plain = grown(4, **given)
    layer = plain - grown(3, **given)
    found = dry_run.activation_bytes(config, own + 2 * 8, False, again, read, masked=True)
    measured = grown(4, again=True, **given) + layer if again else plain - mask
    assert found == pytest.approx(measured, rel=0.25)
