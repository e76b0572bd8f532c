"""Memory limits change no gradient and no rollout, and --dry-run plans what is measured."""

import json

import pytest
import tiny
import torch
from bench_memory import saved_bytes

from maxrl.models import transformer
from maxrl.models.cache import Cache
from maxrl.models.transformer import TransformerConfig
from maxrl.run import dry_run
from maxrl.sampling import sampler
from maxrl.sampling.memory import cache_bytes
from maxrl.sampling.sampler import LOGIT_BYTES
from maxrl.tasks.base import Example

FAMILIES = ("llama", "qwen2", "qwen3")
GIB = 2**30


@pytest.mark.parametrize("share", (True, False))
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_the_same(family, share):
    """In float64, for prompts of several lengths, with several micro-batches and entropies."""
    advantages = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for lengths in ((9, 5, 1, 7), (6, 6, 6, 6), (1, 1, 1, 1)):
        rollouts, found = tiny.rollouts(lengths), []
        for again in (False, True):
            policy = tiny.policy(
                tiny.model(model_type=family, head_dim=8),
                share_prompt=share,
                micro_batch_tokens=70,
                entropy_bonus=0.1,
                gradient_checkpointing=again,
            )
            found.append(tiny.gradient(policy, rollouts, advantages))
        assert found[0].norm() > 0 and tiny.distance(found[1], found[0]) < 1e-12


def forward(
    layers=3, *, family="qwen3", groups=2, share=True, again=False, low=False, rows=3, **sizes
):
    """Bytes that autograd saves for `rows` rows of 24 tokens after prompts of 8, without ids."""
    model = tiny.model(torch.float32, model_type=family, num_hidden_layers=layers, **sizes)
    model.gradient_checkpointing = again
    prefix = torch.ones(groups, 8, dtype=torch.long) if share else None
    tokens, lengths = torch.ones(groups, rows, 24, dtype=torch.long), torch.full((groups,), 8)

    def hidden():
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            return model(tokens, prefix, lengths)

    result, size = saved_bytes(hidden, model.parameters())
    return model, result, size - tokens.nbytes - (prefix.nbytes if share else 0)


@pytest.mark.parametrize("share", (True, False))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_keeps_its_input_alone(family, share):
    """The same holds for the prefix, whose keys and values are not saved either."""
    few, many = (forward(n, family=family, share=share, again=True, head_dim=16)[2] for n in (3, 6))
    tokens = 2 * 3 * 24 + 2 * 8 * share
    assert many - few == 3 * tokens * 32 * 4
    assert many < forward(6, family=family, share=share, head_dim=16)[2] / 5


@pytest.mark.parametrize("again", (True, False))
def test_the_last_layer_is_not_run_for_the_prefix(again):
    model, runs = tiny.model(num_hidden_layers=3), []
    model.gradient_checkpointing = again
    for i, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, i=i: runs.append(i))
    prefix, lengths = torch.ones(2, 8, dtype=torch.long), torch.full((2,), 8)
    model(torch.ones(2, 3, 4, dtype=torch.long), prefix, lengths)
    assert runs == [0, 0, 1, 1, 2]
    model.encode(prefix)
    assert runs[5:] == [0, 1]


def test_only_where_gradients_are_on(monkeypatch):
    calls = []
    real = transformer.checkpoint
    monkeypatch.setattr(transformer, "checkpoint", lambda *a, **k: calls.append(1) or real(*a, **k))
    policy = tiny.policy(tiny.model(), gradient_checkpointing=True)
    policy.record(tiny.rollouts())
    policy.rollout([Example("UP DOWN", "")], 3)
    assert not calls
    layers = []
    policy.model.model.layers[0].register_forward_pre_hook(lambda *_: layers.append(1))
    policy.backward(tiny.rollouts(), torch.ones(4, 4))
    assert len(calls) == 2 and len(layers) == 2  # of each layer one checkpoint; its forward twice
    policy = tiny.policy(policy.model)
    policy.backward(tiny.rollouts(), torch.ones(4, 4))
    assert len(calls) == 2 and len(layers) == 3


@pytest.mark.parametrize("share", (True, False))
def test_the_same_under_autocast(share):
    found = []
    for again in (False, True):
        model, hidden, _ = forward(again=again, low=True, share=share, head_dim=16)
        hidden.float().square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.model.layers.parameters()]))
    assert tiny.distance(found[1], found[0]) < 1e-6


