"""Memory: gradient checkpointing changes no gradient, a KV budget no rollout, and the plan of --dry-run is what is measured."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from bench_memory import saved_bytes
from conftest import ROOT
from published import PUBLISHED
from runs import SHORT

from maxrl.config import FREE_ON_RESUME, Config, with_overrides
from maxrl.errors import UsageError
from maxrl.models import from_config, transformer
from maxrl.models.cache import Cache
from maxrl.models.transformer import TransformerConfig
from maxrl.recipes import RECIPES, find_recipe, maze9_laptop, maze17
from maxrl.run import dry_run
from maxrl.sampling import sampler
from maxrl.sampling.memory import cache_bytes
from maxrl.sampling.sampler import LOGIT_BYTES
from maxrl.tasks.base import Example

FAMILIES = ("llama", "qwen2", "qwen3")
GIB = 2**30
POLARIS = Config(
    init="Qwen/Qwen3-4B-Base",
    task="math",
    prompts=256,
    rollouts=16,
    max_response=4096,
    micro_batch_tokens=8192,
)


@pytest.mark.parametrize("share", (True, False))
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_the_same(family, share):
    """float64, prompts of many lengths, of one, and of one token; several micro-batches; entropies too."""
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
    """What autograd keeps of a training forward in float32 of `rows` rows of 24 tokens after 8 of a prompt, ids left out."""
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
    """Also of the prefix: not its keys and values, which a second pass would have to get gradients for."""
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
    """Five prompts x 4 rollouts of up to 18 tokens, and the bytes of every wave's keys and values when they were most."""
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
    """From one in which all fits to one of a single row; the room for it was asked as it was used, and the next step begins
    with all of them again."""
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
    """Another step may have shorter responses; a device without memory will have none in the next step either."""
    asked = []

    def noted(model, prompts, rollouts, *arguments):
        asked.append(len(prompts) * rollouts)
        return sampler.generate(model, prompts, rollouts, *arguments)

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
    """Within 25 %: two groups against four, so that what does not grow with the tokens (copies of weights) drops out."""
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


def test_a_classifiers_activations_as_measured():
    model = from_config(
        dict(
            model_type="torchvision_resnet",
            block="basic",
            depths=(1, 1, 1),
            width=16,
            num_labels=10,
        )
    )
    _, size = saved_bytes(lambda: model(torch.zeros(4, 3, 32, 32)), model.parameters())
    with torch.device("meta"):
        same = from_config(
            dict(
                model_type="torchvision_resnet",
                block="basic",
                depths=(1, 1, 1),
                width=16,
                num_labels=10,
            )
        )
    assert dry_run.image_bytes(same, 4, 32, False) == pytest.approx(size, rel=0.02)
    assert dry_run.image_bytes(same, 4, 32, True) == dry_run.image_bytes(same, 4, 32, False) // 2


@pytest.mark.parametrize("name", dry_run.PUBLISHED)
def test_published_sizes(name):
    published, count = PUBLISHED[name.split("/")[1]]
    assert TransformerConfig.from_hf(dry_run.PUBLISHED[name]) == TransformerConfig.from_hf(
        published
    )
    assert dry_run.parameters(dry_run.shape(replace(POLARIS, init=name))) == count


def test_where_a_model_is_found(tmp_path, in_a_directory_of_its_own):
    assert dry_run.parameters(dry_run.shape(maze17())) == 3_944_704  # init not made yet
    run = tmp_path / "run"
    (run / "step-000001").mkdir(parents=True)
    (run / "step-000001" / "config.json").write_text(json.dumps(tiny.SIZES))
    (run / "latest").write_text("step-000001\n")
    for init in (run, run / "step-000001"):
        assert dry_run.shape(replace(maze17(), init=str(init))).config.hidden_size == 32
    assert dry_run.shape(replace(POLARIS, init="models/Qwen3-1.7B-Base")).config.hidden_size == 2048
    with pytest.raises(UsageError, match="nothing is known of some/model: .*Qwen/Qwen3-4B-Base"):
        dry_run.shape(replace(POLARIS, init="some/model"))


