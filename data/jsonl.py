"""What the prepare.py of the text sets share: reading JSONL and parquet, downloading, writing the one layout.

A row of the layout: {"problem": text, "answer": text, "source": where it is from, ...}. A file appears whole or not at all
and is never overwritten by other content without --force; the same command again finds its files and leaves them.
"""

import argparse
import hashlib
import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from maxrl.io.files import parse, read_json, sealed

HUB = "https://huggingface.co/datasets"
PARQUET = "resolve/refs%2Fconvert%2Fparquet"  # the hub's own conversion of every data set, whatever its files are called


@dataclass(frozen=True)
class Source:
    """Where a file is, and which of its columns are the problem and the answer."""

    name: str  # of the "source" column
    url: str
    sha256: str = ""  # "" where none is known
    problem: str = "problem"
    answer: str = "answer"
    keep: tuple[str, ...] = ()  # further columns
    convert: Callable[[dict], dict] | None = None  # of a row of the layout, at the end


def refuse(sentence: str, code: int = 2) -> NoReturn:
    print(f"prepare.py: {sentence}", file=sys.stderr)
    raise SystemExit(code)


def read(file: Path) -> list[dict]:
    """The rows of a JSONL file, of a JSON list or of a parquet file; what it is is seen from its first bytes."""
    if not file.is_file():
        refuse(f"there is no file {file}")
    data = file.read_bytes()
    if data.startswith(b"PAR1"):
        return _parquet(file)
    if data.lstrip().startswith(b"["):
        data = b"\n".join(json.dumps(row).encode() for row in _parse(data.removeprefix(b"\xef\xbb\xbf"), f"{file}"))
    rows = [_parse(line, f"{file}, line {i}") for i, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
            if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        refuse(f"{file} holds lines that are no objects")
    return rows


def _parse(text: bytes, where: str):
    try:
        return parse(text, where)
    except ValueError as error:
        refuse(f"{where} is neither JSON nor parquet: {str(error).removeprefix(where)[:100]}")


def _parquet(file: Path) -> list[dict]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        refuse(f"{file} is a parquet file: pip install pyarrow, or convert it to JSONL elsewhere")
    try:
        return pyarrow.parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        refuse(f"{file} cannot be read ({' '.join(str(error).split())[:100]}): it is damaged")


def layout(rows: list[dict], source: Source, where: str) -> list[dict]:
    """Rows in the one layout. Refuses a missing column; rows without problem or answer are left out and counted."""
    result = []
    for i, row in enumerate(rows, 1):
        missing = [name for name in (source.problem, source.answer) if name not in row]
        if missing:
            refuse(f"{where}, row {i} has no column {missing[0]!r}; it has {', '.join(map(repr, row)) or 'none'}")
        problem, answer = _text(row[source.problem]), _text(row[source.answer])
        if problem and answer:
            new = {"problem": problem, "answer": answer, "source": source.name}
            new |= {name: row[name] for name in source.keep if row.get(name) is not None}
            result.append(source.convert(new) if source.convert else new)
    if not result:
        refuse(f"{where} holds no rows with a problem and an answer")
    again = len(result) - len({row["problem"] for row in result})
    print(f"{where}: {len(result)} problems" + (f", {len(rows) - len(result)} rows without problem or answer left out"
                                                if len(result) < len(rows) else "")
          + (f", {again} of them not for the first time" if again else ""))
    return result


def _text(value) -> str:
    """Text of a cell: 204 and 204.0, as some conversions have whole numbers, are "204"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


def write(file: Path, text: str, force: bool):
    """Write a file whole or not at all; refuses to replace other content unless `force`."""
    if file.exists() and file.read_bytes() == text.encode():
        print(f"{file}: already there")
        return
    if file.exists() and not force:
        refuse(f"{file} exists with other content: --force replaces it, --out DIR writes elsewhere")
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(file.name + ".incomplete")
    with open(temporary, "w", encoding="utf-8", newline="") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, file)
    print(f"{file}: written")


def write_info(folder: Path, info: dict, names: Iterable[str], others: Iterable[str] = ()):
    """info.json, which is written last, with the checksums of the files. Those of `others`, not written this time, stay as
    they were: a file that has been damaged since is not declared whole."""
    try:
        before = read_json(folder / "info.json")["sha256"]
        known = {name: before[name] for name in others if name in before}
    except (OSError, ValueError, LookupError, TypeError):
        known = {}
    names = [*names, *(name for name in others if name not in known)]
    write(folder / "info.json", sealed(info, folder, names, known), force=True)


def lines(rows: Iterable[dict]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def download(source: Source, folder: Path) -> Path:
    """The file behind source.url in `folder`, fetched unless it is there; its checksum is compared where one is known."""
    file = folder / f"{source.name.replace('/', '-')}{Path(source.url).suffix}"
    if file.exists() and (not source.sha256 or _sha256(file) == source.sha256):
        return file
    folder.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(file.name + ".incomplete")
    by_hand = f"fetch {source.url} by hand and name the file with --source"
    try:
        with urllib.request.urlopen(source.url, timeout=30) as page, open(temporary, "wb") as out:
            size = int(page.headers.get("Content-Length") or 0)
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=source.name, disable=None) as bar:
                while block := page.read(1 << 16):
                    out.write(block)
                    bar.update(len(block))
        if size and temporary.stat().st_size != size:
            refuse(f"the download of {source.name} ended early: run this again, or {by_hand}")
    except (OSError, http.client.HTTPException) as error:  # urllib's errors are OSErrors
        why = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        refuse(f"{source.name} cannot be downloaded ({why}): {by_hand}")
    if source.sha256 and _sha256(temporary) != source.sha256:
        temporary.unlink()
        refuse(f"{source.url} is not the file that this was made for (its SHA-256 differs): {by_hand} if you trust it")
    os.replace(temporary, file)
    return file


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main(arguments: list[str] | None, description: str, folder: Path, sources: dict[str, Source]):
    """The command of a set that is converted file by file: OUT/NAME.jsonl for each of `sources`."""
    parser = argparse.ArgumentParser("prepare.py", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    named = len(sources) > 1
    parser.add_argument("--source", action="append", default=[], metavar="NAME=FILE" if named else "FILE",
                        help="a copy that is here already, JSONL or parquet (default: download)"
                        + (f"; NAME is one of {', '.join(sources)}, and only those given are made" if named else ""))
    parser.add_argument("--out", type=Path, default=folder, help=f"directory ({folder.parent.name}/{folder.name})")
    parser.add_argument("--force", action="store_true", help="replace files whose content differs")
    args = parser.parse_args(arguments)
    given = dict(text.partition("=")[::2] if named else (next(iter(sources)), text) for text in args.source)
    for name in given:
        if name not in sources or not given[name]:
            refuse(f"--source {name} is not NAME=FILE with a name among {', '.join(sources)}")
    for name in given or sources:
        file = Path(given[name]) if given else download(sources[name], args.out / "download")
        write(args.out / f"{name}.jsonl", lines(layout(read(file), sources[name], str(file))), args.force)
    there = [f"{name}.jsonl" for name in sources if (args.out / f"{name}.jsonl").exists()]
    made = [f"{name}.jsonl" for name in given or sources]
    write_info(args.out, {}, made, [name for name in there if name not in made])
