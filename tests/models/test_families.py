"""Llama, Mistral, Qwen2 and Qwen3 compute what transformers computes; others are refused."""

import copy
import functools
import json
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from maxrl.models import checkpoint
from maxrl.models.cache import Cache
from maxrl.models.tokenizer import Tokenizer
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.run.build import check_fit
from maxrl.run.recipes import maze17
from maxrl.sampling.prompts import pad
from maxrl.tasks.maze import VOCABULARY
from tests.helpers import tiny
from tests.helpers.logits import logits, read_by_transformers
from tests.helpers.published import MAZE, PUBLISHED, QWEN3_4B, SMOLLM2
from tests.helpers.tables import each
from tests.helpers.tensors import close, seeded

CONFIGS = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e2,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

MQA = {"num_key_value_heads": 1, "head_dim": 16}
UNTIED = {"tie_word_embeddings": False, "head_dim": 16}
# family, what differs from tiny.SIZES, whether the files are bfloat16 and cut into shards
CASES = {
    "llama": ("llama", {}, False),
    "llama, 1 key-value head, untied": ("llama", MQA | UNTIED, True),
    "llama, 4 key-value heads, bias": (
        "llama",
        {"num_key_value_heads": 4, "attention_bias": True, "rms_norm_eps": 0.01},
        False,
    ),
    "llama3": ("llama", {"head_dim": 32, "rope_parameters": LLAMA3}, True),
    "mistral, untied": ("mistral", UNTIED, True),
    "qwen2, untied": ("qwen2", {"tie_word_embeddings": False}, True),
    "qwen3, 1 key-value head": ("qwen3", MQA, True),
    "qwen3, bias, untied": ("qwen3", UNTIED | {"attention_bias": True}, False),
}
every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """directory(case): a checkpoint that transformers wrote, with random parameters."""

    @functools.cache
    def write(case):
        family, changes, shards = CASES[case]
        path = tmp_path_factory.mktemp("theirs")
        sizes = tiny.SIZES | changes | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        del sizes["model_type"], sizes["rope_theta"]
        theirs = AutoModelForCausalLM.from_config(CONFIGS[family](**sizes))
        torch.manual_seed(1)
        for name, p in theirs.named_parameters():
            p.data = ("norm" in name) + torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.2)
        if shards:
            theirs.bfloat16()
        theirs.save_pretrained(path, max_shard_size="12KB" if shards else "5GB")
        assert (len(list(path.glob("*.safetensors"))) > 1) == shards
        tokenizer = Tokenizer.from_vocabulary(VOCABULARY).backend
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(path)
        return path

    return write


@torch.no_grad()
@every_case
def test_logits_equal_transformers(case, directory):
    """Ragged rows that stand alone, behind a shared prefix, and token by token with a cache."""
    loaded = checkpoint.load(directory(case))
    model = loaded.model
    theirs = read_by_transformers(directory(case))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert loaded.stop_tokens == [2]
    assert loaded.tokenizer.encode("<bos> DONE") == [1, 7]
    tokens, lengths = pad(tiny.prompts((17, 1, 9, 100)), "cpu")
    mask = torch.arange(100) < lengths[:, None]
    expected = theirs(tokens, attention_mask=mask.long()).logits
    assert expected.abs().max() > 1
    close(logits(model, tokens)[mask], expected[mask], 1e-4)

    prefix, prefix_lengths = pad(tiny.prompts((50, 7, 64), seed=2), "cpu")
    rows = torch.randint(32, (3, 2, 12), generator=seeded(3))  # (G, M, L)
    shared = model.lm_head(model(rows, prefix, prefix_lengths))
    decoded = by_cache(model, rows, prefix, prefix_lengths)
    for g, n in enumerate(prefix_lengths):
        expected = theirs(torch.cat([prefix[g, :n].expand(2, n), rows[g]], 1)).logits[:, n:]
        close(shared[g], expected, 1e-4)
        close(decoded[g], expected, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("sharded", ["mistral, untied", "qwen3, 1 key-value head"])
@pytest.mark.parametrize("change", ["another head", "eos in the tokenizer", "one token more"])
def test_files_that_people_have(sharded, change, directory, tmp_path):
    """Logits and ends as transformers and TRL have them, or refused."""
    theirs = read_by_transformers(directory(sharded))
    tokenizer = AutoTokenizer.from_pretrained(directory(sharded))
    if change == "another head":
        theirs.lm_head.weight = torch.nn.Parameter(-theirs.lm_head.weight)
    elif change == "eos in the tokenizer":
        theirs.generation_config.eos_token_id = theirs.config.eos_token_id = None
        tokenizer.eos_token = "DONE"
    else:
        tokenizer.add_tokens(["<new>"])
    theirs.save_pretrained(tmp_path, max_shard_size="12KB")
    tokenizer.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('embeddings": false', 'embeddings": true'))
    loaded = checkpoint.load(tmp_path)
    tokens = torch.stack(tiny.prompts((100,)))
    close(logits(loaded.model, tokens), read_by_transformers(tmp_path)(tokens).logits, 1e-4)
    assert loaded.stop_tokens == [tokenizer.eos_token_id]
    if change == "one token more":
        with pytest.raises(ValueError, match="vocab_size"):
            check_fit(loaded, tiny.Up(""))


