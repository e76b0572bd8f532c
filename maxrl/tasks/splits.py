"""Which files hold the rows of a split: one file, a folder by its names, or a set on the hub."""

import glob
import re
from pathlib import Path

from maxrl.models.hub_files import download, on_hub

FILES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")  # how files of rows end
# Other files that end so, and the words for a split, as in Hugging Face's datasets (data_files.py).
NO_ROWS = ("config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
WORDS = {
    "train": "training|train",
    "validation": "validation|valid|val|dev",
    "test": "testing|test|evaluation|eval",
    # No split that is asked for, so such files are of none.
    "holdout": "hold[-_ ]?out|held[-_ ]?out",
}
SHARD = re.compile(r"-(\d{5})-of-(\d{5})")


def data_files(name: str, split: str, alone: bool = True) -> list[Path]:
    """Return the files of a split: FILE itself, or those in a folder or of OWNER/NAME on the hub.

    alone  whether no other split is read from there

    The hub converts every public set to CONFIG/SPLIT/*.parquet. OWNER/NAME/CONFIG, or with
    another split OWNER/NAME/CONFIG/SPLIT, names one of several.

    FileNotFoundError if there are none, or if it is not clear which.
    """
    path = Path(name)
    if path.is_dir():
        return files_in(path, split, alone)
    parts = name.rstrip("/").split("/")
    owner = "/".join(parts[:2])
    if path.suffix.lower() in FILES or not on_hub(owner):
        return [path]
    config, *splits = parts[2:] or ["*"]
    folder = "/".join([config, *(splits or [split])])
    pattern = f"{folder}/*.parquet"
    root = download(owner, pattern, None, repo_type="dataset", revision="refs/convert/parquet")
    files = sorted(root.glob(pattern))
    folders = sorted({f"{owner}/{file.parent.relative_to(root)}" for file in files})
    if len(folders) != 1:
        raise FileNotFoundError(
            f"{name} must have one folder {folder} of parquet files: name a file, or one of "
            f"{', '.join(folders) or 'the folders that it has'}"
        )
    return files


def files_in(folder: Path, split: str, alone: bool = True) -> list[Path]:
    """Return the files of a split in a folder: those whose names have a word for it.

    Without a word for any split these are all files, for one split alone. FileNotFoundError for a
    name with words of two splits, for names that are alike but for letters that say a split, as
    gsmtrain and gsmtest, and for files in several folders or formats: several sets, or one set
    twice.
    """
    names = map(Path, glob.glob("**", root_dir=folder, recursive=True))
    files = sorted(name for name in names if has_rows(folder, name))
    splits = {file: splits_in(str(file)) for file in files}
    wordless = not any(splits.values())
    mine = [file for file in files if wordless or split in splits[file]]
    # A clone from the hub may name splits and configurations otherwise, in its README.md.
    readme = folder / "README.md"
    listed = readme.is_file() and b"data_files:" in readme.read_bytes()
    sets = {set_of(file, split, listed): file for file in reversed(mine)}
    told = all(len(splits[file]) == 1 for file in mine)
    if wordless:
        letters = {re.sub(r"[\W\d_]", "", str(file).lower()) for file in files}
        alike = {re.sub(f"(?:{'|'.join(WORDS.values())})s?", "", name) for name in letters}
        told = alone and not listed and len(alike) == len(letters)
    if len(sets) == 1 and told:
        shards = [(int(found[2]), int(found[1])) for f in mine if (found := SHARD.search(f.name))]
        if shards and sorted(shards) != [(len(mine), number) for number in range(len(mine))]:
            said = ", ".join(f"{number} of {total}" for total, number in sorted(shards)[:9])
            raise FileNotFoundError(
                f"{folder} has {len(mine)} files for {split}, whose names say {said}: complete "
                "them, or name a file"
            )
        return [folder / file for file in mine]
    shown = sorted(map(str, sets.values() if len(sets) > 1 else mine or files))
    raise FileNotFoundError(
        f"the names in {folder} do not tell which rows are for {split} "
        f"({', '.join(shown[:9]) or 'none ends in ' + ', '.join(FILES)}): name a file, or a folder "
        "in it"
    )


def has_rows(folder: Path, name: Path) -> bool:
    """Tell by its name whether this is a file of rows."""
    rows = any(ending in FILES for ending in Path(name.name.lower()).suffixes)
    beside = name.name in NO_ROWS or "/__" in f"/{name.parent}" or (folder / name).is_dir()
    return rows and not beside


def splits_in(name: str) -> list[str]:
    """Return the splits that a name or path has words for.

    A word is trainset, mathTrain or MATHTrain too, but no part of another one, as of contest or
    trained.
    """
    name += " " + re.sub("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    word = r"(?<![^\W\d_])({})(set|data)?(?![^\W\d_])"
    return [split for split in WORDS if re.search(word.format(WORDS[split]), name, re.IGNORECASE)]


def set_of(file: Path, split: str, listed: bool) -> tuple[str, ...]:
    """Return what the files of one set have in common: format, folder and the name of shards.

    The folder is the first one with a word for the split, as train/ of train/algebra/1.json.

    listed  whether a file without a shard's number is a set of its own
    """
    folders = file.parts[:-1]
    for i, name in enumerate(folders):
        if split in splits_in(name):
            return file.suffix.lower(), *folders[: i + 1]
    name, *shard = SHARD.split(file.name)
    return file.suffix.lower(), *folders, name if shard or listed else ""
