"""Memory limits change no gradient and no rollout, and --dry-run plans what is measured."""

from unittest import mock

import pytest
import torch

from maxrl.models import transformer
from maxrl.models.cache import Cache
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


def forward(layers=3, groups=2, share=True, again=False, low=False, **sizes):
    """A model, its hidden states of 3 rows of 24 tokens after each prompt of 8, and the bytes that
    autograd saves for them, without ids.
    """
    model = tiny.model(torch.float32, num_hidden_layers=layers, **sizes)
    model.gradient_checkpointing = again
    tokens = torch.ones(groups, 3, 24, dtype=torch.long)
    prefix = torch.ones(groups, 8, dtype=torch.long) if share else None
    lengths = torch.full((groups,), 8)

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
    model.encode(prefix)
    assert runs[5:] == [0, 1]


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
    row = 20 * token + 32 * LOGIT_BYTES
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
    # All rows at once, or an attempt and then two waves.
    for top_p, attempts in ((1.0, 1), (0.5, 3)):
        policy.kv_memory_gb = 0
        reference = policy.rollout(examples, 4, top_p=top_p)
        policy.kv_memory_gb = 8 * row / GIB
        with mock.patch.object(sampler, "prefill", wraps=sampler.prefill) as prefills:
            tiny.same(policy.rollout(examples, 4, top_p=top_p), reference)
        assert prefills.call_count == attempts


def test_a_full_budget_is_not_remembered(monkeypatch):
    """A step that halved its waves does not make the next step begin with small ones. Without a
    budget the rows count, in whole groups."""
    asked = []

    def noted(model, prompts, uniforms, *arguments, **options):
        asked.append(uniforms[..., 0].numel())
        return sampler.generate(model, prompts, uniforms, *arguments, **options)

    monkeypatch.setattr("maxrl.learning.policy.generate", noted)
    policy = tiny.policy(kv_memory_gb=1e-6)
    policy.rollout(tiny.examples("UP", "DOWN LEFT"), 4)
    assert asked[:2] == [8, 4]
    before = list(asked)
    policy.rollout(tiny.examples("UP", "DOWN LEFT"), 4)
    assert asked == before * 2
    asked.clear()
    tiny.policy(wave_rows=5).rollout(tiny.examples("UP", "DOWN"), 3)
    assert asked == [3, 3]


WIDE = dict(hidden_size=64, intermediate_size=160, head_dim=16)
NARROW = dict(hidden_size=64, intermediate_size=16, head_dim=16, num_key_value_heads=4)


@pytest.mark.parametrize("low", (False, True))
@every_family
@shared_or_not
@pytest.mark.parametrize("sizes", (WIDE, NARROW))
def test_activations_as_measured(family, low, share, sizes):
    """Within 25 %; four groups minus two, so that what does not grow with the tokens drops out."""
    sizes = sizes | {"model_type": family}

    def grown(layers, again=False):
        given = {"low": low, "again": again, "share": share} | sizes
        return forward(layers, groups=4, **given)[2] - forward(layers, groups=2, **given)[2]

    config = TransformerConfig.from_hf(tiny.SIZES | sizes | {"num_hidden_layers": 4})
    tokens = 2 * 3 * 24 + 2 * 8 * share
    copied = 2 * 3 * 8 * share
    plain = grown(4)
    found = dry_run.activation_bytes(config, tokens, low, False, copied)
    assert found == pytest.approx(plain, rel=0.25)
    one_layer = plain - grown(3)  # while its backward runs
    found = dry_run.activation_bytes(config, tokens, low, True, copied)
    assert found == pytest.approx(grown(4, again=True) + one_layer, rel=0.25)
