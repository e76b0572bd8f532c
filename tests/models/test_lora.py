"""LoRA: PEFT reads our adapters and we read PEFT's; train.py trains and resumes them."""

import functools
import gc
import json
from dataclasses import replace
from pathlib import Path

import peft
import pytest
import tiny
import torch
import torch.distributed as dist
from logits import TOKENS, close, logits
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from maxrl import checkpoint
from maxrl.config import PROJECTIONS
from maxrl.errors import UsageError
from maxrl.io.tokenizer import Tokenizer
from maxrl.models import lora
from maxrl.policy import TokenLogProbs
from maxrl.recipes import RECIPES
from maxrl.run import setup
from maxrl.tasks import load_task
from maxrl.tasks.maze import VOCABULARY

CASES = {
    "llama": ("llama", {}, PROJECTIONS),
    "llama, untied, bias": (
        "llama",
        {"tie_word_embeddings": False, "attention_bias": True},
        ("o_proj", "down_proj"),
    ),
    "qwen2": ("qwen2", {}, ("q_proj", "v_proj")),
    "qwen3": ("qwen3", {"head_dim": 16}, PROJECTIONS),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """base(case): a checkpoint directory with random weights; written once."""

    @functools.cache
    def write(case):
        path = tmp_path_factory.mktemp("bases") / "base"
        family, changes, _ = CASES[case]
        model = tiny.model(torch.float32, model_type=family, **changes)
        checkpoint.save(path, model, Tokenizer.from_vocabulary(VOCABULARY), [7, 2], recipe={})
        return path

    return write


def adapted(path, projections=PROJECTIONS, dtype=torch.float32, rank=3, alpha=5.0):
    """The base with a random adapter: B is not zero."""
    model = checkpoint.load_model(path)[0].to(dtype)
    lora.add_lora(model, rank, alpha, projections, checkpoint.base_name(path))
    generator = torch.Generator().manual_seed(1)
    for name, tensor in lora.lora_state(model).items():
        if "lora_B" in name:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return model


def write(path, model, **options):
    checkpoint.save(
        path, model, Tokenizer.from_vocabulary(VOCABULARY), [7, 2], recipe={}, **options
    )
    return path


def read_by_transformers(path):
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.mark.parametrize("case", CASES)
def test_peft_reads_ours_with_equal_logits_and_gradients(case, base, tmp_path):
    """Gradients in A and B alone, those of PEFT's on the same loss."""
    model = adapted(base(case), CASES[case][2])
    write(tmp_path / "ours", model)
    assert {f.name for f in (tmp_path / "ours").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "recipe.json",
        "checksums.json",
    }
    theirs = peft.PeftModel.from_pretrained(
        read_by_transformers(base(case)), tmp_path / "ours", is_trainable=True
    )
    both = logits(model), theirs(TOKENS).logits
    close(*both)
    assert (both[0] - logits(checkpoint.load_model(base(case))[0])).abs().max() > 0.1, (
        "the adapter does something"
    )
    for result in both:
        log_probs = result[..., :-1, :].flatten(0, 1).log_softmax(-1)
        log_probs.gather(-1, TOKENS[:, 1:].reshape(-1, 1)).mean().backward()
    own = {name: p for name, p in model.named_parameters() if p.grad is not None}
    assert own.keys() == {name.removeprefix(lora.PEFT_PREFIX) for name in lora.lora_state(model)}
    assert own.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    expected = {
        n.removeprefix(lora.PEFT_PREFIX).replace(".default", ""): p
        for n, p in theirs.named_parameters()
    }
    for name, p in own.items():
        assert p.grad.abs().max() > 1e-6
        close(p.grad, expected[name].grad)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_we_read_peft_with_equal_logits(case, base, tmp_path):
    """Also an adapter of some layers only; written again it is PEFT's own."""
    options = {} if case == "llama" else {"layers_to_transform": [1]}
    config = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=list(CASES[case][2]),
        task_type="CAUSAL_LM",
        init_lora_weights=False,
        lora_dropout=0.1,
        **options,
    )
    theirs = peft.get_peft_model(read_by_transformers(base(case)), config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    model, tokenizer, stop = checkpoint.load_model(tmp_path / "theirs")
    expected = theirs(TOKENS).logits
    close(logits(model), expected)
    assert tokenizer.size == len(VOCABULARY) and stop == [2, 7]
    assert sum(isinstance(m, lora.LoRALinear) for m in model.modules()) == len(CASES[case][2]) * (
        2 - bool(options)
    )
    write(tmp_path / "again", model)
    again = peft.PeftModel.from_pretrained(
        read_by_transformers(base(case)), tmp_path / "again"
    ).eval()
    close(again(TOKENS).logits, expected)
    tensors = [
        load_file(tmp_path / name / "adapter_model.safetensors") for name in ("again", "theirs")
    ]
    assert tensors[0].keys() == tensors[1].keys() and all(
        torch.equal(tensors[0][k], t) for k, t in tensors[1].items()
    )


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_merged_equals_unmerged(case, base, tmp_path):
    """In the model and, when that is written, in transformers."""
    model = adapted(base(case), CASES[case][2])
    expected = logits(model)
    plain, original = lora.merge(model), checkpoint.load_model(base(case))[0]
    close(logits(plain), expected)
    assert [type(m) for m in plain.modules()] == [type(m) for m in original.modules()]
    assert plain.state_dict().keys() == original.state_dict().keys() and all(
        p.requires_grad for p in plain.parameters()
    )
    assert (
        plain.lm_head.weight is plain.model.embed_tokens.weight
    ) == plain.config.tie_word_embeddings
    write(tmp_path / "merged", plain)
    close(read_by_transformers(tmp_path / "merged")(TOKENS).logits, expected)


@torch.no_grad()
def test_without_training_it_is_the_base(base):
    """B = 0: the same logits to the bit, also in bfloat16 autocast. A is drawn as PEFT draws it."""
    model, plain = checkpoint.load_model(base("qwen2"))[0], checkpoint.load_model(base("qwen2"))[0]
    torch.manual_seed(3)
    lora.add_lora(model, 4, 32)
    module = model.model.layers[0].self_attn.q_proj
    torch.manual_seed(3)
    theirs = peft.get_peft_model(
        read_by_transformers(base("qwen2")), peft.LoraConfig(r=4, target_modules=["q_proj"])
    )
    expected = theirs.base_model.model.model.layers[0].self_attn.q_proj.lora_A.default.weight
    assert torch.equal(module.lora_A.weight, expected) and module.lora_B.weight.count_nonzero() == 0
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert torch.equal(logits(model), logits(plain))
    policies = tiny.policy(model), tiny.policy(plain)
    task = load_task("maze", "train", **RECIPES["tiny"]().task_options)
    ours, theirs = (p.rollout([task[0], task[1]], 4, step=2) for p in policies)
    assert torch.equal(ours.tokens, theirs.tokens) and torch.equal(ours.log_probs, theirs.log_probs)


def test_prefix_cache_and_autocast(base):
    """The ways through the layers agree; a frozen weight is cast once, until it changes."""
    model = adapted(base("qwen3"))
    policy, given = tiny.policy(model, autocast=True), tiny.rollouts()
    batch = tiny.whole(given)
    expected = policy.module(batch)[0].detach()
    tiny.share_prompts(model, False)
    close(policy.module(batch)[0].detach(), expected)
    tiny.share_prompts(model, True)
    with policy.precision():
        first = policy.module(batch)[0]
        (first * batch.mask).sum().backward()
        head, adapter = model.lm_head, model.model.layers[0].mlp.up_proj
        copies = head.copy, adapter.copy
        assert all(c.dtype == torch.bfloat16 for c in copies)
        assert torch.equal(policy.module(batch)[0], first)
        assert head.copy is copies[0] and adapter.copy is copies[1]
        assert 0 < (first.detach() - expected).abs().max() < 0.5
        with torch.no_grad():
            head.weight.mul_(2)
        lora.drop_casts(model)
        assert head.copy is None and adapter.copy is None
        assert (policy.module(batch)[0] - first).abs().max() > 0.1
        assert torch.equal(head.copy, head.weight.bfloat16())
    assert adapter.lora_A.weight.grad.dtype == torch.float32 and head.weight.grad is None


def test_sampler_and_training_forward_agree(base):
    model = adapted(base("qwen2"), dtype=torch.float64)
    policy = tiny.policy(model)
    task = load_task("maze", "train", **RECIPES["tiny"]().task_options)
    rollouts = policy.rollout([task[0], task[1], task[2]], 4)
    stats = policy.backward(rollouts, torch.randn(3, 4, dtype=torch.float64))
    assert stats["sampling/logprob_abs_diff/max"] < 1e-10
    assert all((p.grad is not None) == (".lora_" in name) for name, p in model.named_parameters())


def test_a_rank_with_nothing_to_train(base):
    """DDP reduces A and B alone, and zero advantages give zero gradients."""
    model = adapted(base("qwen2"))
    assert TokenLogProbs(model)(None).requires_grad
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        policy = tiny.policy(model)
        assert not isinstance(policy.module, TokenLogProbs), "DDP"
        policy.backward(tiny.rollouts(), torch.zeros(4, 4))
        for name, p in model.named_parameters():
            assert p.grad is None if ".lora_" not in name else p.grad.count_nonzero() == 0
        policy.backward(tiny.rollouts(), torch.ones(4, 4))
        assert all(p.grad.any() for p in model.parameters() if p.requires_grad)
    finally:
        # A DDP that outlives its process group can deadlock.
        policy = None
        gc.collect()
        dist.destroy_process_group()


def test_a_classifier_refuses():
    cfg = replace(RECIPES["images_laptop"](), init="x", lora_rank=2)
    task = type("Task", (), {"classes": ("a", "b"), "__len__": lambda self: 640})()
    with pytest.raises(UsageError, match="--lora-rank 2 means nothing to a classifier"):
        setup.check(cfg, task, 1)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"use_dora": True}, "use_dora = True, which is not implemented"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"lora_alpha": None}, "a cannot be loaded: unsupported operand"),
        # No memory is taken for these ranks.
        ({"r": 4}, "size mismatch for .*lora_A.weight"),
        ({"r": 10**12}, "size mismatch for .*lora_A.weight"),
        ({"base_model_name_or_path": None}, "its base model is not there"),
    ],
)
def test_foreign_adapters_are_refused_by_name(change, words, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(Path("a"), adapted(base("qwen2")))
    (path / checkpoint.CHECKSUMS).unlink()
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=words):
        checkpoint.load_model(path)


def test_tensors_that_do_not_fit(base, tmp_path):
    path = write(tmp_path / "a", adapted(base("qwen2"), ("q_proj",)))
    (path / checkpoint.CHECKSUMS).unlink()
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    first = next(name for name in tensors if "lora_A" in name)
    B = first.replace("lora_A", "lora_B")
    for wrong, words in (
        ({k: v for k, v in tensors.items() if k != B}, "do not fit the model: .*lora_B"),
        (tensors | {"base_model.model.x": torch.zeros(32, 32)}, "do not fit the model: x"),
        (tensors | {first.replace("q_proj", "k_proj"): torch.zeros(3, 32)}, "do not fit"),
        (
            tensors | {f"{lora.PEFT_PREFIX}lm_head.lora_A.weight": torch.zeros(3, 32)},
            "projections that can",
        ),
        ({}, "projections that can"),
    ):
        save_file(wrong, file)
        with pytest.raises(ValueError, match=words):
            checkpoint.load_model(path)
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=f"{file} is damaged"):
        checkpoint.load_model(path)


def test_add_lora_refuses():
    for projections in (("lm_head",), (), ("x",)):
        with pytest.raises(ValueError, match="projections that can"):
            lora.add_lora(tiny.model(), 2, 1.0, projections)
