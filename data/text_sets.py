"""What the prepare.py commands of the text sets share: downloading, reading, writing one layout.

A row of the layout is {"problem": text, "answer": text, "source": where it is from, ...}.
"""

import argparse
import hashlib
import json
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from data.common import make_set
from maxrl.system.errors import UsageError
from maxrl.system.files import checksum, write_bytes
from maxrl.system.tables import as_text, read_table

HERE = Path(__file__).parent
HUB = "https://huggingface.co/datasets"
# The hub converts every data set to parquet, whatever its own files are called.
PARQUET = "resolve/refs%2Fconvert%2Fparquet"


@dataclass(frozen=True)
class Source:
    """Where a file is, and which of its columns is the problem; `answer` is the answer."""

    name: str  # of the "source" column
    url: str
    sha256: str = ""  # empty if none is known
    problem: str = "problem"
    keep: tuple[str, ...] = ()  # further columns
    convert: Callable[[dict], dict] = dict  # applied to a finished row of the layout


def download(source: Source, folder: Path) -> Path:
    """Fetch source.url into `folder` unless it is there, and compare its checksum if known."""
    file = folder / f"{source.name}{Path(source.url).suffix}"
    if file.exists() and source.sha256 in ("", checksum(file)):
        return file
    by_hand = f"fetch {source.url} by hand and name the file with --source, or --test (--help)"
    try:
        # The limit is on the seconds without an answer.
        with urllib.request.urlopen(source.url, timeout=30) as answer:
            data = answer.read()
    except (OSError, HTTPException) as error:
        raise UsageError(f"{source.name} cannot be downloaded ({error}): {by_hand}") from None
    if source.sha256 not in ("", hashlib.sha256(data).hexdigest()):
        raise UsageError(
            f"the SHA-256 of {source.url} is not the expected one: {by_hand} if you trust it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(file, data)
    return file


def read_source(
    source: Source,
    file: str | Path | None,
    folder: Path,
) -> list[dict]:
    """The rows of a source in the one layout.

    They come from `file`, which may be JSONL, a JSON list, CSV or parquet, or from a download into
    `folder` if it is None. Rows without a problem or an answer are left out and counted.
    """
    file = Path(file) if file else download(source, folder / "download")
    rows = []
    empty = 0
    for row, where in read_table(file):
        if not {source.problem, "answer"} <= row.keys():
            raise UsageError(f"{where} needs {source.problem!r} and 'answer'; it has {[*row]}")
        new = {
            "problem": as_text(row, source.problem, where).strip(),
            "answer": as_text(row, "answer", where).strip(),
            "source": source.name,
        }
        if not new["problem"] or not new["answer"]:
            empty += 1
            continue
        new |= {name: row[name] for name in source.keep if row.get(name) is not None}
        rows.append(source.convert(new))
    if not rows:
        raise UsageError(f"{file} holds no rows with a problem and an answer")
    print(f"{file}: {len(rows)} problems, {empty} rows without a problem or an answer left out")
    return rows


def to_jsonl(rows: Iterable[dict]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_texts(args: argparse.Namespace, name: str, info: dict, texts: dict[str, str]) -> None:
    """Make the data set of the files {file name: text} in --out."""
    sums = {file: hashlib.sha256(text.encode()).hexdigest() for file, text in texts.items()}

    def write(new: Path) -> None:
        for file, text in texts.items():
            (new / file).write_text(text, encoding="utf-8")

    folder = args.out or HERE / name
    if make_set(folder, info, args, write, sums):
        print(f"wrote {', '.join(texts)} to {folder}")
