"""Which small mutations of the method do the tests notice? Long, and not part of `make test`.

    python -m tests.repository.mutations runs/before.json                       draw and try
    python -m tests.repository.mutations runs/after.json --of runs/before.json  the same once more
    python -m tests.repository.mutations runs/gpu.json --of tests/gpu/mutations.json  those of a GPU

In a copy of the tree one operator, comparison, constant, condition or statement at a time is
changed, and the tests that cover the file run until the first one fails. A mutation is kept as
text: the name of a function, some of its lines, and what takes their place. So it is found again
after the file has changed or moved, or else counted as gone. A run that was stopped goes on where
it was. Annotations, texts, assertions, messages of errors and `__repr__` are not mutated.
"""

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

LIMIT = 600  # seconds of the tests of one mutation, which may never end
TESTS = {  # what covers each file, the quickest first
    "maxrl/advantages/formulas.py": "proofs",
    "maxrl/advantages/registry.py": "proofs tasks/test_own_data tasks/test_refused",
    "maxrl/advantages/weights.py": "proofs",
    "maxrl/analysis/metrics.py": "proofs/test_metrics runs/test_eval runs/test_train",
    "maxrl/learning/losses.py": "proofs learning/test_objective learning/test_packing"
    " learning/test_policy",
    "maxrl/sampling/rollouts.py": "proofs learning/test_objective learning/test_packing"
    " learning/test_policy tasks/test_rewards",
    "maxrl/learning/packing.py": "learning/test_packing learning/test_objective "
    "learning/test_policy proofs",
    "maxrl/learning/rounds.py": "proofs/test_rounds runs/test_in_rounds",
    "maxrl/sampling/drawing.py": "learning/test_sampler learning/test_decode_step",
    "maxrl/sampling/sampler.py": "learning/test_sampler learning/test_decode_step"
    " learning/test_memory proofs/test_rounds learning/test_policy",
}
OPERATORS = "Lt-LtE Gt-GtE Eq-NotEq Is-IsNot In-NotIn Add-Sub Mult-Div BitAnd-BitOr And-Or"
NAMES = "any-all min-max ones_like-zeros_like argmin-argmax"
SWAPS = {"Pow": "Mult", "FloorDiv": "Mult", "Mod": "Mult"}
for pair in f"{OPERATORS} {NAMES}".split():
    one, other = pair.split("-")
    SWAPS |= {one: other, other: one}


def swapped(operator: ast.AST) -> ast.AST | None:
    """Return the operator that takes the place of another, None if none does."""
    name = SWAPS.get(type(operator).__name__)
    return getattr(ast, name)() if name else None


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the part of a node that a mutation changes, and the text that takes its place."""

    def other(**values) -> tuple[ast.AST, str]:
        changed = copy.copy(node)
        vars(changed).update(values)
        return node, f"({ast.unparse(changed)})"

    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
            yield test, "False"
            yield test, "True"
        case ast.Raise() | ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield node, "pass"
        case ast.Assign(targets=[target], value=value):
            # Without the first assignment of a name every test fails.
            if re.search(rf"(?<![.\w]){re.escape(ast.unparse(target))}\b", ast.unparse(value)):
                yield node, "pass"
        case ast.Compare(ops=[op]) if swapped(op):
            yield other(ops=[swapped(op)])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if swapped(op):
            yield other(op=swapped(op))
        case ast.UnaryOp(operand=operand):
            yield node, ast.unparse(operand)
        case ast.Attribute(attr=name) if name in SWAPS:
            yield other(attr=SWAPS[name])
        case ast.Name(id=name) if name in SWAPS:
            yield node, SWAPS[name]
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int(value)):
            yield node, str(value + 1)
            yield node, str(value - 1)
        case ast.Constant(value=float(value)):
            yield node, str(2 * value or 1.0)


def sites(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.AST, str]]:
    """Yield every change under a node, with the name of the function that it is in."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        function = f"{function}.{node.name}".lstrip(".")
        if node.name == "__repr__":
            return
    for part, text in changes(node):
        yield function, part, text
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
        return
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in ("annotation", "returns"):
                yield from sites(child, function)


def cleaned(lines: list[str]) -> list[str]:
    """Lines without indentation and comments."""
    return [line.split("  #")[0].strip() for line in lines]


def possible(file: str, text: str) -> Iterator[dict]:
    """Yield every mutation of a file."""
    lines = text.splitlines()
    for function, part, new in sites(ast.parse(text)):
        first = part.lineno - 1
        last = part.end_lineno - 1
        after = lines[first][: part.col_offset] + new + lines[last][part.end_col_offset :]
        mutation = {
            "file": file,
            "line": first + 1,
            "function": function,
            "before": cleaned(lines[first : last + 1]),
            "after": cleaned([after])[0],
            "change": f"{ast.get_source_segment(text, part)} -> {new}",
        }
        mutation["occurrence"] = len([line for line in places(text, mutation) if line < first])
        yield mutation