def test_plan_of_qwen3_4b_on_32_gpus():
    """Numbers by hand: 4,022,468,096 parameters; 36 layers x 2 x 8 heads x 128 in bfloat16 are 147,456 bytes a token."""
    p, a_layer = (
        4_022_468_096,
        16 * 2560 + 4 * 2560 + 2 * (64 + 16) * 128 + 8 * 40 * 128 + 8 * 9728 + 4 * 32,
    )
    cfg, rows = replace(POLARIS, kv_memory_gb=20), 2 * 16
    plan = dry_run.plan(cfg, 32)
    assert plan["always"] == {
        "weights": 4 * p,
        "gradients": 4 * p,
        "Adam": 8 * p,
        "reference model": 0,
    }
    prompts = 8 * 256 * 147_456
    assert plan["sampling"] == {
        "weights in bfloat16": 2 * p,
        "keys and values of prompts": prompts,
        "noise and results of 128 rows": 128 * 4096 * 24,
        "their keys, values and logits": 20 * GIB,
    }
    ample = dry_run.plan(replace(cfg, kv_memory_gb=200), 32)["sampling"]
    assert ample["their keys, values and logits"] == 128 * (4096 * 147_456 + 151_936 * 20)
    waves = dry_run.plan(replace(cfg, kv_memory_gb=0, wave_rows=rows), 32)["sampling"]
    assert waves == {
        "weights in bfloat16": 2 * p,
        "keys and values of prompts": prompts // 4,
        "noise and results of 32 rows": rows * 4096 * 24,
        "their keys, values and logits": rows * (4096 * 147_456 + 151_936 * 20),
    }
    one_row = dry_run.plan(replace(cfg, kv_memory_gb=0.01), 32)["sampling"][
        "their keys, values and logits"
    ]
    assert one_row == 4096 * 147_456 + 151_936 * 20
    copied = 8192 // 2048 * 256 * 2 * 2 * 8 * 128
    assert plan["training"] == {
        "weights in bfloat16": 2 * p,
        "weights of the reference": 0,
        "logits of a chunk": 2**25 * 20,
        "activations of 8,192 tokens": 36 * (8192 * a_layer + copied) + 8192 * 12 * 2560,
    }
    assert plan.keys() == {"always", "sampling", "training"}, (
        "a fused optimizer needs nothing of its own"
    )
    assert dry_run.peak(plan) == 16 * p + sum(plan["training"].values())
    assert dry_run.plan(cfg, 32, mean=512)["training"]["activations of 8,192 tokens"] == (
        plan["training"]["activations of 8,192 tokens"] + 36 * 3 * copied
    )
    less = dry_run.plan(replace(cfg, gradient_checkpointing=True), 32)["training"][
        "activations of 8,192 tokens"
    ]
    assert less == 36 * 4 * 2560 * 8192 + 8192 * a_layer + copied + 8192 * 12 * 2560


