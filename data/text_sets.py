"""What the prepare.py of the text sets share: reading, downloading, writing the one layout.

A row of the layout: {"problem": text, "answer": text, "source": where it is from, ...}. A file appears complete or not at
all, and other content replaces it only with --overwrite; the same command again leaves it as it is.
"""

import argparse
import http.client
import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from data.common import one_line_errors, parse_arguments, refuse
from maxrl.io.files import DataError, checksum, read_json, sealed, write_text
from maxrl.io.tables import read_table

HUB = "https://huggingface.co/datasets"
PARQUET = "resolve/refs%2Fconvert%2Fparquet"  # the hub's own conversion of every data set, whatever its files are called


@dataclass(frozen=True)
class Source:
    """Where a file is, and which of its columns are the problem and the answer."""

    name: str  # of the "source" column
    url: str
    sha256: str = ""  # "" if none is known
    problem: str = "problem"
    answer: str = "answer"
    keep: tuple[str, ...] = ()  # further columns
    convert: Callable[[dict], dict] | None = None  # of a row of the layout, at the end


def read(file: Path) -> list[dict]:
    """The rows of a file: JSONL, a JSON list, CSV or parquet."""
    try:
        return [row for row, _ in read_table(file)]
    except (DataError, FileNotFoundError) as error:
        refuse(f"{error}")


def layout(rows: list[dict], source: Source, where: str) -> list[dict]:
    """Rows in the one layout. Refuses a missing column; rows without problem or answer are left out and counted."""
    result = []
    for i, row in enumerate(rows, 1):
        missing = [name for name in (source.problem, source.answer) if name not in row]
        if missing:
            refuse(
                f"{where}, row {i} has no column {missing[0]!r}; it has {', '.join(map(repr, row)) or 'none'}"
            )
        problem = _text(row[source.problem])
        answer = _text(row[source.answer])
        if problem and answer:
            new = {"problem": problem, "answer": answer, "source": source.name}
            new |= {name: row[name] for name in source.keep if row.get(name) is not None}
            result.append(source.convert(new) if source.convert else new)
    if not result:
        refuse(f"{where} holds no rows with a problem and an answer")
    empty = len(rows) - len(result)
    again = len(result) - len({row["problem"] for row in result})
    print(
        f"{where}: {len(result)} problems"
        + f", {empty} rows without problem or answer left out" * (empty > 0)
        + f", {again} of them not for the first time" * (again > 0)
    )
    return result


def _text(value) -> str:
    """Text of a cell: 204 and 204.0, as some conversions have it, are "204"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


def write(file: Path, text: str, overwrite: bool):
    """Write a file completely or not at all; without text remove it. Refuses to lose other content unless `overwrite`."""
    if file.exists() and file.read_bytes() == text.encode():
        print(f"{file}: already there")
        return
    if file.exists() and not overwrite:
        refuse(
            f"{file} exists with other content: --overwrite replaces it, --out DIR writes elsewhere"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    if text:
        write_text(file, text)
        print(f"{file}: written")
    else:
        file.unlink(missing_ok=True)


def write_set(
    folder: Path, info: dict, texts: dict[str, str], overwrite: bool, others: Iterable[str] = ()
):
    """Write the files of a set, {name: text}, then its info.json with their checksums. A file without text is removed.

    others: files of the set that are not written this time. Their checksums stay as they were: one that was damaged
    since does not count as good.
    """
    try:
        before = read_json(folder / "info.json")["sha256"]
        known = {name: before[name] for name in others if name in before}
    except (OSError, ValueError, LookupError, TypeError):
        known = {}
    if overwrite:
        (folder / "info.json").unlink(missing_ok=True)  # without it the set is not complete
    for name, text in texts.items():
        write(folder / name, text, overwrite)
    names = [
        name
        for name in (*texts, *others)
        if texts.get(name) or name in others and name not in known
    ]
    write(folder / "info.json", sealed(info, folder, names, known), True)


def lines(rows: Iterable[dict]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def download(source: Source, folder: Path) -> Path:
    """The file behind source.url in `folder`, fetched unless it is there; its checksum is compared if one is known."""
    file = folder / f"{source.name.replace('/', '-')}{Path(source.url).suffix}"
    if file.exists() and (not source.sha256 or checksum(file) == source.sha256):
        return file
    folder.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(file.name + ".incomplete")
    by_hand = f"fetch {source.url} by hand and name the file with --source"
    try:
        with urllib.request.urlopen(source.url, timeout=30) as page, open(temporary, "wb") as out:
            size = int(page.headers.get("Content-Length") or 0)
            with tqdm.wrapattr(
                page, "read", total=size or None, desc=source.name, disable=None
            ) as watched:
                shutil.copyfileobj(watched, out)
        if size and temporary.stat().st_size != size:
            refuse(f"the download of {source.name} ended early: run this again, or {by_hand}")
    except (OSError, http.client.HTTPException) as error:  # urllib's errors are OSErrors
        why = (
            error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        )
        refuse(f"{source.name} cannot be downloaded ({why}): {by_hand}")
    if source.sha256 and checksum(temporary) != source.sha256:
        temporary.unlink()
        refuse(
            f"{source.url} is not the file that this was made for (its SHA-256 differs): {by_hand} if you trust it"
        )
    os.replace(temporary, file)
    return file


def rows_of(source: Source, file: str | Path | None, folder: Path) -> list[dict]:
    """The rows of a source in the one layout, from a copy of its file, or downloaded into `folder` if there is none."""
    file = Path(file) if file else download(source, folder / "download")
    return layout(read(file), source, f"{file}")


def options(description: str, folder: Path) -> argparse.ArgumentParser:
    """The options that all text sets have."""
    parser = argparse.ArgumentParser(
        "prepare.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=folder, help=f"directory ({folder.parent.name}/{folder.name})"
    )
    return parser


@one_line_errors()
def main(arguments: list[str] | None, description: str, folder: Path, sources: dict[str, Source]):
    """The command of a set that is converted file by file: OUT/NAME.jsonl for each of `sources`."""
    parser = options(description, folder)
    named = len(sources) > 1
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=FILE" if named else "FILE",
        help="a copy that is here already, JSONL, JSON, CSV or parquet (default: download)"
        + f"; NAME is one of {', '.join(sources)}, and only those given are made" * named,
    )
    args = parse_arguments(parser, arguments)
    given = dict(
        text.partition("=")[::2] if named else (next(iter(sources)), text) for text in args.source
    )
    for name in given:
        if name not in sources or not given[name]:
            refuse(f"--source {name} is not NAME=FILE with a name among {', '.join(sources)}")
    texts = {
        f"{name}.jsonl": lines(rows_of(sources[name], given.get(name), args.out))
        for name in given or sources
    }
    names = [f"{name}.jsonl" for name in sources]
    others = [name for name in names if name not in texts and (args.out / name).exists()]
    write_set(args.out, {}, texts, args.overwrite, others)
