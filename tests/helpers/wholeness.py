"""Compares runs and checkpoints with other runs, with their own checksums, and after damage."""

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from maxrl import checkpoint

TIMES = re.compile("second|memory")  # metrics that depend on the machine


def differences(expected: Path, run: Path) -> list[str]:
    """Return what differs between a run directory and the uninterrupted run's, and `unsound`."""
    files = [{str(f.relative_to(d)) for f in d.rglob("*") if f.is_file()} for d in (expected, run)]
    found = [f"{name} is missing" for name in sorted(files[0] - files[1])]
    found += [f"{name} is left over" for name in sorted(files[1] - files[0])]
    for name in sorted(files[0] & files[1]):
        a, b = (comparable(directory / name) for directory in (expected, run))
        if Path(name).name == "metrics.jsonl":
            found += different_metrics(a.decode(), b.decode())
        elif a != b:
            found.append(f"{name} differs")
    return found + unsound(run)


def comparable(file: Path) -> bytes:
    """Return a file's bytes without what is different in every start of a run.

    That is some keys of recipe.json, and the checksums of recipe.json and of metrics.jsonl, which
    holds times.
    """
    if file.name not in ("recipe.json", "checksums.json"):
        return file.read_bytes()
    content = json.loads(file.read_text())
    kept = {}
    for key, value in content.items():
        if Path(key).name not in ("step", "earlier", "date", "recipe.json", "metrics.jsonl"):
            kept[key] = value
    return json.dumps(kept).encode()


def different_metrics(a: str, b: str) -> list[str]:
    """Return the metrics that differ between two files, except times and memory."""
    found = []
    rows = [[json.loads(line) for line in text.splitlines()] for text in (a, b)]
    for number, (x, y) in enumerate(itertools.zip_longest(*rows)):
        if x is None or y is None:
            return [*found, f"metrics.jsonl has {len(rows[1])} lines, not {len(rows[0])}"]
        if list(x) != list(y):
            found.append(f"metrics.jsonl, line {number}: other names, {sorted(set(x) ^ set(y))}")
        for name in x:
            if name in y and not TIMES.search(name) and repr(x[name]) != repr(y[name]):
                found.append(f"metrics.jsonl, step {x['step']}: {name} is {y[name]}, not {x[name]}")
    return found


def unsound(run: Path) -> list[str]:
    """Return what a run directory must never have, whenever the run was killed.

    That is an incomplete checkpoint, or the name of one in `latest`.
    """
    found = []
    for path in run.glob("step-*"):
        if path.name[5:].isdigit() and (said := checkpoint.first_problem(path)):
            found.append(said)
    latest = run / "latest"
    if latest.exists() and not (run / latest.read_text().strip() / "checksums.json").exists():
        found.append(f"latest names {latest.read_text()!r}, and no such checkpoint is there")
    return found


def damages(
    whole: bytes, rng: random.Random, cuts: int = 20, flips: int = 100
) -> Iterator[tuple[str, bytes]]:
    """Yield what was done and the bytes after it, for `cuts` shorter files and `flips` bits."""
    for i in range(cuts):
        size = min(len(whole) * i // (cuts - 1), len(whole) - 1)
        yield f"cut to {size} of {len(whole)} bytes", whole[:size]
    for _ in range(flips):
        bit = rng.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit} flipped", bytes(flipped)


def unnoticed(
    path: Path, rng: random.Random, cuts: int = 20, flips: int = 100
) -> tuple[int, list[str]]:
    """Damage each file of a checkpoint in turn, then remove it.

    Returns how many damages there were, and those that `checkpoint.first_problem` missed or blamed
    on another file. For checksums.json, which names the others, any sentence will do.
    """
    tried = 0
    missed = []
    for file in sorted(f for f in path.rglob("*") if f.is_file()):
        whole = file.read_bytes()
        name = str(file.relative_to(path))
        for what, left in [*damages(whole, rng, cuts, flips), ("taken away", None)]:
            if left is None:
                file.unlink()
            else:
                file.write_bytes(left)
            said = checkpoint.first_problem(path)
            tried += 1
            if not said or (name not in said and name != "checksums.json"):
                missed.append(f"{name} {what}: {said or 'not noticed'}")
        file.write_bytes(whole)
        if said := checkpoint.first_problem(path):
            missed.append(f"{name} is whole again: {said}")
    return tried, missed