def test_plan_by_option():
    cfg, p = replace(POLARIS, beta=0.1), 4_022_468_096
    sharded = dry_run.plan(cfg, 8, sharded=True)
    assert sharded["always"] == {
        "weights": p // 2,
        "gradients": p // 2,
        "Adam": p,
        "reference model": 4 * p,
    }
    assert (
        sharded["training"]["weights of the reference"]
        == sharded["sampling"]["weights in bfloat16"]
        == 2 * p
    )
    assert dry_run.plan(cfg, 32, sharded=True)["always"] == sharded["always"], (
        "divided within a node of eight"
    )
    table, layer = 151_936 * 2560, (p - 151_936 * 2560 - 2560) // 36
    assert (
        sharded["sampling"]["embeddings in float32"] == 4 * table
    )  # tied: lm_head's bfloat16 is counted in 2 p
    assert sharded["training"]["two layers and what is in none"] == 8 * (table + 2560 + 2 * layer)
    full = dry_run.plan(replace(cfg, precision="float32"), 8, sharded=True)
    assert (
        full["sampling"]["embeddings in float32"] == 0
        and "weights, gathered" not in full["training"]
    )
    assert (
        full["sampling"]["weights, gathered"] == 4 * p
        and full["training"]["weights of the reference"] == 0
    )
    assert dry_run.plan(replace(cfg, precision="float32"), 8)["sampling"]["weights, gathered"] == 0
    assert "noise and results of 512 rows" in sharded["sampling"]  # 32 prompts a rank
    assert (
        "noise and results of 96 rows" in dry_run.plan(replace(cfg, wave_rows=100), 8)["sampling"]
    )
    supervised = dry_run.plan(replace(POLARIS, estimator="supervised", rollouts=1), 8)["sampling"]
    assert sum(supervised.values()) == supervised["weights in bfloat16"]
    assert (
        "activations of 4,352 tokens"
        in dry_run.plan(replace(cfg, micro_batch_tokens=100), 8)["training"]
    )  # one row
    small = replace(cfg, prompts=8, rollouts=1, max_response=10, micro_batch_tokens=10**6)
    assert (
        "activations of 266 tokens" in dry_run.plan(small, 8)["training"]
    )  # no more than there are
    assert dry_run.plan(small, 8)["training"]["logits of a chunk"] == 2**25 * 20
    scratch = replace(small, init="", beta=0.0, model=tiny.SIZES)
    assert dry_run.plan(scratch, 8)["training"]["logits of a chunk"] == 266 * 32 * 20
    sgd = dry_run.plan(replace(cfg, optimizer="sgd"), 1)
    assert sgd["always"]["momentum"] == 4 * p
    for gpus in (0, 3):
        with pytest.raises(UsageError, match=f"--prompts 256 must divide by the {gpus} GPUs"):
            dry_run.plan(cfg, gpus)


def test_what_fits():
    cfg = replace(POLARIS, kv_memory_gb=10)
    need = [
        dry_run.peak(dry_run.plan(replace(cfg, gradient_checkpointing=again), 8, sharded))
        / GIB
        / (1 - dry_run.RESERVE)
        for sharded in (False, True)
        for again in (False, True)
    ]
    assert need[0] > need[1] > need[2] > need[3]
    again, shard = "--gradient-checkpointing true", "--shard true"
    words = ("as it is", f"with {again}", f"with {shard}", f"with {shard} {again}")
    assert [dry_run.fits(dry_run.ways(cfg, 8), size + 0.01) for size in need] == list(words)
    assert [dry_run.fits(dry_run.ways(cfg, 8), size - 0.01) for size in need] == [*words[1:], "no"]
    assert dry_run.fits(dry_run.ways(cfg, 1), need[1] - 1) == "no"  # one GPU shares with nobody
    assert dry_run.fits(dry_run.ways(replace(cfg, shard=True), 8), need[2] + 0.01) == "as it is"
    assert (
        dry_run.fits(dry_run.ways(replace(cfg, shard=True), 8), need[2] - 0.01) == f"with {again}"
    )