def rollouts_and_sizes(monkeypatch, stop=(2, 7, 31), **options):
    """Rollouts of five prompts x 4, and the largest size of the keys and values of each wave."""
    sizes, caches = {}, []  # caches are kept, so that no id is used twice

    def extend(cache, real=Cache.extend):
        real(cache)
        caches.append(cache)
        sizes[id(cache)] = max(sizes.get(id(cache), 0), sum(own.nbytes for own in cache.own))

    with monkeypatch.context() as patched:
        patched.setattr(Cache, "extend", extend)
        policy = tiny.policy(tiny.model(), seed=3, max_tokens=18, **options)
        policy.stop_tokens = stop
        examples = [
            Example(text, "")
            for text in ("UP DOWN LEFT", "WALL", "PATH PATH", "GOAL START", "DONE UP")
        ]
        return policy.rollout(examples, 4, step=2, indices=[10, 3, 4, 0, 7]), list(sizes.values())


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
        assert torch.equal(ours.tokens, reference.tokens) and torch.equal(
            ours.lengths, reference.lengths
        )
        torch.testing.assert_close(ours.log_probs, reference.log_probs, atol=1e-12, rtol=0)
    assert waves[0] == 1 and waves == sorted(waves) and waves[-1] >= 20


def test_a_full_budget_is_not_remembered(monkeypatch):
    """A step that halved its waves does not make the next step begin with small ones."""
    asked = []

    def noted(model, prompts, uniforms, *arguments, **options):
        asked.append(uniforms[..., 0].numel())
        return sampler.generate(model, prompts, uniforms, *arguments, **options)

    monkeypatch.setattr("maxrl.policy.generate", noted)
    policy = tiny.policy(tiny.model(), kv_memory_gb=1e-6)
    for _ in range(2):
        policy.rollout([Example("UP", ""), Example("DOWN LEFT", "")], 4)
    half = len(asked) // 2
    assert asked[:half] == asked[half:] and asked[:2] == [8, 4]
    tiny.policy(tiny.model(), wave_rows=5).rollout([Example("UP", ""), Example("DOWN", "")], 3)
    assert asked[2 * half :] == [3, 3], "without a budget the rows count, in whole groups"


WIDE = dict(
    hidden_size=64, intermediate_size=160, head_dim=16, num_attention_heads=4, num_key_value_heads=2
)


@pytest.mark.parametrize("low", (False, True))
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_as_measured(family, low):
    """Within 25 %; four groups minus two, so that what does not grow with the tokens drops out."""
    for share in (True, False):
        for changed in ({}, {"intermediate_size": 16, "num_key_value_heads": 4}):

            def grown(layers, again, share=share, sizes=WIDE | changed):
                given = dict(family=family, low=low, again=again, share=share) | sizes
                return forward(layers, groups=4, **given)[2] - forward(layers, groups=2, **given)[2]

            config = TransformerConfig.from_hf(
                tiny.SIZES | WIDE | changed | {"model_type": family, "num_hidden_layers": 4}
            )
            tokens, copied, plain = 2 * 3 * 24 + 2 * 8 * share, 2 * 3 * 8 * share, grown(4, False)
            assert dry_run.activation_bytes(config, tokens, low, False, copied) == pytest.approx(
                plain, rel=0.25
            )
            recomputed = (
                grown(4, True) + plain - grown(3, False)
            )  # and one layer while its backward runs
            assert dry_run.activation_bytes(config, tokens, low, True, copied) == pytest.approx(
                recomputed, rel=0.25
            )


def test_a_recipe_trains_with_both(shell, mazes, tmp_path, monkeypatch):
    calls, real, norms = [], transformer.checkpoint, []
    monkeypatch.setattr(transformer, "checkpoint", lambda *a, **k: calls.append(1) or real(*a, **k))
    options = ["--init", "", "--entropy-bonus", 0.1, "--steps", 1]
    for name, more in (
        ("plain", []),
        ("both", ["--gradient-checkpointing", "--kv-memory-gb", "0.00005"]),
    ):
        assert not calls
        code, said = shell("train.py", "tiny", *options, "--out", tmp_path / name, *more)
        assert code == 0, said
        norms.append(json.loads((tmp_path / name / "metrics.jsonl").read_text())["grad_norm"])
    assert calls and norms[0] > 0 and norms[1] == pytest.approx(norms[0], rel=1e-5)
