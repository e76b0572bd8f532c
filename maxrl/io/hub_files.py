"""What others hand on, on a disk or on a hub: models in directories, and data sets."""

import re
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from maxrl.io.files import read_file, read_json

HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model")
FILES = (".jsonl", ".json", ".csv", ".parquet")  # how a data set of one file ends


def find(path) -> Path:
    """The checkpoint directory that `path` means: itself, the newest one of a run directory, or a copy from the hub."""
    try:
        path = download(str(path)) if on_hub(path) else Path(path)
        if (path / "latest").exists():
            name = read_file(path / "latest").decode(errors="replace").strip()
            if (
                not name.isprintable() or name in ("", "..") or Path(name).name != name
            ):  # it may come from anywhere
                raise FileNotFoundError(
                    f"{path / 'latest'} names {name[:80]!r}, which is no checkpoint beside it"
                )
            path = path / name
        if any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            return path
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"{repr(path)[:80]} cannot be read: {str(error)[:100]}") from None
    raise FileNotFoundError(
        f"{path} is neither a checkpoint (no config.json) nor a run directory with one"
    )


def on_hub(path) -> bool:
    """Whether it is OWNER/NAME, and nothing of that name lies here: runs/NAME may be a run that is not made yet."""
    name = str(path)
    return (
        re.fullmatch(r"(?!runs/)[\w-][\w.-]*/[\w.-]+", name) is not None
        and not Path(name).parent.exists()
    )


def base_name(path) -> str:
    """What an adapter calls the model it is made for: a hub id as it is, else the checkpoint directory itself."""
    return str(path) if on_hub(path) else str(find(path).resolve())


def download(name: str, files=HUB_FILES, but="*/*", **which) -> Path:
    """The files of a hub's repository, a checkpoint's if nothing else is said, from huggingface_hub's cache where they are
    there already. which: repo_type and revision, where they are not the usual ones."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=files, ignore_patterns=but, **which))
    except Exception as error:  # of a network there are many kinds
        reason = str(error).strip().splitlines() or [type(error).__name__]
        options = "".join(f"--{key.replace('_', '-')} {value} " for key, value in which.items())
        raise FileNotFoundError(
            f"{name} is no directory here and could not be fetched from the hub ({reason[0]}); with a "
            f"network, `hf download {name} {options}--local-dir {name}` puts it here"
        ) from None


def data_files(name: str, split: str) -> list[Path]:
    """The files of a data set: FILE itself, or all of one split of OWNER/NAME, a directory here or a set on the hub.

    The hub turns every public set into CONFIG/SPLIT/*.parquet; OWNER/NAME/CONFIG/SPLIT names one folder where there are more.
    """
    path = Path(name)
    root = path
    folder = "." if any(path.glob("*.parquet")) else f"*/{split}"
    if not path.is_dir():
        parts = name.split("/")
        owner = "/".join(parts[:2])
        if path.suffix in FILES or not on_hub(owner):
            return [path]
        folder = "/".join(parts[2:]) or folder
        root = download(
            owner, f"{folder}/*.parquet", None, repo_type="dataset", revision="refs/convert/parquet"
        )
    files = sorted(root.glob(f"{folder}/*.parquet"))
    folders = sorted({f"{name}/{file.parent.relative_to(root).as_posix()}" for file in files})
    if len(folders) != 1:
        one = f"name one of {', '.join(folders)}" if folders else "name a file"
        raise FileNotFoundError(
            f"{name} has {len(folders)} folders {folder} of parquet files: {one}"
        )
    return files


def end_tokens(config: dict) -> list:
    """`eos_token_id` as a list, whether it is one, one number or nothing."""
    ids = config.get("eos_token_id")
    if isinstance(ids, list):
        return ids
    return [] if ids is None else [ids]


def weight_files(path: Path) -> list[Path]:
    """The checkpoint's safetensors: one, or the shards that its index names."""
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    index = path / "model.safetensors.index.json"
    if not index.exists():
        pickles = sorted(f.name for f in path.iterdir() if f.suffix in (".bin", ".pt", ".pth"))
        raise FileNotFoundError(
            f"{path} holds no model.safetensors"
            + (
                f" but {pickles[0]}, which is not read, because a pickle can run code when it is loaded; to convert it: python -c "
                f"\"from transformers import AutoModelForCausalLM as M; M.from_pretrained('{path}').save_pretrained('{path}')\""
                if pickles
                else ""
            )
        )
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index} has no weight_map from tensors to files")
    names = sorted(set(names.values()))
    for name in names:
        if (
            Path(name).name != name
            or not name.endswith(".safetensors")
            or "\0" in name
            or len(name) > 255
        ):
            raise ValueError(f"{index} names {name[:80]!r}: only *.safetensors beside it are read")
        if not (path / name).is_file():
            raise FileNotFoundError(
                f"{path} lacks {name[:80]!r}, which its index names: the download is not complete"
            )
    return [path / name for name in names]


@contextmanager
def opened(path: Path, file: Path):
    """A safetensors file, mapped, not read; ValueError where it is damaged."""
    try:
        with safe_open(file, "pt") as content:
            yield content
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"the weights in {path} cannot be read ({error}): the file is damaged"
        ) from None
