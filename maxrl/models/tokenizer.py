"""Text to token ids and back: a thin wrapper around the `tokenizers` library."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel

from maxrl.models import chat_template
from maxrl.system.files import parse, read_json, regular, write_json, write_text

SPECIAL_MAP = "special_tokens_map.json"  # of the roles, in older checkpoints
# Saved byte for byte as they were loaded: the programs that read them may use another version of
# `tokenizers`.
CARRIED = (
    "tokenizer.json",
    "chat_template.jinja",
    SPECIAL_MAP,
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
PROPERTIES = ("single_word", "lstrip", "rstrip", "normalized", "special")
ROLES = (*SPECIAL, "sep_token", "cls_token", "mask_token")  # variables of chat templates
QUESTION = [{"role": "user", "content": "a"}]
ANSWER = "MaxRL"  # behind which a chat template ends the turn
# Of the tokenizers that are made here.
CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


def byte_level(model: BPE) -> tokenizers.Tokenizer:
    """Return a tokenizer of bytes for a BPE model, in which every digit is a token of its own.

    Decoding an encoded text gives the text back.
    """
    backend = tokenizers.Tokenizer(model)
    digits = pre_tokenizers.Digits(individual_digits=True)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    backend.decoder = decoders.ByteLevel()
    return backend


def content(token: Any) -> Any:
    """Return the text of a token, which files write as it is or with its properties."""
    return token["content"] if isinstance(token, dict) else token


@dataclass(eq=False)
class Tokenizer:
    """Encodes and decodes text without adding or dropping anything."""

    backend: tokenizers.Tokenizer
    config: dict  # the content of tokenizer_config.json
    files: dict[str, bytes] = field(default_factory=dict)  # those of CARRIED, by name

    @classmethod
    def from_vocabulary(cls, tokens: tuple[str, ...]) -> "Tokenizer":
        """Make a tokenizer of words separated by blanks, with ids in the order given.

        The SPECIAL tokens among them have their usual roles.
        """
        vocabulary = {token: i for i, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        roles = {role: token for role, token in SPECIAL.items() if token in vocabulary}
        return cls(backend, CONFIG | roles)

    @classmethod
    def load(cls, directory: str | Path) -> "Tokenizer":
        """Load the tokenizer of a checkpoint directory.

        FileNotFoundError without tokenizer.json; ValueError for files that cannot be read.
        """
        directory = Path(directory)
        file = directory / "tokenizer.json"
        if not file.exists():
            raise FileNotFoundError(
                f"{file} is missing: transformers makes it of older files, by AutoTokenizer."
                f"from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})"
            )
        files = {
            name: regular(directory / name).read_bytes()
            for name in CARRIED
            if (directory / name).exists()
        }
        config_file = directory / "tokenizer_config.json"
        config = read_json(config_file) if config_file.exists() else {}
        # As transformers does.
        if SPECIAL_MAP in files and "added_tokens_decoder" not in config:
            config |= read_json(directory / SPECIAL_MAP)
        try:
            backend = tokenizers.Tokenizer.from_buffer(files[file.name])
        # The library raises Exception itself.
        except Exception as error:
            raise ValueError(f"{file} is no tokenizer: {error!s:.100}") from None
        # A prompt is never padded or cut, whatever the file says.
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = bool(config.get("split_special_tokens"))
        tokenizer = cls(backend, config, files)
        try:
            "".join([tokenizer.chat_template or "", *tokenizer.named()])
        except (LookupError, TypeError, AttributeError):
            raise ValueError(
                f"{config_file} has a chat template or special token that is no text"
            ) from None
        for token in tokenizer.named():
            if backend.token_to_id(token) is None:
                raise ValueError(
                    f"{file} lacks the token {token!r:.40} that the files beside it name: take it "
                    "out of them if no text needs it, or add it to tokenizer and model"
                )
        tokenizer.register()
        return tokenizer

    def register(self) -> None:
        """Add what the files beside tokenizer.json say of tokens, as transformers does."""
        added = {one.content: one for one in self.backend.get_added_tokens_decoder().values()}
        said = self.properties()
        roles = {*self.roles().values()}
        wanted = []
        for token, special in self.named().items():
            known = added.get(token)
            ids: list[int] = []
            # The library raises Exception itself.
            with contextlib.suppress(Exception):
                ids = self.backend.encode(token, add_special_tokens=False).ids
            # In the vocabulary alone it would be cut into pieces; transformers registers it. A word
            # of a vocabulary of words stays as it was made.
            cut = ids != [self.id(token)]
            if cut or known and token in roles and not known.special or token in said:
                kept = {name: getattr(known, name) for name in PROPERTIES if known}
                about = {"normalized": not special} | said.get(token, kept)
                about["special"] = special or bool(known and known.special)
                wanted.append(tokenizers.AddedToken(token, **about))
        self.backend.add_tokens(wanted)

    def save(self, directory: str | Path) -> None:
        """Write the tokenizer's files into a checkpoint directory."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        # The library's own save() reports a full disk by other errors than OSError.
        write_text(directory / "tokenizer.json", self.backend.to_str(pretty=True))
        write_json(directory / "tokenizer_config.json", self.config)
        for name, content in self.files.items():
            (directory / name).write_bytes(content)

    # As scripts for transformers call it.
    save_pretrained = save

    @property
    def size(self) -> int:
        """The number of tokens, or more where some ids have none."""
        return 1 + max(self.backend.get_vocab().values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; ValueError for text that the tokenizer has no tokens for."""
        try:
            return self.backend.encode(text, add_special_tokens=False).ids
        # The library raises Exception itself.
        except Exception as error:
            raise ValueError(f"the tokenizer cannot encode {text[:40]!r}: {error!s:.100}") from None

    def decode(self, ids: list[int], skip_special: bool = False) -> str:
        """Return the text of some ids, with or without the special tokens among them."""
        return self.backend.decode(ids, skip_special_tokens=skip_special)

    @property
    def chat_template(self) -> str | None:
        """The Jinja text, from chat_template.jinja or else tokenizer_config.json.

        Of several named ones it is the default.
        """
        if "chat_template.jinja" in self.files:
            return self.files["chat_template.jinja"].decode()
        template = self.config.get("chat_template")
        if isinstance(template, list):
            named = {one["name"]: one["template"] for one in template}
            if named and "default" not in named:
                raise ValueError(
                    f"none of the chat templates {', '.join(named)} is called default: write the "
                    "one to use into chat_template.jinja"
                )
            return named.get("default")
        return template

    def render(self, messages: list[dict], open_turn: bool = True) -> str:
        """Render chat messages [{"role": ..., "content": ...}, ...] with the chat template.

        open_turn  whether an answer is to follow

        ValueError if there is no template, or it fails.
        """
        if not self.chat_template:
            raise ValueError(
                "the tokenizer has no chat template: only a prompt that is text or one user "
                "message can be read"
            )
        return chat_template.render(
            self.chat_template, messages=messages, add_generation_prompt=open_turn, **self.roles()
        )

    def template_tokens(self) -> list[str]:
        """Return the special tokens that the chat template writes around a question."""
        if not any(token.special for token in self.backend.get_added_tokens_decoder().values()):
            return []
        # It may want other messages, or fail.
        with contextlib.suppress(ValueError):
            return self.special_among(self.encode(self.render(QUESTION)))
        return []

    def special_among(self, ids: Sequence[int]) -> list[str]:
        """Return the texts of the special tokens among some ids, in their order."""
        added = self.backend.get_added_tokens_decoder()
        return [added[i].content for i in ids if i in added and added[i].special]

    def special(self, role: str) -> str | None:
        """Return the token that tokenizer_config.json gives a role such as eos_token, if any."""
        return content(self.config.get(role))

    def roles(self) -> dict[str, str]:
        """Return the tokens that have a role, which chat templates know by it."""
        roles = {role: self.special(role) for role in ROLES}
        further = self.config.get("extra_special_tokens")
        if isinstance(further, dict):
            roles |= {role: content(token) for role, token in further.items()}
        return {role: token for role, token in roles.items() if token is not None}

    def named(self) -> dict[str, bool]:
        """Return the tokens that files beside tokenizer.json name, and whether each is special."""
        tokens: dict[Any, bool] = {}
        for token in parse(self.files.get("added_tokens.json", b"{}"), "added_tokens.json"):
            tokens[token] = False
        for token in (self.config.get("added_tokens_decoder") or {}).values():
            tokens[content(token)] = isinstance(token, dict) and bool(token.get("special"))
        roles = [self.config.get(role) for role in ROLES]
        for key in ("additional_special_tokens", "extra_special_tokens"):
            further = self.config.get(key) or []
            roles += further.values() if isinstance(further, dict) else further
        tokens |= {content(token): True for token in roles}
        return {token: special for token, special in tokens.items() if token not in (None, "")}

    def properties(self) -> dict[str, dict]:
        """Return what tokenizer_config.json says of each added token, such as whether it takes the
        blanks beside it."""
        entries = (self.config.get("added_tokens_decoder") or {}).values()
        known = [one for one in entries if isinstance(one, dict)]
        return {content(one): {n: one[n] for n in PROPERTIES if n in one} for one in known}

    @property
    def ends(self) -> list[int]:
        """The id of eos_token, if there is one."""
        token = self.special("eos_token")
        return [self.id(token)] if token else []

    def after_answer(self) -> list[int]:
        """Return the ids that the chat template writes after an answer."""
        turns = [*QUESTION, {"role": "assistant", "content": ANSWER}]
        # A template may refuse these turns, or there may be none.
        with contextlib.suppress(ValueError):
            return self.encode(self.render(turns, open_turn=False).partition(ANSWER)[2])
        return []

    def unstopped(self, stop_tokens: Sequence[int]) -> str | None:
        """Return the special token that ends a turn of the chat template if no stop token does, so
        that a response goes on into another turn."""
        written = self.after_answer()
        special = self.special_among(written)
        return special[0] if special and not set(written) & set(stop_tokens) else None

    def turn_end(self, stop_tokens: Sequence[int]) -> int:
        """Return which stop token ends an answer: the chat template's, or else eos_token."""
        written = self.after_answer()
        return next(i for i in (*written, *self.ends, *stop_tokens) if i in stop_tokens)

    def encode_prompt(self, prompt: str | list[dict]) -> list[int]:
        """Return the ids of a task's prompt, a text or chat messages.

        The template writes the special tokens of messages. Without a template, one user message is
        its text, so that a task serves base and instruct models alike; with several messages it
        would be lost who says what.
        """
        if isinstance(prompt, str):
            return self.encode(prompt)
        if not self.chat_template and [m["role"] for m in prompt] == ["user"]:
            return self.encode(prompt[0]["content"])
        return self.encode(self.render(prompt))

    def id(self, token: str) -> int:
        """Return the id of a token; ValueError if the vocabulary does not have it."""
        number = self.backend.token_to_id(token)
        if number is None:
            raise ValueError(
                f"the tokenizer has no token {token!r}: this checkpoint belongs to another task"
            )
        return number