@torch.no_grad()
def by_cache(model, rows, prefix, lengths):
    """Logits (G, M, L, V), token by token."""
    cache = Cache(model.encode(prefix), lengths, rows.shape[1])
    cache.reserve(rows.shape[2])
    return torch.stack([model.decode(tokens, cache) for tokens in rows.unbind(-1)], 2)


@torch.no_grad()
@every_case
def test_transformers_reads_what_was_read_and_saved(case, directory, tmp_path):
    loaded = checkpoint.load(directory(case))
    model = loaded.model
    checkpoint.save(tmp_path / "a", loaded)
    again = checkpoint.load(tmp_path / "a").model
    assert again.config == model.config
    close(again.state_dict(), model.state_dict(), 0)
    tokens = torch.stack(tiny.prompts((100,)))
    close(logits(again, tokens), read_by_transformers(tmp_path / "a")(tokens).logits, 1e-4)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "a").dtype == torch.float32


@pytest.mark.parametrize("family", CONFIGS)
def test_bfloat16_autocast(family):
    """Queries, keys and values have one dtype, and so does their cache; gradients are float32."""
    model = tiny.model(torch.float32, model_type=family, head_dim=16)
    prefix, lengths = pad(tiny.prompts((9, 4)), "cpu")
    rows = torch.stack(tiny.prompts((6, 6))).view(2, 1, 6)
    expected = model.lm_head(model(rows, prefix, lengths)).detach()
    with torch.autocast("cpu", torch.bfloat16):
        keys_and_values = sum(map(list, model.encode(prefix)), [])
        assert {tensor.dtype for tensor in keys_and_values} == {torch.bfloat16}
        ours = model.lm_head(model(rows, prefix, lengths))
        decoded = by_cache(model, rows, prefix, lengths)
    for found in (ours.detach(), decoded):
        assert found.dtype == torch.bfloat16
        assert tiny.distance(found, expected) < 0.05
    ours.sum().backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(name):
    """The hub's dialect and transformers 5's give one config, and the modules of transformers."""
    published, count = PUBLISHED[name]
    theirs = CONFIGS[published["model_type"]](**published)
    written = theirs.to_dict()
    assert "rope_theta" in published.keys() - written.keys()
    config = TransformerConfig.from_hf(published)
    for dialect in (written, config.to_hf()):
        assert TransformerConfig.from_hf(dialect) == config
    with torch.device("meta"):
        model, other = Transformer(config), AutoModelForCausalLM.from_config(theirs)
    assert sum(p.numel() for p in model.parameters()) == count
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (model, other)]
    assert shapes[0] == shapes[1]
    assert config.rms_norm_eps == theirs.rms_norm_eps
    assert config.to_hf() == published | {"torch_dtype": "float32"}
    assert TransformerConfig.from_hf(written).to_hf() == written | {"dtype": "float32"}


def test_maze_recipe_is_the_published_model():
    """All but how its weights are drawn."""
    published = TransformerConfig.from_hf(MAZE)
    recipe = TransformerConfig.from_hf(maze17().model)
    assert replace(recipe, initializer_range=published.initializer_range) == published


ROPES = [
    {},
    {"rope_theta": 1e6},
    {"rope_parameters": LLAMA3},
    {"rope_parameters": LLAMA3 | {"factor": 3.3, "high_freq_factor": 2.2}},
    {"rope_parameters": {"rope_type": "default"}, "rope_theta": 3e4},
    {"rope_parameters": {"rope_type": "default"}, "rope_scaling": LLAMA3},
    {"rope_theta": 1e6, "rope_scaling": {"type": "default"}},
]


@pytest.mark.parametrize("rope", ROPES, ids=str)
def test_frequencies_equal_transformers(rope):
    """Frequencies to the last digits, cosines and sines of far positions as float32 allows."""
    config = {k: v for k, v in SMOLLM2.items() if k not in ("rope_theta", "rope_scaling")} | rope
    # LlamaConfig writes into the dictionary.
    theirs = LlamaRotaryEmbedding(LlamaConfig(**copy.deepcopy(config)))
    ours = TransformerConfig.from_hf(config).rope
    frequencies = ours.frequencies(64, torch.float32, torch.device("cpu"))
    torch.testing.assert_close(frequencies, theirs.inv_freq, atol=0, rtol=5e-7)
    assert theirs.attention_scaling == 1
    positions = torch.tensor([[0, 1, 4095, 30_000]])
    for a, b in zip(ours.rotation(positions, 64, torch.float32), theirs(torch.zeros(1), positions)):
        torch.testing.assert_close(a, b, atol=30_000 * 3e-7, rtol=0)