def drawn(root: Path, count: int, seed: int) -> list[dict]:
    """Draw mutations of the files in TESTS, as many of each as it has places for them."""
    choices = random.Random(seed)
    found = {}
    for file in TESTS:
        by_line: dict[int, list] = {}
        for mutation in possible(file, (root / file).read_text()):
            by_line.setdefault(mutation["line"], []).append(mutation)
        # At most one of a line, so that they lie all over the file.
        found[file] = [choices.choice(some) for some in by_line.values()]
    total = sum(map(len, found.values()))
    chosen = []
    for some in found.values():
        chosen += choices.sample(some, min(len(some), round(count * len(some) / total)))
    return chosen


def spans(text: str, name: str) -> Iterator[tuple[int, int]]:
    """Yield the lines, from one to before another, of all functions of a name; "" is the file."""
    if not name:
        yield 0, len(text.splitlines())
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            yield min(part.lineno for part in [*node.decorator_list, node]) - 1, node.end_lineno


def places(text: str, mutation: dict) -> list[int]:
    """Where the lines of a mutation stand in functions of its function's name."""
    lines = cleaned(text.splitlines())
    before = mutation["before"]
    found = set()
    for first, last in spans(text, mutation["function"].split(".")[-1]):
        for i in range(first, last - len(before) + 1):
            if lines[i : i + len(before)] == before:
                found.add(i)
    return sorted(found)


def applied(root: Path, mutation: dict) -> tuple[Path, str] | None:
    """Return the file that a mutation changes and its new text; None if its lines are gone."""
    for path in [root / mutation["file"], *sorted(root.glob("maxrl/**/*.py"))]:
        text = path.read_text() if path.exists() else ""
        found = places(text, mutation)[mutation["occurrence"] :]
        if found:
            lines = text.splitlines()
            indent = re.match(" *", lines[found[0]])[0]
            end = found[0] + len(mutation["before"])
            lines[found[0] : end] = [indent + mutation["after"]]
            return path, "\n".join(lines) + "\n"
    return None


def killed_by(root: Path, tests: str) -> str:
    """Run tests; return the first that failed, "" if none did."""
    files = [f"tests/{name}" if "/" not in name else f"tests/{name}.py" for name in tests.split()]
    command = [sys.executable, "-m", "pytest", "-x", "--tb=no", "-p", "no:cacheprovider", *files]
    options = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, cwd=root, **options)
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "the limit of time"
    if process.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", said, re.M)
    # Without conftest.py pytest names no test.
    return failed[1] if failed else said.strip().splitlines()[-1]


def tests_of(mutation: dict) -> str:
    """What covers a mutation: the tests that it names itself, or those of its file."""
    return mutation.get("tests") or TESTS[mutation["file"]]


def tried(root: Path, mutation: dict) -> str:
    """Return what notices a mutation: a test, or that it is gone, or has survived."""
    found = applied(root, mutation)
    if not found:
        return "gone"
    path, text = found
    original = path.read_text()
    path.write_text(text)
    killer = killed_by(root, tests_of(mutation))
    path.write_text(original)
    return killer or "survived"


def copied(root: Path):
    """Copy the tree, without what git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for file in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if (ROOT / file).exists():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, root / file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--of", type=Path, help="try the mutations of this file")
    parser.add_argument("--count", type=int, default=125)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.out.exists():
        mutations = json.loads(args.out.read_text())
    elif args.of:
        mutations = json.loads(args.of.read_text())
        for mutation in mutations:
            mutation.pop("by", None)
    else:
        mutations = drawn(ROOT, args.count, args.seed)
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        copied(root)
        for tests in {tests_of(mutation): None for mutation in mutations}:
            failed = killed_by(root, tests)
            assert not failed, f"{failed} fails without a mutation"
        for mutation in mutations:
            if "by" not in mutation:
                start = time.monotonic()
                mutation["by"] = tried(root, mutation)
                mutation["seconds"] = round(time.monotonic() - start)
                args.out.write_text(json.dumps(mutations, indent=1))
    print("| file | line | mutation | killed by | s |\n|---|---|---|---|---|")
    for mutation in mutations:
        change = " ".join(mutation["change"].replace("|", "\\|").split())
        row = [mutation["file"], mutation.get("line"), f"`{change}`", mutation["by"]]
        print("|", " | ".join(map(str, [*row, mutation["seconds"]])), "|")


if __name__ == "__main__":
    main()
