"""Compares runs and checkpoints with other runs, with their own checksums, and after damage."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maxrl.models import checkpoint

TIMES = re.compile("second|memory")  # metrics that depend on the machine


def differences(expected: Path, run: Path) -> list[str]:
    """Return what differs between a run directory and the uninterrupted run's, and `unsound`."""
    there = files(expected)
    here = files(run)
    found = [f"{name} is missing" for name in sorted(there - here)]
    found += [f"{name} is left over" for name in sorted(here - there)]
    for name in sorted(there & here):
        a = comparable(expected / name)
        b = comparable(run / name)
        if Path(name).name == "metrics.jsonl":
            found += different_metrics(a, b)
        elif a != b:
            found.append(f"{name} differs")
    return found + unsound(run)


def files(directory: Path) -> set[str]:
    return {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}


def comparable(file: Path) -> Any:
    """Return what a file holds without what is different in every start of a run.

    That is some keys of recipe.json, and the checksums of recipe.json and of metrics.jsonl, which
    holds times.
    """
    if file.name == "metrics.jsonl":
        return [json.loads(line) for line in file.read_text().splitlines()]
    if file.name not in ("recipe.json", "checksums.json"):
        return file.read_bytes()
    content = json.loads(file.read_text())
    other = {"step", "earlier", "recipe.json", "metrics.jsonl"}
    return [(key, repr(value)) for key, value in content.items() if Path(key).name not in other]


def different_metrics(expected: list[dict], found: list[dict]) -> list[str]:
    """Return the metrics that differ between two files, except times and memory."""
    if len(found) != len(expected):
        return [f"metrics.jsonl has {len(found)} lines, not {len(expected)}"]
    wrong = []
    for number, (a, b) in enumerate(zip(expected, found)):
        if list(a) != list(b):
            wrong.append(f"metrics.jsonl, line {number}: other names, {sorted(set(a) ^ set(b))}")
        for name in a.keys() & b.keys():
            if not TIMES.search(name) and repr(a[name]) != repr(b[name]):
                wrong.append(f"metrics.jsonl, step {a['step']}: {name} is {b[name]}, not {a[name]}")
    return wrong


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


def damages(whole: bytes, rng: random.Random, cuts=20, flips=100) -> Iterator[tuple[str, bytes]]:
    """Yield what was done and the bytes after it, for `cuts` shorter files and `flips` bits."""
    for i in range(cuts):
        size = min(len(whole) * i // (cuts - 1), len(whole) - 1)
        yield f"cut to {size} of {len(whole)} bytes", whole[:size]
    for _ in range(flips):
        bit = rng.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit} flipped", bytes(flipped)


def unnoticed(path: Path, rng: random.Random, cuts=20, flips=100) -> tuple[int, list[str]]:
    """Damage each file of a checkpoint in turn, then remove it.

    Returns how many damages there were, and those that `checkpoint.first_problem` missed or blamed
    on another file. For checksums.json, which names the others, any sentence will do.
    """
    tried = 0
    missed = []

    def judge(name: str, what: str):
        nonlocal tried
        tried += 1
        said = checkpoint.first_problem(path)
        if not said or (name not in said and name != "checksums.json"):
            missed.append(f"{name} {what}: {said or 'not noticed'}")

    for name in sorted(files(path)):
        file = path / name
        whole = file.read_bytes()
        for what, left in damages(whole, rng, cuts, flips):
            file.write_bytes(left)
            judge(name, what)
        file.unlink()
        judge(name, "taken away")
        file.write_bytes(whole)
        if said := checkpoint.first_problem(path):
            missed.append(f"{name} is whole again: {said}")
    return tried, missed