def test_head_dim_and_bias_are_the_familys():
    """Qwen3 without a head_dim has 128, whatever hidden_size is; Mistral and Qwen2 have no
    attention_bias."""
    sizes = {k: v for k, v in QWEN3_4B.items() if k != "head_dim"}
    assert TransformerConfig.from_hf(sizes).head_dim == CONFIGS["qwen3"](**sizes).head_dim == 128
    assert TransformerConfig.from_hf(SMOLLM2).head_dim == 64
    for bias in (True, False):
        for family in CONFIGS:
            config = tiny.SIZES | {"model_type": family, "attention_bias": bias, "head_dim": 8}
            with torch.device("meta"):
                ours = Transformer(TransformerConfig.from_hf(config))
                theirs = AutoModelForCausalLM.from_config(CONFIGS[family](**config))
            assert ours.state_dict().keys() == theirs.state_dict().keys()


# What config.json has, and what is said of it.
ABSENT = """
{"use_sliding_window": true} | use_sliding_window = True
{"is_causal": false} | is_causal = False
{"layer_types": ["full_attention", "sliding_attention"]} | sliding window
{"hidden_act": "gelu"} | hidden_act = 'gelu'
{"quantization_config": {"quant_method": "awq"}} | quantization_config = .*awq
{"original_max_position_embeddings": 64} | original_max_position_embeddings = 64
{"model_type": "mistral", "sliding_window": 4096} | sliding window
{"model_type": "gemma"} | model_type 'gemma' .* llama, mistral, qwen2, qwen3
{"model_type": null} | model_type None
{"vocab_size": null} | lacks vocab_size
{"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}} | rope_type 'dynamic'
{"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]}} | mrope_section of rope_type
{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}} | rope_type 'yarn'
{"rope_scaling": {"rope_type": "llama3", "factor": 4.0}} | 'llama3'; implemented .* low_freq_factor
{"rope_theta": 0} | rotary positions .* cannot be
{"rope_theta": -1e4} | rotary positions .* cannot be
{"rope_theta": NaN} | rotary positions .* cannot be
{"rope_theta": Infinity} | rotary positions .* cannot be
{"rope_theta": true} | rotary positions .* cannot be
{"rope_parameters": {"rope_theta": 0.0, "rope_type": "default"}} | rotary positions .* cannot be
{"rope_scaling": {"rope_type": "llama3", "factor": NaN, "low_freq_factor": 1.0, LONG | cannot be
{"rope_scaling": {"rope_type": "llama3", "factor": -8.0, "low_freq_factor": 1.0, LONG | cannot be
{"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0, LONG | cannot be
{"rms_norm_eps": 0} | rms_norm_eps = 0
{"rms_norm_eps": -1e-6} | rms_norm_eps = -1e-06
{"rms_norm_eps": NaN} | rms_norm_eps = nan
{"rms_norm_eps": Infinity} | rms_norm_eps = inf
{"rms_norm_eps": false} | rms_norm_eps = False
{"hidden_size": -32} | hidden_size = -32
{"rope_parameters": {"full_attention": {"rope_type": "default"}}} | full_attention
""".replace("LONG", '"high_freq_factor": 4.0, "original_max_position_embeddings": 64}}')


@each("change, words", ABSENT)
def test_refuses_by_name_what_is_not_implemented(change, words):
    with pytest.raises(ValueError, match=words):
        TransformerConfig.from_hf(tiny.SIZES | json.loads(change))


def test_mistral_without_the_key_has_a_window():
    """transformers takes 4096 then; null is no window."""
    sizes = tiny.SIZES | {"model_type": "mistral"}
    assert TransformerConfig.from_hf(sizes).model_type == "mistral"
    del sizes["sliding_window"]
    assert MistralConfig(**sizes).sliding_window == 4096
    with pytest.raises(ValueError, match="sliding window"):
        TransformerConfig.from_hf(sizes)


HARMLESS = """
{"quantization_config": null}
{"sliding_window": 4096, "use_sliding_window": false}
{"head_dim": null}
{"head_dim": 8}
{"rope_scaling": {}}
{"attention_dropout": 0.0}
{"layer_types": ["full_attention", "full_attention"]}
{"_name_or_path": "x"}
"""


@each("line", HARMLESS)
def test_harmless_keys_pass(line):
    """null, or a value that asks for what is implemented, counts as absent."""
    plain = TransformerConfig.from_hf(tiny.SIZES)
    assert TransformerConfig.from_hf(tiny.SIZES | json.loads(line)) == plain
