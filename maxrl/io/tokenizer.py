"""Text to token ids and back: a thin wrapper around the `tokenizers` library and the files of a checkpoint."""

from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from maxrl.io import chat_template
from maxrl.io.files import read_file, read_json, write_json, write_text

# Written back as they were: other programs read them, and may be older than our `tokenizers`.
CARRIED = (
    "tokenizer.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
ROLES = (*SPECIAL, "sep_token", "cls_token", "mask_token")  # what a chat template sees as variables


@dataclass(eq=False)
class Tokenizer:
    """encode(text) -> ids, decode(ids) -> text; nothing is added to a prompt and nothing left out of a response."""

    backend: tokenizers.Tokenizer
    config: dict  # tokenizer_config.json
    files: dict[str, bytes] = field(default_factory=dict)  # those of CARRIED, by path

    @classmethod
    def from_vocabulary(cls, tokens: tuple[str, ...]) -> "Tokenizer":
        """Words separated by blanks, ids in the order given; SPECIAL tokens that occur keep their roles."""
        vocabulary = {token: i for i, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
        backend.pre_tokenizer = WhitespaceSplit()
        roles = {role: token for role, token in SPECIAL.items() if token in vocabulary}
        return cls(
            backend,
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "clean_up_tokenization_spaces": False,
                **roles,
            },
        )

    @classmethod
    def load(cls, directory) -> "Tokenizer":
        """Of a checkpoint directory; FileNotFoundError without tokenizer.json, ValueError, in one sentence, for files that
        cannot be read."""
        directory = Path(directory)
        if not (directory / "tokenizer.json").is_file():
            raise FileNotFoundError(f"{directory} holds no tokenizer.json")
        config_file = directory / "tokenizer_config.json"
        config = read_json(config_file) if config_file.exists() else {}
        files = {
            str(f.relative_to(directory)): read_file(f)
            for p in CARRIED
            for f in sorted(directory.glob(p))
        }
        try:
            backend = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
        except (KeyboardInterrupt, SystemExit):
            raise
        except (
            BaseException
        ) as error:  # the library's own have no class in common, and a panic is no Exception
            raise ValueError(
                f"{directory / 'tokenizer.json'} is no tokenizer: {str(error)[:100]}"
            ) from None
        backend.no_padding()  # what the file says of it is for others: a prompt is never lengthened or cut
        backend.no_truncation()
        result = cls(backend, config, files)
        try:
            for value in (result.chat_template, *map(result.special, ROLES)):
                if not isinstance(value, str | None):
                    raise ValueError(f"{repr(value)[:40]} is no text")
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{config_file} or chat_template.jinja cannot be read: {error}"
            ) from None
        return result

    def save(self, directory):
        directory = Path(directory)
        write_text(
            directory / "tokenizer.json", self.backend.to_str(pretty=True)
        )  # its own save() raises no OSError
        write_json(directory / "tokenizer_config.json", self.config)
        for name, content in self.files.items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_bytes(content)

    @property
    def size(self) -> int:
        return self.backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        try:
            return self.backend.encode(text, add_special_tokens=False).ids
        except Exception as error:  # of no class of its own
            raise ValueError(
                f"the tokenizer cannot encode {text[:40]!r}: {str(error)[:100]}"
            ) from None

    def decode(self, ids: list[int], skip_special: bool = False) -> str:
        return self.backend.decode(ids, skip_special_tokens=skip_special)

    @property
    def chat_template(self) -> str | None:
        """The jinja text: chat_template.jinja, or of tokenizer_config.json, there of several the one named "default"."""
        if "chat_template.jinja" in self.files:
            return self.files["chat_template.jinja"].decode()
        template = self.config.get("chat_template")
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}
        if isinstance(template, dict):
            template = template.get("default")
        return template

    def render(self, messages: list[dict]) -> str:
        """The text of chat messages [{"role": ..., "content": ...}, ...]; ValueError where they cannot be rendered."""
        if not messages or not all(
            isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages
        ):
            raise ValueError(
                f"chat messages are a list of objects with role and content, not {messages!r:.80}"
            )
        if self.chat_template is None:
            raise ValueError(
                "the tokenizer has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json): only a prompt that is text or one user message can be read"
            )
        special = {role: self.special(role) for role in ROLES if self.special(role) is not None}
        return chat_template.render(
            self.chat_template, messages=messages, add_generation_prompt=True, **special
        )

    def special(self, role: str) -> str | None:
        """The token that tokenizer_config.json gives a role such as eos_token, if any."""
        token = self.config.get(role)
        return token["content"] if isinstance(token, dict) else token

    def encode_prompt(self, prompt: str | list[dict]) -> list[int]:
        """A task's prompt: a text as it is, messages by the template, which writes the special tokens itself.

        Without a template one user message is its text, so that a task serves base and instruct models alike; anything
        else would lose who says what.
        """
        if (
            isinstance(prompt, list)
            and self.chat_template is None
            and [m.get("role") for m in prompt] == ["user"]
        ):
            prompt = prompt[0]["content"]
        return self.encode(prompt if isinstance(prompt, str) else self.render(prompt))

    def id(self, token: str) -> int:
        number = self.backend.token_to_id(token)
        if number is None:
            raise ValueError(
                f"the tokenizer has no token {token!r}: this checkpoint belongs to another task"
            )
        return number