def test_dry_run(shell, monkeypatch):
    def polaris():
        """For this test."""
        return replace(POLARIS, kv_memory_gb=20)

    monkeypatch.setitem(RECIPES, "polaris", polaris)
    code, said = shell("train.py", "--dry-run", "polaris", "--gpus", "32")
    assert code == 0
    for words in (
        "polaris on 32 GPUs: 4,022,468,096 parameters, forward in bfloat16",
        "256 prompts x 16 rollouts a step, 8 prompts a rank",
        "tokens a step: 8,388,608 at 2,048 a response (assumed), at most 16,777,216",
        "replicated     sharded",
        "noise and results of 128 rows",
        "fits 80 GB GPUs: with --shard true",
        "always:   Adam                                   29.97        3.75",
    ):
        assert words in said
    assert "reference" not in said  # nothing of it: no line
    assert shell("train.py", "polaris", "--gpus=32", "--dry-run") == (0, said)
    code, said = shell(
        "train.py", "polaris", "--dry-run", "--mean-response", "512", "--max-response", "1024"
    )
    assert (
        code == 0
        and "on 1 GPU:" in said
        and "2,097,152 at 512 a response (assumed), at most 4,194,304" in said
    )
    assert "sharded" not in said and "with gradient checkpointing" in said
    code, said = shell(
        "train.py", "polaris", "--dry-run", "--kv-memory-gb", "1", "--gradient-checkpointing"
    )
    assert re.search(r"sampling: their keys, values and logits +1\.00\n", said)
    assert "with gradient checkpointing" not in said


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--lora-rank", "4"),
        ("--lora-rank", "4", "--lora-merge", "true"),
        ("--optimizer", "sgd", "--momentum", "0.9"),
    ],
)
def test_the_size_of_a_checkpoint(warm, shell, options):
    """By arithmetic what the tensors of its files hold, but for Adam's count of steps."""
    options = ("--init", str(warm), *options)
    code, said = shell("train.py", *SHORT, *options, "--steps", 1, "--out", "run")
    assert code == 0, said
    cfg = with_overrides(RECIPES["tiny"](), options)
    held = 0
    for file in Path("run/step-000001").rglob("*.safetensors"):
        content = file.read_bytes()
        held += len(content) - 8 - int.from_bytes(content[:8], "little")
    size = dry_run.checkpoint_bytes(cfg, dry_run.plan(cfg)["always"])
    assert size == pytest.approx(held, rel=0.01)


@pytest.mark.parametrize(
    "options, words",
    [
        ((), "96.54 GB"),  # 2 of 12 x 4,022,468,096 bytes
        (("--keep", "0"), "965.39 GB"),  # 1,000 steps, one every 50
        (("--keep", "0", "--steps", "1001"), "1,013.66 GB"),  # and one at the end
        (("--keep", "0", "--save-every", "0"), " 48.27 GB, 1 "),
        (("--keep", "0", "--save-every", "0", "--steps", "0"), "48.27 GB"),
        (("--keep", "0", "--save-every-minutes", "30"), "48.27 GB"),
    ],
)  # nobody knows how many
def test_the_disk_of_a_run(shell, options, words):
    code, said = shell("train.py", "polaris_qwen3_4b", "--dry-run", *options)
    (line,) = [line for line in said.splitlines() if "disk" in line]
    assert code == 0 and words in line


def test_large_recipes_do_not_keep_every_checkpoint():
    saving = {name: recipe() for name, recipe in RECIPES.items() if recipe().save_every}
    assert {name for name, cfg in saving.items() if not cfg.keep} <= {"prompts"}


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["polaris9", "--dry-run"], "no recipe is called 'polaris9'"),
        (["--dry-run"], "no recipe is called ''"),
        (["maze17", "--dry-run", "--gpus", "3"], "--prompts 32 must divide by the 3 GPUs"),
        (
            ["maze17", "--dry-run", "--gpus", "two"],
            "--gpus two cannot be read: expected a whole number",
        ),
        (["maze17", "--dry-run", "--gpu", "2"], "--gpu is not an option"),
        (["maze17", "--gpus", "2"], "--gpus is not an option"),
        (
            ["prompts", "--dry-run", "--estimator", "mxrl"],
            "--estimator mxrl: no estimator is called 'mxrl'",
        ),
        (
            ["prompts", "--dry-run", "--estimator.ordr", "4"],
            "--estimator maxrl: maxrl takes no option 'ordr'",
        ),
        (
            ["prompts", "--dry-run", "--estimator", "maxrl_order", "--estimator.order", "400"],
            "--estimator maxrl_order: ",
        ),
        (
            ["prompts", "--dry-run", "--estimator", "supervised", "--rollouts", "2"],
            "use --rollouts 1",
        ),
        (["prompts", "--dry-run", "--task", "prompt"], "task 'prompt' is unknown; use maze, "),
        (
            ["prompts", "--dry-run", "--task.trian", "x"],
            "--task.trian is not an option of task prompts",
        ),
        (
            ["prompts", "--dry-run", "--reward", "accuracy"],
            "--reward accuracy is not written package.module:name",
        ),
        (
            ["prompts", "--dry-run", "--reward", "a.py:f", "--reward-weights", "1,2"],
            "1 reward functions and 2 weights",
        ),
        (["prompts", "--dry-run", "--reward-weights", "1,2"], "0 reward functions and 2 weights"),
    ],
)
def test_dry_run_refuses(shell, arguments, words):
    code, said = shell("train.py", *arguments)
    assert code == 2 and words in said


