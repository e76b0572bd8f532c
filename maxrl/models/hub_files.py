"""Finds checkpoints in directories, and fetches from the Hugging Face hub."""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from maxrl.system.files import read_json

# Folders are left, and a second copy of Mistral's weights.
NOT_HUB_FILES = ["*/*", "consolidated*"]
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model"]
NEEDS = "needs.json"  # beside an adapter without a recipe.json: the digest of its base model
# The files that decide which model a directory holds.
MODEL_FILES = (
    NEEDS,
    "adapter_config.json",
    "adapter_model.safetensors",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)
# OWNER/NAME or OWNER/NAME/FOLDER; runs/NAME is a run not yet made.
HUB_ID = re.compile(r"(?!runs/)[\w-][\w.-]{,95}(/[\w.-]{1,96}){1,2}")
PART = 2**16  # bytes


def find(path: str | Path) -> Path:
    """Return the checkpoint directory that `path` stands for.

    That is the directory itself, the newest checkpoint of a run directory, or the local copy of a
    checkpoint on the hub. FileNotFoundError if there is none.
    """
    local = HUB_ID.fullmatch(str(path)) and not on_hub(path)
    path = download(str(path)) if on_hub(path) else Path(path)
    found = path
    # os.path takes names of any length, which other people's files may hold.
    if os.path.isfile(path / "latest"):
        # A run directory from elsewhere must not lead out of itself.
        name = (path / "latest").read_text(errors="replace").strip()
        if re.fullmatch(r"step-\d+", name):
            found = path / name
    if any(os.path.isfile(found / name) for name in ("config.json", "adapter_config.json")):
        return found
    hint = f"; as {path.parts[0]} is here, it was not looked for on the hub" if local else ""
    raise FileNotFoundError(
        f"{path} is neither a checkpoint (no config.json) nor a run directory with one{hint}"
    )


def on_hub(path: str | Path) -> bool:
    """Tell whether `path` reads as HUB_ID and its first part is no path here."""
    name = str(path)
    return HUB_ID.fullmatch(name) is not None and not Path(Path(name).parts[0]).exists()


def base_name(path: str | Path) -> str:
    """Return how an adapter names its base model: by hub id, or by the checkpoint's full path.

    PEFT takes no OWNER/NAME/FOLDER.
    """
    by_id = on_hub(path) and str(path).count("/") == 1
    return str(path) if by_id else str(find(path).resolve())


def download(
    name: str,
    files: str | list[str] = HUB_FILES,
    but: list[str] | None = NOT_HUB_FILES,
    **which: Any,
) -> Path:
    """Return the directory with the files of a repository on the hub, downloaded where necessary.

    name        OWNER/NAME, or OWNER/NAME/FOLDER for the files in a folder
    files, but  patterns of the files to fetch and of those to leave; by default a checkpoint's
    which       repo_type and revision

    FileNotFoundError if they cannot be fetched.
    """
    owner, model, *folders = name.split("/")
    repository = f"{owner}/{model}"
    folder = "/".join(folders)
    if folder:
        files = [f"{folder}/{file}" for file in ([files] if isinstance(files, str) else files)]
        but = None
    try:
        from huggingface_hub import snapshot_download

        root = snapshot_download(repository, allow_patterns=files, ignore_patterns=but, **which)
        return Path(root, folder)
    # The hub, its client and the network raise errors of many unrelated classes.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        options = "".join(f"--{key.replace('_', '-')} {value} " for key, value in which.items())
        raise FileNotFoundError(
            f"{name} is no directory here and could not be fetched from the hub ({reason}); with a "
            f"network, `hf download {repository} {options}--local-dir {repository}` puts it here"
        ) from None


def end_tokens(config: dict) -> list:
    """Return `eos_token_id` of a parsed config as a list, also where it is a number or null."""
    ids = config.get("eos_token_id")
    if isinstance(ids, list):
        return ids
    return [] if ids is None else [ids]


def weight_files(path: Path) -> list[Path]:
    """Return a checkpoint's safetensors files: model.safetensors, or the shards of its index.

    Other shards in the directory may be left over from another model.
    """
    whole = path / "model.safetensors"
    index = path / "model.safetensors.index.json"
    if whole.exists() or not index.exists():
        return [whole]
    names = set(read_json(index)["weight_map"].values())
    if not names <= set(os.listdir(path)):
        raise FileNotFoundError(f"{index} names a file that is not there")
    return [path / name for name in sorted(names)]


def digest(files: Iterable[Path], meaning: str) -> str:
    """Return what tells a model from others.

    files    its weights
    meaning  what its smaller files mean, however they are written

    Of a file it is the size and 64 parts, from the first to the last one: reading all of it would
    take as long as loading it.
    """
    found = hashlib.sha256(meaning.encode())
    for file in files:
        size = os.path.getsize(file)
        found.update(f"{file.name} {size}".encode())
        with file.open("rb") as opened:
            for i in range(64):
                opened.seek(max(0, size - PART) * i // 63)
                found.update(opened.read(PART))
    return found.hexdigest()
