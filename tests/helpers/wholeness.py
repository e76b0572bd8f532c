"""What torture.py and the tests hold runs and checkpoints against: the files of another run, their own checksums, damage."""

import itertools
import json
import random
import re
from pathlib import Path

from maxrl import checkpoint

TIMES = re.compile("second|memory")  # metrics that depend on the machine


def differences(expected: Path, run: Path) -> list[str]:
    """What in a run directory is not as in the uninterrupted run's: file, and step and metric or place."""
    files = [{str(f.relative_to(d)) for f in d.rglob("*") if f.is_file()} for d in (expected, run)]
    found = [f"{name} is missing" for name in sorted(files[0] - files[1])]
    found += [f"{name} is left over" for name in sorted(files[1] - files[0])]
    for name in sorted(files[0] & files[1]):
        a, b = (without_starts(d / name) for d in (expected, run))
        if Path(name).name == "metrics.jsonl":
            found += different_metrics(a.decode(), b.decode())
        elif a != b:
            place = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            found.append(f"{name} differs from byte {place} of {len(a)} on ({len(b)} here)")
    return found + unsound(run)


def without_starts(file: Path) -> bytes:
    """A file's bytes; those of a recipe.json without what it says of this start of the run and of earlier ones, and those of
    a checksums.json without the sums of these files and of metrics.jsonl, which holds times."""
    if file.name == "recipe.json":
        return json.dumps(
            {k: v for k, v in json.loads(file.read_text()).items() if k not in ("step", "earlier")}
        ).encode()
    if file.name == "checksums.json":
        sums = json.loads(file.read_text()).items()
        return json.dumps(
            {k: v for k, v in sums if Path(k).name not in ("recipe.json", "metrics.jsonl")}
        ).encode()
    return file.read_bytes()


def different_metrics(a: str, b: str) -> list[str]:
    found, rows = [], [[json.loads(line) for line in text.splitlines()] for text in (a, b)]
    for number, (x, y) in enumerate(itertools.zip_longest(*rows)):
        if x is None or y is None:
            return [*found, f"metrics.jsonl has {len(rows[1])} lines, not {len(rows[0])}"]
        if list(x) != list(y):
            found.append(f"metrics.jsonl, line {number}: other names, {sorted(set(x) ^ set(y))}")
        found += [
            f"metrics.jsonl, step {x['step']}: {name} is {y[name]!r}, not {x[name]!r}"
            for name in x
            if name in y and not TIMES.search(name) and repr(x[name]) != repr(y[name])
        ]
    return found


def unsound(run: Path) -> list[str]:
    """What must never be seen, whenever a run was killed: a checkpoint that is not whole, a name in `latest` of none."""
    found = [
        said
        for path in run.glob("step-*")
        if path.name[5:].isdigit() and (said := checkpoint.first_problem(path))
    ]
    latest = run / "latest"
    if latest.exists() and not (run / latest.read_text().strip() / "checksums.json").exists():
        found.append(f"latest names {latest.read_text()!r}, and no such checkpoint is there")
    return found


def damages(whole: bytes, rng: random.Random, cuts: int = 20, flips: int = 100):
    """(what was done, the bytes after it): a file cut at so many places, from all of it to its last byte, and so many times one
    bit of it turned."""
    for i in range(cuts):
        size = min(len(whole) * i // (cuts - 1), len(whole) - 1)
        yield f"cut to {size} of {len(whole)} bytes", whole[:size]
    for _ in range(flips):
        bit = rng.randrange(8 * len(whole))
        turned = bytearray(whole)
        turned[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit} turned", bytes(turned)


def unnoticed(
    path: Path, rng: random.Random, cuts: int = 20, flips: int = 100
) -> tuple[int, list[str]]:
    """Damages each file of a whole checkpoint in turn, then takes it away: how many damages there were, and which
    `checkpoint.damage` missed or blamed on another file (for checksums.json, which names the others, any sentence will do)."""
    tried, missed = 0, []
    for file in sorted(f for f in path.rglob("*") if f.is_file()):
        whole, name = file.read_bytes(), str(file.relative_to(path))
        for what, left in [*damages(whole, rng, cuts, flips), ("taken away", None)]:
            file.unlink() if left is None else file.write_bytes(left)
            said = checkpoint.first_problem(path)
            tried += 1
            if not said or name not in said and name != "checksums.json":
                missed.append(f"{name} {what}: {said or 'not noticed'}")
        file.write_bytes(whole)
        if said := checkpoint.first_problem(path):
            missed.append(f"{name} is whole again: {said}")
    return tried, missed