def test_dry_run_runs_no_code(shell):
    Path("own.py").write_text("raise SystemExit('it was run')")
    own = [word for name in ("task", "estimator", "reward") for word in (f"--{name}", "own.py:x")]
    assert shell("train.py", "maze17", "--dry-run", *own)[0] == 0


def test_every_recipe_has_a_plan(shell, in_a_directory_of_its_own, tmp_path):
    """Without data, checkpoints or a GPU; and nothing is written."""
    for name in RECIPES:
        model = (
            ["--init", "Qwen/Qwen3-1.7B-Base"] if name == "prompts" else []
        )  # there the model is the user's
        code, said = shell("train.py", name, "--dry-run", *model)
        assert code == 0 and "peak" in said and "fits 141 GB GPUs: as it is" in said
    assert not list(tmp_path.iterdir())
    assert "forward in float32" in dry_run.dry_run("maze9_laptop", maze9_laptop(), [])


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


# ---------------------------------------------------- recipes of one GPU ---------------------------------------------
@pytest.mark.parametrize(
    "name, card", [("gsm8k_smollm2", 79), ("polaris_qwen3_1_7b", 79), ("polaris_qwen3_4b", 140)]
)
def test_one_gpu_recipes_change_memory_alone(name, card):
    """Of the published recipe's fields only those that a run may change when it is resumed; and the docstring's number of GiB
    is the plan's, on the card that it names."""
    one_gpu = RECIPES.get(f"{name}_1gpu", RECIPES[name])
    published, variant = RECIPES[name](), one_gpu()
    fields = {f for f, value in published.to_dict().items() if variant.to_dict()[f] != value}
    assert (
        fields <= {"gradient_checkpointing", "micro_batch_tokens", "kv_memory_gb"} <= FREE_ON_RESUME
    )
    peak, said = dry_run.peak(dry_run.plan(variant, 1)), one_gpu.__doc__
    assert f"({peak / GIB:.0f} GiB)" in said and f"of {'80' if card == 79 else '141'} GB" in said
    assert dry_run.fits(dry_run.ways(variant, 1), card) == "as it is"


def test_the_recipe_of_a_24_gb_card():
    """Its docstring's number is the plan's, larger batches ask for hardly more, and a card of 16 GB is too small."""
    cfg = RECIPES["gsm8k_smollm2_24gb"]()
    peak = dry_run.peak(dry_run.plan(cfg, 1))
    assert f"needs {peak / GIB:.1f} GiB" in RECIPES["gsm8k_smollm2_24gb"].__doc__
    larger = dry_run.peak(dry_run.plan(replace(cfg, prompts=64, rollouts=64), 1))
    assert larger == pytest.approx(peak, rel=0.05)
    fits = {card: dry_run.fits(dry_run.ways(cfg, 1), size) for card, size in dry_run.CARDS.items()}
    assert list(fits) == ["16 GB", "24 GB", "40 GB", "48 GB", "80 GB", "141 GB"]
    assert fits.pop("16 GB") == "no" and set(fits.values()) == {"as it is"}


BENCH = ROOT / "results/bench/2026-11-21-cpu2-avx512-bf16.json"


