"""LoRA: PEFT reads our adapters and we read PEFT's."""

import functools
import json
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from maxrl.learning.config import PROJECTIONS
from maxrl.models import checkpoint, hub_files, lora
from maxrl.models.checkpoint import Checkpoint
from maxrl.system.files import read_json
from tests.helpers import tiny
from tests.helpers.logits import TOKENS, close, logits, read_by_transformers
from tests.helpers.tables import cells
from tests.helpers.tensors import normal
from tests.helpers.trained import TOKENIZER

BIASED = {"tie_word_embeddings": False, "attention_bias": True}
CASES = {
    "llama": ("llama", {}, PROJECTIONS),
    "llama, untied, bias": ("llama", BIASED, ("o_proj", "down_proj")),
    "qwen2": ("qwen2", {}, ("q_proj", "v_proj")),
    "qwen3": ("qwen3", {"head_dim": 16}, PROJECTIONS),
}
every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """base(case): a checkpoint directory with random weights; written once."""

    @functools.cache
    def path(case):
        family, changes, _ = CASES[case]
        model = tiny.model(torch.float32, model_type=family, **changes)
        return write(tmp_path_factory.mktemp("bases") / "base", model)

    return path


def write(path, model):
    checkpoint.save(path, Checkpoint(model, TOKENIZER, [7, 2]), recipe={})
    return path


def read(path):
    return checkpoint.load(path).model


def adapted(path, projections=PROJECTIONS):
    """The base with a random adapter: B is not zero."""
    model = read(path)
    lora.add_lora(model, 3, 5.0, projections, hub_files.base_name(path))
    for name, tensor in lora.lora_state(model).items():
        if "lora_B" in name:
            tensor.copy_(normal(*tensor.shape) * 0.3)
    return model


@every_case
def test_peft_reads_ours_with_equal_logits_and_gradients(case, base, tmp_path):
    """Gradients in A and B alone, those of PEFT's on the same loss."""
    model = adapted(base(case), CASES[case][2])
    path = write(tmp_path / "ours", model)
    plain = read_by_transformers(base(case))
    theirs = peft.PeftModel.from_pretrained(plain, path, is_trainable=True)
    both = logits(model), theirs(TOKENS).logits
    close(*both)
    assert (both[0] - logits(read(base(case)))).abs().max() > 0.1, "the adapter does something"
    for result in both:
        log_probs = result[..., :-1, :].log_softmax(-1)
        log_probs.gather(-1, TOKENS[:, 1:, None]).mean().backward()
    expected = {}
    for name, p in theirs.named_parameters():
        expected[name.removeprefix(lora.PEFT_PREFIX).replace(".default", "")] = p.grad
    own = {name.removeprefix(lora.PEFT_PREFIX) for name in lora.lora_state(model)}
    for name, p in model.named_parameters():
        assert p.requires_grad == (name in own)
        assert (p.grad is not None) == (name in own)
        if name in own:
            assert p.grad.abs().max() > 1e-6
            close(p.grad, expected[name])


@torch.no_grad()
@every_case
def test_we_read_peft_with_equal_logits(case, base, tmp_path):
    """Also an adapter of some layers only; written again it is PEFT's own."""
    layers = [0, 1] if case == "llama" else [1]
    projections = CASES[case][2]
    config = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=list(projections),
        layers_to_transform=layers,
        task_type="CAUSAL_LM",
        init_lora_weights=False,
        lora_dropout=0.1,
    )
    theirs = peft.get_peft_model(read_by_transformers(base(case)), config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = checkpoint.load(tmp_path / "theirs")
    model = loaded.model
    close(logits(model), theirs(TOKENS).logits)
    assert loaded.tokenizer.size == TOKENIZER.size
    assert loaded.stop_tokens == [2, 7]
    adapters = [module for module in model.modules() if isinstance(module, lora.LoRALinear)]
    assert len(adapters) == len(projections) * len(layers)
    write(tmp_path / "again", model)
    folders = [tmp_path / "again", tmp_path / "theirs"]
    close(*[load_file(folder / "adapter_model.safetensors") for folder in folders], 0)
    ours, own = [read_json(folder / "adapter_config.json") for folder in folders]
    assert ours == own


@torch.no_grad()
@every_case
def test_merged_equals_unmerged(case, base, tmp_path):
    """In the model and, when that is written, in transformers."""
    model = adapted(base(case), CASES[case][2])
    expected = logits(model)
    plain = lora.merge(model)
    original = read(base(case))
    close(logits(plain), expected)
    assert [type(m) for m in plain.modules()] == [type(m) for m in original.modules()]
    assert all(p.requires_grad for p in plain.parameters())
    tied = plain.lm_head.weight is plain.model.embed_tokens.weight
    assert tied == plain.config.tie_word_embeddings
    close(read_by_transformers(write(tmp_path / "merged", plain))(TOKENS).logits, expected)


@torch.no_grad()
def test_without_training_it_is_the_base(base):
    """B = 0: the same logits to the bit, also in bfloat16 autocast. A is drawn as PEFT draws it."""
    model = read(base("qwen2"))
    torch.manual_seed(3)
    lora.add_lora(model, 4, 32)
    ours = model.model.layers[0].self_attn.q_proj
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, target_modules=["q_proj"])
    theirs = peft.get_peft_model(read_by_transformers(base("qwen2")), config)
    expected = theirs.base_model.model.model.layers[0].self_attn.q_proj.lora_A.default.weight
    assert torch.equal(ours.lora_A.weight, expected)
    assert not ours.lora_B.weight.any()
    plain = read(base("qwen2"))
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert torch.equal(logits(model), logits(plain))


