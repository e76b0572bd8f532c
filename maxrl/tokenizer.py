"""Text to token ids and back: a thin wrapper around the `tokenizers` library and the files of a checkpoint."""

import json
from pathlib import Path

import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

# Written back as they were: other programs read them, and may be older than our `tokenizers`.
CARRIED = ("tokenizer.json", "chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "vocab.json",
           "merges.txt", "tokenizer.model")
SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}


class Tokenizer:
    """encode(text) -> ids, decode(ids) -> text; nothing is added to a prompt and nothing left out of a response."""

    def __init__(self, backend: tokenizers.Tokenizer, config: dict, files: dict[str, bytes] | None = None):
        self.backend, self.config, self.files = backend, config, files or {}

    @classmethod
    def from_vocabulary(cls, tokens: tuple[str, ...]) -> "Tokenizer":
        """Words separated by blanks, ids in the order given; SPECIAL tokens that occur keep their roles."""
        vocabulary = {token: i for i, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
        backend.pre_tokenizer = WhitespaceSplit()
        roles = {role: token for role, token in SPECIAL.items() if token in vocabulary}
        return cls(backend, {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles})

    @classmethod
    def load(cls, directory) -> "Tokenizer":
        directory = Path(directory)
        if not (directory / "tokenizer.json").exists():
            raise FileNotFoundError(f"{directory} holds no tokenizer.json")
        config_file = directory / "tokenizer_config.json"
        config = json.loads(config_file.read_text()) if config_file.exists() else {}
        files = {name: (directory / name).read_bytes() for name in CARRIED if (directory / name).exists()}
        return cls(tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")), config, files)

    def save(self, directory):
        directory = Path(directory)
        self.backend.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(self.config, indent=2) + "\n")
        for name, content in self.files.items():
            (directory / name).write_bytes(content)

    @property
    def size(self) -> int:
        return self.backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self.backend.decode(ids, skip_special_tokens=False)

    def id(self, token: str) -> int:
        number = self.backend.token_to_id(token)
        if number is None:
            raise ValueError(f"the tokenizer has no token {token!r}: this checkpoint belongs to another task")
        return number