def test_the_time_of_a_step(shell):
    """By the rates in a file of tests/bench/bench.py. Of the step that the file has measured itself the slower estimate is what was
    measured, but for attention and a prompt of 310 tokens instead of 256; and it grows as what there is to do."""
    rows = {row["name"]: row for row in json.loads(BENCH.read_text())["rows"]}
    step = replace(maze17(), prompts=8, rollouts=16, steps=1000, precision="float32")

    def seconds(cfg, mean=48, gpus=1):
        said = re.search(
            r"a step on AMD EPYC, evaluations aside: (\S+) to (\S+) s; ",
            dry_run.time(cfg, gpus, mean, BENCH),
        )
        return float(said[1]), float(said[2])

    low, high = seconds(step)
    assert (
        low
        < high
        == pytest.approx(np.median(rows["step/17x17/float32"]["times"]["maxrl"]["wall"]), rel=0.3)
    )
    assert seconds(replace(step, prompts=80))[1] == pytest.approx(10 * high, rel=0.05)
    assert seconds(replace(step, prompts=80), gpus=10)[1] == high
    assert (
        seconds(replace(step, precision="auto"))[1]
        < high
        < seconds(replace(step, gradient_checkpointing=True))[1]
    )
    assert seconds(replace(step, estimator="supervised"))[1] == pytest.approx(
        high * 6 / 8, rel=0.05
    )
    lora = replace(RECIPES["gsm8k_smollm2_24gb"](), kv_memory_gb=0.0)
    assert seconds(lora)[1] == pytest.approx(
        seconds(replace(lora, lora_rank=0, lora_alpha=32.0))[1] * 6 / 8, rel=0.05
    )

    code, said = shell("train.py", "maze9_laptop", "--dry-run", "--bench", BENCH)
    assert code == 0 and re.search(
        r"a step on AMD EPYC, .* s; 400 steps: \d+ \S+ to \d+ \S+\n", said
    )
    assert (
        "a classifier's step is not estimated"
        in shell("train.py", "images_laptop", "--dry-run", "--bench", BENCH)[1]
    )
    for file in ("none.json", BENCH.parents[1] / "torture.json"):
        code, said = shell("train.py", "maze17", "--dry-run", "--bench", file)
        assert code == 2 and f"--bench {file} is no file of python tests/bench/bench.py" in said


@pytest.mark.parametrize("name", ["gsm8k_smollm2", "polaris_qwen3_1_7b"])
def test_a_recipe_that_was_called_otherwise_on_one_gpu(name):
    with pytest.raises(UsageError, match=f"'{name}_1gpu'; did you mean {name}\\?"):
        find_recipe(f"{name}_1gpu")


def test_no_option_fits_4b_on_80_gb():
    """What the docstring of polaris_qwen3_4b_1gpu says: its parts, and that the smallest settings are still too large."""
    small = replace(
        RECIPES["polaris_qwen3_4b_1gpu"](), micro_batch_tokens=1, kv_memory_gb=0.0, wave_rows=1
    )
    parts = {moment: sum(items.values()) / GIB for moment, items in dry_run.plan(small, 1).items()}
    assert [round(parts[moment]) for moment in ("always", "sampling")] == [60, 17]
    assert (
        dry_run.fits(dry_run.ways(small, 1), 79) == "no"
        and dry_run.fits(dry_run.ways(small, 1), 140) == "as it is"
    )


def test_lora_needs_gradients_and_adam_for_its_own_parameters_only():
    cfg = RECIPES["polaris_qwen3_4b"]()
    whole, lora = (dry_run.plan(replace(cfg, lora_rank=rank), 1)["always"] for rank in (0, 16))
    own = (
        16 * 36 * (2560 + 4096 + 2 * (2560 + 1024) + 4096 + 2560 + 2 * (2560 + 9728) + 9728 + 2560)
    )  # 33,030,144
    assert (
        lora["gradients"] == 4 * own
        and lora["Adam"] == 8 * own
        and lora["weights"] == whole["weights"] + 4 * own
    )