def test_prefix_cache_and_autocast(base):
    """The ways through the layers agree; a frozen weight is cast once, until it changes."""
    model = adapted(base("qwen3"))
    policy = tiny.policy(model, autocast=True)
    batch = tiny.whole(tiny.rollouts())

    def log_probs():
        return policy.module(batch)[0]

    expected = log_probs().detach()
    tiny.share_prompts(model, False)
    close(log_probs().detach(), expected)
    tiny.share_prompts(model, True)
    head = model.lm_head
    adapter = model.model.layers[0].mlp.up_proj
    with policy.precision():
        first = log_probs()
        (first * batch.mask).sum().backward()
        copies = head.copy, adapter.copy
        assert {copy.dtype for copy in copies} == {torch.bfloat16}
        assert torch.equal(log_probs(), first)
        assert head.copy is copies[0]
        assert adapter.copy is copies[1]
        assert 0 < (first.detach() - expected).abs().max() < 0.5
        with torch.no_grad():
            head.weight.mul_(2)
        lora.drop_casts(model)
        assert head.copy is None
        assert adapter.copy is None
        assert (log_probs() - first).abs().max() > 0.1
        assert torch.equal(head.copy, head.weight.bfloat16())
    assert adapter.lora_A.weight.grad.dtype == torch.float32
    assert head.weight.grad is None


A = f"{lora.PEFT_PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight"
B = A.replace("lora_A", "lora_B")
HEAD = f"{lora.PEFT_PREFIX}lm_head.lora_A.weight"
SOME = torch.zeros(3, 32)


# Of the rank no memory is taken.
CONFIGS = """
{"use_dora": true} | use_dora = True, which is not implemented
{"bias": "all"} | bias = 'all'
{"peft_type": "IA3"} | peft_type = 'IA3'
{"init_lora_weights": "pissa"} | init_lora_weights = 'pissa'
{"lora_alpha": null} | a cannot be loaded: unsupported operand
{"r": 1000000000000} | size mismatch for .*lora_A.weight
{"base_model_name_or_path": null} | base model is not there
"""


@pytest.mark.parametrize(
    "config, tensors, words",
    [
        *[(json.loads(config), {}, words) for config, words in cells(CONFIGS)],
        ({}, {B: None}, "do not fit the model: .*lora_B"),
        ({}, {f"{lora.PEFT_PREFIX}x": SOME}, "do not fit the model: x"),
        ({}, {f"{lora.PEFT_PREFIX}model.norm.weight": SOME}, "do not fit the model: model.norm"),
        ({}, {A.replace("q_proj", "k_proj"): SOME}, "do not fit"),
        ({}, {HEAD: SOME}, "projections that can"),
        ({}, None, "projections that can"),
    ],
)
def test_foreign_adapters_are_refused_by_name(
    config, tensors, words, base, in_a_directory_of_its_own
):
    path = write(Path("a"), adapted(base("qwen2"), ("q_proj",)))
    (path / checkpoint.CHECKSUMS).unlink()
    file = path / "adapter_config.json"
    file.write_text(json.dumps(read_json(file) | config))
    file = path / "adapter_model.safetensors"
    given = {} if tensors is None else load_file(file) | tensors
    save_file({name: tensor for name, tensor in given.items() if tensor is not None}, file)
    with pytest.raises(ValueError, match=words):
        checkpoint.load(path)
